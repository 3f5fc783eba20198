# SPDX-License-Identifier: Apache-2.0
"""Arrays of cupy on a CUDA device. test_device.py and its siblings need no device."""

from pathlib import Path

import pytest

from partialcoll.tools import installed

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi, pytest.mark.gpu]
ROOT = Path(__file__).resolve().parents[2]

ALL_DTYPES = """
import cupy as cp
cp.cuda.Device(comm.rank % cp.cuda.runtime.getDeviceCount()).use()
for dtype in "float16 float32 float64 complex64 complex128 int8 uint8 int32 int64 bool".split():
    op = MPI.LOR if dtype == "bool" else MPI.SUM
    x, y = cp.zeros((3, 70), dtype), cp.zeros((3, 70), dtype)
    handle = pc.Allreduce_init(comm, x, y, op, quorum="full")
    with cp.cuda.Stream(non_blocking=True) as stream, handle:
        for step in range(3):
            x[...] = step + comm.rank
            handle.Start()
            handle.Wait(timeout=60)
            total = sum(step + rank for rank in range(comm.size))
            assert bool((y == cp.full_like(y, total)).all()), (dtype, y)
            stream.synchronize()
x = cp.full(1 << 22, comm.rank, "float32")  # more than a chunk
pc.Allreduce(comm, MPI.IN_PLACE, x)
assert bool((x == sum(range(comm.size))).all())
"""

# Gossip buffers, groups and schedules copy through pinned host memory.
OTHER_OBJECTS = """
import cupy as cp
import numpy as np
cp.cuda.Device(comm.rank % cp.cuda.runtime.getDeviceCount()).use()
other, count = 1 - comm.rank, 3000
own = cp.arange(count, dtype="float64") + comm.rank
theirs = cp.arange(count, dtype="float64") + other
x, out = own.copy(), cp.zeros(count)
with pc.GossipBuffer(comm, like=x, topology="complete") as buffer:
    buffer.publish(x)
    comm.Barrier()
    assert buffer.read(other, out=out)[0] is out and bool((out == theirs).all())
    comm.Barrier()
    buffer.average(x, other)
    comm.Barrier()
    buffer.collect(x)
    assert np.allclose(comm.allreduce(x.get()), (own + theirs).get())
x = own.copy()
with pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, grid=(2,)) as group:
    group.Start()
    group.Wait(timeout=60)
    assert bool((x == (own + theirs) / 2).all())
come, total = cp.zeros(count), np.ones(count)
schedule = pc.Schedule(comm)
schedule.send(own, other)
schedule.after(schedule.reduce(come, total), schedule.recv(come, other))
with schedule.commit():
    for step in range(1, 4):
        schedule.Start()
        schedule.Wait(timeout=60)
        assert bool((come == theirs).all()) and (total == 1 + step * theirs.get()).all()
"""

# The interposer gets device addresses from a program that does not use the library. MPI makes the
# first call and need not support devices, so its buffers are on the host.
PRELOADED = """
import cupy as cp
import numpy as np
values = np.arange(500_000, dtype="float32")
x, y, total = cp.array(values), cp.zeros(500_000, dtype="float32"), np.zeros_like(values)
for step in range(5):
    cp.add(x, 1, out=x)
    cp.cuda.get_current_stream().synchronize()
    comm.Allreduce(*((x, y) if step else (values, total)))
    assert step == 0 or bool((y == comm.size * x).all())
"""


@pytest.fixture
def cupy():
    found = pytest.importorskip("cupy")
    if not found.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return found


def test_all_dtypes(run, cupy):
    done = run(ALL_DTYPES, 2)
    assert done.returncode == 0, done.stderr


def test_other_objects(run, cupy):
    done = run(OTHER_OBJECTS, 2)
    assert done.returncode == 0, done.stderr


def test_an_intercepted_call(run, cupy):
    environment = {
        "LD_PRELOAD": installed.preload(),
        "PARTIALCOLL_ALL": "1",
        "PARTIALCOLL_QUORUM": "solo,linger=5s",
    }
    done = run(PRELOADED, 2, env={**environment, "PARTIALCOLL_REPORT": "1"})
    assert done.returncode == 0 and "MPI_Allreduce" in done.stderr, done.stderr


def test_the_example(run, cupy):
    done = run((ROOT / "examples" / "cupy_persistent.py").read_text(), 4)
    assert done.returncode == 0, done.stderr
