# SPDX-License-Identifier: Apache-2.0
"""What a word of the command line may be: parsers, whose errors say what was expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any, Callable


def positive_int(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return value


def positive_ints(text: str) -> list[int]:
    return [positive_int(word) for word in text.split(",")]


def not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text}")
    return value


def positive(text: str) -> float:
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"expected a whole number of 0 to 2^64-1, got {text}")
    return int(text)


def words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated list of some of the words."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"expected {', '.join(allowed)}; got {word!r}")
        return words

    return parse


def one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    """One of the words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(allowed)}, got {text!r}")
        return text

    return parse


def explained(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser whose ValueError is shown to the user."""

    def explain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return explain


def _with_arguments(text: str) -> list[str]:
    """A comma-separated list of names, whose arguments (linger=1ms) have commas before them."""
    names: list[str] = []
    for word in text.split(","):
        if "=" in word and names:
            names[-1] += "," + word
        else:
            names.append(word)
    return names


def collectives(text: str) -> list[str]:
    """A comma-separated list of "mpi" and policies, whose modifiers have commas as well."""
    from ..policy import parse

    names = _with_arguments(text)
    for name in names:
        if name == "mpi":
            continue
        try:
            parse(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected mpi or a policy; {error}") from None
    return names


def topologies(text: str) -> list[str]:
    """A comma-separated list of topologies, whose arguments have commas as well."""
    from ..topology import Topology

    names = _with_arguments(text)
    for name in names:
        try:
            Topology.make(name, 16)
        except ValueError as error:
            if "expected one of ring" in str(error):
                raise argparse.ArgumentTypeError(str(error)) from None
    return names


def rates(text: str) -> list[float]:
    rates = [not_negative(word) for word in text.split(",")]
    if 0 in rates:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text}")
    return rates


def chances(text: str) -> list[float]:
    chances = [not_negative(word) for word in text.split(",")]
    for word, chance in zip(text.split(","), chances):
        if chance >= 1:
            raise argparse.ArgumentTypeError(f"expected numbers of 0 to below 1, got {word}")
    return chances


def grid(text: str) -> str:
    """ "auto" or sides such as 32x32."""
    from ..grid import Grid

    if text != "auto":
        Grid(text)
    return text


def grids(text: str) -> list[str]:
    """A comma-separated list of "auto" and sides such as 32x32."""
    return [grid(word) for word in text.split(",")]


_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in _SIZE_UNITS or not 0 < int(number) < 1 << 40:
        raise argparse.ArgumentTypeError(f"expected bytes such as 8, 4K or 64M, got {text!r}")
    return int(number) * _SIZE_UNITS[unit]


def sizes(text: str) -> list[int]:
    """`8:64M`: doubling from one to the other; `8,4K,1M`: these."""
    if ":" not in text:
        return [size(word) for word in text.split(",")]
    first, _, last = text.partition(":")
    sizes = [size(first)]
    while 2 * sizes[-1] <= size(last):
        sizes.append(2 * sizes[-1])
    return sizes


def bit_widths(text: str) -> list[int]:
    widths = positive_ints(text)
    for bits in widths:
        if not 2 <= bits <= 16:
            raise argparse.ArgumentTypeError(f"expected bits of 2 to 16, got {bits}")
    return widths


def bandwidth(text: str) -> Any:
    """ "equal", "measured", or a number for each rank."""
    if text in ("equal", "measured"):
        return None if text == "equal" else text
    return rates(text)
