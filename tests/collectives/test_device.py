# SPDX-License-Identifier: Apache-2.0
"""Allreduces of buffers on the hostile fake device of tests/fake_cuda: kernels and copies are late
and in any order, and an access of the host to device memory is fatal."""

import contextlib
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from device import DeviceArray, DLPackArray
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core.ffi import ffi, lib

pytestmark = pytest.mark.mpi
LATE_US = 3000
LONG = np.zeros(4, np.longdouble)


def expected(ranks, shape, dtype, step):
    values = np.arange(int(np.prod(shape))).reshape(shape) % 7
    return sum((values + rank + step).astype(dtype) for rank in range(ranks)).astype(dtype)


def own(comm, shape, dtype, step):
    values = np.arange(int(np.prod(shape))).reshape(shape) % 7
    return (values + comm.rank + step).astype(dtype)


@pytest.mark.parametrize("quorum", ["full", "solo", "majority"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.complex64])
def test_rounds(comm, fake, nothing_left, quorum, dtype):
    """The values of a late kernel are summed. After Wait the stream reads the result."""
    shape = (33, 65)
    x, y = nothing_left(np.zeros(shape, dtype)), nothing_left(np.zeros(shape, dtype))
    h = pc.Allreduce_init(comm, x, y, quorum=quorum, late="drop")
    for step in range(8):
        x.set(own(comm, shape, dtype, step), late_us=comm.rank * 500)
        y.set(77)
        h.Start()
        rnd = h.Wait(timeout=60)
        found = y.get()
        if quorum == "full":
            assert rnd.active == comm.size
            assert np.array_equal(found, expected(comm.size, shape, dtype, step))
        else:
            assert (found.any()) == (rnd.active > 0)
    comm.Barrier()
    h.Free()
    assert rnd.results[0].buffers[0] is y


def test_nothing_is_lost(comm, fake, nothing_left):
    """Solo with carry: the sum of all results is the sum of all deposits."""
    steps, count = 30, 500
    x, y = nothing_left(np.zeros(count)), nothing_left(np.zeros(count))
    total = np.zeros(count)
    with pc.Allreduce_init(comm, x, y, quorum="solo", history=4) as h:
        for step in range(steps):
            x.set(np.arange(count) + step * (comm.rank + 1), late_us=(step + comm.rank) % 4 * 400)
            h.Start()
            h.Wait(timeout=60)
            total += y.get()
        rounds = []
        h.join(lambda rnd: rounds.append(y.get()))
        total += sum(rounds)
    deposits = sum(
        np.arange(count) + step * (rank + 1) for rank in range(comm.size) for step in range(steps)
    )
    assert np.allclose(total, deposits, rtol=1e-12)


def test_start_does_not_wait(comm, fake, nothing_left):
    """Start and Test return during a kernel that does not end. When it ends, the rank arrives
    without any call."""
    x, y = nothing_left(np.ones(10)), nothing_left(np.zeros(10))
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        for step in range(3):
            fake.hold()
            x.set(step + 1.0)
            h.Start()
            assert h.Test() is None and h.stats.calls == step
            with pytest.raises(TimeoutError):
                h.Wait(timeout=0.02)
            fake.release()
            begin = time.monotonic()
            while h.stats.calls == step and time.monotonic() < begin + 60:
                time.sleep(0.001)  # a counter only; no call here could make the deposit
            assert h.stats.calls == step + 1
            h.Wait(timeout=60)
            assert (y.get() == (step + 1) * comm.size).all()


@contextlib.contextmanager
def a_copy_under_way(comm, fake, nothing_left):
    """Return a handle whose deposit waits for its copy, which completes at the end."""
    x, y = nothing_left(np.ones(10)), nothing_left(np.zeros(10))
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        fake.hold()
        x.set(1.0)
        h.Start()
        yield h
        comm.Barrier()
        fake.release()
        h.Wait(timeout=60)
        assert (y.get() == comm.size).all()


