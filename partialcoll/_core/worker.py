# SPDX-License-Identifier: Apache-2.0
"""Threads that see to what has begun while the program goes on; calls in threads of their own."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Callable

from . import finalize
from .mpi import MPI
from .settings import base_timeout, logger


class Worker:
    """A thread that begins when there is something to do, and sleeps when there is nothing. One is
    at work at a time. While it completes something whose callbacks may wait for what is still to be
    done, it steps `aside`, and another one takes over, which is new if none is free. `work` does
    what there is to do, and returns, at once when it is `stopping`; `fail` ends what is under way
    in error then."""

    def __init__(self, name: str, work: Callable[[], None], fail: Callable[[], None]) -> None:
        self._name, self._do = name, work
        self._fail = weakref.WeakMethod(fail)
        self._lock = threading.Lock()  # of the list and the number
        self._work = threading.Event()
        self._threads: list[threading.Thread] = []
        self._free = 0  # of them, waiting for their turn
        self._turn = threading.Lock()
        self._at_work: int | None = None  # the thread whose turn it is
        self.stopping = False
        _workers.add(self)

    def wake(self) -> None:
        self._work.set()
        if not self._threads:
            self._see_to_one()

    def _see_to_one(self) -> None:
        with self._lock:
            if self._free or self._at_work is not None or self.stopping:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            self._free += 1
            thread.start()

    def _run(self) -> None:
        while not self.stopping:
            self._turn.acquire()
            with self._lock:
                self._free -= 1
                self._at_work = threading.get_ident()
            try:
                if not self.stopping:
                    self._work.wait()
                    self._work.clear()
                    self._do()
            except Exception:
                logger.exception("the thread %r failed, and goes on", self._name)
            finally:  # whatever happens, another thread can take the turn
                with self._lock:
                    self._free += 1
                self._leave()

    def _leave(self) -> bool:
        """Let another one take over; was it this thread's turn?"""
        if self._at_work != threading.get_ident():
            return False
        self._at_work = None
        self._turn.release()
        return True

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within this the calling thread, if it is the one at work, is not."""
        if self._leave():
            self._work.set()
            self._see_to_one()
        yield

    def stop(self) -> None:
        self.halt()
        self.join()

    def halt(self) -> None:
        """End the worker: all calls that wait for it, and callbacks, get an error."""
        self.stopping = True
        self._work.set()
        fail = self._fail()
        if fail is not None:
            fail()

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _end_all() -> None:
    """End them before the interpreter does: a thread that is alive then aborts the program, or is
    inside MPI when that ends. One that is in a callback may wait for another worker."""
    workers = list(_workers)
    for worker in workers:
        worker.halt()
    for worker in workers:
        worker.join()


finalize.at_end(_end_all)


def side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """Make collective calls of several objects at the same time, each in a thread of its own, until
    all have returned: calls that wait for other ranks which, in turn, wait for another one of these
    calls. Where MPI does not allow threads, one call after the other.

    If one of them raises, or Ctrl-C comes, the others are interrupted, as Ctrl-C would interrupt
    them: they may be waiting for ranks that have failed as well. The first exception is raised when
    they have ended.
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
    """Raise KeyboardInterrupt in each thread, at its next line of Python. A thread that waits in
    the core returns to Python regularly. One that stays in an MPI call is soon left there."""
    for thread in threads:
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
    for thread in threads:
        if thread.ident is not None:
            thread.join(base_timeout())
