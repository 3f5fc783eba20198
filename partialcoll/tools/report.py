# SPDX-License-Identifier: Apache-2.0
"""Show what a benchmark or a simulation found: a progress bar on a terminal, the rows as a table
and as JSON. Pictures are made by `plots`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from .. import _command
from .._core import files
from .._core.version import __version__
from ..errors import Error

Row = dict[str, Any]
T = TypeVar("T")
_SECONDS = 0.2  # between two looks of the bar: it is drawn by the one who measures


def has_bar() -> bool:
    """Return whether a terminal can show a bar. A rank writes to the terminal of whoever started
    its launcher."""
    return sys.stderr.isatty() or bool(os.environ.get("PARTIALCOLL_TTY"))


def progress(items: Iterable[T], show: bool, what: str) -> Iterator[T]:
    if not (show and has_bar()):
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    todo = list(items)
    console = Console(file=sys.stderr, force_terminal=True)
    with Progress(console=console, transient=True, auto_refresh=False) as bar:
        task, shown = bar.add_task(what, total=len(todo)), time.monotonic()
        for done, item in enumerate(todo):
            if time.monotonic() - shown > _SECONDS:
                bar.update(task, completed=done, refresh=True)
                shown = time.monotonic()
            yield item


def columns(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def document(command: str, ranks: int, rows: list[Row]) -> dict[str, Any]:
    """Return the JSON document that every benchmark and every simulation writes. Simulations have
    no MPI."""
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


def fields(rows: list[Row]) -> list[str]:
    """Return the fields that a table can show, in the order of the rows, without courses."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [n for n in names if not any(isinstance(row.get(n), (list, dict)) for row in rows)]


def table(rows: list[Row], columns: Iterable[str] | None = None, file: Any = None) -> None:
    """Print the rows as aligned columns under their names, by default all `fields`; in bold on a
    terminal and plain in a pipe, and never cut."""
    from rich.console import Console
    from rich.table import Table

    names = fields(rows) if columns is None else list(columns)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*[_text(row.get(name)) for name in names])
    out = file or sys.stdout
    plain = False if _command.in_job() else None  # some launchers give ranks a terminal
    console = Console(file=out, width=1 << 16, highlight=False, markup=False, force_terminal=plain)
    with console.capture() as text:  # rich would end the program where nobody reads on
        console.print(made, soft_wrap=True)
    out.write(text.get())


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
