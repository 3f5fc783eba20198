# SPDX-License-Identifier: Apache-2.0
"""A rank is killed, the others continue without it, and a new process takes its number.

mpiexec --with-ft ulfm -n 4 python examples/elastic.py    (Open MPI from 5.0; elsewhere it says so)
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import partialcoll as pc
from partialcoll import elastic

STEPS, DIES_AT, VICTIM = 60, 20, 2
gradient, summed = np.ones(4), np.zeros(4)


def told(handle, failed, joined):
    if handle.rank == 0:
        print(
            f"before round {handle.last_round.index + 1}: gone {failed}, come {joined}", flush=True
        )


comm = elastic.joined()  # None in a process started by mpiexec
new = comm is not None
try:
    handle = pc.Allreduce_init(
        comm if new else MPI.COMM_WORLD,
        gradient,
        summed,
        quorum="majority",
        on_failure="continue",
        on_membership=told,
        join=new,
    )
except ValueError as error:
    if MPI.COMM_WORLD.rank == 0:
        print(error)
    sys.exit(0)

if new:
    print(f"rank {handle.rank} is back, after round {handle.last_round.index}", flush=True)
step = handle.last_round.index + 1 if new else 0
while step < STEPS:
    if handle.rank == VICTIM and step == DIES_AT and not new:
        os.kill(os.getpid(), signal.SIGKILL)
    gradient[:] = 1.0 + handle.rank
    handle.Start()
    rnd = handle.Wait()
    step += 1
    if rnd.failed.any():  # in the same round on all: now all grow together
        command = [sys.executable, *sys.argv]
        handle.grow(elastic.respawn(handle.comm, command, to=handle.size))

last = handle.join()
print(f"rank {handle.rank}: {last.index + 1} rounds, {int(last.failed.sum())} missing", flush=True)
assert not last.failed.any()
handle.Free()
