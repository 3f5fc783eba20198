# SPDX-License-Identifier: Apache-2.0
"""Signal handling of the command ``partialcoll``. Most signals end it: at once, without a
traceback, after the jobs that it has started, and with the exit status that shells expect. SIGTSTP
(Ctrl-Z) stops it and its jobs, until it is continued. SIGUSR1 and SIGUSR2 are passed on to the
jobs, if there are any.

A thread does it. Python's own handlers run in the main thread between two of its instructions, and
that may be in C for minutes, or in an import whose traceback nobody wants to read.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

_FOR_JOBS = (signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SAME_S = 0.5  # timeout(1) sends its signal twice, to the command and to its group


# Running jobs. Threads other than the main one call their `stop` (a signal ends the command) and
# `tell` (SIGSTOP, SIGCONT or a signal for jobs).
jobs: list[Any] = []
again = threading.Event()  # a second signal to end has arrived: end without waiting any longer
_come = threading.Event()


def status(signum: int) -> int:
    return 128 + signum


def end_quietly() -> None:
    """From here on. A signal that is ignored (nohup, a job in the background) stays ignored."""
    _open_streams()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for each in (*_ENDING, *_FOR_JOBS, signal.SIGTSTP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda *_: None)  # the number comes through the pipe
    threading.Thread(target=_hear, args=(reader,), daemon=True).start()


def _open_streams() -> None:
    """Open standard streams that are closed, so that no file opened later gets their numbers."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _hear(reader: int) -> None:
    first = 0.0
    while True:
        signum = os.read(reader, 1)[0]
        if signum == signal.SIGTSTP:
            _tell(signal.SIGSTOP)
            # This thread sends it, so its next line runs only after the process is continued.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            _tell(signal.SIGCONT)
        elif signum in _FOR_JOBS and jobs:
            _tell(signum)
        elif not _come.is_set():
            _come.set()
            first = time.monotonic()
            threading.Thread(target=_end, args=(signum,), daemon=True).start()
        elif time.monotonic() > first + _SAME_S:
            again.set()


def _tell(signum: int) -> None:
    for job in [*jobs]:
        job.tell(signum)


def _end(signum: int) -> None:
    try:
        for job in [*jobs]:
            job.stop(signum)
    finally:
        os._exit(status(signum))


def let_end() -> None:
    """Before the command ends by itself: if a signal has come, it is the thread that ends it."""
    while _come.is_set():
        signal.pause()
