# SPDX-License-Identifier: Apache-2.0
"""How the command ``partialcoll`` ends by a signal: at once, without a traceback, after what it has
under way has been undone, and with the status that shells give such an end.

A thread does it. Python's own handlers run in the main thread between two of its instructions, and
that may be in C for minutes, or in an import whose traceback nobody wants to read.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Callable

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

undo: list[Callable[[], None]] = []  # what the end has to do before, the last first
_come = threading.Event()


def status(signum: int) -> int:
    """Of a command that a signal has ended."""
    return 128 + signum


def end_quietly() -> None:
    """From here on. A signal that is ignored (nohup, a job in the background) stays ignored."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for each in _ENDING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda *_: None)  # the number comes through the pipe
    threading.Thread(target=_wait, args=(reader,), daemon=True).start()


def _wait(reader: int) -> None:
    signum = os.read(reader, 1)[0]
    _come.set()
    for each in reversed(undo):
        each()
    os._exit(status(signum))


def let_end() -> None:
    """Before the command ends by itself: if a signal has come, it is the thread that ends it."""
    while _come.is_set():
        signal.pause()
