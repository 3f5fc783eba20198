# SPDX-License-Identifier: Apache-2.0
"""What comes before MPI ends: threads end, and what lies in the library's memory is left while it
is there."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from typing import Any, Callable

Call = Callable[[], Any]

_before_the_end: list[Call] = []


def at_end(call: Call, last: bool = False) -> None:
    """Have this called before MPI ends; what was registered last comes first. last: after all the
    others, which may need it."""
    _before_the_end.insert(0 if last else len(_before_the_end), call)


def not_at_end(call: Call) -> None:
    _before_the_end[:] = [other for other in _before_the_end if other != call]


def watch(MPI: Any, quiet: Call, at_exit: Call) -> None:
    """Have all these called, and `quiet` after them, when MPI, which is loaded, ends. `at_exit` is
    called as well where the program has ended by then, on all ranks: MPI_Finalize waits for them.

    MPICH aborts now and then if a thread is inside it when MPI_Finalize begins, so it is before
    that: at the end of the program, which is when mpi4py finalizes MPI by itself (after all of
    these), and where the program says so. MPI's own way to hear of the end, an attribute of
    COMM_SELF that it deletes in MPI_Finalize, is too late: MPICH stops locking before it deletes
    them. mpi4py has no other, so its `MPI.Finalize` is replaced, by a function that calls it.
    """

    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:  # the child of a fork: MPI and the threads are its parent's
            return
        with contextlib.ExitStack() as ending:  # each of them, whatever the others raise
            for call in (quiet, *_before_the_end):
                ending.callback(call)
            _before_the_end.clear()

    def end_of_program() -> None:
        if os.getpid() == process and not MPI.Is_finalized():
            at_exit()
        end()

    atexit.register(end_of_program)
    finalize = MPI.Finalize

    @functools.wraps(finalize)
    def Finalize() -> None:
        end()
        finalize()

    vars(MPI)["Finalize"] = Finalize
