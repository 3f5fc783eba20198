# SPDX-License-Identifier: Apache-2.0
"""Types of command-line arguments. Ranges and choices are click's. Our own grammars (sizes,
policies, topologies ...) are parsed here or where they belong; their errors say what was expected
and what came."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import click

from ..._core import launch
from ...grid import Grid
from ...policy import parse
from ...topology import Topology
from ..bench.train.delays import Pattern

_MOST = 10**15


class Number(click.FloatRange):
    """A finite number in a range. click's own type accepts infinity and "nan"."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number from `min` on, up to a limit that is beyond every machine."""

    name = "integer"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if number > _MOST:
            self.fail(f"{value} is not in the range {self.min}<=x<={_MOST}.", param, ctx)
        return number


class Parsed(click.ParamType):
    """The result of a function of the text; the message of its ValueError is shown."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ListOf(click.ParamType):
    def __init__(
        self, one: click.ParamType, split: Callable[[str], list[str]] = lambda text: text.split(",")
    ) -> None:
        self.name, self._one, self._split = f"{one.name},…", one, split

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        return [self._one.convert(word, param, ctx) for word in self._split(value)]


class OutputFile(click.ParamType):
    """A file that can be written, checked before anything is measured, and only on the first rank,
    which writes it: other ranks may be on hosts without its folder."""

    name = "file"

    def __init__(
        self, endings: Sequence[str] = (), dash: bool = False, folders: bool = False
    ) -> None:
        self._endings, self._dash, self._folders = endings, dash, folders

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if (self._dash and value == "-") or not launch.is_first():
            return value
        path = Path(value)
        if self._endings and path.suffix not in self._endings:
            *some, last = self._endings
            what = f"a name that ends in {', '.join(some)} or {last}"
            self.fail(f"expected {what}, got {value}", param, ctx)
        if self._endings and importlib.util.find_spec("matplotlib") is None:
            self.fail("pictures need matplotlib: pip install 'partialcoll[plot]'", param, ctx)
        writable = path if path.exists() else path.absolute().parent
        while self._folders and not writable.exists():  # which are made
            writable = writable.parent
        fits = not path.is_dir() if writable == path else writable.is_dir()
        if not fits or not os.access(writable, os.W_OK):
            self.fail(f"expected a file that can be written, got {value}", param, ctx)
        return value


POSITIVE_INT, WHOLE = Count(1), Count(0)
RANKS, SEED = click.IntRange(1, 2**31 - 1), click.IntRange(0, 2**64 - 1)
BITS = click.IntRange(2, 16)
NOT_NEGATIVE, POSITIVE = Number(0), Number(0, min_open=True)
HOUR, DAY = Number(0, 3.6e6), Number(0, 86400)  # in milliseconds, in seconds
SLOWNESS, STEPS = Number(1e-3, 1e6), Number(0, 1e9)  # times as slow, gradient steps
POSITIVE_INTS, BIT_WIDTHS = ListOf(POSITIVE_INT), ListOf(BITS)
RATES = ListOf(Number(0, 1e9, min_open=True))
CHANCES, PARTS = ListOf(Number(0, 1, max_open=True)), ListOf(Number(0, 1, min_open=True))
JSON, TABLE = OutputFile(dash=True), OutputFile(dash=True, folders=True)
PICTURE = OutputFile((".png", ".pdf", ".svg"))


def some_of(names: Sequence[str]) -> click.ParamType:
    return ListOf(click.Choice(list(names)))


_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in _SIZE_UNITS or not 0 < int(number) < 1 << 40:
        raise ValueError(f"expected bytes such as 8, 4K or 64M, got {text!r}")
    return int(number) * _SIZE_UNITS[unit]


def sizes(text: str) -> list[int]:
    """Return sizes: `8:64M` doubles from the first to the last, `8,4K,1M` are these."""
    if ":" not in text:
        return [size(word) for word in text.split(",")]
    first, last = map(size, text.split(":", 1))
    if first > last:
        raise ValueError(f"expected FROM:TO with FROM of at most TO, got {text!r}")
    return [first << k for k in range((last // first).bit_length())]


def _with_arguments(text: str) -> list[str]:
    """Split a list of names whose arguments (linger=1ms) may contain commas."""
    return re.split(r",(?![^,]*=)", text)


def _collective(name: str) -> str:
    if name != "mpi":
        try:
            parse(name)
        except ValueError as error:
            raise ValueError(f"expected mpi or a policy; {error}") from None
    return name


def _grid(text: str) -> str:
    if text != "auto":
        Grid(text)
    return text


def fit_grid(grid: str, ranks: int) -> None:
    try:
        Grid(grid, ranks)
    except ValueError as error:
        raise click.UsageError(f"--grid: {str(error).removeprefix('grid: ')}") from None


def fit_topology(text: str, ranks: int) -> None:
    """Raise UsageError unless `text` is a connected, undirected graph of `ranks` ranks."""
    try:
        graph = Topology.make(text, ranks)
    except ValueError as error:
        raise click.UsageError(f"--topology: {str(error).removeprefix('topology: ')}") from None
    if graph.directed or not graph.is_connected:
        what = "connected ranks and undirected edges"
        raise click.UsageError(f"--topology: expected {what}, got {text!r} of {ranks} ranks")


def _bandwidth(text: str) -> Any:
    """Return None for "equal", "measured", or a number for each rank."""
    if text in ("equal", "measured"):
        return None if text == "equal" else text
    return RATES.convert(text, None, None)


def _launcher_words(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected words as for a shell, got {text!r} ({error})") from None
    return text


def _hosts(text: str) -> str:
    """Return hosts as launchers take them, such as ``a:2,b``: the text, or the lines of the file
    that it names, each as ``a``, ``a:2`` or ``a slots=2``."""
    if not launch.is_first():  # the job is there, and a file of them need not be on this host
        return text
    hosts = text
    if os.path.isfile(text):  # a long list of hosts is too long for a file name
        try:
            lines = [line.partition("#")[0].strip() for line in Path(text).read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise ValueError(f"expected a file that can be read, got {text!r} ({error})") from None
        hosts = ",".join(re.sub(r"\s+slots=", ":", line) for line in lines if line)
    for host in hosts.split(","):
        if any(part.strip().startswith("-") for part in host.split("@")):
            raise ValueError(
                f"expected names of hosts, got {host!r}: ssh may take it for an option"
            )
    if not hosts or "/" in hosts or hosts != "".join(hosts.split()):
        what = "hosts such as a:2,b:2, or a file with lines such as a, a:2 or a slots=2"
        raise ValueError(f"expected {what}, got {text!r}")
    return hosts


def _variable(text: str) -> tuple[str, str]:
    """Return name and value of a variable, with its value here if the text gives none."""
    name, given, value = text.partition("=")
    if not (name.isascii() and name.isidentifier()) or not (given or name in os.environ):
        raise ValueError(f"expected NAME=VALUE, or the NAME of one that is set, got {text!r}")
    return name, value if given else os.environ[name]


SIZE, SIZES = Parsed(size), Parsed(sizes)
COLLECTIVES = ListOf(Parsed(_collective), _with_arguments)
TOPOLOGIES = ListOf(click.STRING, _with_arguments)
GRID, GRIDS = Parsed(_grid), ListOf(Parsed(_grid))
BANDWIDTH = Parsed(_bandwidth)
PATTERN = Parsed(Pattern.parse)
LAUNCHER_WORDS = Parsed(_launcher_words)
HOSTS, VARIABLE = Parsed(_hosts), Parsed(_variable)
