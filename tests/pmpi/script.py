# SPDX-License-Identifier: Apache-2.0
"""A plain mpi4py script; prints what it found."""

import numpy as np
from mpi4py import MPI

OPS = (
    (MPI.SUM, np.add),
    (MPI.PROD, np.multiply),
    (MPI.MIN, np.minimum),
    (MPI.MAX, np.maximum),
)
for comm in (MPI.COMM_WORLD, MPI.COMM_SELF, MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Split(0, 0)):
    for dtype in ("f4", "f8", "i4", "i8"):
        for op, ufunc in OPS:
            for count in (1, 3, 1000):
                x = ((np.arange(count) + comm.rank) % 3 + 1).astype(dtype)
                every = [((np.arange(count) + r) % 3 + 1).astype(dtype) for r in range(comm.size)]
                expected = ufunc.reduce(every)
                y = np.empty_like(x)
                comm.Allreduce(x, y, op=op)
                assert (y == expected).all()
                comm.Allreduce(MPI.IN_PLACE, x, op=op)
                assert (x == expected).all()
assert MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank) == sum(range(MPI.COMM_WORLD.size))
if hasattr(MPI.Comm, "Allreduce_init"):
    x, y = np.ones(5), np.empty(5)
    request = MPI.COMM_WORLD.Allreduce_init(x, y)
    for i in range(20):
        x[:] = i
        request.Start()
        request.Wait()
        assert (y == i * MPI.COMM_WORLD.size).all()
    request.Free()
if MPI.COMM_WORLD.rank == 0:
    print("script")
