# SPDX-License-Identifier: Apache-2.0
"""Futures whose callbacks may make further collective calls, in the same order on all ranks.

When a callback runs depends on the rank: the future may be complete when something is chained to
it, or a thread completes it later, between other calls of the program. So the calls of callbacks
have a queue and a communicator of their own (../process_group.py), and the callbacks of a group run
one at a time, in the order in which the program chained them (`Line`). A callback that chains
another one waits for the future and runs that one at once. So all ranks make the calls of callbacks
in the same order. A callback that waits for a later one of its own line runs those before it where
it waits, which is at the same place on all ranks.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch

_HOST = torch.device("cpu")
_Future: Any = torch.futures.Future

logger = logging.getLogger("partialcoll")


class _Here(threading.local):
    """Whether the thread is in a callback, and the lines of the callbacks that it runs."""

    inside = False
    lines: tuple[Line, ...] = ()


_here = _Here()


def inside() -> bool:
    """Return whether the calling thread is in a callback."""
    return _here.inside


@contextlib.contextmanager
def _within(inside: bool, *lines: Line) -> Iterator[None]:
    before = _here.inside, _here.lines
    _here.inside, _here.lines = inside, (*_here.lines, *lines)
    try:
        yield
    finally:
        _here.inside, _here.lines = before


class Line:
    """The callbacks that the program has chained to the futures of one group. The thread that
    completes a future, runs the callback before it, or chains it runs a callback."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._waiting: collections.deque[tuple[Future, Callable[[], None]]] = collections.deque()
        self._busy = False

    def add(self, future: Future, run: Callable[[], None]) -> None:
        """Append a callback, which never raises."""
        with self._lock:
            self._waiting.append((future, run))
        self.go_on()

    def go_on(self) -> None:
        """Run the callbacks that can run, unless a thread does so already."""
        while (run := self._begin()) is not None:
            try:
                self._run(run)
            finally:
                self._busy = False

    def _begin(self) -> Callable[[], None] | None:
        with self._lock:
            if self._busy or not self._waiting or not self._waiting[0][0].done():
                return None
            self._busy = True
            return self._waiting.popleft()[1]

    def _run(self, run: Callable[[], None]) -> None:
        with _within(True, self):
            run()

    def run_until(self, future: Future) -> None:
        """Run callbacks until the future is complete, in a callback of this line that waits."""
        while not future.done() and self._waiting:
            first, run = self._waiting.popleft()
            with contextlib.suppress(Exception):  # the callback sees it
                first.wait()
            self._run(run)


class _Failure(Exception):
    """The error of a future, in place of its value. torch's DDP takes it for a value, and pickles
    it to look for tensors; then it raises the error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error


class Future(_Future):
    """A torch.futures.Future whose callbacks stand in line. What C++ chains to it (DDP,
    `torch.futures.collect_all`) runs when it is completed. devices: of the tensors in its value,
    beside the host. line: None: callbacks run when it is complete."""

    def __init__(self, devices: Sequence[torch.device], line: Line | None) -> None:
        super().__init__(devices=list(devices))
        self._devices, self._line, self._inside = devices, line, _here.inside
        self._source: Future | None = None  # whose callback gives its value

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Return the future of what the callback returns, which is given this one."""
        chained = Future(self._devices, self._line)
        chained._source = self

        def run() -> None:
            try:
                found = callback(self)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.set_result(found)

        self._chain(run)
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """As torch's; an error of the callback is logged."""

        def run() -> None:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a future failed")

        self._chain(run)

    def _chain(self, run: Callable[[], None]) -> None:
        if self._line is None:

            def run_there(_: Any) -> None:
                with _within(True):
                    run()

            super().add_done_callback(run_there)
        elif _here.inside:
            with contextlib.suppress(Exception):  # the callback sees it
                self.wait()
            run()
        else:
            self._line.add(self, run)

    def set_result(self, result: Any) -> None:
        with _within(self._inside):
            super().set_result(result)
        if self._line is not None:
            self._line.go_on()

    def set_exception(self, error: BaseException) -> None:
        super().set_exception(_Failure(error))

    def wait(self) -> Any:
        if not self.done() and self._source is not None and _here.lines:
            if self._line in _here.lines:
                self._line.run_until(self)
            else:
                with contextlib.suppress(Exception):
                    self._source.wait()
        with _as_it_was():
            return super().wait()

    def value(self) -> Any:
        with _as_it_was():
            return super().value()


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    try:
        yield
    except _Failure as failure:
        raise failure.error from None


def new_future(tensors: Sequence[torch.Tensor], line: Line | None = None) -> Future:
    """Return a future of these tensors. A wait for tensors of a device happens on its stream."""
    return Future(sorted({t.device for t in tensors} - {_HOST}, key=str), line)