def test_waiting_for_a_copy_takes_no_core(comm, fake, nothing_left):
    """The agent and a waiting call poll the copy at intervals, not all the time."""
    with a_copy_under_way(comm, fake, nothing_left) as h:
        for wait in (time.sleep, lambda seconds: h.Wait(timeout=seconds)):
            begin, before = time.monotonic(), fake.counts()["questions"]
            with contextlib.suppress(TimeoutError):
                wait(0.5)
            looks = fake.counts()["questions"] - before
            assert looks < 20000 * (time.monotonic() - begin)


def test_nothing_else_while_a_copy_is_under_way(comm, fake, nothing_left):
    """No other call, also of the C functions, deposits data during the copy."""
    with a_copy_under_way(comm, fake, nothing_left) as h:
        assert lib.pcoll_handle_start(h._core(), ffi.NULL) == lib.PCOLL_ESTATE
        assert lib.pcoll_handle_join(h._core()) == lib.PCOLL_ESTATE
        assert lib.pcoll_handle_leave(h._core()) == lib.PCOLL_ESTATE


def test_a_result_stays_while_it_is_copied(comm, fake, nothing_left):
    """A rank has joined while its last result is being copied. The others continue only as far as
    the history has room."""
    last = comm.size - 1
    x, y = nothing_left(np.ones(10)), nothing_left(np.zeros(10))

    def release():
        for _ in range(last):
            comm.recv()
        fake.release()

    with pc.Allreduce_init(comm, x, y, quorum="full", history=1) as h:
        h.Start()
        if comm.rank == last:
            fake.hold()
        h.Wait(timeout=60)
        if comm.rank == last:
            helper = threading.Thread(target=release)
            helper.start()
        else:
            x.set(2.0)
            h.Start()
            h.Wait(timeout=60)
            x.set(3.0)
            h.Start()
            with pytest.raises(TimeoutError):
                h.Wait(timeout=0.3)
            comm.send(None, last)
            h.Wait(timeout=60)
        seen = []
        h.join(lambda rnd: seen.append((rnd.index, y.get()[0])))
        if comm.rank == last:
            helper.join()
            assert seen[:2] == [(1, 2.0 * last), (2, 3.0 * last)] or not last


def test_solo_continues_without_a_busy_device(comm, fake, nothing_left):
    """A rank with a busy kernel is late. Its deposit takes part in a later round."""
    late = comm.size - 1
    x, y = nothing_left(np.ones(10)), nothing_left(np.zeros(10))
    total = np.zeros(10)
    with pc.Allreduce_init(comm, x, y, quorum="solo") as h:
        if comm.rank == late:
            fake.hold()
            x.set(100.0)
            h.Start()
            comm.Barrier()
            comm.Barrier()
            fake.release()
        else:
            comm.Barrier()
            h.Start()
            rnd = h.Wait(timeout=60)
            assert not rnd.mask[late]
            total += y.get()
            comm.Barrier()
        if comm.rank == late:
            h.Wait(timeout=60)
            total += y.get()
        rounds = []
        h.join(lambda rnd: rounds.append(y.get()))
        total += sum(rounds)
    assert (total == 100 + comm.size - 1).all()


def test_streams(comm, fake, nothing_left):
    """Only the given streams are waited for, and only they wait."""
    first, second = fake.stream(), fake.stream()
    x, y = nothing_left(np.zeros(1000)), nothing_left(np.zeros(1000))
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        for step in range(6):
            x.set(step + comm.rank, stream=first, late_us=LATE_US)
            y.set(-1.0, stream=second, late_us=LATE_US)
            h.Start(stream=first)
            h.Wait(timeout=60, stream=second)
            want = sum(step + rank for rank in range(comm.size))
            assert (y.get(stream=second) == want).all()
    x.free()
    y.free()
    fake.end_stream(first)
    fake.end_stream(second)


