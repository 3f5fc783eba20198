# SPDX-License-Identifier: Apache-2.0
"""What it costs to be ready for the death of a rank when none dies: handles with
`on_failure="continue"` beside those with `"raise"`.

Both, for the same 4 KB, take turns in one job, in short blocks that change their order, under the
launcher's options that going on needs (Open MPI). What comes from the rest of the machine falls on
neighbors alike, so pairs of blocks are compared. Outside of a job it starts one.

    python bench/run.py ready [-n 2] [--quorum full,solo] [--domain node,rank] [--json F]
"""

from __future__ import annotations

import statistics
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from lib.job import count, experiment, words

from partialcoll.tools import launcher
from partialcoll.tools.cli import options, values

COLUMNS = (
    "quorum",
    "domain",
    "ranks",
    "bytes",
    "rounds",
    "raise_us",
    "continue_us",
    "added_percent",
    "added_percent_low",
    "added_percent_high",
)
KINDS = ("raise", "continue")


def start(given: SimpleNamespace) -> int:
    """A job whose MPI goes on when a rank dies."""
    vendor = launcher.flavor()
    job = launcher.command(launcher.find(vendor), vendor, given.n, None, "--with-ft ulfm")
    return subprocess.call([*job, *words()], env=launcher.environment(vendor))


def block(handle: Any, comm: Any, rounds: int) -> float:
    """Seconds of a round, of the slowest rank. Collective."""
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(rounds):
        handle.Start()
        handle.Wait()
    mine = np.array((time.perf_counter() - begin) / rounds)
    most = np.empty(())
    from mpi4py import MPI

    comm.Allreduce(mine, most, MPI.MAX)
    return float(most)


def by_turns(quorum: str, domain: str, given: SimpleNamespace, comm: Any) -> dict[str, Any]:
    """A row. Collective."""
    import partialcoll as pc

    x = np.ones(given.bytes // 8)
    how = {"quorum": quorum, "domain": domain}
    made: dict[str, Any] = {
        kind: pc.Allreduce_init(comm, x, np.empty_like(x), on_failure=kind, **how) for kind in KINDS
    }
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(-2, given.iters):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            seconds = block(made[kind], comm, given.rounds)
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
    """A row for each quorum and domain. Collective."""
    return [by_turns(q, d, given, comm) for q in given.quorum for d in given.domain]


command = experiment(
    "ready",
    COLUMNS,
    run,
    options.option("--quorum", values.Several(click.STRING), "full,solo", "policies"),
    options.domain(),
    count("--bytes", 4096, "of a round"),
    count("--rounds", 200, "of a block"),
    count("--iters", 100, "blocks of each"),
    about=__doc__,
    ranks=2,
    torch=False,
    start=start,
)
