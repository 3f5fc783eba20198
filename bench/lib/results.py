# SPDX-License-Identifier: Apache-2.0
"""The last results, JSON alone: bench/results/EXPERIMENT/MPI.json; "any" where no MPI has a part in
it. Texts and pictures are made from them.

A document of several runs of one command is as that of one run, with medians in place of the
numbers. `repeats` is the number of runs, and a row's `spread` has the least and the most of each
number that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"


def path(name: str, mpi: str) -> Path:
    """Where a result is kept; its folder is made."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{mpi}.json"


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one document of several runs of the same command; the `runs` of trainings, with
    their courses, are all in it."""
    first = runs[0]
    if len(runs) == 1:
        return first
    counts = [len(run["rows"]) for run in runs]
    if len(set(counts)) > 1:
        raise ValueError(f"rows: expected as many in each run, got {counts}")
    rows = [_row(same) for same in zip(*(run["rows"] for run in runs))]
    document = {**first, "repeats": len(runs), "rows": rows}
    if "runs" in first:
        document["runs"] = [each for run in runs for each in run["runs"]]
    return document


def _row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of one row, and their spread."""
    row, spread = {}, {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if all(value == values[0] for value in values):
            row[name] = values[0]
        elif numbers:
            row[name] = median(numbers)
            spread[name] = [min(numbers), max(numbers)]
        elif isinstance(values[0], bool):
            row[name] = all(values)
        elif isinstance(values[0], str):
            row[name] = " / ".join(dict.fromkeys(map(str, values)))
        else:  # lists and their like: of the first run
            row[name] = values[0]
    return {**row, "spread": spread}


def documents() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Experiment, MPI and document of all that are there."""
    for file in sorted(FOLDER.glob("*/*.json")):
        yield file.parent.name, file.stem, json.loads(file.read_text(encoding="utf-8"))
