# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments. Each returns the value in its plain form, or raises TypeError or ValueError
that name the argument, what was expected and what came.

``what`` says what is expected where "a number" would not tell: "seconds", "a number of rounds".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_BOOLS = (bool, np.bool_)
_LONGEST = 200  # characters of a value


def shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _shown(bound: float) -> str:
    if isinstance(bound, int):
        return str(bound) if bound < 2**53 else f"2^{bound.bit_length()}-1"
    return f"{bound:g}"


def _check_bounds(
    name: str, value: Any, low: float | None, high: float | None, what: str | None, whole: bool
) -> None:
    if (low is None or value >= low) and (high is None or value <= high):
        return
    named = [("at least", low), ("at most", high)]
    bounds = " and ".join(f"{word} {_shown(b)}" for word, b in named if b is not None)
    if whole and low is not None and high is not None:
        bounds = f"{_shown(low)} to {_shown(high)}"
    expected = bounds if what is None else f"{what} of {bounds}"
    raise ValueError(f"{name}: expected {expected}, got {shown(value)}")


def integer(
    name: str,
    value: Any,
    at_least: int | None = None,
    at_most: int | None = None,
    *,
    what: str | None = None,
) -> int:
    """Return a whole number in a range. bool is none."""
    try:
        if isinstance(value, _BOOLS):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        expected = what or "a whole number"
        raise TypeError(f"{name}: expected {expected}, got {shown(value)}") from None
    _check_bounds(name, found, at_least, at_most, what, whole=True)
    return found


def count(name: str, value: Any, *, what: str | None = None) -> int:
    return integer(name, value, 1, what=what)


def real(name: str, value: Any, *, what: str | None = None) -> float:
    """Return a number; infinite and nan are some."""
    if isinstance(value, _BOOLS) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected {what or 'a number'}, got {shown(value)}")
    return float(value)


def number(
    name: str,
    value: Any,
    at_least: float | None = None,
    at_most: float | None = None,
    *,
    above: float | None = None,
    what: str | None = None,
) -> float:
    """Return a finite number in a range; `above` leaves its lower bound out. bool is none."""
    real(name, value, what=what)
    if above is not None and not value > above:
        expected = f"{what or 'a number'} above {_shown(above)}"
        raise ValueError(f"{name}: expected {expected}, got {shown(value)}")
    _check_bounds(name, value, at_least, at_most, what, whole=False)
    if not math.isfinite(value):
        raise ValueError(f"{name}: expected {what or 'a finite number'}, got {shown(value)}")
    return float(value)


def seconds(name: str, value: Any, default: float | None = None) -> float:
    if value is None and default is not None:
        return default
    return number(name, value, above=0, what="seconds")


def time_limit(name: str, value: Any) -> None:
    """Accept None, or seconds of at least 0; infinitely many are as good as None."""
    what = "None or a number of seconds >= 0"
    if value is not None and not real(name, value, what=what) >= 0:
        raise ValueError(f"{name}: expected {what}, got {shown(value)}")


def rank(name: str, value: Any, ranks: int) -> int:
    found = integer(name, value, what="a rank")
    if not 0 <= found < ranks:
        raise ValueError(f"{name}: expected a rank from 0 to {ranks - 1}, got {shown(value)}")
    return found


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, _BOOLS):
        raise TypeError(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def text(name: str, value: Any, *, what: str = "a text") -> str:
    """Return a string of characters that can be shown: what ends lines or texts in C is none."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected {what}, got {shown(value)}")
    if not value.isprintable():
        raise ValueError(f"{name}: expected {what} of characters that can be shown, got {value!r}")
    return value


def one_of(name: str, value: Any, allowed: Collection[Any]) -> Any:
    try:
        known = value in allowed
    except (TypeError, ValueError):  # no hash; an array, which is compared by element
        known = False
    if not known:
        expected = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"{name}: expected one of {expected}, got {shown(value)}")
    return value


def code(name: str, value: Any, codes: Mapping[str, T]) -> T:
    return codes[one_of(name, value, codes)]


def several(name: str, value: Any, *, what: str) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name}: expected {what}, got {shown(value)}") from None


def instance(name: str, value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {what}, got {type(value).__name__}")
    return value
