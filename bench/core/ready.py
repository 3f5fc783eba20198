# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of `on_failure="continue"` while no rank dies, compared with handles with
`"raise"`.

Both kinds, for the same 4 KB, run in one job, in short alternating blocks whose order changes, with
the launcher's options for surviving deaths (Open MPI). Other load on the machine affects adjacent
blocks alike, so pairs of blocks are compared. Outside of a job it starts one.
"""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from lib.job import Rows, count, experiment, new_job

from partialcoll.tools.bench.faults import killing
from partialcoll.tools.cli import options, values

KINDS = ("raise", "continue")


def run(given: SimpleNamespace, comm: Any) -> Rows:
    import partialcoll as pc
    from partialcoll.tools.bench import turns

    rows, x = [], np.ones(given.bytes // 8)
    for quorum, domain in itertools.product(given.quorum, given.domain):
        how = {"quorum": quorum, "domain": domain}
        handles = [
            pc.Allreduce_init(comm, x, np.empty_like(x), on_failure=kind, **how) for kind in KINDS
        ]
        calls = [
            partial(turns.per_call, turns.start_and_wait(handle), given.rounds)
            for handle in handles
        ]
        # In each turn both, in both orders.
        some = turns.by_turns([*calls, *calls[::-1]], -(-given.iters // 2), comm=comm)
        first, second = (np.ravel([some[i], some[3 - i]]) for i in range(2))
        added = sorted(100 * (second / first - 1))
        for handle in handles:
            handle.Free()
        rows.append(
            {
                **how,
                "ranks": comm.size,
                "bytes": given.bytes,
                "rounds": given.rounds * len(added),
                "raise_us": float(np.median(first)) * 1e6,
                "continue_us": float(np.median(second)) * 1e6,
                "added_percent": float(np.median(added)),
                "added_percent_low": added[len(added) // 4],
                "added_percent_high": added[3 * len(added) // 4],
            }
        )
    return rows


def start(given: SimpleNamespace) -> int:
    killing.check_launcher("bench ready")
    return new_job(given)


command = experiment(
    "ready",
    run,
    options.option("--quorum", values.ListOf(click.STRING), "full,solo", "policies"),
    options.domain(),
    count("--bytes", 4096, "of a round"),
    count("--rounds", 200, "of a block"),
    count("--iters", 100, "blocks of each"),
    about=__doc__,
    ranks=2,
    start=start,
    mpiexec_args="--with-ft ulfm",
)
