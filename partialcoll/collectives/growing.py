# SPDX-License-Identifier: Apache-2.0
"""A handle in which new ranks can take the numbers of dead ones."""

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
    """A handle in which new ranks can take the numbers of dead ones."""

    def grow(self, comm: MPI.Intracomm) -> None:
        """Let new ranks take the numbers of dead ones. Collective, between two rounds.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
            All live ranks, and new ranks, which create the handle on it with the same arguments and
            ``join=True``. `partialcoll.elastic.respawn` makes such a communicator. It is
            duplicated, and becomes `comm`.

        New ranks take the lowest numbers of dead ranks, in their order in `comm`; live ranks keep
        theirs. No round and no deposit of a live rank is lost: a stored deposit stays stored, and
        rounds continue to be counted. A new rank is at the same round, and its `last_round` and
        `result` are those of the last round. `on_membership` is called with the new numbers. With
        ``sendbuf=None`` read `send_buffer` again afterwards; its content is kept.

        Only this handle grows. Others that were made on the same communicator stay there.

        Raises
        ------
        StateError
            It was made with ``on_failure="raise"``, or a call is in progress.
        ValueError
            On all ranks: a live rank is not in `comm`, or more ranks join than have died.
        MismatchError
            On all ranks: the arguments of a new rank differ; the message says which and where. The
            live ranks continue as before.
        RankFailedError
            On all ranks: a rank has died meanwhile. No new rank is a member, the live ranks
            continue without the dead one, and `comm` is revoked. Grow again with another
            communicator.
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
        """Called when the handle's memory is at another address."""

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
