# SPDX-License-Identifier: Apache-2.0
"""A persistent handle: who was in the round, what happens to late data, no copies.

mpiexec -n 4 python examples/persistent.py
"""

import time

import numpy as np
from mpi4py import MPI

import partialcoll as pc

comm = MPI.COMM_WORLD
result = np.zeros(3)

# sendbuf=None: deposits are written into the library's memory, so nothing is copied.
with pc.Allreduce_init(comm, None, result, quorum="solo", late="carry") as handle:
    deposited = collected = 0.0
    for step in range(20):
        if comm.rank == step % comm.size:
            time.sleep(5e-3)  # another rank is late in every step
        handle.send_buffer[:] = step
        deposited += step
        handle.Start()
        rnd = handle.Wait()
        collected += result[0]
        if comm.rank == 0 and step < 4:
            who = np.flatnonzero(rnd.mask)
            print(f"round {rnd.index}: ranks {who}, started by {rnd.initiator}")

    def collect(rnd):
        global collected
        collected += result[0]

    handle.join(on_round=collect)  # collects late data of the last round

total = comm.allreduce(deposited)
if comm.rank == 0:
    print(f"deposited {total:g}, collected {collected:g}")
assert collected == total
