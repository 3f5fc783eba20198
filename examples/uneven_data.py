# SPDX-License-Identifier: Apache-2.0
"""Ranks with different amounts of data, two epochs: join() instead of padding.

mpiexec -n 4 python examples/uneven_data.py
"""

import numpy as np
from mpi4py import MPI

import partialcoll as pc

comm = MPI.COMM_WORLD
batches = 5 + 3 * comm.rank
gradient, summed = np.ones(4), np.zeros(4)
weights = np.zeros(4)


def update(rnd):
    """Every rank applies every round, so the weights stay the same bits everywhere."""
    weights[:] -= 0.01 * summed / comm.size


handle = pc.Allreduce_init(comm, gradient, summed, quorum="majority")
for epoch in range(2):
    for batch in range(batches):
        gradient[:] = 1.0 + batch
        handle.Start()
        update(handle.Wait())
    last = handle.join(on_round=update)
    same = all(w == weights.tobytes() for w in comm.allgather(weights.tobytes()))
    if comm.rank == 0:
        print(f"epoch {epoch}: ended with round {last.index}, replicas identical: {same}")
    assert same
handle.Free()
