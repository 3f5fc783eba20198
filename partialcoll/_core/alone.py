# SPDX-License-Identifier: Apache-2.0
"""Calls of MPI while no thread of the library's core is in it."""

from __future__ import annotations

from typing import Callable, TypeVar

from .ffi import lib

T = TypeVar("T")


def alone(call: Callable[[], T], hold: bool = False) -> T:
    """Call MPI while no thread of the library's core is in it, where ranks may die: Open MPI's
    agreements do not bear company. hold: it may take long."""
    lib.pcoll_mpi_enter(hold)
    try:
        return call()
    finally:
        lib.pcoll_mpi_leave(hold)
