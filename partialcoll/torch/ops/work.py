# SPDX-License-Identifier: Apache-2.0
"""Something that has begun: waiting for it, asking for it, its error, its future."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
