# SPDX-License-Identifier: Apache-2.0
"""Waiting in slices, so that signals come through and somebody says who is missing."""

from __future__ import annotations

import time
from typing import Any, Callable

from . import _settings
from ._ffi import ffi, lib, raise_error

# Signals come through at least this often, in microseconds.
SLICE_US = 100_000


def report_missing(handle: Any, waited: float) -> None:
    """Ask all ranks where they are and log one sentence. handle is the core's handle."""
    text = ffi.new("char[]", 2048)
    patience_us = int(_settings.base_timeout() * 1e5)
    if handle != ffi.NULL and lib.pcoll_handle_missing(handle, patience_us, text, 2048) == 0:
        message = ffi.string(text).decode(errors="replace")
        _settings.logger.warning("waiting for %.1f s in %s", waited, message)


def wait(
    step: Callable[[int], int],
    timeout: float | None,
    on_stall: Callable[[float], None] | None = None,
) -> bool:
    """Call step(microseconds) until it no longer says "again".

    Parameters
    ----------
    step : callable
        Waits at most the given number of microseconds; returns a result code.
    timeout : float or None
        Seconds, at least 0; None waits without end.
    on_stall : callable
        Called with the seconds waited, each time the stall warning falls due.

    Returns False if the time ran out.
    """
    first = SLICE_US if timeout is None else min(SLICE_US, int(timeout * 1e6))
    code = step(first)
    if code != lib.PCOLL_EAGAIN:
        if code:
            raise_error(code)
        return True
    begin = time.monotonic() - first / 1e6
    warn_every = _settings.stall_warning()
    warn_at = warn_every
    while True:
        waited = time.monotonic() - begin
        if timeout is not None and waited >= timeout:
            return False
        if on_stall is not None and waited >= warn_at:
            on_stall(waited)
            warn_at = (time.monotonic() - begin) + warn_every
        left = SLICE_US if timeout is None else min(SLICE_US, int((timeout - waited) * 1e6) + 1)
        code = step(left)
        if code != lib.PCOLL_EAGAIN:
            if code:
                raise_error(code)
            return True


def check_timeout(timeout: float | None) -> None:
    """A time limit is None or a number of seconds, at least 0."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout: expected None or a number of seconds >= 0, got {timeout!r}")
