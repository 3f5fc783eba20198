# SPDX-License-Identifier: Apache-2.0
"""What everything that is made on a communicator needs: its address, and who progresses it."""

from __future__ import annotations

import atexit
import contextlib
import functools
from typing import Any, Callable

from mpi4py import MPI

from ..errors import StateError
from . import attendance, launch, settings
from .ffi import ffi, lib

PROGRESS: dict[str, int] = {
    "agent": lib.PCOLL_PROGRESS_AGENT,
    "manual": lib.PCOLL_PROGRESS_MANUAL,
    "spin": lib.PCOLL_PROGRESS_SPIN,
}


# MPICH aborts now and then if a thread is inside it when MPI_Finalize begins, so threads end before
# that, and what lies in the library's memory is left while it is there: at the end of the program,
# which is when mpi4py finalizes MPI by itself (after all of these), and where the program says so.
# MPI's own way to hear of the end, an attribute of COMM_SELF that it deletes in MPI_Finalize, is
# too late: MPICH stops locking before it deletes them. mpi4py has no other, so its `MPI.Finalize`
# is replaced, by a function that calls it.
_before_the_end: list[Callable[[], None]] = []


def at_end(call: Callable[[], None]) -> None:
    """Have this called before MPI ends; what was registered last comes first."""
    _before_the_end.append(call)


def not_at_end(call: Callable[[], None]) -> None:
    """It need not be called any more. Idempotent."""
    _before_the_end[:] = [other for other in _before_the_end if other != call]


def _end() -> None:
    with contextlib.ExitStack() as ending:  # each of them, whatever the others raise
        ending.callback(lib.pcoll_quiet)
        ending.callback(attendance.end)
        for call in _before_the_end:
            ending.callback(call)
        _before_the_end.clear()


atexit.register(_end)


def check_running(what: str) -> None:
    """Raises StateError when MPI has ended, and all memory that was shared with it."""
    if MPI.Is_finalized():
        raise StateError(f"{what}: MPI is finalized; do this before MPI.Finalize()")


def _after_the_end(finalize: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(finalize)
    def Finalize() -> None:
        _end()
        finalize()

    return Finalize


vars(MPI)["Finalize"] = _after_the_end(MPI.Finalize)


def address(comm: Any) -> Any:
    """The address of the MPI_Comm inside an mpi4py intra-communicator."""
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm: expected an mpi4py communicator, got {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm: expected a communicator, got MPI.COMM_NULL")
    if comm.Is_inter():
        raise ValueError("comm: expected an intra-communicator, got an inter-communicator")
    return ffi.cast("void *", MPI._addressof(comm))


def enter(comm: Any) -> Any:
    """What comes before anything is made on a communicator; its address."""
    launch.check_launcher()
    place = address(comm)
    settings.configure_logging(comm.rank)
    return place


def progress_code(progress: str | None) -> int:
    """The core's number of who communicates; None: what PARTIALCOLL_PROGRESS says, or "agent"."""
    return PROGRESS[
        settings.choice("progress", progress, "PARTIALCOLL_PROGRESS", "agent", list(PROGRESS))
    ]
