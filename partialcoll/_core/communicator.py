# SPDX-License-Identifier: Apache-2.0
"""The address of a communicator, and its progress mode, for all objects made on it."""

from __future__ import annotations

from typing import Any

from ..errors import StateError
from . import checks, launch, settings
from .ffi import ffi
from .mpi import MPI
from .pure import codes

PROGRESS = codes("PROGRESS", "agent", "manual", "spin")
_ON_FAILURE = codes("FAILURE", "raise", "continue")


def check_running(what: str) -> None:
    if MPI.Is_finalized():
        raise StateError(f"{what}: MPI is finalized; do this before MPI.Finalize()")


def address(comm: Any) -> Any:
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm: expected an mpi4py communicator, got {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm: expected a communicator, got MPI.COMM_NULL")
    if comm.Is_inter():
        raise ValueError("comm: expected an intra-communicator, got an inter-communicator")
    return ffi.cast("void *", MPI._addressof(comm))


def enter(comm: Any) -> Any:
    """Check what comes before anything is made on a communicator; return its address."""
    launch.check_launcher()
    place = address(comm)
    settings.configure_logging(comm.rank)
    return place


def progress_code(progress: str | None) -> int:
    """Return the core's number of `progress`; None: of PARTIALCOLL_PROGRESS, or of "agent"."""
    return PROGRESS[
        settings.choice("progress", progress, "PARTIALCOLL_PROGRESS", "agent", list(PROGRESS))
    ]


def failure_code(on_failure: str) -> int:
    return int(checks.code("on_failure", on_failure, _ON_FAILURE))