@pytest.mark.parametrize(
    ("name", "code"),
    [("float16", 2), ("float64", 2), ("int8", 0), ("uint32", 1), ("complex64", 5), ("bool", 6)],
)
def test_dlpack(comm, fake, nothing_left, name, code):
    """Arrays that offer only DLPack."""
    x, y = (nothing_left(np.zeros((4, 9), name)) for _ in range(2))
    op = MPI.LOR if name == "bool" else MPI.SUM
    there, back = DLPackArray(x, code), DLPackArray(y, code, (9, 1))
    with pc.Allreduce_init(comm, there, back, op, quorum="full") as h:
        x.set(1, late_us=LATE_US)
        h.Start()
        h.Wait(timeout=60)
        assert (y.get() == (1 if name == "bool" else comm.size)).all()


@pytest.mark.parametrize("offer", [lambda x: x, lambda x: DLPackArray(x, 2)])
def test_managed_memory(comm, fake, nothing_left, offer):
    """Managed memory belongs to its device, wherever it is located: the host does not access it."""
    x, y = (nothing_left(np.zeros(5000), device=1, managed=True) for _ in range(2))
    with pc.Allreduce_init(comm, offer(x), offer(y), quorum="full") as h:
        for step in range(8):
            x.set(step + 1.0, late_us=LATE_US)
            h.Start()
            h.Wait(timeout=60)
            assert (y.get() == comm.size * (step + 1)).all()
    with pc.GossipBuffer(comm, like=offer(x), topology="complete") as g:
        g.publish(offer(x))
        y.set(8.0)
        comm.Barrier()
        for peer in set(range(comm.size)) - {comm.rank}:
            y.set(0.0)
            g.read(peer, out=offer(y))
        assert (y.get() == 8).all()
        comm.Barrier()


def test_dlpack_refused(comm, nothing_left):
    x = nothing_left(np.zeros((4, 9)))
    with pytest.raises(ValueError, match=r"C-contiguous array, got strides \(8, 32\)"):
        pc.Allreduce_init(comm, DLPackArray(x, 2, (1, 4)), None)
    with pytest.raises(TypeError, match="sendbuf: expected a dtype of the library, got DLPack's 9"):
        pc.Allreduce_init(comm, DLPackArray(x, 9), None)


def test_dlpack_bfloat16(comm, fake, nothing_left):
    x = nothing_left(np.full(100, 0x3F80, np.uint16))  # 1
    with pc.Allreduce_init(comm, DLPackArray(x, 4), None, quorum="full") as h:
        h.Start()
        h.Wait(timeout=60)
        bits = np.float32(comm.size).view(np.uint32) >> 16
        assert (h.result.view(np.uint16) == bits).all()


def test_in_place_and_lists(comm, fake, nothing_left):
    a, b = nothing_left(np.zeros((3, 5))), nothing_left(np.zeros(1001, np.float32))
    empty = nothing_left(np.zeros(0))
    with pc.Allreduce_init(
        comm, MPI.IN_PLACE, [a, b, empty], [MPI.SUM, MPI.MAX, MPI.SUM], quorum="full"
    ) as h:
        for step in range(3):
            a.set(comm.rank + step, late_us=LATE_US)
            b.set(-comm.rank - step, late_us=LATE_US // 2)
            h.Start()
            h.Wait(timeout=60)
            assert (a.get() == sum(rank + step for rank in range(comm.size))).all()
            assert (b.get() == -step).all()
        assert h.recv_buffer[0] is a and h.send_buffer[1] is b and h.result[2] is empty


def test_bytes_cross_once(comm, fake, nothing_left):
    count, rounds = 5000, 5
    x, y = nothing_left(np.ones(count)), nothing_left(np.zeros(count))
    before = fake.counts()
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        for _ in range(rounds):
            h.Start()
            h.Wait(timeout=60)
        y.get()
        h.Start()
        h.Wait(timeout=60)
    after = fake.counts()
    for way in ("to_host", "to_device"):
        assert after[way] - before[way] == 8 * count * (rounds + 1)
    assert after["registrations"] - before["registrations"] == 1


def test_devices(comm, fake, nothing_left):
    """The device of the buffers is used, whichever is current. Each rank may have another one."""
    device = comm.rank % 2
    x, y = nothing_left(np.zeros(100), device), nothing_left(np.zeros(100), device)
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        x.set(comm.rank + 1.0, late_us=LATE_US)
        h.Start()
        h.Wait(timeout=60)
        assert (y.get() == sum(range(1, comm.size + 1))).all()


def test_beside_the_host(comm, fake, nothing_left):
    """One rank has a device, and the others do not."""
    there = comm.rank == 0
    x = nothing_left(np.zeros(50)) if there else np.zeros(50)
    y = nothing_left(np.zeros(50)) if there else np.zeros(50)
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        for step in range(4):
            if there:
                x.set(step, late_us=LATE_US)
            else:
                x[:] = step
            h.Start()
            h.Wait(timeout=60)
            assert ((y.get() if there else y) == step * comm.size).all()


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda d, x: (x, d(np.zeros(4), 1)), ValueError, "on one device, got devices 0, 1"),
        (lambda d, x: (None, x), ValueError, "sendbuf: expected an array, as recvbuf is on a"),
        (lambda d, x: ([x, LONG], None), TypeError, "beside buffers on a device"),
        (lambda d, x: (x, x), ValueError, "overlaps sendbuf"),
        (lambda d, x: (x, d(np.zeros(5))), ValueError, "expected 4 elements"),
        (lambda d, x: (x, d(np.zeros(4, np.float32))), TypeError, "dtype"),
        (lambda d, x: ([x, 4], d(np.zeros(4))), TypeError, "without a count"),
    ],
)
def test_bad_buffers(comm, fake, nothing_left, make, error, words):
    x = nothing_left(np.zeros(4))
    with pytest.raises(error, match=words):
        pc.Allreduce_init(comm, *make(nothing_left, x))


