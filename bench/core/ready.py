# SPDX-License-Identifier: Apache-2.0
"""What it costs to be ready for the death of a rank when none dies: handles with
`on_failure="continue"` beside those with `"raise"`.

Both, for the same 4 KB, take turns in one job, in short blocks that change their order, under the
launcher's options that going on needs (Open MPI). What comes from the rest of the machine falls on
neighbors alike, so pairs of blocks are compared. Outside of a job it starts one.
"""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from lib.job import count, experiment

from partialcoll.tools.cli import options, values

KINDS = ("raise", "continue")


def by_turns(quorum: str, domain: str, given: SimpleNamespace, comm: Any) -> dict[str, Any]:
    from mpi4py import MPI

    import partialcoll as pc
    from partialcoll.tools.bench import turns

    x = np.ones(given.bytes // 8)
    how = {"quorum": quorum, "domain": domain}
    made: dict[str, Any] = {
        kind: pc.Allreduce_init(comm, x, np.empty_like(x), on_failure=kind, **how) for kind in KINDS
    }
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(-2, given.iters):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            comm.Barrier()
            mine = turns.per_call(turns.start_and_wait(made[kind]), given.rounds)
            seconds = comm.allreduce(mine, MPI.MAX)
            if turn >= 0:
                samples[kind].append(seconds)
    for handle in made.values():
        handle.Free()
    pairs = zip(samples["continue"], samples["raise"])
    added = sorted(100 * (after / before - 1) for after, before in pairs)
    return {
        **how,
        "ranks": comm.size,
        "bytes": given.bytes,
        "rounds": given.rounds * given.iters,
        "raise_us": statistics.median(samples["raise"]) * 1e6,
        "continue_us": statistics.median(samples["continue"]) * 1e6,
        "added_percent": statistics.median(added),
        "added_percent_low": added[len(added) // 4],
        "added_percent_high": added[3 * len(added) // 4],
    }


def run(given: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    return [by_turns(q, d, given, comm) for q in given.quorum for d in given.domain]


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
    torch=False,
    mpiexec_args="--with-ft ulfm",
)
