# SPDX-License-Identifier: Apache-2.0
"""The second picture of `bench train`: consensus distance and accuracy (the loss, where a task has
none) against time, side by side for each topology."""

from __future__ import annotations

from typing import Any

import numpy as np

from .train_plots import colour, title

_ROUNDING = 1e-6  # what a distance may be where all models are equal
_ERRORS = (0.9, 0.5, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002)

Runs = list[dict[str, Any]]


def columns(runs: Runs) -> dict[str | None, Runs]:
    """The runs of each picture: those on one topology, and in each those that have none. Without
    two of one strategy on different ones everything is in one picture."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        seen.setdefault(run["strategy"], set()).add(run["topology"])
    if max(map(len, seen.values())) < 2:
        return {None: runs}
    names = dict.fromkeys(run["topology"] for run in runs if run["topology"] is not None)
    return {name: [r for r in runs if r["topology"] in (name, None)] for name in names}


def curves(runs: Runs, field: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Seconds and values over all seeds of one strategy; consensus distances geometrically."""
    courses = [run["course"] for run in runs]
    points = min(len(course["seconds"]) for course in courses)
    seconds = np.mean([course["seconds"][:points] for course in courses], axis=0)
    values = np.array([course[field][:points] for course in courses], float)
    if field != "consensus":
        return seconds, values.mean(axis=0)
    values[values <= _ROUNDING] = np.nan  # a logarithm needs some
    return seconds, np.exp(np.log(values).mean(axis=0))


def _draw(axes: Any, own: dict[str, Runs], field: str) -> dict[str, Any]:
    """The curves of a picture; their lines by name. Those of 0, right after an average of all, are
    not drawn."""
    lines = {}
    for name, runs in own.items():
        seconds, values = curves(runs, field)
        some = ~np.isnan(values)
        if some.any():
            values = 1 - values[some] if "accuracy" in field else values[some]
            (lines[name],) = axes.plot(seconds[some], values, color=colour(name), linewidth=1.2)
    return lines


def _as_accuracy(axes: Any) -> None:
    """What is drawn is the error, since differences near 1 count; what is written is accuracy."""
    least = min(float(np.min(line.get_ydata())) for line in axes.get_lines())
    ticks = [tick for tick in _ERRORS if tick > 0.8 * least]
    axes.set_yticks(ticks, [f"{1 - tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(1.0, max(0.8 * least, 1e-3))


def _by_label(runs: Runs, topology: str | None) -> dict[str, Runs]:
    """Of one picture, each strategy's, by its name; with the topology where it is its own."""
    found: dict[str, Runs] = {}
    for run in runs:
        own = run["topology"] is not None and topology is None
        label = f"{run['strategy']}, {run['topology']}" if own else run["strategy"]
        found.setdefault(label, []).append(run)
    return found


def plot(doc: dict[str, Any], path: str) -> None:
    """Draw the JSON document of the benchmark into a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pictures = columns(doc["runs"])
    quality = "loss" if doc["runs"][0]["course"]["accuracy"][0] is None else "accuracy"
    fields = {
        "consensus": "consensus distance",
        quality: f"{quality}, averaged model",
        f"own_{quality}": f"{quality}, one rank's own",
    }
    figure, grid = plt.subplots(
        len(fields),
        len(pictures),
        figsize=(2.0 + 4.4 * len(pictures), 8.6),
        sharex=True,
        sharey="row",
        squeeze=False,
        constrained_layout=True,
    )
    lines: dict[str, Any] = {}
    every: list[str] = []
    for column, (topology, runs) in zip(grid.T, pictures.items()):
        own = _by_label(runs, topology)
        every += own
        for axes, field in zip(column, fields):
            lines.update(_draw(axes, own, field))
            axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, linewidth=0.5)
        column[0].set_title(topology or "", fontsize=10)
        column[-1].set_xlabel("seconds")
        column[-1].set_xlim(left=0)
    for row, words in zip(grid, fields.values()):
        row[0].set_ylabel(words)
    if quality == "accuracy":
        for axes in grid[1:].flat:
            _as_accuracy(axes)
    names = [name for name in dict.fromkeys(every) if name in lines]
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="outside lower center",
        ncols=2 + len(pictures),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(title(doc), fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)
