# SPDX-License-Identifier: Apache-2.0
"""Which algorithm is best for how many bytes on how many ranks, here, and from how many bytes on
complete rounds are faster than MPI's allreduce: the table that ``algorithm="auto"`` and the calls
that look like MPI_Allreduce read (its form is described in docs/algorithms.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import partialcoll as pc

from ..._core import files
from ..._core.mpi import MPI
from ..._core.settings import ALGORITHMS
from ..._core.version import __version__
from .. import report
from . import turns
from .balanced import COLUMNS, BatchKind, measure, plot

_NAP_S = 0.02  # of ranks that wait for minutes while others are measured
_WORTH = 0.97  # of the time so far: a change that saves less is noise


def table(rows: list[report.Row]) -> list[tuple[int, int, str]]:
    """Return (ranks, from_bytes, algorithm): from which sizes another algorithm is better."""
    took: dict[int, dict[int, dict[str, float]]] = {}
    for row in rows:
        if row["collective"] == "mpi" or row["domain"] != "rank":
            continue
        times = took.setdefault(row["ranks"], {}).setdefault(row["bytes"], {})
        times[row["algorithm"]] = row["latency_us_p50"]
    lines = []
    for ranks, by_size in sorted(took.items()):
        current = ALGORITHMS[1]
        lines.append((ranks, 0, current))
        sizes = sorted(by_size)
        for i, size in enumerate(sizes):
            best = min(by_size[size], key=by_size[size].__getitem__)
            both = [by_size[s] for s in sizes[i : i + 2]]  # at the next size as well
            if all(times[best] < _WORTH * times[current] for times in both):
                current = best
                lines.append((ranks, size, current))
    return lines


def thresholds(rows: list[report.Row]) -> list[tuple[int, int | str, str]]:
    """Return lines (ranks, from_bytes, "ours"): the size from which on our complete rounds are
    faster than MPI's allreduce at all sizes, or "never" if they are slower at the largest."""
    took: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if row["collective"] == "mpi" or row["domain"] != "rank":
            times = took.setdefault((row["ranks"], row["bytes"]), {})
            times[row["collective"]] = row["latency_us_p50"]
    found: dict[int, int | str] = {}
    slower: set[int] = set()
    for (ranks, size), times in sorted(took.items(), reverse=True):
        found.setdefault(ranks, "never")
        if times["full"] >= _WORTH * times["mpi"]:
            slower.add(ranks)
        if ranks not in slower:
            found[ranks] = size
    return [(ranks, found[ranks], "ours") for ranks in sorted(found)]


def as_text(lines: Sequence[tuple[int, int | str, str]]) -> str:
    library = MPI.Get_library_version().splitlines()[0].rstrip("\x00").strip()
    head = (
        f"# partialcoll {__version__}, {library}, {os.cpu_count()} cores\n"
        "# ranks  from_bytes  algorithm; ours: complete rounds are faster than MPI's\n"
    )
    return head + "".join(f"{r:7d} {b:>11}  {name}\n" for r, b, name in lines)


def main(options: SimpleNamespace) -> None:
    comm, path = MPI.COMM_WORLD, options.output
    if comm.rank == 0 and path in (None, "none"):
        raise pc.Error("bench tune: there is nowhere to write to; use --output")
    rows: list[report.Row] = []
    kinds = [BatchKind("full", ["rank"], name) for name in ALGORITHMS[1:]]  # of the fabric
    kinds += [BatchKind("full", ["node"], ALGORITHMS[0]), BatchKind("mpi", [], "")]
    for ranks in sorted({comm.size, *(1 << k for k in range(1, comm.size.bit_length()))}):
        if comm.rank == 0 and not report.has_bar():
            how_many = f"{ranks} of {comm.size} ranks, {len(options.sizes)} sizes"
            print(f"bench tune: {how_many}", file=sys.stderr, flush=True)
        part = cast(MPI.Intracomm, comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED))
        if part != MPI.COMM_NULL:
            for size in report.progress(options.sizes, part.rank == 0, f"tune {ranks}"):
                rows += measure(kinds, part, max(1, size // 4), options.iters)
            part.Free()
        turns.meet(comm, _NAP_S)  # those that had nothing to do wait here
    if comm.rank != 0:
        return
    report.write(options.json, report.document("bench tune", comm.size, rows), rows, COLUMNS)
    text = as_text([*table(rows), *thresholds(rows)])
    if path == "-":
        sys.stdout.write(text)
    else:
        with report.writing("--output", path):
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.create_text(path) as file:
                file.write(text)
        print(f"wrote {path}", file=sys.stderr)
    if options.plot:
        plot([row for row in rows if row["ranks"] == comm.size], options.plot, by="algorithm")
