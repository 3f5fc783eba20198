# SPDX-License-Identifier: Apache-2.0
"""Ranks average in groups on a grid; one of them leaves, and comes back with a peer's state.

mpiexec -n 4 python groups.py
"""

import time

import numpy as np
from mpi4py import MPI

import partialcoll as pc
from partialcoll.decentralized import GlobalSum, MoshpitProcess

comm = MPI.COMM_WORLD
last = comm.size - 1

# One round along each axis of a full grid: the exact average over all ranks.
x = np.full(1000, float(comm.rank))
with pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, grid="auto") as groups:
    for _ in groups.grid:
        groups.Start()
        rnd = groups.Wait()
    if comm.rank == 0:
        print("grid", groups.grid, "exact:", rnd.exact, "average:", x[0])
    assert not rnd.exact or np.allclose(x, last / 2)

# Moshpit SGD: a group averages in every other step, another group each time.
rng = np.random.default_rng(comm.rank)
truth = np.arange(1.0, 11.0)


def gradient(model):
    """Return the gradient of the mean squared error on 20 samples of this rank's own data."""
    features = rng.normal(size=(20, truth.size))
    labels = features @ truth + 0.1 * rng.normal(size=20)
    return features.T @ (features @ model - labels) / 20


model = np.zeros(truth.size)
groups = pc.GroupAllreduce_init(comm, model.copy(), model.copy(), timeout=5.0, window=0.5)
exchange = pc.StateExchange(comm)
total = GlobalSum.over(comm)
process = MoshpitProcess(
    model, groups, local_steps=2, exchange=exchange, learning_rate=0.05, total=total
)
for step in range(200):
    time.sleep(0.001)
    if comm.rank == last and comm.size > 1 and step == 50:
        process.leave()  # no rank waits for it from now on
        time.sleep(0.1)
        process.rejoin()  # model, number of steps and place in the rounds of a peer
        print(f"rank {last} came back at step {process.stats.steps}")
    process.step(gradient(process.model))

process.leave()  # no rank waits for this one, which still sends its state
done = comm.Ibarrier()
while not done.Test():
    exchange.serve(groups.round, process.state_dict)
    time.sleep(0.001)
process.average_models()
error = np.abs(process.model - truth).max()
if comm.rank == 0:
    print(f"largest error of the common model: {error:.3f}")
assert error < 0.3
process.Free()
groups.Free()
exchange.Free()
total.Free()
