# SPDX-License-Identifier: Apache-2.0
"""Averages of arrays on GPUs: stream by stream, and no thread waits for a device.

mpiexec -n 2 python examples/cupy_persistent.py      (needs cupy and a CUDA device)
"""

import cupy as cp
from mpi4py import MPI

import partialcoll as pc

comm = MPI.COMM_WORLD
cp.cuda.Device(comm.rank % cp.cuda.runtime.getDeviceCount()).use()
gradient, total = cp.zeros(1 << 20, cp.float32), cp.zeros(1 << 20, cp.float32)
compute = cp.cuda.Stream(non_blocking=True)

with pc.Allreduce_init(comm, gradient, total, quorum="solo", late="carry") as handle, compute:
    for step in range(10):
        gradient[:] = comm.rank + step  # a kernel: it may not have run when Start returns
        handle.Start()  # this rank arrives when its gradient has been copied
        rnd = handle.Wait()  # later work of the stream sees the result
        total /= comm.size
        if comm.rank == 0:
            print(f"round {rnd.index}: {rnd.active} of {comm.size} ranks")

    def collect(rnd):
        print(f"rank {comm.rank}: round {rnd.index} passes, {rnd.active} ranks in it")

    handle.join(on_round=collect)
