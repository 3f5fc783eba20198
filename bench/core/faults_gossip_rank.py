# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of `faults_gossip`: a training process with on_failure="continue", whose peers
are killed, and which writes down what it has.

Each rank begins with a vector of its own. Its updates add up to zero, so the sum of all elements
over all ranks, the mass, changes by a death only. Every note is one line, by one write, so that a
kill leaves whole lines:

- {"in": step}: a step begins.
- {"out": step, "mass": m, "most": a}: it has ended; the sum of this rank's elements, and the
  largest of them.
- {"round": i, "group": [...], "digest": d}: the last round of its group, if that was not void.
- {"end": ...}: it has come to its end; the average over all that live, and its counts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from partialcoll import decentralized
from partialcoll.collectives.resync import Replica
from partialcoll.collectives.state_exchange import StateExchange
from partialcoll.decentralized import GlobalSum
from partialcoll.errors import StateError
from partialcoll.tools.bench.faults.records import Life, Log

_MORE = 10  # communications with those who live, which each rank makes after the last death
_LIMIT_S = 60.0  # for these


class Rank:
    """This one."""

    def __init__(self, given: dict[str, Any]) -> None:
        comm = self.comm = MPI.COMM_WORLD
        self.folder, self.threaded = Path(given["folder"]), bool(given["threaded"])
        self.random = random.Random(f"{given['seed']}-{comm.rank}")
        self.think = float(given["think"])
        options = getattr(decentralized, given["options"])(on_failure="continue", **given["how"])
        options.check(comm)
        self.total = GlobalSum.over(comm, "continue")
        x = np.full(given["count"], 100.0 * comm.rank)
        setup = options.build(x, comm, learning_rate=0.1, total=self.total)
        self.process: Any = setup.process
        self.states = StateExchange(comm)
        self.process.share_state(self.states, Replica(lambda: None, lambda state: None))
        self.total.meanwhile(self.process.serve)
        (self.exchange,) = setup.owned
        self.update = np.where(np.arange(x.size) % 2, 1.0, -1.0)
        self.update[x.size - x.size % 2 :] = 0
        self.notes = os.open(
            self.folder / f"notes-{comm.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self.log = Log(str(self.folder), Life(comm.rank))
        self.steps, self.told = 0, -1

    def note(self, **what: Any) -> None:
        """Append a line."""
        os.write(self.notes, (json.dumps(what) + "\n").encode())

    def note_mass(self) -> None:
        """Between two steps, without a thread: nothing of this rank's is under way."""
        state = self.process.state_dict()
        model = state["model"]
        if "momentum" in state:
            model = (model + state["momentum"]) / 2
        self.note(out=self.steps, mass=float(model.sum()), most=float(abs(model).max()))

    def note_round(self) -> None:
        """Of a group, once."""
        last = None
        with contextlib.suppress(AttributeError, StateError):  # gossip; no round yet
            last = self.exchange.last_round
        if last is not None and last.index != self.told and not last.void:
            self.told = last.index
            result = np.ascontiguousarray(self.exchange.recv_buffer)
            digest = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
            self.note(round=last.index, group=[int(r) for r in last.group], digest=digest)

    def step(self) -> None:
        """One, and what it calls for."""
        self.steps += 1
        self.log.state("in Wait")
        self.note(**{"in": self.steps})
        self.process.apply(self.update * self.random.uniform(-1, 1))
        self.note_round()
        if not self.threaded:
            for _ in range(4):
                self.process.communicate()
            self.note_mass()
        self.log.state("computing")
        time.sleep(self.random.expovariate(1) * self.think)
        if (self.folder / f"die-{self.comm.rank}").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        """Steps until the folder says stop, more among those who live, and the end together."""
        if self.threaded:
            self.process.start()
        else:
            self.note_mass()
        while not (stop := self.folder / "stop").exists():
            self.step()
        self._go_on(len(json.loads(stop.read_text())))
        self.process.stop()
        if hasattr(self.process, "leave"):
            self.process.leave()  # its group does not wait for this rank
            self.note_round()
        self.total.meet()
        self.process.state_dict()  # takes in what the others have left here
        self.total.meet()
        mean = self.process.averaged_model()
        self.note(
            end=self.steps,
            mass=float(mean.sum()) * (self.comm.size - int(self.exchange.failed.sum())),
            digest=hashlib.blake2b(mean.tobytes(), digest_size=8).hexdigest(),
            failed=[int(rank) for rank in np.flatnonzero(self.exchange.failed)],
        )
        self.total.meanwhile(None)
        for owned in (self.process, self.states, self.exchange, self.total):
            owned.Free()

    def _go_on(self, dead: int) -> None:
        """So many have died: this rank hears of it, and communicates with the others."""
        limit = time.monotonic() + _LIMIT_S
        while self.exchange.failed.sum() < dead:
            self._one_more(limit)
        enough = self.process.stats.communications + _MORE * (self.comm.size - dead > 1)
        told = self.folder / f"enough-{self.comm.rank}"
        while len(list(self.folder.glob("enough-*"))) < self.comm.size - dead:
            self._one_more(limit)
            if self.process.stats.communications >= enough:
                told.touch()

    def _one_more(self, limit: float) -> None:
        self.step()
        if time.monotonic() > limit:
            raise TimeoutError(f"those who live do not communicate: {self.process.stats}")


def main() -> None:
    """By the experiment: its argument is a JSON text."""
    given = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(given["limit"], exit=True)
    rank = Rank(given)
    pid = Life(rank.comm.rank).path(rank.folder, "pid")
    pid.with_suffix(".new").write_text(str(os.getpid()))
    pid.with_suffix(".new").rename(pid)
    rank.run()
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(60, exit=True)  # MPI_Finalize


if __name__ == "__main__":
    main()
