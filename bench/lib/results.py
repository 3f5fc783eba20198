# SPDX-License-Identifier: Apache-2.0
"""The results that are kept: bench/results/EXPERIMENT/MPI.json, or "any" if no MPI took part.

A document of several runs of one command has the form of a document of one run, with medians as
numbers. `repeats` is the number of runs. `spread` of a row holds the least and the greatest value
of each number that differs between runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"


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
