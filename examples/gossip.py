# SPDX-License-Identifier: Apache-2.0
"""Ranks with different data agree on one model by gossip, while one of them is slow.

mpiexec -n 4 python gossip.py
"""

import time

import numpy as np
from mpi4py import MPI

from partialcoll import GossipBuffer, Topology, pairing
from partialcoll.decentralized import ADPSGDProcess, GlobalSum

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
truth = np.arange(1.0, 11.0)
features = rng.normal(size=(200, truth.size))
labels = features @ truth + 0.1 * rng.normal(size=200)  # this rank's share of the data


def gradient(model):
    """Return the gradient of the mean squared error on 20 of its samples."""
    some = rng.integers(200, size=20)
    return features[some].T @ (features[some] @ model - labels[some]) / 20


x = np.zeros(truth.size)
graph = Topology.make("complete", comm.size)
exchange = GossipBuffer(comm, like=x, topology=graph)
total = GlobalSum.over(comm)
peers = pairing.make("random", graph, comm.rank)

with ADPSGDProcess(x, exchange, peers, learning_rate=0.05, total=total) as process:
    process.average_models()
    seconds = 0.0
    for _epoch in range(5):
        begin = time.perf_counter()
        for _ in range(40):
            time.sleep(0.005 if comm.rank == 0 else 0.001)  # rank 0 computes five times as long
            process.step(gradient(process.model))
        seconds += time.perf_counter() - begin
        process.average_models()  # the exact average, for which all wait
    error = np.abs(process.model - truth).max()

times = comm.gather(seconds)
if comm.rank == 0:
    print("seconds of each rank:", " ".join(f"{t:.2f}" for t in times))
    print(f"largest error of the common model: {error:.3f}")
assert error < 0.2
exchange.Free()
total.Free()
