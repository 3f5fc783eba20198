# SPDX-License-Identifier: Apache-2.0
"""Work that has begun, for torch: waiting for it, its error, its future. A collective call: its
description for the other ranks, the steps of its data, and its state."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable, Union

import torch
import torch.distributed as dist
from torch.compiler import disable

from ..._core import timeline, waiting
from ...collectives.agreement import Agreement, Intent
from ...collectives.handle import AllreduceHandle
from ...policy import Policy
from ...round import Result, Round
from .futures import Future, Line, new_future
from .handles import Handles, Key, Reduction
from .wire import side_of

Steps = Iterator[Any]  # yields the handles and MPI requests to wait for, one after the other
Move = Union[Callable[[Handles], Steps], Steps, "list[Reduction]", None]


class untraced:
    """Decorator that keeps torch's compiler from tracing a method. While a compiled program runs,
    torch traces each Python function that is called with tensors, also from C++, unless
    torch.compiler.disable has wrapped it. Wrapping loads the compiler, which takes a second, so a
    method is wrapped at its first use after the program has loaded the compiler."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self._method, self._left_alone = method, False

    def __get__(self, instance: Any, owner: type) -> Any:
        if not self._left_alone and "torch._dynamo" in sys.modules:
            self._method, self._left_alone = disable(self._method), True
        return self._method if instance is None else self._method.__get__(instance, owner)


_Error: Any = dist.DistBackendError
_Work: Any = dist.Work
_FOREVER = timedelta(0)  # torch's "no limit"
_lock = threading.Lock()  # protects _over, _ended and _future; held briefly


class GroupTimeout(_Error, TimeoutError):
    """An operation of a process group has taken too long; says who is missing."""


class Work(_Work):
    """What the collectives of torch.distributed return. tensors: what is filled; the value of its
    future."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._over = False
        self._ended: threading.Event | None = None  # for who waits until another thread ends it
        self._error: BaseException | None = None
        self._future: Future | None = None
        self.line: Line | None = None  # of the callbacks of its future

    def _carry_out(self) -> None:
        """Do the part of the work that a waiting thread can do."""

    def _ensure(self) -> None:
        """Let another thread carry the work on: no thread waits for it, or the one that waits
        cannot carry it on itself."""

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
                self._future = new_future(self._tensors, self.line)
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


def complete(step: Any, wait: bool, patient: Callable[[], Any]) -> Any:
    """Wait for a step: return the round of a handle, or False for another step; None if it is
    incomplete and wait=False. patient: called while waiting; an exception of it ends the wait."""
    if isinstance(step, AllreduceHandle):
        return step.Wait() if wait else step.Test()
    if isinstance(step, Agreement):
        return None if step.settle(wait) is None else False
    if wait:
        waiting.until(step.Test, patient)
    elif not step.Test():
        return None
    return False


class Call(Work):
    """A collective call in progress, which the asynchronous functions return.

    Pass it to `poll` and `synchronize`. After `synchronize`, `round` is the `partialcoll.Round`
    that delivered the result.

    Only the library creates calls. `text`: what all ranks compare. `move`: the steps of the data
    after the comparison: an iterator, a function that returns one for given handles, a list of
    reductions, or None. `tensors`: what the call fills; `read`: further ones that may be on a
    device. `apart`: the data may begin to move before earlier calls are complete. `timeout`: in
    seconds. `refused`: this rank's arguments are wrong. `role`: of the intent.
    """

    def __init__(
        self,
        text: str,
        move: Move = None,
        tensors: Sequence[torch.Tensor] = (),
        *,
        apart: bool = False,
        timeout: float = math.inf,
        refused: bool = False,
        read: Sequence[torch.Tensor] = (),
        role: str = "",
    ) -> None:
        super().__init__(list(tensors))
        self.reductions: list[Reduction] = move if isinstance(move, list) else []
        self.side = side_of([*tensors, *read])
        self._first: Reduction | None = None  # a single reduction, which may begin early
        if isinstance(move, list):
            self._first = move[0] if len(move) == 1 else None
            move = self._first.steps if self._first else self._in_turn
        self._move = move
        self._intent, self.apart = Intent(text, refused, role), apart
        self.began = time.monotonic()
        self.warned = 0.0  # time of the last warning that it has no place in an order
        self._agreed_at: float | None = None
        self._timeout, self._deadline = timeout, self.began + timeout
        self.compared = False  # whether all ranks have compared it already
        self._queue: Any = None  # the queue that processes it
        self.announced = False  # it has its place among the calls that are compared
        self.started = False  # its comparison, or its data if nothing is compared
        self.agreement: Agreement | None = None  # that compares it
        self._steps: Steps | None = None  # once all ranks have been compared
        self._step: Any = None  # the step that its data waits for
        self._moved = False
        self.in_background = False  # the worker thread completes it
        self.without: bool = False  # it continues without ranks that have joined
        self._outcome: BaseException | None = None
        self.described: bytes | Round | None = None  # the round that delivered the result
        self.quorum: Policy | None = None  # None: all ranks make it
        self.lands: list[Callable[[], Any]] = []  # called before the result is returned
        self.found: list[list[torch.Tensor]] = []  # received tensors of sizes not known before
        self.shown: Callable[[list[torch.Tensor]], Any] = lambda tensors: tensors[0]  # the result

    def _in_turn(self, handles: Handles) -> Steps:
        for one in self.reductions:
            yield from one.steps(handles)

    @property
    def begun(self) -> bool:
        """Whether its data has been sent."""
        return self._first is not None and self._first.begun is not None

    @property
    def key(self) -> Key | None:
        """The key of the handle that it needs first."""
        return None if self._first is None else self._first.key

    @property
    def round(self) -> Round | None:
        """The round that delivered the result, if there was one."""
        if isinstance(self.described, bytes):
            self.described = Round(Result(self.described, self._queue.ranks, []))
        return self.described

    def poll(self) -> bool:
        """Advance without blocking; return whether the call has ended, with or without an error."""
        return bool(self._queue.poll(self))

    def _ensure(self) -> None:
        self._queue.wake()

    def _carry_out(self) -> None:
        self._queue.drive(self)

    def _aside(self) -> Any:
        return self._queue.aside()

    def _end(self, error: BaseException | None = None) -> None:
        if timeline.recorder is not None:
            timeline.recorder.call(str(self), self.began, self._agreed_at)
        self._move = self._first = self._steps = None  # they hold tensors
        self.reductions = []
        super()._end(error)

    def __str__(self) -> str:
        return self._intent.text


def result_of(call: Call) -> Any:
    """Wait for the end of the call; return its result, or raise its error."""
    call.wait()
    while call.lands:
        call.lands.pop()()
    return call.shown(call.result())
