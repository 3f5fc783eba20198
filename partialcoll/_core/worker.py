# SPDX-License-Identifier: Apache-2.0
"""Threads that see to what has begun, while the program goes on."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Callable

from . import finalize
from .settings import logger


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
        """There may be something to do."""
        self._work.set()
        if not self._threads:
            self._see_to_one()

    def _see_to_one(self) -> None:
        """That one is free, if none is at work."""
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
        """Nothing goes on: whoever waits for it, callbacks included, gets an error."""
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
    """A thread that is alive when the interpreter ends aborts the program, one that is inside MPI
    when that ends as well. One that is in a callback may wait for what another worker does."""
    workers = list(_workers)
    for worker in workers:
        worker.halt()
    for worker in workers:
        worker.join()


finalize.at_end(_end_all)
