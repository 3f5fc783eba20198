# SPDX-License-Identifier: Apache-2.0
"""Work before MPI ends: end the threads, and release views of the library's memory while it still
exists. Also tell whether an exception, or sys.exit with an error, has ended the program.

`sys.last_value` alone does not tell: pytest and interactive sessions set it for exceptions that
they have handled, and sys.exit does not set it. The traceback of an exception that ends the program
begins in the outermost frame of the main thread, and that frame does not return.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import functools
import os
import sys
import threading
from typing import Any, Callable, NoReturn

Call = Callable[[], Any]

_before_the_end: list[Call] = []


def at_end(call: Call, last: bool = False) -> None:
    """Call this before MPI ends, the newest call first. last: after the others, which need it."""
    _before_the_end.insert(0 if last else len(_before_the_end), call)


def not_at_end(call: Call) -> None:
    _before_the_end[:] = [other for other in _before_the_end if other != call]


def watch(MPI: Any, quiet: Call, at_exit: Call) -> None:
    """Have all these called, and `quiet` after them, when MPI, which is loaded, ends. `at_exit` is
    called as well where the program has ended by then, on all ranks: MPI_Finalize waits for them.

    MPICH aborts now and then if a thread is inside it when MPI_Finalize begins, so it is before
    that: at the end of the program, when mpi4py finalizes MPI by itself after all of these, and
    where the program says so. An attribute of COMM_SELF, MPI's own way to hear of the end, is
    deleted too late: MPICH has stopped locking. So mpi4py's `MPI.Finalize` is replaced, by a
    function that calls it.
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


class _Program:
    """The outermost frame of the main thread, and the argument (`status`) of the last call of
    sys.exit. Created while the program runs."""

    def __init__(self) -> None:
        self.frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while self.frame is not None and self.frame.f_back is not None:
            self.frame = self.frame.f_back
        self.status: object = None
        leave = sys.exit

        @functools.wraps(leave)
        def leave_with(status: object = None, /) -> NoReturn:
            self.status = status
            leave(status)  # type: ignore[arg-type]

        sys.exit = leave_with


_program: _Program | None = None


def watch_program() -> None:
    """Prepare for `program_failure`. Replace sys.exit by a function that stores its argument and
    then calls sys.exit, since Python does not expose the exit status. Idempotent."""
    global _program
    if _program is None:
        _program = _Program()


def program_failure() -> str | None:
    """Return the type and the text of the exception that ends the program, or None. A program that
    raises SystemExit itself, without sys.exit, counts as one that ends well."""
    frame = None if _program is None else _program.frame
    if _program is None or frame is None:
        return None
    last = dis.opname[frame.f_code.co_code[frame.f_lasti]]  # of a frame that has ended
    if last.startswith("RETURN"):
        return None
    error: BaseException | None = getattr(sys, "last_value", None)
    trace = None if error is None else error.__traceback__
    if trace is not None and trace.tb_frame is frame:
        return f"{type(error).__name__}: {error}"
    return f"SystemExit: {_program.status}" if _program.status else None
