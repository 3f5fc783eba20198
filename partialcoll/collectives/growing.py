# SPDX-License-Identifier: Apache-2.0
"""A handle that takes others in for ranks that have died."""

from __future__ import annotations

from typing import Callable

from .._core.attendance import Members, attending
from .._core.communicator import address
from .._core.ffi import check, ffi, lib
from .._core.mpi import MPI
from . import growth
from .arguments import Arguments
from .handle_view import HandleView


class GrowingHandle(HandleView):
    """One that goes on when ranks die can have the others' numbers taken again."""

    def grow(self, comm: MPI.Intracomm) -> None:
        """Take others in for ranks that have died. Collective, between two rounds.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
            All ranks that live, and newcomers, which make the handle on it with the same arguments
            and ``join=True``; `partialcoll.elastic.respawn` makes such a communicator. It is
            dup'ed, and becomes `comm`.

        The newcomers take the lowest numbers of dead ranks, in their order in `comm`; those who
        live keep theirs. No round and no deposit of theirs is lost: what waits for its round goes
        on waiting, and rounds are counted on. A newcomer is at the same round, and its `last_round`
        and `result` are those of the last one. `on_membership` is called with their numbers. With
        ``sendbuf=None`` take `send_buffer` anew afterwards; what was written there is still there.

        Only this handle grows: others on the communicator that it was made on stay there.

        Raises
        ------
        StateError
            It was made with ``on_failure="raise"``, or a call is under way.
        ValueError
            On all ranks: somebody who lives is not in `comm`, or more are to join than have died.
        MismatchError
            On all ranks: the arguments of a newcomer differ; says which and where. The others go
            on as before.
        RankFailedError
            On all ranks: somebody has died meanwhile. Nobody was taken in, and those who live go on
            as before, without it; `comm` is revoked. Grow again with another communicator.
        """
        place = address(comm)
        refusal: Exception | None = None
        try:
            check(lib.pcoll_handle_can_grow(self._core()))
        except Exception as error:
            refusal = error
        with attending("grow", comm):
            me = growth.Own(self._rank, self._size, self, refusal)
            found = growth.meet(comm, me)
            membership = self._membership
            assert membership is not None
            numbers = ffi.new("uint32_t[]", found.numbers)
            self._call("grow", place, numbers, *membership.arguments.for_core)
        self._members = Members.of(comm)
        self._after_growth()
        membership.grown(self, comm, found.joined)

    def _after_growth(self) -> None:
        """Its memory is elsewhere."""

    def _join(self, comm: MPI.Intracomm, check_arguments: Callable[[], Arguments]) -> Arguments:
        """Take the number of a rank that has died; the others `grow`."""
        given: Arguments | None = None
        refusal: Exception | None = None
        try:
            given = check_arguments()
            if given.options.on_failure != lib.PCOLL_FAILURE_CONTINUE:
                raise ValueError('join: expected on_failure="continue" with it')
        except Exception as error:
            refusal = error
        place = self._enter(comm)
        with attending("grow", self._members):
            found = growth.meet(comm, growth.Own(refusal=refusal))
            self._rank, self._size = found.numbers[comm.rank], found.ranks
            numbers = ffi.new("uint32_t[]", found.numbers)
            out = self._pointer
            assert given is not None
            check(lib.pcoll_allreduce_join(place, numbers, found.ranks, *given.for_core, out))
        return given
