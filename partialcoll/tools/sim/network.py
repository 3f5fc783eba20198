# SPDX-License-Identifier: Apache-2.0
"""The simulated network: LogGP parameters and the distribution of latencies, from text.

Source of the model: Alexandrov, Ionescu, Schauser, Scheiman, "LogGP: Incorporating Long Messages
into the LogP Model", SPAA 1995.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "": 1e3}
_NAMES = ("L (latency)", "o (overhead)", "g (gap)", "G (gap per byte)")
_LARGEST = (3.6e12, 3.6e12, 3.6e12, 1e6)  # nanoseconds
_LARGEST_SPREAD = {"constant": None, "uniform": 1.0, "exponential": None, "lognormal": 4.0}

DEFAULT_LOGGP = "2us,0.5us,0.5us,0.1ns"


@dataclass(frozen=True)
class LogGP:
    """Latency, processor overhead of a message, gap between two, gap per byte, in nanoseconds."""

    L: float
    o: float
    g: float
    G: float

    def __str__(self) -> str:
        return ",".join(f"{value:g}ns" for value in (self.L, self.o, self.g, self.G))


@dataclass(frozen=True)
class Latency:
    """The distribution of latencies around their mean, L."""

    name: str
    spread: float

    def __str__(self) -> str:
        return self.name if _LARGEST_SPREAD[self.name] is None else f"{self.name}:{self.spread:g}"


def _nanoseconds(text: str, name: str, largest: float) -> float:
    number = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?"
    match = re.fullmatch(rf"({number})(ns|us|ms|s|)", text.strip())
    value = float(match[1]) * _UNITS[match[2]] if match else float("nan")
    if not 0 <= value <= largest:
        raise ValueError(
            f"{name}: expected a time of 0 to {largest / 1e9:g}s, in ns, us, ms or s "
            f"(us without a unit), got {text!r}"
        )
    return value


def parse_loggp(text: str) -> LogGP:
    """Return the parameters of four times ``L,o,g,G``: microseconds, or with a unit
    (``2us,500ns,0.5us,0.1ns``); G is the time per byte. Raise ValueError with the parameter and its
    range."""
    parts = text.split(",")
    if len(parts) != 4:
        raise ValueError(f"expected four times L,o,g,G, got {text!r}")
    return LogGP(*map(_nanoseconds, parts, _NAMES, _LARGEST))


def parse_latency(text: str) -> Latency:
    """Return a distribution: ``constant``, ``exponential``, ``uniform:W`` (half of the width as a
    part of the mean, 0 to 1) or ``lognormal:S`` (standard deviation of the logarithm, 0 to 4)."""
    name, _, spread = text.partition(":")
    if name not in _LARGEST_SPREAD:
        raise ValueError(f"expected {', '.join(_LARGEST_SPREAD)}; got {text!r}")
    largest = _LARGEST_SPREAD[name]
    if largest is None:
        if spread:
            raise ValueError(f"{name} has no spread, got {text!r}")
        return Latency(name, 0.0)
    try:
        value = float(spread or 0.5)
    except ValueError:
        value = -1.0
    if not 0 <= value <= largest:
        raise ValueError(f"{name}: expected a spread of 0 to {largest:g}, got {spread!r}")
    return Latency(name, value)


def fill(struct: Any, loggp: LogGP, latency: Latency) -> None:
    from ..._core.pure import simulator

    struct.L, struct.o, struct.g, struct.G = loggp.L, loggp.o, loggp.g, loggp.G
    struct.latency = getattr(simulator.lib, f"PCOLL_LATENCY_{latency.name.upper()}")
    struct.spread = latency.spread
