# SPDX-License-Identifier: Apache-2.0
"""One of everything on all ranks with the installed package only: rank 0 prints "fine"."""

import sys

import numpy as np
from mpi4py import MPI

import partialcoll as pc

comm = MPI.COMM_WORLD
TOTAL = comm.size * (comm.size - 1) / 2


def contribution():
    return np.full(1000, comm.rank, np.float64)


def full():
    x, y = contribution(), np.empty(1000)
    with pc.Allreduce_init(comm, x, y, quorum="full") as handle:
        for _ in range(20):
            handle.Start()
            assert handle.Wait().active == comm.size
            assert (y == TOTAL).all()


def partial():
    """Every rank is in a round once or not at all."""
    for quorum in ("solo", "majority", "quorum:0.5"):
        x, y = np.ones(100), np.empty(100)
        with pc.Allreduce_init(comm, x, y, quorum=quorum, late="drop") as handle:
            for _ in range(20):
                handle.Start()
                active = handle.Wait().active
                assert 1 <= active <= comm.size and (y == active).all()


def drop_in():
    x, y = contribution(), np.empty(1000)
    for _ in range(10):
        pc.Allreduce(comm, x, y, quorum="full")
        assert (y == TOTAL).all()
        pc.Allreduce(comm, x, y, op=MPI.MAX, quorum="solo")
        assert y[0] <= comm.size - 1 and (y == y[0]).all()


def user_reductions():
    """MPI reduces user datatypes and ops. Not every MPI has the function that describes them."""
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    x, y = contribution(), np.empty(1000)
    handle = pc.Allreduce_init(comm, [x, 500, pair], [y, 500, pair], op=ADD, quorum="full")
    handle.Start()
    handle.Wait()
    assert (y == TOTAL).all()
    handle.Free()
    pair.Free()


def add(inbuf, inoutbuf, datatype):
    a, b = np.frombuffer(inbuf), np.frombuffer(inoutbuf)
    b[:] = a + b


def gossip():
    x = contribution()
    with pc.GossipBuffer(comm, like=x, topology="ring") as buffer:
        buffer.publish(x)
        comm.Barrier()
        for peer in buffer.topology.neighbors(comm.rank):
            buffer.average(x, peer)
        comm.Barrier()
        buffer.collect(x)
        total = comm.allreduce(x.sum())
        assert abs(total - 1000 * TOTAL) < 1e-6 * 1000


def group():
    x, y = contribution(), np.empty(1000)
    handle = pc.GroupAllreduce_init(comm, x, y, grid="auto")
    for _ in range(3):
        handle.Start()
        assert comm.rank in handle.Wait().group
    handle.Free()


def schedule():
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    mine, other = contribution(), np.empty(1000)
    s = pc.Schedule(comm)
    s.send(mine, after)
    s.after(s.reduce(mine, other), [s.recv(other, before)])
    s.commit()
    s.Start()
    s.Wait()
    assert (other == comm.rank + before).all()
    s.Free()


ADD = MPI.Op.Create(add, commute=True)
for check in (full, partial, drop_in, user_reductions, gossip, group, schedule):
    check()
    if comm.rank == 0 and "-v" in sys.argv:
        print(check.__name__, flush=True)
ADD.Free()
if comm.rank == 0:
    print("fine", flush=True)
