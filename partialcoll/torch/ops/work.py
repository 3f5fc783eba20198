# SPDX-License-Identifier: Apache-2.0
"""Something that has begun: waiting for it, asking for it, its error, its future; and the thread
that sees to it meanwhile."""

from __future__ import annotations

import atexit
import threading
import weakref
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

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
        self._future: Any = None

    def _carry_out(self) -> None:
        """What who waits for it can do for it."""

    def _ensure(self) -> None:
        """See to it that it goes on though nobody waits for it, or not in a way to drive it."""

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

    def get_future(self) -> Any:
        """A torch.futures.Future of the list of tensors."""
        with _lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._over:
                    self._resolve()
        if not self._over:
            self._ensure()
        return self._future

    def _resolve(self) -> None:
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

    Parameters
    ----------
    name : str
        The thread's.
    work : callable
        Does what there is to do, and returns; at once when it is `stopping`.
    end : callable
        Called at the program's end: it has to call `stop`, since a thread that is alive when the
        interpreter ends aborts the program.
    """

    def __init__(self, name: str, work: Callable[[], None], end: Callable[[], None]) -> None:
        self._name, self._do = name, work
        self._end = weakref.WeakMethod(end)
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self.stopping = False
        _workers.add(self)

    def wake(self) -> None:
        """There may be something to do."""
        self._work.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self.stopping:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while not self.stopping:
            self._work.wait()
            self._work.clear()
            self._do()

    def stop(self) -> None:
        """End the thread. Local, idempotent."""
        self.stopping = True
        self._work.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for worker in list(_workers):
        end = worker._end()
        if end is not None:
            end()
