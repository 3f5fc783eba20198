# SPDX-License-Identifier: Apache-2.0
"""An allreduce of ranks that share their cores with processes that compute, and with none.

As on a machine that others use as well, or where ranks have threads that compute: how long does who
waits take to have a core again? The ranks of `-n`, then the same ones beside as many processes as
`--busy` says, which do nothing but arithmetic. The vendor's MPI_Allreduce, a full round between
ranks and one in shared memory take turns, every element checked. Outside of a job it starts one.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment

from partialcoll.tools.bench.balanced import COLUMNS, BatchKind, measure
from partialcoll.tools.cli import options, values

CALLS = 10  # of a batch


@contextlib.contextmanager
def neighbors(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    kinds = [BatchKind("mpi", ["auto"], "auto"), BatchKind("full", ["rank", "node"], "auto")]
    rows = []
    for busy in options.busy:
        with neighbors(busy if comm.rank == 0 else 0):
            for size in options.sizes:
                some = measure(kinds, comm, max(1, size // 4), options.iters, calls=CALLS)
                rows += [{"busy": busy, **row} for row in some]
    return rows


command = experiment(
    "busy_neighbors",
    run,
    options.option("--busy", values.ListOf(values.WHOLE), "0,6", "neighbors"),
    options.sizes("64"),
    count("--iters", 9, "batches"),
    columns=("busy", *COLUMNS),
    about=__doc__,
    ranks=8,
)
