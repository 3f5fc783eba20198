# SPDX-License-Identifier: Apache-2.0
"""Replace comm.Allreduce by a call that does not wait for the slowest rank.

mpiexec -n 4 python examples/drop_in.py
"""

import time

import numpy as np
from mpi4py import MPI

import partialcoll as pc

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
mine, total = np.full(1000, comm.rank + 1.0), np.empty(1000)

begin = time.perf_counter()
for _ in range(50):
    time.sleep(rng.exponential(2e-3))  # work that takes longer on one rank or another
    comm.Allreduce(mine, total)
everybody = time.perf_counter() - begin

begin = time.perf_counter()
active = 0
for _ in range(50):
    time.sleep(rng.exponential(2e-3))
    rnd = pc.Allreduce(comm, mine, total, quorum="majority")
    active += rnd.active
majority = time.perf_counter() - begin

if comm.rank == 0:
    print(f"comm.Allreduce     {everybody * 20:6.2f} ms a step, {comm.size} ranks in each sum")
    print(f"pc.Allreduce       {majority * 20:6.2f} ms a step, {active / 50:.1f} ranks in each sum")
