# SPDX-License-Identifier: Apache-2.0
"""The results that are kept (bench/results/EXPERIMENT/MPI.json; "any" if no MPI took part), and
the tables and pictures that are made of them.

A document of several runs of one command has the form of a document of one run, with medians as
numbers. `repeats` is the number of runs. `spread` of a row holds the least and the greatest value
of each number that differs between runs.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from partialcoll.tools import report
from partialcoll.tools.cli import options

FOLDER = Path(__file__).resolve().parents[1] / "results"


def path(name: str, mpi: str) -> Path:
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
    for file in sorted(FOLDER.glob("*/*.json")):
        yield file.parent.name, file.stem, json.loads(file.read_text(encoding="utf-8"))


Document = dict[str, Any]
Rows = list[dict[str, Any]]


def table(rows: Rows, columns: Iterable[str]) -> str:
    text = io.StringIO()
    report.table(rows, columns, text)
    return text.getvalue().rstrip()


# Lian et al., ICML 2018, section 5.4, "Robustness against slow computation": seconds per epoch of
# ResNet-20 on CIFAR-10, 16 workers. The keys are the factors by which one of them is slower.
PAPERS: dict[float, dict[str, float]] = {
    1: {"adpsgd": 1.22, "allreduce": 1.47, "dpsgd": 1.45},
    2: {"adpsgd": 1.28, "allreduce": 2.6, "dpsgd": 2.36},
    10: {"adpsgd": 1.33, "allreduce": 11.51, "dpsgd": 11.24},
    100: {"adpsgd": 1.33, "allreduce": 100.4, "dpsgd": 100.4},
}


def slow(docs: Rows) -> str:
    """Return the table of a slow rank: steps per second beside those without one, and the paper's
    epochs."""
    rates: dict[str, dict[float, float]] = {}
    for doc in docs:
        factor = float(doc["settings"]["pattern"].partition(":")[2] or 1)
        for row in doc["rows"]:
            rates.setdefault(row["strategy"], {})[factor] = row["steps_per_s"]
    rows, names = [], ["rank 0 slower by"]
    for factor in sorted({factor for own in rates.values() for factor in own}):
        line: dict[str, Any] = {"rank 0 slower by": f"{factor:g}"}
        for name, own in rates.items():
            if factor in own:
                line[name] = f"{own[factor]:.2f} ({own[factor] / own[1]:.1%})"
        for name, undelayed in PAPERS[1].items():
            if factor in PAPERS:
                part = undelayed / PAPERS[factor][name]
                line[f"paper's {name}"] = f"{PAPERS[factor][name]:g} s ({part:.1%})"
        names += [name for name in line if name not in names]
        rows.append(line)
    return (
        "Steps per second of a rank, the median (of the rate with no slow rank). The paper's: "
        "seconds per\nepoch of all 16 workers, so that one that does nothing leaves 93.8 % of the "
        "rate.\n" + table(rows, names)
    )


def by_strategy(docs: Iterable[dict[str, Any]]) -> dict[tuple[str, str | None], Rows]:
    """Return the rows of all seeds, by strategy and topology."""
    found: dict[tuple[str, str | None], Rows] = {}
    for doc in docs:
        for row in doc["rows"]:
            found.setdefault((row["strategy"], row["topology"]), []).append(row)
    return found


def mean(rows: Rows, field: str) -> float:
    return float(np.mean([row[field] for row in rows]))


def accuracy(docs: Rows) -> str:
    """Return the table of accuracies: percent, and points from the allreduce's."""
    own = by_strategy(docs)
    base = mean(own["allreduce", None], "accuracy")
    rows = []
    for (name, topology), some in own.items():
        found = mean(some, "accuracy")
        rows.append(
            {
                "strategy": name,
                "topology": topology,
                "accuracy %": f"{found * 100:.2f}",
                "points from allreduce": f"{(found - base) * 100:+.2f}",
                "within 1.5": "yes" if found > base - 0.015 else "NO",
                "of seeds": " ".join(f"{row['accuracy'] * 100:.2f}" for row in some),
                "loss": mean(some, "final_loss"),
                "consensus": mean(some, "consensus"),
                "communications": mean(some, "communications"),
            }
        )
    text = table(rows, rows[0])
    eight = own.get(("swarm-8bit", "complete"), [])
    if eight:
        apart = mean(eight, "accuracy") - mean(own["swarm", "complete"], "accuracy")
        text += f"\n8-bit Swarm is {apart * 100:+.2f} points from Swarm (at least -0.5 wanted)"
    return text


