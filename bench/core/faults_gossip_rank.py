# SPDX-License-Identifier: Apache-2.0
"""Run one rank of a job of `faults_gossip`: a training process with on_failure="continue", whose
peers are killed, and which writes notes about its state.

Each rank begins with a different vector. The elements of an update add up to zero, so only a death
changes the sum of all elements over all ranks, the mass. Every note is one line, written by one
call, so that a kill leaves whole lines:

- {"in": step}: a step begins.
- {"out": step, "mass": m, "most": a, "resyncs": n}: the step has ended. The sum of this rank's
  elements, the largest absolute value of an element, and how often the rank took the model of
  another one because it had been stopped for long.
- {"round": i, "group": [...], "digest": d}: the last round of the rank's group, unless it was void.
- {"end": ...}: the rank has reached its end. The average over all surviving ranks, and its counts.
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
from partialcoll.tools.bench.faults.killing import Life, tell_pid

_MORE = 10  # communications with those who live, which each rank makes after the last death
_LIMIT_S = 60.0  # for these communications


class Rank:
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
        self.steps, self.told = 0, -1

    def note(self, **what: Any) -> None:
        os.write(self.notes, (json.dumps(what) + "\n").encode())

    def note_mass(self) -> None:
        """Note the mass between two steps; nothing is under way then without a thread."""
        state = self.process.state_dict()
        model = state["model"]
        if "momentum" in state:
            model = (model + state["momentum"]) / 2
        mass, most = float(model.sum()), float(abs(model).max())
        self.note(out=self.steps, mass=mass, most=most, resyncs=self.process.stats.resyncs)

    def note_round(self) -> None:
        last = None
        # A gossip buffer has no rounds; a group may not have had one yet.
        with contextlib.suppress(AttributeError, StateError):
            last = self.exchange.last_round
        if last is not None and last.index != self.told and not last.void:
            self.told = last.index
            result = np.ascontiguousarray(self.exchange.recv_buffer)
            digest = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
            self.note(round=last.index, group=[int(r) for r in last.group], digest=digest)

    def step(self) -> None:
        self.steps += 1
        self.note(**{"in": self.steps})
        self.process.apply(self.update * self.random.uniform(-1, 1))
        self.note_round()
        if not self.threaded:
            for _ in range(4):
                self.process.communicate()
            self.note_mass()
        time.sleep(self.random.expovariate(1) * self.think)
        if (self.folder / f"die-{self.comm.rank}").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        """Make steps until the file `stop` exists, some more with the survivors, and end."""
        if self.threaded:
            self.process.start()
        else:
            self.note_mass()
        while not (stop := self.folder / "stop").exists():
            self.step()
        self._go_on(len(json.loads(stop.read_text())))
        self.process.stop()
        if hasattr(self.process, "leave"):
            self.process.leave()  # the group must not wait for this rank
            self.note_round()
        self.total.meet()
        self.process.state_dict()  # takes in the deltas in this rank's queue
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
        """Make steps until this rank knows of all `dead` ranks, and until all surviving ranks have
        communicated often enough since."""
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
    given = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(given["limit"], exit=True)
    rank = Rank(given)
    tell_pid(rank.folder, Life(rank.comm.rank))
    rank.run()
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(60, exit=True)  # MPI_Finalize


if __name__ == "__main__":
    main()
