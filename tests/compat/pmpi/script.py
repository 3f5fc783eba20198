# SPDX-License-Identifier: Apache-2.0
"""A plain mpi4py script that prints its results."""

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


def add_modulo(inbuf, inoutbuf, datatype):
    """A Python op on vectors of three int32."""
    assert datatype.size == 12
    a, b = np.frombuffer(inbuf, "i4"), np.frombuffer(inoutbuf, "i4")
    b[:] = (a + b) % 1000003


def has_persistent(comm):
    """Return whether this MPI has persistent allreduces."""
    x = np.ones(1)
    try:
        comm.Allreduce_init(x, np.empty(1)).Free()
    except (AttributeError, NotImplementedError):
        return False
    return True


# The script's own ops and datatypes, created and freed repeatedly.
world = MPI.COMM_WORLD
for i in range(20):
    three = MPI.INT.Create_contiguous(3).Commit()
    op = MPI.Op.Create(add_modulo, commute=True)
    x = np.arange(6, dtype="i4") + i * world.rank
    y = np.empty_like(x)
    world.Allreduce([x, 2, three], [y, 2, three], op=op)
    assert (y == sum(np.arange(6) + i * r for r in range(world.size)) % 1000003).all()
    op.Free()
    three.Free()
pairs = np.zeros(2, np.dtype([("value", "f8"), ("at", "i4")], align=True))
pairs["value"], pairs["at"] = world.rank % 2, world.rank
world.Allreduce(MPI.IN_PLACE, [pairs, 2, MPI.DOUBLE_INT], op=MPI.MINLOC)
assert (pairs["value"] == 0).all() and (pairs["at"] == 0).all()
assert world.allreduce(np.longdouble(1)) == world.size
if has_persistent(world):
    pairs["value"], pairs["at"] = world.rank % 2, world.rank
    best = np.zeros_like(pairs)
    request = world.Allreduce_init(
        [pairs, 2, MPI.DOUBLE_INT], [best, 2, MPI.DOUBLE_INT], op=MPI.MAXLOC
    )
    for _ in range(5):
        request.Start()
        request.Wait()
        assert (best["value"] == (world.size > 1)).all()
    request.Free()
    op = MPI.Op.Create(add_modulo, commute=True)  # may be freed before a start: MPI does it
    three = MPI.INT.Create_contiguous(3).Commit()
    x, y = np.full(3, world.rank, "i4"), np.zeros(3, "i4")
    request = world.Allreduce_init([x, 1, three], [y, 1, three], op=op)
    request.Start()
    request.Wait()
    assert (y == sum(range(world.size))).all()
    request.Free()
    three.Free()
    op.Free()
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
