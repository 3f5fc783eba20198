# SPDX-License-Identifier: Apache-2.0
"""Start + Wait in a tight loop, no skew: what one call costs when all ranks are there.

    python tests/launch.py 4 bench/tight_loop.py [--json F]

1024 float32, mean time of a call over batches of 100 calls; the collectives take turns from
batch to batch, and the median over batches is reported (slowest rank of each batch).
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

import partialcoll as pc
from partialcoll import _report

BATCH = 100


def batch_us(call):
    """Mean microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(BATCH):
        call()
    return (time.perf_counter() - begin) / BATCH * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    send, recv = np.ones(1024, np.float32), np.empty(1024, np.float32)
    handles = {
        q: pc.Allreduce_init(comm, send, recv, quorum=q) for q in ("solo", "majority", "full")
    }
    gate = pc.Allreduce_init(comm, np.ones(1), quorum="full")

    def partial(handle):
        def call():
            handle.Start()
            handle.Wait()

        return call

    calls = {
        "mpi": lambda: comm.Allreduce(send, recv),
        **{q: partial(h) for q, h in handles.items()},
    }
    times = {name: [] for name in calls}
    for _ in range(options.batches):
        for name, call in calls.items():
            partial(gate)()
            times[name].append(comm.allreduce(batch_us(call), MPI.MAX))
    rows = [
        {"collective": name, "ranks": comm.size, "bytes": 4096, "call_us": float(np.median(t))}
        for name, t in times.items()
    ]
    for handle in (*handles.values(), gate):
        handle.Free()
    if comm.rank == 0:
        doc = _report.document("tight_loop", comm.size, rows)
        _report.write(options.json, doc, _report.table(rows, rows[0]))


main()