def more(docs: Rows) -> str:
    """Return the table of strategies that make more steps than the allreduce."""
    steps = min(doc["settings"]["steps"] for doc in docs)
    first = [doc for doc in docs if doc["settings"]["steps"] == steps]
    base = mean(by_strategy(first)["allreduce", None], "accuracy")
    rows = []
    longer = {key for doc in docs if doc["settings"]["steps"] > steps for key in by_strategy([doc])}
    for key in sorted(longer, key=str):
        for count in sorted({doc["settings"]["steps"] for doc in docs}):
            own = by_strategy(doc for doc in docs if doc["settings"]["steps"] == count)
            if key in own:
                found = mean(own[key], "accuracy")
                rows.append(
                    {
                        "strategy": key[0],
                        "steps": count,
                        "times the epochs": f"{count / steps:.2f}",
                        "accuracy %": f"{found * 100:.2f}",
                        "points from allreduce": f"{(found - base) * 100:+.2f}",
                    }
                )
    return table(rows, rows[0])


def rings(docs: Rows) -> str:
    """Return the table of rings: consensus distance, root mean square over the run and over its
    second half, over all seeds."""
    rows = []
    for doc in docs:
        own: dict[str, Rows] = {}
        for run in doc["runs"]:
            own.setdefault(run["strategy"], []).append(run)
        for name, runs in own.items():
            late = [run["course"]["consensus"] for run in runs]
            values = np.concatenate([some[len(some) // 2 :] for some in late])
            whole = np.concatenate(late)
            some = [row for row in doc["rows"] if row["strategy"] == name]
            rows.append(
                {
                    "ranks": doc["env"]["ranks"],
                    "data": doc["settings"]["data"],
                    "strategy": name,
                    "consensus": float(np.sqrt(np.mean(whole**2))),
                    "second half": float(np.sqrt(np.mean(values**2))),
                    "in the end": mean(some, "consensus"),
                    "communications of a rank": f"{mean(some, 'communications'):.1f}",
                    "accuracy %": f"{mean(some, 'accuracy') * 100:.2f}",
                }
            )
    return table(rows, rows[0])


def tables_of(docs: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the tables over several results, by name, that have any results."""
    made = {
        "train-worker": (slow, r"train-worker-(allreduce-)?\d+"),
        "train-accuracy": (accuracy, r"train-accuracy-\d+"),
        "train-more": (more, r"train-(accuracy|more)-\d+"),
        "train-ring": (rings, r"train-ring-\d+-\w+"),
    }
    for name, (table_of, pattern) in made.items():
        some = [doc for each, doc in docs.items() if re.fullmatch(pattern, each)]
        if some and (name != "train-more" or any("more" in each for each in docs)):
            yield name, table_of(some)


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
    elif (group, name) in PICTURES:
        module = importlib.import_module(f"partialcoll.tools.{group}.{name}")
        module.plot(doc["rows"], path, title)


PICTURES = {
    *itertools.product(
        ["bench"], ("balanced", "gossip", "group", "idle", "overhead", "quantize", "skew")
    ),
    *itertools.product(["sim"], ("skew", "gossip", "moshpit")),
}


def _fields(rows: list[dict[str, Any]]) -> list[str]:
    """Return the fields that a table can show, without courses."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [n for n in names if not any(isinstance(row.get(n), (list, dict)) for row in rows)]


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
        report.table(rows, _fields(rows), file)


@click.command("figures", short_help="tables and pictures of the results")
@options.option("--to", click.Path(file_okay=False), "build/figures", "folder")
@click.argument("experiments", nargs=-1)
def figures(to: str, experiments: tuple[str, ...]) -> None:
    """Make tables and pictures of the results that are kept, or of some of them."""
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, dict[str, Document]] = {}
    for name, mpi, doc in documents():
        if experiments and name not in experiments:
            continue
        made.setdefault(mpi, {})[name] = doc
        stem = f"{name}-{mpi}"
        _table(doc, folder / f"{stem}.txt")
        _draw(doc, name, str(folder / f"{stem}.png"))
    for mpi, docs in made.items():
        for name, text in tables_of(docs):
            (folder / f"{name}-{mpi}.txt").write_text(text + "\n", encoding="utf-8")
    click.echo(f"{sum(map(len, made.values()))} results drawn into {folder}")
