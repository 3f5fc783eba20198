# SPDX-License-Identifier: Apache-2.0
"""The pictures of `bench train`: held-out loss against time and who waited for how long; and, for
each topology, consensus distance and accuracy (or loss) against time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ... import plots
from .strategies import STRATEGIES

_STYLES = ("-", "--", "-.", ":")
_ROUNDING = 1e-6  # what a distance may be where all models are equal

Runs = list[dict[str, Any]]


def color(label: str) -> Any:
    import matplotlib

    names = list(STRATEGIES)
    name = label.partition(",")[0]
    return matplotlib.colormaps["tab20"](names.index(name) % 20) if name in names else None


def _named(runs: Runs) -> dict[str, Runs]:
    several = len({run.get("topology") for run in runs if run.get("topology") is not None}) > 1
    found: dict[str, Runs] = {}
    for run in runs:
        topology = f", {run['topology']}" if several and run.get("topology") is not None else ""
        found.setdefault(run["strategy"] + topology, []).append(run)
    return found


def title(doc: dict[str, Any]) -> str:
    said, ranks = doc["settings"], doc["env"]["ranks"]
    name, _, factor = said["pattern"].partition(":")
    who = {
        "none": "nobody delayed",
        "one-random": f"one random rank {said['delay_ms']:g} ms late in each step",
        "all-shifted": f"ranks up to {said['delay_ms']:g} ms late by turns",
        "one-slow": f"rank 0 {factor} times slower",
        "kill": f"one rank killed each {factor} s",
    }[name]
    least = f", steps of {said['compute_ms']:g} ms" if said["compute_ms"] else ""
    return f"{said['task']}, {ranks} ranks{least}, {who}"


def label(name: str, own: Runs) -> str:
    """Return the name with the speedup, the mean over the rows of all seeds, and the limit."""
    speedups = [row["speedup_vs_allreduce"] for row in own]
    if name == "allreduce" or None in speedups:
        return name
    text = f"{name}: {np.mean(speedups):.2f}× the steps"
    return text if own[0]["limit"] is None else f"{text} (limit {own[0]['limit']:.2f}×)"


def _losses(axes: Any, doc: dict[str, Any]) -> None:
    rows = _named(doc["rows"])
    topologies = dict.fromkeys(name.partition(", ")[2] for name in rows)
    styles = dict(zip(topologies, itertools.cycle(_STYLES)))
    for name, runs in _named(doc["runs"]).items():
        how: dict[str, Any] = {"color": color(name), "linestyle": styles[name.partition(", ")[2]]}
        how["alpha"], how["linewidth"] = (1, 1.6) if len(runs) == 1 else (0.7, 1.1)
        named = label(name, rows[name])
        for course in (run["course"] for run in runs):
            plots.course(axes, [course["seconds"]], [course["loss"]], label=named, **how)
            named = "_"
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if high < 12 * low else "")  # else they overlap
    axes.set(xlabel="seconds", ylabel="loss on held-out samples")
    axes.set_xlim(left=0)


def plot(doc: dict[str, Any], path: str) -> None:
    names = [label(name, rows) for name, rows in _named(doc["rows"]).items()]
    columns = 3 if max(map(len, names)) < 45 else 2
    size = 9.6, 3.8 + 0.2 * -(-len(names) // columns)
    with plots.picture(path, title(doc), columns=2, size=size, width_ratios=(3, 2)) as panels:
        left, right = panels[0]
        _losses(left, doc)
        named = _named(doc["runs"])
        width = 0.8 / len(named)
        for i, (name, runs) in enumerate(named.items()):
            waits = np.mean([run["wait_s"] for run in runs], axis=0)
            places = np.arange(len(waits)) + (i - (len(named) - 1) / 2) * width
            right.bar(places, waits, width, color=color(name))
        right.set(xlabel="rank", ylabel="seconds waited", xticks=range(doc["env"]["ranks"]))
        plots.legend_below(panels, columns)


def _pictures(runs: Runs) -> dict[str | None, Runs]:
    """Return the runs of each column: those on one topology, and in each column those without one.
    Everything is in one column unless a strategy ran on several topologies."""
    pairs = {(run["strategy"], run.get("topology")) for run in runs}
    if len(pairs) == len({strategy for strategy, _ in pairs}):
        return {None: runs}
    names = dict.fromkeys(run.get("topology") for run in runs if run.get("topology") is not None)
    return {name: [r for r in runs if r["topology"] in (name, None)] for name in names}


def _draw(axes: Any, runs: Runs, field: str) -> None:
    """Draw a field of each strategy over all seeds; accuracies as errors, since differences near 1
    count. Distances of 0, right after an average over all ranks, are left out."""
    for name, some in _named(runs).items():
        courses = [run["course"] for run in some]
        seconds = [course["seconds"] for course in courses]
        values = [course[field] for course in courses]
        if "accuracy" in field:
            values = [1 - np.array(each) for each in values]
        how = {"color": color(name), "linewidth": 1.2, "label": name}
        plots.course(axes, seconds, values, _ROUNDING, log=field == "consensus", **how)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, linewidth=0.5)


def plot_consensus(doc: dict[str, Any], path: str) -> None:
    columns = _pictures(doc["runs"])
    quality = "loss" if doc["runs"][0]["course"]["accuracy"][0] is None else "accuracy"
    word = quality.replace("accuracy", "1 - accuracy")
    fields = {
        "consensus": "consensus distance",
        quality: f"{word}, averaged model",
        f"own_{quality}": f"{word}, one rank's own",
    }
    size = 2.0 + 4.4 * len(columns), 8.6
    how = {"sharex": True, "sharey": "row"}
    with plots.picture(path, title(doc), len(fields), len(columns), size, **how) as panels:
        for column, (topology, runs) in zip(panels.T, columns.items()):
            for axes, field in zip(column, fields):
                _draw(axes, runs, field)
            column[0].set_title(topology or "", fontsize=10)
            column[-1].set_xlabel("seconds")
            column[-1].set_xlim(left=0)
        for row, words in zip(panels, fields.values()):
            row[0].set_ylabel(words)
        plots.legend_below(panels, 2 + len(columns))
