# SPDX-License-Identifier: Apache-2.0
"""An allreduce of ranks that share their cores with processes that compute, and with none.

As on a machine that others use as well, or where ranks have threads that compute: how long does who
waits take to have a core again? The ranks of `-n`, then the same ones beside as many processes as
`--busy` says, which do nothing but arithmetic. The vendor's MPI_Allreduce, a full round between
ranks and one in shared memory take turns, every element checked. Outside of a job it starts one.

    python bench/busy_neighbours.py [-n 8] [--busy 0,6] [--sizes 64] [--json F]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gloo

from partialcoll.bench.balanced import COLUMNS, Kind, measure
from partialcoll.cli import arguments

CALLS = 10  # of a batch


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that compute until the end."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
    """Every number of neighbours and every size; rows on rank 0. Collective."""
    kinds = [Kind("mpi", ["auto"], "auto"), Kind("full", ["rank", "node"], "auto")]
    rows = []
    for busy in options.busy:
        with neighbours(busy if comm.rank == 0 else 0):
            for size in options.sizes:
                some = measure(kinds, comm, max(1, size // 4), options.iters, calls=CALLS)
                rows += [{"busy": busy, **row} for row in some]
    return rows


def numbers(text: str) -> list[int]:
    """Numbers of processes, 0 among them."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    number = arguments.positive_int
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=number, default=8, help="ranks (default 8)")
    parser.add_argument("--busy", type=numbers, default=[0, 6], help="neighbours (default 0,6)")
    parser.add_argument("--sizes", type=arguments.sizes, default=[64], help="bytes (default 64)")
    parser.add_argument("--iters", type=number, default=9, help="batches (default 9)")
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    status = gloo.in_new_job(options, __file__)
    if status is not None:
        return status
    left_out = ("limit_us", "speedup_vs_limit", "bandwidth_gbs", "busbw_gbs", "active_mean")
    columns = ["busy", *(name for name in COLUMNS if name not in left_out)]
    return gloo.report(options, __file__, columns, run)


if __name__ == "__main__":
    sys.exit(main())
