# SPDX-License-Identifier: Apache-2.0
"""Something that has begun: waiting for it, asking for it, its error, its future; and the threads
that see to it meanwhile."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from ..._core import finalize
from .futures import Future, Lines, new_future
from .untraced import untraced

_Error: Any = dist.DistBackendError
_Work: Any = dist.Work
_FOREVER = timedelta(0)  # torch's "no limit"
_lock = threading.Lock()  # of what follows from the end of a work, for short


class GroupTimeout(_Error, TimeoutError):
    """An operation of a process group has taken too long; says who is missing."""


class Work(_Work):
    """What the collectives of torch.distributed return.

    Parameters
    ----------
    tensors : list of torch.Tensor
        What is filled; the value of its future.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._over = False
        self._ended: threading.Event | None = None  # for who waits until another thread ends it
        self._error: BaseException | None = None
        self._future: Future | None = None
        self.lines: Lines | None = None  # in which callbacks of its future stand

    def _carry_out(self) -> None:
        """What who waits for it can do for it."""

    def _ensure(self) -> None:
        """See to it that it goes on though nobody waits for it, or not in a way to drive it."""

    @untraced
    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Until it is over. GroupTimeout after `timeout`, and it can be waited for again."""
        endless = timeout is _FOREVER or timeout <= _FOREVER
        if endless:
            self._carry_out()
        if not self._over:
            self._ensure()
            if not self._wait_for_others(None if endless else timeout.total_seconds()):
                seconds = timeout.total_seconds()
                raise GroupTimeout(f"{self} was not over after {seconds} s; wait again")
        if self._error is not None:
            raise self._error
        return True

    def _wait_for_others(self, seconds: float | None = None) -> bool:
        """Until another thread has ended it."""
        with _lock:
            if self._over:
                return True
            if self._ended is None:
                self._ended = threading.Event()
        return self._ended.wait(seconds)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._over:
            self._ensure()
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    @untraced
    def get_future(self) -> Future:
        """Of the list of tensors."""
        with _lock:
            if self._future is None:
                self._future = new_future(self._tensors, self.lines)
                if self._over:
                    self._resolve()
        if not self._over:
            self._ensure()
        return self._future

    def _aside(self) -> contextlib.AbstractContextManager[None]:
        """Around what may wait for other works: those go on meanwhile."""
        return contextlib.nullcontext()

    def _resolve(self) -> None:
        assert self._future is not None
        with self._aside():
            if self._error is None:
                self._future.set_result(self._tensors)
            else:
                self._future.set_exception(self._error)

    def _end(self, error: BaseException | None = None) -> None:
        """It is over. What waits for the future runs here: never within a lock of the queue's."""
        self._error = error
        with _lock:
            self._over = True
            ended, known = self._ended, self._future is not None
        if ended is not None:
            ended.set()
        if known:
            self._resolve()


class Worker:
    """A thread that begins when there is something to do, and sleeps when there is nothing.

    There is one at work at a time. While it completes something whose callbacks may wait for what
    is still to be done, it steps `aside`, and another one takes over, which is new if none is free.

    Parameters
    ----------
    name : str
        The threads'.
    work : callable
        Does what there is to do, and returns; at once when it is `stopping`.
    fail : callable
        Ends what is under way in error, when it is `stopping`.
    """

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
            if not self.stopping:
                self._work.wait()
                self._work.clear()
                self._do()
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
        """End the threads. Local, idempotent."""
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
        """Wait for the threads, which may be in callbacks."""
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
