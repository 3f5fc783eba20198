# SPDX-License-Identifier: Apache-2.0
"""Columns, limits and picture shared by the measurement and the simulation of skewed arrival."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import plots, report

COLUMNS = report.columns(
    "collective domain ranks bytes latency_us_avg latency_us_p50 latency_us_p99 active_mean "
    "speedup_vs_mpi limit_us speedup_vs_limit wrong"
)

_ROUNDING = 1e-12  # of a share of the ranks, as csrc/protocol/policy.c allows for it


def limit_us(collective: str, ranks: int, skew_us: float) -> float | None:
    """The least mean latency that arithmetic allows, in microseconds.

    Who arrives before rank q, the one that starts the round, waits for it: that is q (q+1) / (2P)
    skews on average for a known q. mpi, full: q is P-1. quorum: Q-1. majority, first_of, last_of:
    drawn, so the mean over the draws. solo: nobody is waited for, so there is no bound but the
    work itself (None); nor is there one that does not depend on the past with modifiers.
    """

    def waiting_for(rank: int) -> float:
        return rank * (rank + 1) / (2 * ranks) * skew_us

    if collective in ("mpi", "full"):
        return waiting_for(ranks - 1)
    name, _, argument = collective.partition(":")
    if name == "solo" or "," in collective:
        return None
    if name == "quorum":
        count = float(argument) * (1 if argument.isdigit() else ranks)
        return waiting_for(math.ceil(count * (1 - _ROUNDING)) - 1)
    drawn = 1 if name == "majority" else int(argument)
    # If q starts the round, the other drawn ranks are all after it; for last_of all before it.
    others = [q if name == "last_of" else ranks - 1 - q for q in range(ranks)]
    ways = [math.comb(n, drawn - 1) for n in others]
    total = sum(ways)  # of them there may be more than a float can count, or a sum of products hold
    return sum(w / total * waiting_for(q) for q, w in enumerate(ways))


def row(
    collective: str, ranks: int, count: int, latency_us: Any, active: Any, **given: Any
) -> report.Row:
    """Return the row of an allreduce, computed from its samples. `given`: its domain, algorithm,
    limit_us and wrong. `compare` adds the ratios."""
    return {
        "collective": collective,
        "domain": given["domain"],
        "algorithm": given["algorithm"],
        "ranks": ranks,
        "count": count,
        "bytes": 4 * count,
        "latency_us_avg": float(np.mean(latency_us)),
        "latency_us_p50": float(np.percentile(latency_us, 50)),
        "latency_us_p99": float(np.percentile(latency_us, 99)),
        "active_mean": float(np.mean(active)),
        "speedup_vs_mpi": None,
        "limit_us": given["limit_us"],
        "speedup_vs_limit": None,
        "bandwidth_gbs": None,
        "busbw_gbs": None,
        "wrong": given["wrong"],
    }


def compare(rows: list[report.Row], by: str = "latency_us_avg") -> None:
    """Fill in the ratios of the field `by` of rows that were measured together."""
    mpi = next((row[by] for row in rows if row["collective"] == "mpi"), None)
    for row in rows:
        own = row[by]
        if mpi is not None and own > 0:
            row["speedup_vs_mpi"] = mpi / own
        if row["limit_us"] and own > 0:
            row["speedup_vs_limit"] = row["limit_us"] / own


def label(row: report.Row, rows: list[report.Row], by: str = "collective") -> str:
    """Return the label of a row in a picture, with its domain if that tells two rows apart."""
    name = str(row[by]).replace("mpi", "MPI_Allreduce")
    domain, domains = row.get("domain", "-"), {other.get("domain", "-") for other in rows}
    return f"{name}\n{domain}" if len(domains - {"-"}) > 1 and domain != "-" else name


def _latency_text(row: report.Row) -> str:
    us, speedup = row["latency_us_avg"], row["speedup_vs_mpi"]
    text = f"{us / 1000:.1f} ms" if us >= 1000 else f"{us:.3g} µs"
    if not speedup or row["collective"] == "mpi":
        return text
    times = f"{speedup:.1f}" if speedup < 1e5 else f"{speedup:.1e}".replace("e+0", "e")
    return f"{text}\n{times}×"


def plot(rows: list[report.Row], path: str, title: str) -> None:
    names = [label(row, rows) for row in rows]
    colors = [plots.GRAY if row["collective"] == "mpi" else plots.BLUE for row in rows]
    least = min((row["latency_us_avg"] for row in rows if row["latency_us_avg"]), default=1.0)
    latency = [row["latency_us_avg"] or least / 2 for row in rows]  # a logarithm needs some
    known = [row.get("spread", {}).get("latency_us_avg") for row in rows]
    spread = [each or [value] * 2 for each, value in zip(known, latency)] if any(known) else []
    highest = max(latency + [most for _, most in spread])
    active = [row["active_mean"] for row in rows]
    limits = [row["limit_us"] for row in rows]
    # Side by side, or above each other where each needs the whole width for its names.
    lines, size = (1, (9, 3.6)) if len(rows) < 6 else (2, (max(8, 0.9 * len(rows)), 6))
    with plots.picture(path, title, lines, 2 // lines, size) as panels:
        left, right = panels.flat
        texts = list(map(_latency_text, rows))
        plots.bars(left, names, latency, texts, color=colors, limits=limits, spread=spread)
        left.set_yscale("log")
        left.set_ylabel("average latency (µs)")
        left.set_ylim(min(latency) / 2, highest * 3 * (highest / min(latency)) ** 0.1)
        left.plot([], [], ":", color=plots.INK, label="limit by arithmetic")
        left.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.99))
        plots.bars(right, names, active, [f"{each:.1f}" for each in active], color=colors)
        right.set_ylabel("ranks in the sum (mean)")
        right.set_ylim(0, rows[0]["ranks"] * 1.15)
