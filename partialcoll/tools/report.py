# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a benchmark or a simulation, and write its rows as a table and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .._core import files
from .._core.version import __version__
from ..errors import Error

Row = dict[str, Any]
T = TypeVar("T")
_SECONDS = 0.2  # between two lines of progress: they are written by the one who measures


def has_bar() -> bool:
    """Return whether a terminal, perhaps that of a rank's launcher, can show the progress."""
    return sys.stderr.isatty() or bool(os.environ.get("PARTIALCOLL_TTY"))


def progress(items: Collection[T], show: bool, what: str) -> Iterator[T]:
    shows, shown = show and has_bar(), time.monotonic()
    for done, item in enumerate(items):
        if shows and time.monotonic() - shown > _SECONDS:
            shown = time.monotonic()
            print(f"\r{what}: {done} of {len(items)}", end="", file=sys.stderr, flush=True)
        yield item
    if shows:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def combined(
    rows: Sequence[Row], middle: Callable[[Sequence[float]], float]
) -> tuple[Row, dict[str, list[float]]]:
    """Return one row of several runs, with the `middle` of what differs, and the ranges."""
    row, spread = {}, {}
    for name in rows[0]:
        values = [each.get(name) for each in rows]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        row[name] = values[0]  # lists and their like: of the first run
        if all(value == values[0] for value in values):
            continue
        if numbers:
            row[name], spread[name] = middle(numbers), [min(numbers), max(numbers)]
        elif isinstance(values[0], bool):
            row[name] = all(values)
        elif isinstance(values[0], str):
            row[name] = " / ".join(dict.fromkeys(map(str, values)))
    return row, spread


def columns(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def document(command: str, ranks: int, rows: list[Row]) -> dict[str, Any]:
    """Return the JSON document of a benchmark, or of a simulation, which has no MPI."""
    loaded = sys.modules.get("mpi4py.MPI")
    return {
        "schema": 1,
        "command": command,
        "env": {
            "mpi": loaded and loaded.Get_library_version().rstrip("\x00").splitlines()[0],
            "ranks": ranks,
            "cores": os.cpu_count(),
            "version": __version__,
        },
        "rows": rows,
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def table(rows: list[Row], columns: Iterable[str] | None = None, file: Any = None) -> None:
    """Print the rows as aligned columns under their names, never cut; by default all fields that
    are no courses, in the order of the rows."""
    every = dict.fromkeys(name for row in rows for name in row)
    plain = [n for n in every if not any(isinstance(row.get(n), (list, dict)) for row in rows)]
    names = plain if columns is None else list(columns)
    lines = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        text = "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
        print(text, file=file or sys.stdout)


@contextlib.contextmanager
def writing(what: str, path: str) -> Iterator[None]:
    """Turn an OSError while a file is written into an Error that names the option and the file."""
    try:
        yield
    except OSError as error:
        raise Error(f"{what}: {path}: {error.strerror or error}") from None


def write(
    where: str | None,
    doc: dict[str, Any],
    rows: list[Row] | None = None,
    columns: Iterable[str] | None = None,
) -> None:
    """Print the table of the rows, by default the document's, to standard output, and write the
    JSON where it was asked for.

    With "-" the JSON has standard output for itself, and the table goes to standard error.
    """
    shown = doc["rows"] if rows is None else rows
    table(shown, columns, sys.stderr if where == "-" else sys.stdout)
    if where == "-":
        print(json.dumps(doc, indent=2), flush=True)
    elif where:
        with writing("--json", where), files.create_text(where) as file:
            json.dump(doc, file, indent=2)
            file.write("\n")
