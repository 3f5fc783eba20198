# SPDX-License-Identifier: Apache-2.0
"""Waiting in slices, so that signals are handled and messages name the missing ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, Callable

from . import settings
from .ffi import ffi, lib, raise_error

# Microseconds until the core returns to Python for signals; the short slice while serving others.
SLICE_US = 100_000
SHORT_SLICE_US = 1_000

# Seconds. They start short because other ranks' Python code mostly finishes soon.
_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 2e-3

_watches: list[Callable[[], None]] = []


def watch(look: Callable[[], None]) -> None:
    """Call `look` whenever an operation begins or waits; an exception of it ends that operation."""
    _watches.append(look)


def no_watch(look: Callable[[], None]) -> None:
    _watches[:] = [other for other in _watches if other != look]


def look() -> None:
    for watch in _watches:
        watch()


def naps() -> Iterator[float]:
    """Yield the seconds to sleep between two polls: several ranks may share one CPU core."""
    yield from (0.0,) * 8
    nap = _SHORTEST_NAP
    while True:
        yield nap
        nap = min(1.5 * nap, _LONGEST_NAP)


def until(test: Callable[[], bool], patient: Callable[[], Any]) -> None:
    """Wait, with naps, until it is so. patient: called meanwhile; True: again soon, it has
    something under way. What it raises ends the wait."""
    pause = naps()
    while not test():
        time.sleep(nap := next(pause))
        if nap and patient():
            pause = naps()


def missing(handle: Any) -> str:
    """Ask all ranks where they are; return a sentence that names the missing ones, or nothing."""
    text = ffi.new("char[]", 2048)
    patience_us = int(settings.base_timeout() * 1e5)
    if handle == ffi.NULL or lib.pcoll_handle_missing(handle, patience_us, text, 2048):
        return ""
    return str(ffi.string(text).decode(errors="replace"))


def report_missing(handle: Any, waited: float) -> None:
    message = missing(handle)
    if message:
        settings.logger.warning("waiting for %.1f s in %s", waited, message)


def wait(
    step: Callable[[int], int],
    timeout: float | None,
    on_stall: Callable[[float], None] | None = None,
    meanwhile: Callable[[], bool] | None = None,
) -> bool:
    """Call `step` until it no longer returns PCOLL_EAGAIN; return False if `timeout` seconds (None:
    no limit) have passed. `step` waits at most the given number of microseconds and returns a
    result code. `on_stall` is called with the seconds waited, each time the stall warning falls
    due. `meanwhile` is called before each step; True shortens the step, because it has work again
    soon. What it raises ends the wait."""
    begin, waited = time.monotonic(), 0.0
    warn_at = warn_every = settings.stall_warning()
    while True:
        look()
        most = SHORT_SLICE_US if meanwhile is not None and meanwhile() else SLICE_US
        left = most if timeout is None else math.ceil(min(most, (timeout - waited) * 1e6))
        code = step(left)
        if code != lib.PCOLL_EAGAIN:
            if code:
                raise_error(code)
            return True
        waited = time.monotonic() - begin
        if timeout is not None and waited >= timeout:
            return False
        if on_stall is not None and waited >= warn_at:
            on_stall(waited)
            warn_at = (time.monotonic() - begin) + warn_every
