# SPDX-License-Identifier: Apache-2.0
"""Rows of a benchmark as a table and as JSON, and the progress bar."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from mpi4py import MPI

from ._errors import Error
from ._version import __version__

Row = dict[str, Any]
T = TypeVar("T")


def document(command: str, ranks: int, rows: list[Row]) -> dict[str, Any]:
    """The JSON document that every benchmark writes."""
    return {
        "schema": 1,
        "command": command,
        "env": {
            "mpi": MPI.Get_library_version().rstrip("\x00").splitlines()[0],
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


def table(rows: list[Row], columns: Iterable[str]) -> str:
    """The rows as aligned columns under their names."""
    names = list(columns)
    cells = [names, *[[_text(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in cells)


def check_outputs(json_file: str | None, plot: str | None, option: str = "--plot") -> None:
    """Raises Error if a file cannot be written, before anything has been measured for it."""
    if plot is not None and os.path.splitext(plot)[1] not in (".png", ".pdf", ".svg"):
        raise Error(f"{option}: expected a name that ends in .png, .pdf or .svg, got {plot}")
    for name, path in (("--json", json_file), (option, plot)):
        if path is None or (name == "--json" and path == "-"):
            continue
        try:
            with open(path, "ab"):
                pass
        except OSError as error:
            raise Error(f"{name}: {error}") from None


def write(where: str | None, doc: dict[str, Any], text: str) -> None:
    """The table to standard output, the JSON where it was asked for.

    With "-" the JSON has standard output for itself and the table goes to standard error.
    """
    print(text, file=sys.stderr if where == "-" else sys.stdout, flush=True)
    if where == "-":
        print(json.dumps(doc, indent=2), flush=True)
    elif where:
        with open(where, "w", encoding="utf-8") as file:
            json.dump(doc, file, indent=2)
            file.write("\n")


def on_job(
    options: argparse.Namespace,
    command: str,
    columns: Iterable[str],
    run: Callable[[argparse.Namespace, MPI.Intracomm], list[Row]],
    plot: Callable[[list[Row], str], None],
) -> None:
    """A benchmark on all ranks of the job: files are tried, it is run, rank 0 writes the rows."""
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        check_outputs(options.json, options.plot)
    rows = run(options, comm)
    if comm.rank != 0:
        return
    write(options.json, document(command, comm.size, rows), table(rows, columns))
    if options.plot:
        plot(rows, options.plot)


def progress(items: Iterable[T], show: bool, what: str) -> Iterator[T]:
    """The items, with a bar on a terminal."""
    if show and (sys.stderr.isatty() or os.environ.get("PARTIALCOLL_TTY")):
        from tqdm import tqdm

        items = tqdm(items, desc=what, leave=False, ascii=True)
    yield from items
