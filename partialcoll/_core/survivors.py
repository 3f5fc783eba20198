# SPDX-License-Identifier: Apache-2.0
"""What those make who are left when ranks have died, where MPI goes on."""

from __future__ import annotations

from typing import Callable, TypeVar

from ..errors import RankFailedError
from .communicator import address
from .ffi import check, ffi, lib
from .mpi import MPI
from .rank_error import told_by
from .rank_failure import failed_ranks

T = TypeVar("T")


def goes_on() -> bool:
    """Does this job go on when a rank dies?"""
    return bool(lib.pcoll_tells_of_failures())


def living(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A communicator of those who live, in their order. Collective over them, where the job goes
    on."""
    found = MPI.Intracomm()
    all_say(comm, True)  # waits with naps, unlike what follows
    check(lib.pcoll_shrink(address(comm), ffi.cast("void *", MPI._addressof(found))))
    found.Set_errhandler(MPI.ERRORS_RETURN)
    return found


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A communicator of the same ranks. Collective; RankFailedError, on all, if one has died: MPI's
    own duplicating may never come back then."""
    if not goes_on():
        return comm.Dup()
    found = living(comm)
    if found.size < comm.size:
        found.Free()
        raise RankFailedError(failed_ranks(comm), "it was to be in a communicator")
    return found


def all_say(comm: MPI.Intracomm, yes: bool) -> bool:
    """Do all say yes, who live? The same on all of them. Collective, where the job goes on."""
    said = lib.PCOLL_OK if yes else lib.PCOLL_EFAILED
    return not lib.pcoll_all_have(address(comm), said)


def all_have(comm: MPI.Intracomm, error: BaseException | None) -> None:
    """Where the job goes on: RankFailedError, on all ranks that live, if one of them has got this
    one. Collective."""
    if goes_on() and not all_say(comm, error is None) and error is None:
        raise RankFailedError(failed_ranks(comm), "another rank has been told of a death")


def among_the_living(comm: MPI.Intracomm, make: Callable[[MPI.Intracomm], T]) -> T:
    """What is made on a duplicate of the communicator without those who have died; anew if one does
    meanwhile. Collective over those who live."""
    if not goes_on():
        return make(comm.Dup())
    while True:
        own = living(comm)
        made: T | None = None
        try:
            with told_by(own):
                made = make(own)
        except RankFailedError:
            own.Revoke()  # who waits for this rank is told
        except Exception:
            lib.pcoll_all_have(address(own), lib.PCOLL_EINVAL)
            own.Free()
            raise
        have = lib.PCOLL_EFAILED if made is None else lib.PCOLL_OK
        code = lib.pcoll_all_have(address(own), have)
        if code != lib.PCOLL_EFAILED:
            check(code)
            assert made is not None
            return made
