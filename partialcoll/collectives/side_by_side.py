# SPDX-License-Identifier: Apache-2.0
"""Collective calls of several objects at the same time, each in a thread of its own.

For calls that wait for other ranks which, in turn, wait for another one of these calls: made one
after the other, all of them would wait for ever.
"""

from __future__ import annotations

import contextvars
import ctypes
import queue
import threading
from collections.abc import Sequence
from typing import Callable

from .._core.mpi import MPI
from .._core.settings import base_timeout


def run(calls: Sequence[Callable[[], None]]) -> None:
    """Until all have returned.

    If one of them raises, or Ctrl-C comes, the others are interrupted, as Ctrl-C would interrupt
    them: they may be waiting for ranks that have failed as well. The first exception is raised
    when they have ended, so that nothing goes on behind the program's back. Where MPI does not
    allow threads, one call after the other.
    """
    if len(calls) <= 1 or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        for call in calls:
            call()
        return
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    over = threading.Event()

    def carry_out(call: Callable[[], None]) -> None:
        try:
            if not over.is_set():  # interrupted while this thread was about to start
                call()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    threads = []
    for call in calls:
        work = contextvars.copy_context().run
        threads.append(threading.Thread(target=work, args=(carry_out, call), daemon=True))
    try:
        for thread in threads:
            thread.start()
        for _ in calls:
            error = ended.get()
            if error is not None:
                raise error
    except BaseException:
        over.set()
        _interrupt(threads)
        raise


def _interrupt(threads: Sequence[threading.Thread]) -> None:
    """Raise KeyboardInterrupt in each, at its next line of Python: whoever waits in the core comes
    back to Python all the time. One that stays in a call of MPI is left there after a while."""
    for thread in threads:
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
    for thread in threads:
        if thread.ident is not None:
            thread.join(base_timeout())
