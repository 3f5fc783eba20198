# SPDX-License-Identifier: Apache-2.0
"""How the program ends: has an exception, or sys.exit with an error, ended it?

`sys.last_value` alone does not tell: pytest and interactive sessions set it for exceptions that
they have handled, and sys.exit does not set it. The traceback of an exception that ends the program
begins in the outermost frame of the main thread, and that frame does not return.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from types import FrameType
from typing import NoReturn


def _outermost() -> FrameType | None:
    """Return the frame of the main thread that all others are called from."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


class _Program:
    """The outermost frame of the main thread, and the argument (`status`) of the last call of
    sys.exit. Created while the program runs."""

    def __init__(self) -> None:
        self.frame = _outermost()
        self.status: object = None
        leave = sys.exit

        @functools.wraps(leave)
        def leave_with(status: object = None, /) -> NoReturn:
            self.status = status
            leave(status)  # type: ignore[arg-type]

        sys.exit = leave_with


_program: _Program | None = None


def watch() -> None:
    """Prepare for `failure`. sys.exit is replaced by a function that notes its argument and calls
    it, since Python shows the status to nobody. Idempotent."""
    global _program
    if _program is None:
        _program = _Program()


def failure() -> str | None:
    """Return the type and the text of the exception that ends the program, or None.

    A program that raises SystemExit itself, without sys.exit, counts as one that ends well.
    """
    if _program is None or _program.frame is None or _has_returned(_program.frame):
        return None
    error: BaseException | None = getattr(sys, "last_value", None)
    trace = None if error is None else error.__traceback__
    if trace is not None and trace.tb_frame is _program.frame:
        return f"{type(error).__name__}: {error}"
    return f"SystemExit: {_program.status}" if _program.status else None


def _has_returned(frame: FrameType) -> bool:
    """Return whether the last instruction of a frame that has ended was a return."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
