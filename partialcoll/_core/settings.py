# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment. Everything is also an argument; the argument wins."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from . import checks

logger = logging.getLogger("partialcoll")


def given(argument: str, value: str | None, variable: str, default: str) -> tuple[str, str]:
    """The argument if given, else the environment variable, else the default; before it what
    messages are to call it."""
    if value is not None:
        return argument, value
    return f"{argument} (from {variable})", os.environ.get(variable) or default


def choice(
    argument: str, value: str | None, variable: str, default: str, allowed: Sequence[str]
) -> str:
    """The argument if given, else the environment variable, else the default."""
    source, value = given(argument, value, variable, default)
    return str(checks.one_of(source, value, allowed))


def seconds(variable: str, default: float) -> float:
    """A time from the environment; nonsense is reported once and ignored."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = float(text)
        if value > 0:
            return value
    except ValueError:
        pass
    logger.warning(
        "%s: expected a number of seconds above 0, got %r; using %g", variable, text, default
    )
    return default


def base_timeout() -> float:
    """The one time, in seconds, that all limits not set by the user derive from."""
    return seconds("PARTIALCOLL_TIMEOUT", 10.0)


def stall_warning() -> float:
    """Seconds of waiting after which a rank asks who is missing."""
    return seconds("PARTIALCOLL_STALL_WARN", base_timeout())


def configure_logging(rank: int) -> None:
    """PARTIALCOLL_LOG=debug|info|warning: log to stderr with the rank in each line."""
    level = os.environ.get("PARTIALCOLL_LOG", "").upper()
    if level not in ("DEBUG", "INFO", "WARNING") or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"partialcoll[{rank}] %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
