# SPDX-License-Identifier: Apache-2.0
"""Who is still there, for a handle that goes on when ranks die."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .._core.ffi import check, ffi, lib
from .._core.mpi import MPI


class Membership:
    """What the program has been told of those who have died, and the communicator of those who
    are left."""

    def __init__(self, comm: MPI.Intracomm, told: Callable[..., object] | None) -> None:
        self._comm = comm
        self._told = told
        self._known: set[int] = set()

    def look(self, handle: Any, count: int) -> None:
        """So many had died before the round that `handle` has just delivered: tell of those who
        are new."""
        if count == len(self._known):
            return
        failed = {int(rank) for rank in np.flatnonzero(handle.failed)}
        new = sorted(failed - self._known)
        self._known = failed
        if self._told is not None and new:
            self._told(handle, new, [])

    def comm(self, handle: Any) -> MPI.Intracomm:
        """Of those who are left."""
        comm = MPI.Intracomm()
        place = ffi.cast("void *", MPI._addressof(comm))
        code = lib.pcoll_handle_comm(handle._core(), place)
        if code == lib.PCOLL_EEMPTY:
            return self._comm
        check(code)
        return comm
