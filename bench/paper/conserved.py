# SPDX-License-Identifier: Apache-2.0
"""Does gossip conserve the sum, and does it mix, while one rank collects rarely?

Every rank averages with random others without pause; rank 0 collects once in 50. For each dtype,
the relative change of the sum (what lies uncollected included) and the consensus distance before
and after.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from lib.job import count, experiment
from mpi4py import MPI

import partialcoll as pc
from partialcoll.tools.cli import options


def consensus(comm: MPI.Intracomm, x: np.ndarray) -> float:
    """Return the square root of the mean over ranks of the squared distance to the mean model."""
    wide = x.astype(np.float64)
    mean = comm.allreduce(wide) / comm.size
    return float(np.sqrt(comm.allreduce(float(((wide - mean) ** 2).sum())) / comm.size))


def measure(
    comm: MPI.Intracomm, dtype: str, averagings: int, size: int, topology: str
) -> dict[str, Any]:
    rng = np.random.default_rng(comm.rank)
    x = rng.normal(size=size).astype(dtype)
    before, first = comm.allreduce(x.astype(np.float64)), consensus(comm, x)
    with pc.GossipBuffer(comm, like=x, topology=topology) as g:
        peers = g.topology.neighbors(comm.rank)
        g.publish(x)
        comm.Barrier()
        every, done, tries, end = 50 if comm.rank == 0 else 1, 0, 0, None
        while end is None or not end.Test():  # who has done its part still collects
            if tries % every == 0:
                g.collect(x)
                g.publish(x)
            if done < averagings // comm.size:
                done += g.average(x, peers[rng.integers(len(peers))])
            elif end is None:
                end = comm.Ibarrier()
            tries += 1
        after = comm.allreduce(x.astype(np.float64) + g.pending())
        comm.Barrier()
        g.collect(x)
        last, skipped = consensus(comm, x), comm.allreduce(g.stats.skipped)
        made = comm.allreduce(g.stats.averages)
    change = np.linalg.norm(after - before) / np.linalg.norm(before)
    return {
        "dtype": dtype,
        "ranks": comm.size,
        "averagings": made,
        "skipped": skipped,
        "sum_change": float(change),
        "consensus_first": first,
        "consensus_last": last,
    }


def run(given: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    how = given.averagings, given.count, given.topology[0]
    return [measure(comm, dtype, *how) for dtype in ("float64", "float32", "float16")]


command = experiment(
    "conserved",
    run,
    count("--averagings", 100_000, "of all ranks together"),
    count("--count", 1000, "elements"),
    options.topology("ring", "of the buffer"),
    about=__doc__,
    ranks=4,
    torch=False,
)
