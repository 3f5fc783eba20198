# SPDX-License-Identifier: Apache-2.0
"""Arrays of cupy, on a CUDA device. (What needs none is in test_device.py and its kin.)"""

from pathlib import Path

import pytest

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


@pytest.fixture
def cupy():
    found = pytest.importorskip("cupy")
    if not found.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return found


def test_all_dtypes(run, cupy):
    done = run(ALL_DTYPES, 2)
    assert done.returncode == 0, done.stderr


def test_the_example(run, cupy):
    done = run((ROOT / "examples" / "cupy_persistent.py").read_text(), 4)
    assert done.returncode == 0, done.stderr
