# SPDX-License-Identifier: Apache-2.0
"""More than 2**31 bytes in one message and in one copy: sizes must not be stored in an int.
Both tests really write gigabytes, so they are skipped, with a message, where that much is
not free. Two ranks write 13 GiB: a receive buffer, a temporary and a result each, while
almost all pages of the sent slot stay untouched. One rank writes 6.5 GiB. Each takes a
minute, so they run only when PARTIALCOLL_TEST_LARGE is set (`make test-large`).
"""

import os
import time

import numpy as np
import pytest

import partialcoll as pc

pytestmark = pytest.mark.mpi

BYTES = 2**31 + 3 * 4096 + 5
GIB = 2**30


def available(comm):
    """Return the bytes that are still available to all ranks of this machine."""
    with open("/proc/meminfo") as lines:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return comm.bcast(found["MemAvailable"])


def need(comm, ranks, gib):
    if not os.environ.get("PARTIALCOLL_TEST_LARGE"):
        pytest.skip("set PARTIALCOLL_TEST_LARGE to run it")
    if comm.size != ranks:
        pytest.skip(f"takes {ranks} ranks")
    free = available(comm)
    if free < gib * GIB:
        pytest.skip(f"takes {gib} GiB of memory, {free / GIB:.1f} GiB are free")


def places():
    """Return both ends, places around every power of two, and some beyond 2**31."""
    around = [2**k + d for k in range(6, 32) for d in (-1, 0, 1)]
    return np.unique([0, 1, BYTES - 1, BYTES - 4096, *[p for p in around if p < BYTES]])


def check(result, factor):
    """Check that the array contains exactly the marks, each in its place."""
    marks = places()
    assert list(result[marks]) == [factor * (1 + i % 5) for i in range(len(marks))]
    step = 64 * 2**20
    nonzero = sum(np.count_nonzero(result[i : i + step]) for i in range(0, BYTES, step))
    assert nonzero == len(marks)


def mark(buffer):
    buffer[places()] = [1 + i % 5 for i in range(len(places()))]


def test_one_message(comm):
    need(comm, 2, 15)
    recv = np.zeros(BYTES, np.int8)
    with pc.Allreduce_init(comm, None, recv, quorum="full", history=1, domain="rank") as h:
        send = h.send_buffer
        mark(send)
        del send
        h.Start()
        r = h.Wait(timeout=150)
        assert r.active == 2
        check(recv, 2)


def test_one_copy(comm):
    need(comm, 1, 8)
    send, recv = np.zeros(BYTES, np.int8), np.zeros(BYTES, np.int8)
    mark(send)
    with pc.Allreduce_init(comm, send, recv, quorum="full", history=1) as h:
        h.Start()
        h.Wait()
        check(recv, 1)


def test_state(comm):
    """A state with one array of more than 2**31 bytes and a separate small one."""
    need(comm, 2, 12)
    exchange = pc.StateExchange(comm, timeout=60)
    if comm.rank == 0:
        round, state = exchange.ask()
        assert round == 3 and (state["small"] == np.arange(5000)).all()
        check(state["x"], 1)
    x = np.zeros(BYTES if comm.rank else 1, np.int8)
    if comm.rank:
        mark(x)
    barrier = comm.Ibarrier()
    while not barrier.Test():
        exchange.serve(3, {"x": x, "small": np.arange(5000)})
        time.sleep(1e-4)
    exchange.Free()


def test_tensors(comm):
    """Broadcast, gather, and send more than the counts of one operation can express."""
    torch = pytest.importorskip("torch")
    need(comm, 2, 15)
    import torch.distributed as dist

    import partialcoll.torch as pct

    pct.init(comm)
    tensor = torch.zeros(BYTES, dtype=torch.int8)
    if comm.rank == 0:
        mark(tensor.numpy())
    pct.broadcast_(tensor, 0)
    check(tensor.numpy(), 1)
    part = tensor[: BYTES // 2 + 1].clone()
    del tensor
    both = pct.allgather(part)
    assert len(both) == 2 * len(part)
    assert torch.equal(both[: len(part)], part) and torch.equal(both[len(part) :], part)
    del both, part
    pct.shutdown()
    dist.init_process_group("partialcoll")
    tensor = torch.zeros(BYTES, dtype=torch.int8)
    if comm.rank == 0:
        mark(tensor.numpy())
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    check(tensor.numpy(), 1)
    dist.destroy_process_group()
