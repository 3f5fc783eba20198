# SPDX-License-Identifier: Apache-2.0
"""Futures whose callbacks may make further collective calls, in the same order on all ranks.

When a callback runs depends on the rank: on one the future is over when something is chained to
it, on another a thread completes it later, between other calls of the program. So calls in
callbacks must not stand in one line with those of the program. Each thread knows how *deep* it is:
the program is at depth 0, a callback that was chained at depth d is at d + 1, and so are its calls.
Calls of a depth have a queue and a communicator of their own (../process_group.py). What is chained
at a depth stands in one line, too (`Line`): callbacks are run in the order in which they were
chained, one after the other, by whoever comes to it. By induction all ranks see the same calls and
the same callbacks in the same order at each depth: the program is the same everywhere, and what is
called and chained at depth d + 1 is what the callbacks chained at depth d do, in their order.

A callback that waits for what a later one of its own line gives runs those before it where it
waits: that place is the same on all ranks, too.
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
    """Of a thread. lines: those of which it runs a callback."""

    depth = 0
    lines: tuple[Line, ...] = ()


_here = _Here()


def depth() -> int:
    """How many callbacks deep the calling thread is."""
    return _here.depth


@contextlib.contextmanager
def _within(depth: int, *lines: Line) -> Iterator[None]:
    before = _here.depth, _here.lines
    _here.depth, _here.lines = depth, (*_here.lines, *lines)
    try:
        yield
    finally:
        _here.depth, _here.lines = before


class Line:
    """What is chained at one depth to the futures of one group. A callback is run by the thread
    that completes its future or the callback before it, or that chains it; by one at a time."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._lock = threading.Lock()  # of the two below
        self._waiting: collections.deque[tuple[Future, Callable[[], None]]] = collections.deque()
        self._busy = False

    def add(self, future: Future, run: Callable[[], None]) -> None:
        """Behind all others, once the future is over. run: never raises."""
        with self._lock:
            self._waiting.append((future, run))
        self.go_on()

    def go_on(self) -> None:
        """Run what can be run, unless a thread is at it, which will."""
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
        with _within(self._depth + 1, self):
            run()

    def run_until(self, future: Future) -> None:
        """By the thread that is at it, in a callback that waits for what a later one gives."""
        while not future.done() and self._waiting:
            first, run = self._waiting.popleft()
            with contextlib.suppress(Exception):  # the callback sees it
                first.wait()
            self._run(run)


class Lines:
    """Those of one group, by depth."""

    def __init__(self) -> None:
        self._of: dict[int, Line] = {}

    def here(self) -> Line:
        """Of what the calling thread chains."""
        return self._of.setdefault(_here.depth, Line(_here.depth))


class _Failure(Exception):
    """What a future holds in place of a value. torch's DDP takes it for one, and looks for tensors
    in it by pickling; so it hears of the error there."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error


class Future(_Future):
    """A torch.futures.Future whose callbacks stand in line.

    What C++ chains to it (`torch.futures.collect_all`, DDP) runs when it is completed, at the depth
    at which it was made.

    Parameters
    ----------
    devices : sequence of torch.device
        Of the tensors in its value, beside the host.
    lines : Lines or None
        None: callbacks run as they come.
    """

    def __init__(self, devices: Sequence[torch.device], lines: Lines | None) -> None:
        super().__init__(devices=list(devices))
        self._devices, self._lines, self._depth = devices, lines, _here.depth
        self._known: set[Line] = set()  # in which something waits for it
        self._source: Future | None = None  # whose callback gives its value
        self._line: Line | None = None  # in which that stands

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """As torch's: the future of what the callback returns, which is given this one."""
        chained = Future(self._devices, self._lines)
        chained._source = self

        def run() -> None:
            try:
                found = callback(self)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.set_result(found)

        chained._line = self._chain(run)
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """As torch's: an error of the callback goes into the log."""

        def run() -> None:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a future failed")

        self._chain(run)

    def _chain(self, run: Callable[[], None]) -> Line | None:
        if self._lines is None:
            below = _here.depth + 1

            def run_there(_: Any) -> None:
                with _within(below):
                    run()

            super().add_done_callback(run_there)
            return None
        line = self._lines.here()
        self._known.add(line)  # before it is asked whether it is over
        line.add(self, run)
        return line

    def set_result(self, result: Any) -> None:
        with _within(self._depth):
            super().set_result(result)
        for line in list(self._known):
            line.go_on()

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
    """The error of a failure."""
    try:
        yield
    except _Failure as failure:
        raise failure.error from None


def new_future(tensors: Sequence[torch.Tensor], lines: Lines | None = None) -> Future:
    """For these; whoever waits for one of a device does so on its stream."""
    return Future(sorted({t.device for t in tensors} - {_HOST}, key=str), lines)
