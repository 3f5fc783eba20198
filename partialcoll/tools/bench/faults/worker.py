# SPDX-License-Identifier: Apache-2.0
"""One rank of a job in which ranks are killed: a loop over a handle that goes on, with everything
written down."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core.ffi import check, ffi, lib

from .records import DEPOSIT, END, OUTAGE, ROUND, Log, Record


class Worker:
    """Deposits name their rank and call: element r of a result counts those of rank r in it,
    element ranks + r adds up their calls, and the rest is what follows from both."""

    def __init__(self, comm: MPI.Intracomm, given: dict[str, Any]) -> None:
        self.comm, self.rank, self.ranks = comm, comm.rank, comm.size
        self.folder = str(given["folder"])
        self.log = Log(self.folder, comm.rank)
        self.random = random.Random(f"{given['seed']}-{comm.rank}")
        self.think = float(given["think"])
        count = max(2 * self.ranks, int(given["count"]))
        self.send, self.recv = np.zeros(count), np.zeros(count)
        self.send[2 * self.ranks :] = self.rank + 1
        self.send[self.rank] = 1
        self.handle = pc.Allreduce_init(
            comm,
            self.send,
            self.recv,
            quorum=given["quorum"],
            domain=given["domain"],
            algorithm=given["algorithm"],
            on_failure="continue",
        )
        self.calls = 0
        self.outages = 0

    def step(self) -> None:
        """One call."""
        self.calls += 1
        self.send[self.ranks + self.rank] = self.calls
        self.log.write(Record(DEPOSIT, time.monotonic_ns(), self.calls))
        self.log.state("in Start")
        self.handle.Start()
        self.log.state("in Wait")
        self.saw(self.handle.Wait())
        self.log.state("computing")
        time.sleep(self.random.expovariate(1) * self.think)

    def saw(self, rnd: pc.Round) -> None:
        """A round has been delivered."""
        n, recv = self.ranks, self.recv
        expected = float(np.dot(recv[:n], np.arange(1, n + 1)))
        if not (recv[2 * n :] == expected).all():
            raise SystemExit(f"rank {self.rank}: round {rnd.index} has garbage in it")
        digest = int.from_bytes(hashlib.blake2b(recv.tobytes(), digest_size=8).digest(), "little")
        words = (_set(rnd.mask), _set(rnd.failed), digest)
        now = time.monotonic_ns()
        self.log.write(Record(ROUND, now, rnd.index, words, tuple(recv[: 2 * n])))
        self.note_outage(now)

    def note_outage(self, now: int) -> None:
        """If all have gone on after a death since the last look."""
        count, times = ffi.new("uint32_t *"), ffi.new("int64_t[2]")
        check(lib.pcoll_handle_outages(self.handle._core(), count, times, times + 1))
        if count[0] != self.outages:
            self.outages = count[0]
            self.log.write(Record(OUTAGE, now, self.outages, (times[0], times[1], 0)))

    def run(self) -> None:
        """Until the folder says stop; then to the end together."""
        self.log.state("computing")
        while not os.path.exists(f"{self.folder}/stop"):
            self.step()
        self.log.state("in join")
        self.handle.join(on_round=self.saw)
        self.log.state("in Free")
        self.handle.Free()
        self.log.write(Record(END, time.monotonic_ns(), self.calls))


def _set(mask: Any) -> int:
    return int(sum(1 << int(rank) for rank in np.flatnonzero(mask)))


def main() -> None:
    """By the command: its arguments are one JSON text."""
    given = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(given["limit"], exit=True)
    moment = given["die"].get(str(MPI.COMM_WORLD.rank))
    if moment:
        os.environ["PARTIALCOLL_DIE"] = moment
    worker = Worker(MPI.COMM_WORLD, given)
    with open(f"{worker.folder}/pid-{worker.rank}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{worker.folder}/pid-{worker.rank}.new", f"{worker.folder}/pid-{worker.rank}")
    worker.run()
    os._exit(0)  # Open MPI's MPI_Finalize may not return once a rank has died


if __name__ == "__main__":
    main()
