# SPDX-License-Identifier: Apache-2.0
"""Catching up with rounds that are gone: the state of a rank that has applied them.

Only where a rank may lose rounds (``deliver="all"``). It asks its peers for a state of a version at
least that of the first result it was given, loads it, and applies what follows. Peers look for
questions before each deposit and while they wait; nobody waits for the one who asks.

Why somebody can always answer. A rank arrives at round t only when it has seen all rounds before t
and made up for those it has lost, so whoever started round t has version t or more, and versions
do not fall. The one exception are ranks that join: each may start one round, whatever it has seen.
`history` is therefore raised to one more than the number of ranks (`room_for_joins`): so many
rounds cannot push out one that the rank of the highest version still has to apply. In a join nobody
asks: who has lost rounds there waits for the end, when all have the same last round, and takes the
state of one that has it (`settle`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import numpy as np

from .._core import finalize, program_end, waiting
from .._core.mpi import MPI
from .._core.settings import logger, stall_warning
from ..round import Result
from .state_exchange import StateExchange


def room_for_joins(options: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The options of a handle, with a history that suffices; see the module."""
    if options.get("deliver") != "all":
        return options
    return {**options, "history": max(options["history"], ranks + 1)}


class Replica(NamedTuple):
    """How to take the state that belongs to a rank's version, see `checkpoint.capture`, and how to
    make such a state this rank's."""

    capture: Callable[[], Any]
    restore: Callable[[Any], None]


class Resync:
    """Asks for states and serves them, for one optimizer. Collective to make and to end.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    version : callable
        Rounds that this rank has seen.
    replica : Replica
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        version: Callable[[], int],
        replica: Replica,
    ) -> None:
        self._comm = comm.Dup()
        self._exchange = StateExchange(comm)
        self._version, self._replica = version, replica
        self._rank, self._size = comm.rank, comm.size
        self._ended = False
        program_end.watch()
        finalize.at_end(self._end_with_the_program)

    def serve(self) -> bool:
        """Answer whoever asks, if this rank's version will do; True if answers are under way."""
        return self._exchange.serve(self._version(), self._replica.capture)

    def ask(self, least: int, results: Iterable[Result]) -> None:
        """Take the state of a peer, of version `least` or later. Waits until there is one; says
        so from time to time. `results`: of the rounds just delivered, whose ranks come first."""
        self._take(self._likely(results), least)

    def _take(self, peers: list[int], least: int) -> None:
        while True:
            try:
                _, state = self._exchange.ask(peers, least_round=least, timeout=stall_warning())
                break
            except TimeoutError as still:
                logger.warning(
                    "version %d, lost rounds before %d: %s", self._version(), least, still
                )
        self._replica.restore(state)

    def _likely(self, results: Iterable[Result]) -> list[int]:
        """All peers; first those who arrived at the newest rounds, who are up to date."""
        around = [(self._rank + i) % self._size for i in range(1, self._size)]
        order: dict[int, None] = {}
        for result in reversed(list(results)):
            arrived = result.mask & ~result.stored_mask
            order.update(dict.fromkeys(peer for peer in around if arrived[peer]))
        return list(dict.fromkeys([*order, *around]))

    def settle(self, target: int) -> int:
        """All ranks have joined at version `target`: those that are behind take the state of one
        that is not. Collective; the number of rounds that no rank has applied, 0 if all is well."""
        versions = np.empty(self._size, np.int64)
        own = np.array([self._version()])
        self._attend(self._comm.Iallgather(own, versions))
        newest = int(versions.max())
        if int(versions.min()) < newest:
            if own[0] < newest:
                self._take([int(np.argmax(versions))], newest)
            self._attend(self._comm.Ibarrier())
        return target - newest

    def _attend(self, request: MPI.Request, what: str | None = None) -> None:
        """Wait for all ranks, and serve meanwhile."""
        begin = warned = time.monotonic()

        def patient() -> bool:
            nonlocal warned
            waiting.look()
            now = time.monotonic()
            if what is not None and now - warned >= stall_warning():
                logger.warning(
                    "waiting for %.1f s in %s: not all ranks have come", now - begin, what
                )
                warned = now
            return self.serve()

        waiting.until(request.Test, patient)

    def end(self, what: str = "close") -> None:
        """When nobody can ask any more. Collective; idempotent."""
        if self._ended:
            return
        self._ended = True
        finalize.not_at_end(self._end_with_the_program)
        self._attend(self._comm.Ibarrier(), what)
        self._exchange.Free()
        self._comm.Free()

    def _end_with_the_program(self) -> None:
        """A rank whose program is over still has a state that others may need; not one that an
        exception has ended, whose job is to be aborted."""
        if not MPI.Is_finalized() and program_end.failure() is None:
            self.end("the program's end")
