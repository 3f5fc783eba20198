# SPDX-License-Identifier: Apache-2.0
"""What those make who are left when ranks have died, where MPI goes on."""

from __future__ import annotations

from typing import Callable, TypeVar

from ..errors import RankFailedError
from .ffi import lib
from .mpi import MPI
from .rank_failure import told_by

T = TypeVar("T")


def goes_on() -> bool:
    """Does this job go on when a rank dies?"""
    return bool(lib.pcoll_tells_of_failures())


def among_the_living(comm: MPI.Intracomm, make: Callable[[MPI.Intracomm], T]) -> T:
    """What is made on a duplicate of the communicator without those who have died; anew if one does
    meanwhile. Collective over those who live."""
    if not goes_on():
        return make(comm.Dup())
    while True:
        own: MPI.Intracomm = comm.Shrink()  # type: ignore[assignment]
        try:
            with told_by(own):
                made = make(own)
                own.Agree(1)  # an error, on all, if one of them has died
                return made
        except RankFailedError:
            own.Revoke()  # who waits for this rank is told
        except Exception:
            own.Free()
            raise
