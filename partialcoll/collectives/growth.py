# SPDX-License-Identifier: Apache-2.0
"""Members of handles that continue when ranks die: which deaths and which new ranks the program has
been told of, and the numbers that new ranks take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from .._core import waiting
from .._core.attendance import name_ranks
from .._core.communicator import address
from .._core.failures import alone, is_rank_failure, told
from .._core.ffi import check, ffi, lib
from .._core.mpi import MPI
from ..errors import MismatchError
from .arguments import Arguments


def _failed(handle: Any) -> set[int]:
    return {int(rank) for rank in np.flatnonzero(handle.failed)}


class Membership:
    """The dead and new ranks of which the program has been told, the communicator of the live
    ranks, and the arguments with which those of new ranks are compared."""

    def __init__(
        self,
        handle: Any,
        comm: MPI.Intracomm,
        told: Callable[..., object] | None,
        arguments: Arguments,
    ) -> None:
        self._told = told
        self.arguments = arguments
        # Number of ranks that had died before the last delivered round, and number of which the
        # program knows (`known`): callers compare the two after each round.
        self.dead = handle._record.failed
        self._comm = comm
        self._know(_failed(handle))

    def look(self, handle: Any) -> None:
        """Tell the program of dead ranks that it does not know yet. Call it when `handle` has
        delivered a round with other dead ranks than before."""
        failed = _failed(handle)
        new = sorted(failed - self._known)
        self._know(failed)
        if self._told is not None and new:
            self._told(handle, new, [])

    def grown(self, handle: Any, comm: MPI.Intracomm, joined: list[int]) -> None:
        """Note that `handle` is on this communicator now, with these new ranks."""
        failed, self._comm = _failed(handle), comm
        new = sorted((failed | set(joined)) - self._known)
        self._know(failed)
        if self._told is not None:
            self._told(handle, new, joined)

    def _know(self, failed: set[int]) -> None:
        self._known, self.known = failed, len(failed)

    def comm(self, handle: Any) -> MPI.Intracomm:
        comm = MPI.Intracomm()
        place = ffi.cast("void *", MPI._addressof(comm))
        code = lib.pcoll_handle_comm(handle._core(), place)
        if code == lib.PCOLL_EEMPTY:
            return self._comm
        check(code)
        return comm


_NEW, _SURVIVOR = 0, 1
_FINE, _REFUSED, _LACKS = range(3)
_PATIENCE_S = 1.0  # a missing rank may be dead; then all ranks know it soon
_AGAIN_S = 0.01


class Own(NamedTuple):
    """This rank: its number in the handle, the number of ranks of the handle, and the handle, all
    of them unknown to a new rank. refusal: the error with which it refuses, or None."""

    number: int = -1
    ranks: int = 0
    handle: Any = None
    refusal: Exception | None = None


class Place(NamedTuple):
    """The result of `meet`: the numbers in the handle by rank of the communicator, the number of
    ranks of the handle, and the numbers of the new ranks."""

    numbers: list[int]
    ranks: int
    joined: list[int]


def meet(comm: MPI.Intracomm, own: Own) -> Place:
    """Exchange the members of a growth. Collective. If it raises on one rank, all raise."""
    try:
        return _meet(comm, own)
    except Exception as error:
        died = is_rank_failure(error)
        if died:
            comm.Revoke()  # other ranks may wait for this one
        lib.pcoll_growth_refuse(address(comm))
        if died:
            raise told(error, comm) from error
        raise


def _meet(comm: MPI.Intracomm, own: Own) -> Place:
    kind = _NEW if own.handle is None else _SURVIVOR
    code = _REFUSED if own.refusal is not None else _FINE
    rows = _exchange(comm, (kind, own.number, own.ranks, code))
    if own.refusal is not None:
        raise own.refusal
    refused = [rank for rank, row in enumerate(rows) if row[3] == _REFUSED]
    if refused:
        raise MismatchError(
            f"{name_ranks(refused)} of comm cannot take part in this growth, and said there why"
        )
    place = _place(rows)
    limit = time.monotonic() + _PATIENCE_S
    while True:
        missing: set[int] = set()  # live ranks that are not in comm, as far as this rank knows
        if own.handle is not None:
            living = {int(rank) for rank in np.flatnonzero(~own.handle.failed)}
            missing = living - (set(place.numbers) - set(place.joined))
        late = time.monotonic() > limit
        rows = _exchange(comm, (_LACKS if missing else _FINE, min(missing, default=-1), late, 0))
        lacking = [row for row in rows if row[0] == _LACKS]
        if not lacking:
            return place
        if any(row[2] for row in rows):
            raise ValueError(
                f"comm: expected all ranks of the handle that live, rank {lacking[0][1]} is not in "
                "it"
            )
        time.sleep(_AGAIN_S)


def _exchange(comm: MPI.Intracomm, row: tuple[int, ...]) -> list[tuple[int, ...]]:
    own, rows = np.array(row, np.int64), np.zeros((comm.size, len(row)), np.int64)
    request = comm.Iallgather(own, rows)
    waiting.until(lambda: alone(request.Test), waiting.look)
    return [tuple(map(int, each)) for each in rows]


def _place(rows: Sequence[tuple[int, ...]]) -> Place:
    survivors = [row for row in rows if row[0] == _SURVIVOR]
    if not survivors:
        raise ValueError("join: expected a comm with ranks whose handle grows, there is none in it")
    sizes = {row[2] for row in survivors}
    taken = [row[1] for row in survivors]
    if len(sizes) > 1 or len(set(taken)) < len(taken):
        raise MismatchError("grow: the ranks of comm have different handles")
    ranks = sizes.pop()
    free = iter(sorted(set(range(ranks)) - set(taken)))
    numbers = [row[1] if row[0] == _SURVIVOR else next(free, -1) for row in rows]
    if -1 in numbers:
        raise ValueError(
            f"comm: {len(rows) - len(taken)} ranks are to join, and only {ranks - len(taken)} of "
            f"{ranks} have died"
        )
    joined = [number for number, row in zip(numbers, rows) if row[0] == _NEW]
    return Place(numbers, ranks, joined)
