# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the results that are kept, or of some of them.

python bench/run.py figures [--to build/figures] [EXPERIMENT…]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from partialcoll.tools import report, skewed
from partialcoll.tools.bench.micro import balanced, gossip, group, idle, overhead, quantize
from partialcoll.tools.bench.train import plots as train
from partialcoll.tools.cli import options
from partialcoll.tools.sim import gossip as sim_gossip
from partialcoll.tools.sim import moshpit
from partialcoll.tools.sim import skew as sim_skew

from . import results, tables

Document = dict[str, Any]


def _by_ranks(doc: Document, title: str, path: str) -> None:
    """A simulation of skew, of one number of ranks or several."""
    several = len({row["ranks"] for row in doc["rows"]}) > 1
    (sim_skew.plot_growth if several else skewed.plot)(doc["rows"], title, path)


def _train(doc: Document, title: str, path: str) -> None:
    if "runs" not in doc:  # with --respawn: one row
        return
    train.plot(doc, path)
    if "consensus" in doc["runs"][0]["course"]:
        train.plot_consensus(doc, path.replace(".png", "-consensus.png"))


def _peers(doc: Document, title: str, path: str) -> None:
    from peers.allreduce import plot

    plot(doc["rows"], path)


PICTURES: dict[str, Callable[[Document, str, str], None]] = {
    "bench skew": lambda doc, title, path: skewed.plot(doc["rows"], title, path),
    "bench balanced": lambda doc, title, path: balanced.plot(doc["rows"], path, title),
    "bench gossip": lambda doc, title, path: gossip.plot(doc["rows"], path),
    "bench group": lambda doc, title, path: group.plot(doc["rows"], path),
    "bench idle": lambda doc, title, path: idle.plot(doc["rows"], path),
    "bench peers": _peers,
    "bench overhead": lambda doc, title, path: overhead.plot(doc["rows"], path),
    "bench quantize": lambda doc, title, path: quantize.plot(doc["rows"], path),
    "bench train": _train,
    "sim skew": _by_ranks,
    "sim gossip": lambda doc, title, path: sim_gossip.plot(doc["rows"], title, path),
    "sim moshpit": lambda doc, title, path: moshpit.plot(doc["rows"], title, path),
}


def _fields(rows: list[dict[str, Any]]) -> list[str]:
    """What a table can show: no courses."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [n for n in names if not any(isinstance(row.get(n), (list, dict)) for row in rows)]


def _table(doc: Document, path: Path) -> None:
    """The rows; of a simulated course, how each ended."""
    rows = sim_gossip.last(doc["rows"]) if doc.get("command") == "sim gossip" else doc["rows"]
    with path.open("w", encoding="utf-8") as file:
        for name, value in doc.get("env", {}).items():
            print(f"{name}: {value}", file=file)
        print(file=file)
        report.table(rows, _fields(rows), file)


@click.command("figures", help=__doc__, short_help="tables and pictures of the results")
@options.option("--to", click.Path(file_okay=False), "build/figures", "folder")
@click.argument("experiments", nargs=-1)
def command(to: str, experiments: tuple[str, ...]) -> None:
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, dict[str, Document]] = {}
    for name, mpi, doc in results.documents():
        if experiments and name not in experiments:
            continue
        made.setdefault(mpi, {})[name] = doc
        stem = f"{name}-{mpi}"
        _table(doc, folder / f"{stem}.txt")
        draw = PICTURES.get(doc.get("command", ""))
        if draw is not None:
            draw(doc, name, str(folder / f"{stem}.png"))
    for mpi, docs in made.items():
        for name, text in tables.of(docs):
            (folder / f"{name}-{mpi}.txt").write_text(text + "\n", encoding="utf-8")
    click.echo(f"{sum(map(len, made.values()))} results drawn into {folder}")
