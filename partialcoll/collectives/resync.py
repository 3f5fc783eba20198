# SPDX-License-Identifier: Apache-2.0
"""Replacement of lost rounds by the state of a rank that has applied them.

Used where a rank may lose rounds (``deliver="all"``). Such a rank asks its peers for a state whose
version is at least that of the first result it received, loads it, and applies the following
results. Peers look for questions before each deposit and while they wait; no rank waits for the one
that asks.

Why some rank can always answer: a rank arrives at round t only when it has seen or replaced all
rounds before t. So the rank that started round t has version t or more, and versions never
decrease. The exception are ranks that join: each may start one round, whatever it has seen.
Therefore `history` is at least the number of ranks plus one (`room_for_joins`): the rounds started
by joins cannot push out a round that the rank of the highest version still has to apply. During a
join no rank asks: a rank that has lost rounds waits for the end, when all have the same last round,
and takes the state of a rank that has applied it (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import numpy as np

from .._core import finalize, waiting
from .._core.attendance import attending
from .._core.mpi import MPI
from .._core.settings import logger, stall_warning
from ..round import Result
from .state_exchange import StateExchange


def room_for_joins(options: dict[str, Any], ranks: int) -> dict[str, Any]:
    if options.get("deliver") != "all":
        return options
    return {**options, "history": max(options["history"], ranks + 1)}


class Replica(NamedTuple):
    """`capture` returns this rank's state (see `checkpoint.capture`), `restore` loads one."""

    capture: Callable[[], Any]
    restore: Callable[[Any], None]


class Resync:
    """Asks for states and serves them, for one optimizer: those of its `replica`. `version` returns
    the number of rounds that this rank has seen. Creation and `end` are collective."""

    def __init__(self, comm: MPI.Intracomm, version: Callable[[], int], replica: Replica) -> None:
        self._comm = comm.Dup()
        self._exchange = StateExchange(comm)
        self._version, self._replica = version, replica
        self._rank, self._size = comm.rank, comm.size
        self._ended = False
        finalize.watch_program()
        finalize.at_end(self._end_with_the_program)

    def serve(self) -> bool:
        """Answer ranks for which this rank's version suffices. Return whether answers are open."""
        return self._exchange.serve(self._version(), self._replica.capture)

    def ask(self, least: int, results: Iterable[Result]) -> None:
        """Load the state of a peer, of version `least` or later. Waits until there is one, and logs
        that from time to time. `results`: the rounds just delivered; peers that arrived at the
        newest of them are asked first."""
        around = [(self._rank + i) % self._size for i in range(1, self._size)]
        order: dict[int, None] = {}
        for result in reversed(list(results)):
            arrived = result.mask & ~result.stored_mask
            order.update(dict.fromkeys(peer for peer in around if arrived[peer]))
        self._take(list(dict.fromkeys([*order, *around])), least)

    def _take(self, peers: list[int], least: int) -> None:
        while True:
            try:
                _, state = self._exchange.ask(peers, least_round=least, timeout=stall_warning())
                break
            except TimeoutError as still:
                lost = "version %d, lost rounds before %d: %s"
                logger.warning(lost, self._version(), least, still)
        self._replica.restore(state)

    def settle(self, target: int) -> int:
        """After all ranks have joined at version `target`: ranks that are behind load the state of
        one that is not. Collective. Return how many rounds no rank has applied, normally 0."""
        versions = np.empty(self._size, np.int64)
        own = np.array([self._version()])
        self._attend(self._comm.Iallgather(own, versions))
        newest = int(versions.max())
        if int(versions.min()) < newest:
            if own[0] < newest:
                self._take([int(np.argmax(versions))], newest)
            self._attend(self._comm.Ibarrier())
        return target - newest

    def _attend(self, request: MPI.Request) -> None:
        """Wait for all ranks, and serve meanwhile."""

        def patient() -> bool:
            waiting.look()
            return self.serve()

        waiting.until(request.Test, patient)

    def end(self, what: str = "close") -> None:
        """End when no rank can ask any more. Collective; idempotent."""
        if self._ended:
            return
        self._ended = True
        finalize.not_at_end(self._end_with_the_program)
        with attending(what, self._comm):
            self._attend(self._comm.Ibarrier())
        self._exchange.Free()
        self._comm.Free()

    def _end_with_the_program(self) -> None:
        """Serve other ranks at the program's end; not after an exception, which ends the job."""
        if not MPI.Is_finalized() and finalize.program_failure() is None:
            self.end("the program's end")
