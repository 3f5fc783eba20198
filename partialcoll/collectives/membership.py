# SPDX-License-Identifier: Apache-2.0
"""Who is still there, for a handle that goes on when ranks die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from .._core.ffi import check, ffi, lib
from .._core.mpi import MPI

if TYPE_CHECKING:
    from .handle import AllreduceHandle


class Membership:
    """What the program has been told of those who have died, and the communicator of those who
    are left."""

    def __init__(
        self,
        handle: AllreduceHandle,
        comm: MPI.Intracomm,
        told: Callable[..., object] | None,
    ) -> None:
        self._handle = handle
        self._comm = comm
        self._told = told
        self._known: set[int] = set()

    def look(self, count: int) -> None:
        """So many had died before the round that has just been delivered: tell of those who are
        new."""
        if count == len(self._known):
            return
        failed = {int(rank) for rank in np.flatnonzero(self._handle.failed)}
        new = sorted(failed - self._known)
        self._known = failed
        if self._told is not None and new:
            self._told(self._handle, new, [])

    def comm(self) -> Any:
        """Of those who are left."""
        comm = MPI.Intracomm()
        place = ffi.cast("void *", MPI._addressof(comm))
        code = lib.pcoll_handle_comm(self._handle._core(), place)
        if code == lib.PCOLL_EEMPTY:
            return self._comm
        check(code)
        return comm
