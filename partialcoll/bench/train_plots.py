# SPDX-License-Identifier: Apache-2.0
"""The picture of `bench train`: held-out loss against time, and who waited for how long."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

COLOURS = {
    "allreduce": "#5f6368",
    "eager-solo": "#1a73e8",
    "eager-majority": "#e8710a",
    "eager-full": "#9aa0a6",
    "eager-solo-all": "#12805c",
    "adpsgd": "#d93025",
    "dpsgd": "#a142f4",
    "swarm": "#188038",
    "swarm-8bit": "#81c995",
    "a2cid2": "#1967d2",
    "a2cid2-baseline": "#8ab4f8",
    "moshpit": "#b06000",
    "sgp": "#f538a0",
    "localsgd": "#007b83",
    "slowmo": "#f9ab00",
}


_STYLES = ("-", "--", "-.", ":")
_INSIDE = 6  # lines of the legend beside the curves


def colour(label: str) -> str | None:
    """Of a strategy, whatever follows its name."""
    return COLOURS.get(label.partition(",")[0])


def _named(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By strategy, with the topology where one strategy has several."""
    several = len({run["topology"] for run in runs if run["topology"] is not None}) > 1
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        topology = f", {run['topology']}" if several and run["topology"] is not None else ""
        found.setdefault(run["strategy"] + topology, []).append(run)
    return found


def title(doc: dict[str, Any]) -> str:
    """What was trained, on how many ranks, and who was late."""
    said, ranks = doc["settings"], doc["env"]["ranks"]
    name, _, factor = said["pattern"].partition(":")
    who = {
        "none": "nobody delayed",
        "one-random": f"one random rank {said['delay_ms']:g} ms late in each step",
        "all-shifted": f"ranks up to {said['delay_ms']:g} ms late by turns",
        "one-slow": f"rank 0 {factor} times slower",
    }[name]
    least = f", steps of {said['compute_ms']:g} ms" if said["compute_ms"] else ""
    return f"{said['task']}, {ranks} ranks{least}, {who}"


def label(name: str, own: list[dict[str, Any]]) -> str:
    """With its speedup, the mean over the seeds' rows, beside the limit."""
    speedups = [row["speedup_vs_allreduce"] for row in own]
    if name == "allreduce" or None in speedups:
        return name
    text = f"{name}: {np.mean(speedups):.2f}× the steps"
    return text if own[0]["limit"] is None else f"{text} (limit {own[0]['limit']:.2f}×)"


def _losses(axes: Any, doc: dict[str, Any], lines: list[tuple[str, Any]]) -> None:
    rows = _named(doc["rows"])
    topologies = dict.fromkeys(name.partition(", ")[2] for name in rows)
    styles = dict(zip(topologies, itertools.cycle(_STYLES)))
    for name, runs in _named(doc["runs"]).items():
        for i, course in enumerate(run["course"] for run in runs):
            (line,) = axes.plot(
                course["seconds"],
                course["loss"],
                color=colour(name),
                linestyle=styles[name.partition(", ")[2]],
                alpha=1 if len(runs) == 1 else 0.7,
                linewidth=1.6 if len(runs) == 1 else 1.1,
            )
            if not i:
                lines.append((label(name, rows[name]), line))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if high < 12 * low else "")  # else they overlap
    axes.set_xlabel("seconds")
    axes.set_ylabel("loss on held-out samples")
    axes.set_xlim(left=0)


def _waits(axes: Any, doc: dict[str, Any]) -> None:
    named = _named(doc["runs"])
    width = 0.8 / len(named)
    for i, (name, runs) in enumerate(named.items()):
        waits = np.mean([run["wait_s"] for run in runs], axis=0)
        places = np.arange(len(waits)) + (i - (len(named) - 1) / 2) * width
        axes.bar(places, waits, width, color=colour(name))
    axes.set_xlabel("rank")
    axes.set_ylabel("seconds waited")
    axes.set_xticks(range(doc["env"]["ranks"]))


def plot(doc: dict[str, Any], path: str) -> None:
    """Draw the JSON document of a benchmark into a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines: list[tuple[str, Any]] = []
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.6, 3.8), width_ratios=(3, 2), constrained_layout=True
    )
    figure.suptitle(title(doc), fontsize=11)
    _losses(left, doc, lines)
    _waits(right, doc)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    labels, handles = zip(*lines)
    if len(lines) <= _INSIDE:
        left.legend(handles, labels, fontsize=8, frameon=False)
    else:  # they would hide the curves
        ncols = 3 if max(map(len, labels)) < 45 else 2
        rows = -(-len(lines) // ncols)
        figure.set_size_inches(9.6, 3.8 + 0.2 * rows)
        figure.legend(
            handles, labels, loc="outside lower center", ncols=ncols, fontsize=8, frameon=False
        )
    figure.savefig(path, dpi=130)
    plt.close(figure)