def test_bad_arrays(comm, fake, nothing_left):
    x, y = nothing_left(np.zeros((4, 4))), nothing_left(np.zeros((4, 4)))
    x.strides = (8, 32)
    with pytest.raises(ValueError, match=r"C-contiguous array, got strides \(8, 32\)"):
        pc.Allreduce_init(comm, x, y)
    x.strides = None
    gone = DeviceArray(fake, np.zeros((4, 4)))
    gone.free()
    gone.address = 4096
    with pytest.raises(ValueError, match="0x1000, which the CUDA driver does not know"):
        pc.Allreduce_init(comm, gone, y)
    with pytest.raises(TypeError, match="x: expected memory of the host"):
        pc.Lattice(bits=8).encode(x)


def test_bad_streams(comm, fake, nothing_left):
    """A bad stream is refused at Start, and the handle stays usable."""
    x, y = nothing_left(np.ones(4)), nothing_left(np.zeros(4))
    other = fake.stream(1)
    with pc.Allreduce_init(comm, x, y, quorum="full") as h:
        with pytest.raises(ValueError, match="stream: expected one of device 0"):
            h.Start(stream=other)
        with pytest.raises(TypeError, match="stream: expected a stream of cupy or torch"):
            h.Start(stream="fast")
        own = fake.stream()
        fake.capture(own, True)
        with pytest.raises(ValueError, match="records a CUDA graph"):
            h.Start(stream=own)
        fake.end_stream(own)
        h.Start()
        with pytest.raises(pc.StateError, match="started twice"):
            h.Start()
        h.Wait(timeout=60)
        assert (y.get() == comm.size).all()
    fake.end_stream(other)
    with pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full") as h:
        with pytest.raises(ValueError, match="stream: expected None with buffers of the host"):
            h.Start(stream=0)
        h.Start()
        with pytest.raises(ValueError, match="stream: expected None"):
            h.Wait(stream=1)
        h.Wait(timeout=60)


def test_freed_under_way(comm, fake, nothing_left):
    """Freed while the copy waits for the kernel: the deposit is completed."""
    x, y = nothing_left(np.ones(40)), nothing_left(np.zeros(40))
    h = pc.Allreduce_init(comm, x, y, quorum="solo")
    x.set(1.0, late_us=50_000)
    h.Start()
    h.Free()


