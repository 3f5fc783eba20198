# SPDX-License-Identifier: Apache-2.0
"""Links of different speed: does it pay that a slow one reduces less, and as much as predicted?

Emulated hosts of one rank each (see emulated_hosts.py: needs root, iproute2, MPICH), a grouped
allreduce of all of them with equal shares, with shares by bandwidth as given, and as measured, by
turns in one job. The prediction is that of the linear program (the paper's appendix G): of S bytes
a rank with share w sends S (1-w + (M-1) w), at the speed of its link, and the slowest counts.

    python bench/uneven.py [--rates 1gbit,1gbit,1gbit,100mbit] [--size 16M] [--iters 9] [--json F]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from partialcoll.cli import arguments

SELF = os.path.abspath(__file__)
COLUMNS = (
    "shares",
    "ranks",
    "bytes",
    "seconds",
    "predicted_s",
    "over_prediction",
    "speedup",
    "predicted_speedup",
    "exact",
    "wrong",
    "share_of_each",
)
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """What tc understands by it."""
    found = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", rate)
    if found is None or not float(found[1]) > 0:
        raise argparse.ArgumentTypeError(f"expected rates such as 100mbit, got {rate!r}")
    return float(found[1]) * _UNITS[found[2]]


def _rates(text: str) -> list[str]:
    for rate in text.split(","):
        bits_per_second(rate)
    return text.split(",")


def predicted(shares: Sequence[float], rates: Sequence[float], nbytes: int) -> float:
    """Seconds of a round: every link sends its part, the slowest counts."""
    others = len(shares) - 1
    return max(8 * nbytes * (1 - w + others * w) / b for w, b in zip(shares, rates))


def measure(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
    """All three by turns; rows on rank 0. Collective."""
    import numpy as np

    import partialcoll as pc
    from partialcoll.bench.group import Group, by_turns

    rates = [bits_per_second(rate) for rate in options.rates]
    best = pc.bandwidth_shares(rates)
    kinds = {
        "equal": (None, np.full(comm.size, 1 / comm.size)),
        "given": (rates[comm.rank], best),
        "measured": ("measured", best),
    }
    count, grid = options.size // 4, str(comm.size)
    methods = [
        Group(comm, count, grid, bandwidth=bandwidth, measure_every=2, timeout=60.0)
        for bandwidth, _ in kinds.values()
    ]
    shares: list[tuple[float, ...]] = []
    for method in methods:  # while it is still there
        free = method.free
        method.free = lambda m=method, free=free: (shares.append(m.shares), free())  # type: ignore
    rows = by_turns(methods, options.iters, warmup=options.warmup)
    for row, (name, (_, ideal)), used in zip(rows, kinds.items(), shares):
        row["shares"] = name
        row["share_of_each"] = " ".join(f"{share:.3f}" for share in used)
        row["predicted_s"] = predicted(ideal, rates, options.size)
        row["over_prediction"] = row["seconds"] / row["predicted_s"]
        row["speedup"] = rows[0]["seconds"] / row["seconds"]
        row["predicted_speedup"] = predicted(kinds["equal"][1], rates, options.size) / predicted(
            ideal, rates, options.size
        )
    return rows if comm.rank == 0 else []


def start(options: argparse.Namespace) -> int:
    """Make the hosts and run this script on their ranks; its exit status."""
    from emulated_hosts import Hosts, run

    with Hosts(len(options.rates), options.rates) as hosts:
        return run(hosts, 1, [sys.executable, SELF, *sys.argv[1:]])


def main() -> int:
    """The command line; the ranks come here as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=_rates, default=_rates("1gbit,1gbit,1gbit,100mbit"))
    parser.add_argument("--size", type=arguments.size, default=16 << 20, help="bytes (default 16M)")
    parser.add_argument(
        "--iters", type=arguments.positive_int, default=9, help="of each (default 9)"
    )
    parser.add_argument(
        "--warmup", type=arguments.positive_int, default=4, help="before (default 4)"
    )
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    from partialcoll import _mpiexec

    if len(options.rates) < 2:
        parser.error("--rates: expected at least 2")
    if not _mpiexec.in_job():
        return start(options)
    from partialcoll import _report

    options.plot = None
    _report.on_job(options, "bench uneven", COLUMNS, measure, lambda rows, path: None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
