# SPDX-License-Identifier: Apache-2.0
"""One rank of a job in which ranks are killed: a loop over a handle, with a log of each call."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import partialcoll as pc
from partialcoll import elastic
from partialcoll._core.ffi import check, ffi, lib

from ...._core.mpi import MPI
from .killing import DEPOSIT, END, GROWN, LOST, OUTAGE, ROUND, Life, Log, LogRecord, lives, tell_pid


class FaultWorker:
    """A rank whose deposits name their rank and call: element r of a result counts the deposits of
    rank r in it, element ranks + r adds up their calls, and the other elements follow from both."""

    def __init__(self, comm: MPI.Intracomm, given: dict[str, Any], new: bool) -> None:
        began = time.monotonic_ns()
        self.given, self.folder = given, str(given["folder"])
        self.ranks = ranks = int(given["ranks"])
        count = max(2 * ranks, int(given["count"]))
        self.send, self.recv = np.zeros(count), np.zeros(count)
        self.handle = pc.Allreduce_init(
            comm,
            self.send,
            self.recv,
            quorum=given["quorum"],
            domain=given["domain"],
            algorithm=given["algorithm"],
            deliver=given["deliver"],
            on_failure="continue",
            on_membership=self.note_growth,
            join=new,
        )
        self.rank = self.handle.rank
        self.life = Life(self.rank, len(lives(Path(self.folder), "log", self.rank)))
        self.log = Log(self.folder, self.life)
        self.random = random.Random(f"{given['seed']}-{self.life}")
        self.think = float(given["think"]) * self.random.uniform(0.5, 2.5)  # some are slower
        self.send[2 * ranks :] = self.rank + 1
        self.send[self.rank] = 1
        self.calls = 0
        self.last = -1  # the round that this rank was given last
        self.outages = 0
        self.joined = [self.rank] if new else []
        if new:
            self.note_grown(began)

    def note_growth(self, handle: Any, failed: list[int], joined: list[int]) -> None:
        self.joined = joined

    def note_grown(self, began: int) -> None:
        last, now = self.handle.last_round, time.monotonic_ns()
        index = -1 if last is None else last.index
        who = sum(1 << rank for rank in self.joined)
        self.log.write(LogRecord(GROWN, now, index + 1, (began, who, 0)))
        self.outages, self.last = 0, index
        if last is not None and self.calls == 0:
            self.saw(last)

    def grow(self) -> None:
        began = time.monotonic_ns()
        command = [sys.executable, "-m", __spec__.name, json.dumps(self.given)]
        while True:
            try:
                self.handle.grow(elastic.respawn(self.handle.comm, command, to=self.ranks))
            except pc.RankFailedError:
                time.sleep(0.02)  # until the handle's communicator has live ranks only
            else:
                break
        self.note_grown(began)

    def step(self) -> None:
        self.calls += 1
        self.send[self.ranks + self.rank] = self.calls
        self.log.write(LogRecord(DEPOSIT, time.monotonic_ns(), self.calls))
        self.handle.Start()
        rnd = self.handle.Wait()
        self.saw(rnd)
        if self.given["respawn"] and rnd.failed.any():
            self.grow()
        time.sleep(self.random.expovariate(1) * self.think)

    def saw(self, rnd: pc.Round) -> None:
        """Log what a call has delivered. Rounds that this rank will never be given, since it came
        too late for them, are logged if the call tells of them."""
        n, indices = self.ranks, [each.index for each in rnd.results]
        lost = [i - before - 1 for i, before in zip(indices, [self.last, *indices])]
        told = sum(lost) == rnd.lost
        self.last = indices[-1]
        for each, missed in zip(rnd.results, lost):
            now, recv = time.monotonic_ns(), each.buffers[0]
            if missed and told:
                self.log.write(LogRecord(LOST, now, each.index, (missed, 0, 0)))
            digest = hashlib.blake2b(recv.tobytes(), digest_size=8).digest()
            mark = int.from_bytes(digest, "little")
            if not (recv[2 * n :] == np.dot(recv[:n], np.arange(1, n + 1))).all():
                print(f"rank {self.rank}: garbage in round {each.index}", file=sys.stderr)
                mark ^= self.rank + 1  # which no other rank has, even if all have the same result
            words = (_set(each.mask), _set(each.failed), mark)
            self.log.write(LogRecord(ROUND, now, each.index, words, tuple(recv[: 2 * n])))
            count, times = ffi.new("uint32_t *"), ffi.new("int64_t[2]")
            check(lib.pcoll_handle_outages(self.handle._core(), count, times, times + 1))
            if count[0] > self.outages:
                self.outages = count[0]
                self.log.write(LogRecord(OUTAGE, now, self.outages, (times[0], times[1], 0)))

    def run(self) -> None:
        while not os.path.exists(f"{self.folder}/stop"):
            self.step()
        self.handle.join(on_round=self.saw)
        self.handle.Free()
        self.log.write(LogRecord(END, time.monotonic_ns(), self.calls))


def _set(mask: Any) -> int:
    return int(sum(1 << int(rank) for rank in np.flatnonzero(mask)))


def main() -> None:
    given = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(given["limit"], exit=True)
    joined = elastic.joined()
    worker = FaultWorker(joined or MPI.COMM_WORLD, given, joined is not None)
    tell_pid(worker.folder, worker.life)
    worker.run()
    if given["at_once"]:  # Open MPI's MPI_Finalize may not return once a rank has died
        os._exit(0)


if __name__ == "__main__":
    main()
