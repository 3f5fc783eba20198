# SPDX-License-Identifier: Apache-2.0
"""The pictures of all commands are made of three: lines of one field over another, bars, and the
course of several runs. matplotlib is imported when one is drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core import files
from .report import Row, writing

GRAY, BLUE, INK = "#9aa0a6", "#1a73e8", "#202124"
_REFERENCES = ("memcpy", "mpi", "MPI_Allreduce")  # what the others are compared with

Label = Callable[[Row], str]


@contextlib.contextmanager
def picture(
    path: str, title: str, rows: int = 1, columns: int = 1, size: Any = (6.4, 4.0), **how: Any
) -> Iterator[Any]:
    """Give the panels of a picture, shape (rows, columns), and write the picture at the end. `how`
    is passed to `matplotlib.pyplot.subplots`, except `dpi`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    dpi = how.pop("dpi", 130)
    figure, panels = plt.subplots(
        rows, columns, figsize=size, squeeze=False, constrained_layout=True, **how
    )
    figure.suptitle(title, fontsize=11)
    yield panels
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
    with writing("picture", path), files.create(path) as file:
        figure.savefig(file, dpi=dpi, format=Path(path).suffix[1:])
    plt.close(figure)


def legend_below(panels: Any, columns: int) -> None:
    found: dict[str, Any] = {}
    for axes in panels.flat:
        for line, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, line)
    columns = max(1, min(columns, len(found)))
    panels.flat[0].figure.legend(
        found.values(), found, loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )


def lines(axes: Any, rows: Iterable[Row], x: str, y: str, label: Label, scale: float = 1.0) -> None:
    """Draw a line for each label, dashed if it is what the others are compared with."""
    own: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        own.setdefault(label(row), []).append((row[x], row[y] * scale))
    for name, points in own.items():
        style = "k--" if name in _REFERENCES else "o-"
        axes.plot(*zip(*points), style, label=name.replace("\n", ", "), markersize=4)
    axes.legend(fontsize=7, frameon=False)


def over_bytes(
    rows: list[Row], path: str, y: str, ylabel: str, label: Label, *, title: str = "", **how: Any
) -> None:
    """Draw lines over message sizes. `how`: `scale` of y, and whether its axis is `log`."""
    with picture(path, title) as panels:
        axes = panels[0, 0]
        lines(axes, rows, "bytes", y, label, how.get("scale", 1.0))
        if len(axes.get_lines()) > 8:
            axes.get_legend().remove()
            legend_below(panels, 3)
        axes.set_xscale("log", base=2)
        if how.get("log"):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes")
        axes.set_ylabel(ylabel)


def bars(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    texts: Sequence[str],
    *,
    color: Any = BLUE,
    limits: Sequence[float | None] = (),
    spread: Sequence[Sequence[float]] = (),
) -> None:
    """Draw a bar for each name with its text, and a dotted line at its limit. `spread` holds the
    least and the greatest value behind each median, drawn as whiskers."""
    how: dict[str, Any] = {}
    if spread:
        how["yerr"] = np.abs(np.transpose(spread) - np.asarray(values))
        how["error_kw"] = {"ecolor": INK, "elinewidth": 1.0, "capsize": 3}
    made = axes.bar(names, values, color=color, width=0.6, **how)
    axes.bar_label(made, texts, fontsize=9, padding=2)
    for limit, bar in zip(limits, made):
        if limit:
            ends = bar.get_x(), bar.get_x() + bar.get_width()
            axes.hlines(limit, *ends, colors=INK, linestyles=":", linewidth=1.5)
    axes.tick_params(axis="x", labelsize=10 if len(names) < 7 else 8)


def course(
    axes: Any,
    along: Sequence[Any],
    values: Sequence[Any],
    least: float = 0.0,
    log: bool = True,
    **how: Any,
) -> Any:
    """Draw the mean of several runs, the geometric mean if `log`: their values along time, rounds
    or communications, each of shape (points,). Values up to `least` are left out, since they have
    no logarithm; return None if that leaves nothing. `how` is passed to `Axes.plot`."""
    points = min(map(len, values))
    x = np.mean([np.asarray(each[:points], float) for each in along], axis=0)
    y = np.array([each[:points] for each in values], float)
    if log:
        y[y <= least] = np.nan
        y = np.exp(np.log(y).mean(axis=0))
        axes.set_yscale("log")
    else:
        y = y.mean(axis=0)
    known = ~np.isnan(y)
    return axes.plot(x[known], y[known], **how)[0] if known.any() else None