def test_freed_in_two_steps(comm, fake, nothing_left):
    """A Free that timed out is called again, with a call outstanding."""
    x, y = nothing_left(np.ones(40)), nothing_left(np.zeros(40))
    h = pc.Allreduce_init(comm, x, y, quorum="solo")
    h.Start()
    if comm.rank == 0 and comm.size > 1:
        with pytest.raises(TimeoutError):
            h.Free(timeout=0.01)
    comm.Barrier()
    h.Free()


def test_after_leaving(comm, fake, nothing_left):
    """The last deposit is made, though its kernel is late. After it Start is refused."""
    x, y = nothing_left(np.ones(40)), nothing_left(np.zeros(40))
    h = pc.Allreduce_init(comm, x, y, quorum="solo")
    x.set(2.0, late_us=LATE_US)
    h.Start()
    h.Wait(timeout=60)
    h.leave()
    with pytest.raises(pc.StateError, match="has left"):
        h.Start()
    h.Free()


def test_current_streams(comm, fake, nothing_left, monkeypatch):
    """Without stream= cupy's current stream is used if cupy is loaded, else the array's."""
    busy, own = fake.stream(), fake.stream()
    cuda = SimpleNamespace(
        Device=lambda number: contextlib.nullcontext(), get_current_stream=lambda: busy
    )
    x, y = nothing_left(np.zeros(40)), nothing_left(np.zeros(40))
    named = nothing_left(np.zeros(40), stream=own.ptr)
    with pc.Allreduce_init(comm, x, y, quorum="full") as h, monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
        fake.hold(busy)
        x.set(1.0, stream=busy)
        h.Start()
        assert h.Test() is None and h.stats.calls == 0
        fake.release()
        h.Wait(timeout=60)
        assert (y.get(stream=busy) == comm.size).all()
    with pc.Allreduce_init(comm, named, y, quorum="full") as h:
        fake.hold(own)
        named.set(2.0, stream=own)
        h.Start()
        assert h.Test() is None and h.stats.calls == 0
        fake.release()
        h.Wait(timeout=60)
        assert (y.get() == 2 * comm.size).all()
    for array in (x, y, named):
        array.free()
    fake.end_stream(busy)
    fake.end_stream(own)


def test_several(comm, fake, nothing_left):
    """Startall, Waitany and Waitall over handles on the device and on the host."""
    on_device = [(nothing_left(np.zeros(9)), nothing_left(np.zeros(9))) for _ in range(2)]
    here = (np.ones(9), np.zeros(9))
    handles = [pc.Allreduce_init(comm, x, y, quorum="full") for x, y in (*on_device, here)]
    for late, (x, _) in enumerate(on_device):
        x.set(2.0, late_us=late * LATE_US)
    pc.Startall(handles)
    which, rnd = pc.Waitany(handles, timeout=60)
    assert rnd.active == comm.size
    pc.Waitall([h for i, h in enumerate(handles) if i != which], timeout=60)
    assert (here[1] == comm.size).all()
    for _, y in on_device:
        assert (y.get() == 2 * comm.size).all()
    for h in handles:
        h.Free()


def test_drop_in(comm, fake, nothing_left):
    """Used in place of comm.Allreduce, the handle of a place serves other arrays of that size."""
    pairs = [(nothing_left(np.zeros(20)), nothing_left(np.zeros(20))) for _ in range(2)]
    place = comm.Dup()
    for step in range(6):
        x, y = pairs[step % 2]
        x.set(step + 1.0, late_us=LATE_US)
        rnd = pc.Allreduce(place, x, y, quorum="full")
        assert rnd.active == comm.size
        assert (y.get() == (step + 1) * comm.size).all()
    place.Free()


def test_memory(comm, fake, nothing_left):
    """float16 is reduced in float32, so a device result needs room for its float16 form."""
    for dtype, room in ((np.float16, 40_000), (np.float64, 0)):
        arrays = [np.zeros(10_000, dtype) for _ in range(2)]
        here = pc.memory_estimate(comm, None, arrays[1], quorum="full")
        there = pc.memory_estimate(comm, *map(nothing_left, arrays), quorum="full")
        assert here + room <= there <= here + room + 200
