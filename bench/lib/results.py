# SPDX-License-Identifier: Apache-2.0
"""The results that are kept (bench/results/EXPERIMENT/MPI.json; "any" if no MPI took part), and
the tables and pictures that are made of them.

A document of several runs of one command has the form of a document of one run, with medians as
numbers. `repeats` is the number of runs. `spread` of a row holds the least and the greatest value
of each number that differs between runs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from partialcoll.tools import report
from partialcoll.tools.cli import options

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


Document = dict[str, Any]


def _draw(doc: Document, title: str, path: str) -> None:
    """Draw the picture that the command itself draws with --plot, if it has one."""
    group, _, name = doc.get("command", "").partition(" ")
    if name == "peers":
        from peers import allreduce

        allreduce.plot(doc["rows"], path)
    elif name == "train" and "runs" in doc:  # with --respawn there is one row
        from partialcoll.tools.bench.train import plots as train

        train.plot(doc, path)
        if "consensus" in doc["runs"][0]["course"]:
            train.plot_consensus(doc, path.replace(".png", "-consensus.png"))
    else:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"partialcoll.tools.{group}.{name}")
            if hasattr(module, "plot"):
                module.plot(doc["rows"], path, title)


def _table(doc: Document, path: Path) -> None:
    """Write the rows; of a simulated course, how each run ended."""
    rows = doc["rows"]
    if doc.get("command") == "sim gossip":
        from partialcoll.tools.sim import gossip

        rows = gossip.last(rows)
    with path.open("w", encoding="utf-8") as file:
        for name, value in doc.get("env", {}).items():
            print(f"{name}: {value}", file=file)
        print(file=file)
        report.table(rows, file=file)


@click.command("figures", short_help="tables and pictures of the results")
@options.option("--to", click.Path(file_okay=False), "build/figures", "folder")
@click.argument("experiments", nargs=-1)
def figures(to: str, experiments: tuple[str, ...]) -> None:
    """Make tables and pictures of the results that are kept, or of some of them."""
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    for file in sorted(FOLDER.glob("*/*.json")):
        name = file.parent.name
        if experiments and name not in experiments:
            continue
        made += 1
        doc, stem = json.loads(file.read_text(encoding="utf-8")), f"{name}-{file.stem}"
        _table(doc, folder / f"{stem}.txt")
        _draw(doc, name, str(folder / f"{stem}.png"))
    click.echo(f"{made} results drawn into {folder}")
