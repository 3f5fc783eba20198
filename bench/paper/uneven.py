# SPDX-License-Identifier: Apache-2.0
"""Links of different speed: does it pay that a slow one reduces less, and as much as predicted?

Emulated hosts of one rank each (see bench/lib/hosts.py: needs root, iproute2, MPICH), a grouped
allreduce of all of them with equal shares, with shares by bandwidth as given, and as measured, by
turns in one job. The prediction is that of the linear program (the paper's appendix G): of S bytes
a rank with share w sends S (1-w + (M-1) w), at the speed of its link, and the slowest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from lib.hosts import RATE, bits_per_second, on_hosts
from lib.job import count, experiment

from partialcoll.tools import report
from partialcoll.tools.cli import options, values

COLUMNS = report.columns(
    "shares ranks bytes seconds predicted_s over_prediction speedup predicted_speedup exact wrong "
    "share_of_each"
)


def predicted(shares: Sequence[float], rates: Sequence[float], nbytes: int) -> float:
    """Return the seconds of a round: every link sends its part, the slowest counts."""
    others = len(shares) - 1
    return max(8 * nbytes * (1 - w + others * w) / b for w, b in zip(shares, rates))


def measure(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    import partialcoll as pc
    from partialcoll.tools.bench.group import AveragingMethod, by_turns

    rates = [bits_per_second(rate) for rate in options.rates]
    best = pc.bandwidth_shares(rates)
    equal = predicted([1 / comm.size] * comm.size, rates, options.size)
    kinds = {"equal": None, "given": rates[comm.rank], "measured": "measured"}
    how: Any = {"grid": str(comm.size), "measure_every": 2, "timeout": 60.0}
    methods = [
        AveragingMethod("group", comm, options.size // 4, bandwidth=bandwidth, **how)
        for bandwidth in kinds.values()
    ]
    rows = by_turns(methods, options.iters, warmup=options.warmup)
    for row, name in zip(rows, kinds):
        row["share_of_each"] = " ".join(f"{share:.3f}" for share in row["shares"])
        row["shares"] = name
        row["predicted_s"] = equal if name == "equal" else predicted(best, rates, options.size)
        row["over_prediction"] = row["seconds"] / row["predicted_s"]
        row["speedup"] = rows[0]["seconds"] / row["seconds"]
        row["predicted_speedup"] = equal / row["predicted_s"]
    return rows


command = experiment(
    "uneven",
    measure,
    options.option(
        "--rates", values.ListOf(RATE), "1gbit,1gbit,1gbit,100mbit", "of the hosts' links"
    ),
    options.option("--size", values.SIZE, "16M", "bytes"),
    count("--iters", 9, "of each"),
    count("--warmup", 4, "before"),
    columns=COLUMNS,
    about=__doc__,
    start=lambda given: on_hosts(len(given.rates), given.rates),
)
