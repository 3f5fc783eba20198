# SPDX-License-Identifier: Apache-2.0
"""What one slow rank costs the others, under MPI, with communication threads.

Every step computes for --compute-ms (sleeps, so few cores can stand for many); rank 0 takes a
factor times as long. Rows have the steps per second of the other ranks, median, that rate beside
the same method's with the first factor, and the time that a step exposes to training. --count sets
the size of the model: 25 million float32 with --factors 1 --compute-ms 100 is SwarmSGD's bar.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from lib.job import count, experiment
from mpi4py import MPI

import partialcoll as pc
from partialcoll import decentralized
from partialcoll.tools.bench.turns import meet
from partialcoll.tools.cli import options, values
from partialcoll.topology import pairing

METHODS = ("adpsgd", "a2cid2", "swarm", "sgp", "allreduce")


def make(method: str, comm: MPI.Intracomm, x: np.ndarray) -> tuple[Any, Any]:
    if method == "allreduce":
        handle = pc.Allreduce_init(comm, None, None, like=x, quorum="full")
        return decentralized.AllreduceSGD(x, handle, learning_rate=1e-3), handle
    graph = pc.Topology.make("complete", comm.size)
    like = decentralized.SGPProcess.message(x) if method == "sgp" else x
    buffer = pc.GossipBuffer(comm, like=like, topology=graph)
    if method == "sgp":
        return decentralized.SGPProcess(x, buffer, learning_rate=1e-3), buffer
    kind = {
        "adpsgd": decentralized.ADPSGDProcess,
        "a2cid2": decentralized.A2CiD2Process,
        "swarm": decentralized.SwarmProcess,
    }
    peers = pairing.make("random", graph, comm.rank)
    return kind[method](x, buffer, peers, learning_rate=1e-3), buffer


def measure(
    comm: MPI.Intracomm, method: str, factor: float, options: SimpleNamespace
) -> tuple[float, float]:
    """Return the steps per second of the other ranks and the milliseconds that a step exposes, on
    rank 0."""
    x = np.random.default_rng(0).normal(size=options.count).astype(np.float32)
    compute = options.compute_ms / 1e3 * (factor if comm.rank == 0 else 1)
    steps = max(2, int(options.seconds / (options.compute_ms / 1e3 * factor)))
    if comm.rank and method != "allreduce":
        steps = max(2, int(options.seconds / (options.compute_ms / 1e3)))
    process, owned = make(method, comm, x)
    with process:
        process.step(x)  # touches the memory
        comm.Barrier()
        exposed, begin = process.stats.exposed_s, time.perf_counter()
        for _ in range(steps):
            time.sleep(compute)
            process.step(x)
        rate = steps / (time.perf_counter() - begin)
        exposed = (process.stats.exposed_s - exposed) / steps
        meet(comm, 1e-3)  # the others go on, and may average with this one
    owned.Free()
    rows = comm.gather((rate, exposed * 1e3))
    if rows is None:
        return 0.0, 0.0
    others = np.median(rows[1:] or rows, axis=0)
    return float(others[0]), float(others[1])


def run(given: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for method in given.methods:
        own: list[dict[str, Any]] = []
        for factor in given.factors:
            rate, exposed = measure(comm, method, factor, given)
            own.append(
                {
                    "method": method,
                    "ranks": comm.size,
                    "count": given.count,
                    "compute_ms": given.compute_ms,
                    "factor": factor,
                    "steps_per_s": rate,
                    "of_undelayed": rate / own[0]["steps_per_s"] if own and rate else 1.0,
                    "exposed_ms": exposed,
                }
            )
        rows += own
    return rows


command = experiment(
    "slow_rank",
    run,
    options.option("--factors", values.RATES, "1,10,100", "times as long for rank 0"),
    options.option("--methods", values.some_of(METHODS), ",".join(METHODS), "some of these"),
    options.option("--compute-ms", values.POSITIVE, 30.0, "of a step"),
    options.option("--seconds", values.POSITIVE, 6.0, "of each measurement, about"),
    count("--count", 10_000, "float32 elements of the model"),
    about=__doc__,
    ranks=4,
    torch=False,
)
