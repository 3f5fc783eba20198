# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment. Everything is also an argument; the argument wins."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Sequence

from . import checks

logger = logging.getLogger("partialcoll")


def given(argument: str, value: str | None, variable: str, default: str) -> tuple[str, str]:
    """Return what messages call it, and the argument, else the variable, else the default."""
    if value is not None:
        return argument, value
    return f"{argument} (from {variable})", os.environ.get(variable) or default


def choice(
    argument: str, value: str | None, variable: str, default: str, allowed: Sequence[str]
) -> str:
    source, value = given(argument, value, variable, default)
    return str(checks.one_of(source, value, allowed))


ALGORITHMS = ("auto", "recdbl", "rabenseifner", "ring", "native")  # as the core numbers them
_MOST_SECONDS = 1e9


@functools.cache
def _ignored(variable: str, text: str, expected: str, instead: str) -> None:
    logger.warning("%s: expected %s, got %r; %s", variable, expected, text, instead)


def seconds(variable: str, default: float) -> float:
    """Return a time from the environment; nonsense is reported once and ignored."""
    text = os.environ.get(variable)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= _MOST_SECONDS:
            return float(text)
    _ignored(variable, text, "a number of seconds above 0", f"using {default:g}")
    return default


def base_timeout() -> float:
    """Return the time, in seconds, that all limits not set by the user derive from."""
    return seconds("PARTIALCOLL_TIMEOUT", 10.0)


def stall_warning() -> float:
    """Return the seconds of waiting after which a rank asks who is missing."""
    return seconds("PARTIALCOLL_STALL_WARN", base_timeout())


def configure_logging(rank: int) -> None:
    """PARTIALCOLL_LOG=debug|info|warning: log to stderr with the rank in each line."""
    text = os.environ.get("PARTIALCOLL_LOG", "")
    if not text or logger.handlers:
        return
    if text.upper() not in ("DEBUG", "INFO", "WARNING"):
        _ignored("PARTIALCOLL_LOG", text, "debug, info or warning", "it is ignored")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"partialcoll[{rank}] %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(text.upper())
