# SPDX-License-Identifier: Apache-2.0
"""What one slow rank costs the others, under MPI, with communication threads.

mpiexec -n 4 python bench/slow_rank.py [--factors 1,10,100] [--compute-ms 30] [--seconds 6]

Every step computes for --compute-ms (sleeps, so few cores can stand for many); rank 0 takes FACTOR
times as long. The table has the steps per second of the other ranks, median, beside the same
method's without a slow rank; and the time that a step exposes to training. --count sets the size of
the model: 25 million float32 with --factors 1 --compute-ms 100 is SwarmSGD's bar.
"""

import argparse
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import partialcoll as pc
from partialcoll import pairing, processes

METHODS = ("adpsgd", "a2cid2", "swarm", "sgp", "allreduce")


def make(method: str, comm: MPI.Intracomm, x: np.ndarray) -> tuple[Any, Any]:
    """A process of the method, and what it needs freed afterwards."""
    if method == "allreduce":
        handle = pc.Allreduce_init(comm, None, None, like=x, quorum="full")
        return processes.AllreduceSGD(x, handle, learning_rate=1e-3), handle
    graph = pc.Topology.make("complete", comm.size)
    like = processes.SGP.message(x) if method == "sgp" else x
    buffer = pc.GossipBuffer(comm, like=like, topology=graph)
    if method == "sgp":
        return processes.SGP(x, buffer, learning_rate=1e-3), buffer
    kind = {"adpsgd": processes.ADPSGD, "a2cid2": processes.A2CiD2, "swarm": processes.Swarm}
    peers = pairing.make("random", graph, comm.rank)
    return kind[method](x, buffer, peers, learning_rate=1e-3), buffer


def run(comm: MPI.Intracomm, method: str, factor: float, options: Any) -> tuple[float, float]:
    """Steps per second of the others, milliseconds that a step exposes; on rank 0."""
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
        request = comm.Ibarrier()
        while not request.Test():  # the others go on, and may average with this one
            time.sleep(1e-3)
    owned.Free()
    rows = comm.gather((rate, exposed * 1e3))
    if rows is None:
        return 0.0, 0.0
    others = np.median(rows[1:] or rows, axis=0)
    return float(others[0]), float(others[1])


def main() -> None:
    """All methods and factors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factors", default="1,10,100")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--compute-ms", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        print(f"{comm.size} ranks, {options.compute_ms} ms a step, {options.count} float32")
        print(
            "method     rank 0 slower by   steps/s of the others   of undelayed   exposed ms/step"
        )
    for method in options.methods.split(","):
        undelayed = None
        for factor in map(float, options.factors.split(",")):
            rate, exposed = run(comm, method, factor, options)
            undelayed = undelayed or rate
            if comm.rank == 0:
                part = f"{rate / undelayed:13.1%}"
                print(f"{method:10} {factor:16g} {rate:23.2f} {part} {exposed:17.2f}", flush=True)


if __name__ == "__main__":
    main()
