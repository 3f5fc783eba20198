# SPDX-License-Identifier: Apache-2.0
"""Who is still there, for a handle that goes on when ranks die."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .._core.ffi import check, ffi, lib
from .._core.mpi import MPI
from .arguments import Arguments


def _failed(handle: Any) -> set[int]:
    return {int(rank) for rank in np.flatnonzero(handle.failed)}


class Membership:
    """What the program has been told of those who have died and those who have come, the
    communicator of those who live, and what newcomers' arguments are compared with."""

    def __init__(
        self,
        handle: Any,
        comm: MPI.Intracomm,
        told: Callable[..., object] | None,
        arguments: Arguments,
    ) -> None:
        self._told = told
        self.arguments = arguments
        # How many had died before the round that was delivered last, and how many the program
        # knows of: those who look after each round compare these themselves.
        self.dead = handle._record.failed
        self._begin(handle, comm)

    def look(self, handle: Any) -> None:
        """`handle` has delivered a round before which others have died than the program knows of:
        tell of those who are new."""
        failed = _failed(handle)
        new = sorted(failed - self._known)
        self._know(failed)
        if self._told is not None and new:
            self._told(handle, new, [])

    def grown(self, handle: Any, comm: MPI.Intracomm, joined: list[int]) -> None:
        """`handle` is on this communicator now, where these have come."""
        new = sorted((_failed(handle) | set(joined)) - self._known)
        self._begin(handle, comm)
        if self._told is not None:
            self._told(handle, new, joined)

    def _begin(self, handle: Any, comm: MPI.Intracomm) -> None:
        """The program knows of what there is now."""
        self._comm = comm
        self._know(_failed(handle))

    def _know(self, failed: set[int]) -> None:
        self._known = failed
        self.known = len(failed)

    def comm(self, handle: Any) -> MPI.Intracomm:
        """Of those who are left."""
        comm = MPI.Intracomm()
        place = ffi.cast("void *", MPI._addressof(comm))
        code = lib.pcoll_handle_comm(handle._core(), place)
        if code == lib.PCOLL_EEMPTY:
            return self._comm
        check(code)
        return comm
