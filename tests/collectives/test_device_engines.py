# SPDX-License-Identifier: Apache-2.0
"""Objects that work on the host only, with device buffers: gossip, groups, schedules; and handles
with some buffers on the host. The device is the hostile fake of tests/fake_cuda."""

import numpy as np
import pytest
from device import DeviceArray
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi
LATE_US = 3000


def test_here_and_there(comm, fake, nothing_left):
    """One handle with buffers on both, in place, and from one to the other."""
    a, host = nothing_left(np.zeros(100)), np.zeros(7, np.int32)
    with pc.Allreduce_init(comm, MPI.IN_PLACE, [a, host], quorum="full") as h:
        for step in range(4):
            a.set(step + comm.rank, late_us=LATE_US)
            host[:] = comm.rank
            h.Start()
            host[:] = -1  # the host's may be changed at once
            h.Wait(timeout=60)
            assert (a.get() == sum(step + rank for rank in range(comm.size))).all()
            assert (host == sum(range(comm.size))).all()
        assert h.recv_buffer[0] is a and h.result[0] is a and h.result[1][0] == host[0]
        assert not h.result[1].flags.writeable
    x, y = nothing_left(np.ones(9)), np.zeros(9)
    for send, recv in ((x, y), (np.ones(9), nothing_left(np.zeros(9)))):
        with pc.Allreduce_init(comm, send, recv, quorum="full") as h:
            if send is x:
                x.set(2.0, late_us=LATE_US)
            h.Start()
            h.Wait(timeout=60)
            found = recv if send is x else recv.get()
            assert (found == comm.size * (2 if send is x else 1)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_of_the_host(comm, fake, nothing_left, dtype):
    """With recvbuf=None results stay in the library's memory."""
    x = nothing_left(np.zeros((4, 5), dtype))
    with pc.Allreduce_init(comm, [x, np.ones(3)], None, quorum="full") as h:
        for step in range(4):
            x.set(step + comm.rank, late_us=LATE_US)
            before = fake.counts()["to_device"]
            h.Start()
            rnd = h.Wait(timeout=60)
            total = sum(step + rank for rank in range(comm.size))
            assert (h.result[0] == total).all() and h.result[0].shape == (4, 5)
            assert (rnd.results[0].buffers[1] == comm.size).all()
            assert fake.counts()["to_device"] == before


def test_every_round(comm, fake, nothing_left):
    """deliver="all" with results on the host: nothing is lost."""
    steps, x = 12, nothing_left(np.zeros(50))
    total = np.zeros(50)
    with pc.Allreduce_init(comm, x, None, quorum="solo", deliver="all", history=64) as h:
        for step in range(steps):
            x.set(step + 1.0, late_us=(step + comm.rank) % 3 * 300)
            h.Start()
            h.Wait(timeout=60)
            total += h.recv_buffer
        rounds = []
        h.join(lambda rnd: rounds.append(h.result.copy()))
        total += sum(rounds)
    assert (total == comm.size * steps * (steps + 1) / 2).all()


@pytest.mark.parametrize("in_place", (False, True))
def test_every_round_lands(comm, fake, nothing_left, in_place):
    """deliver="all" with receive buffers on the device, which get the sum of the rounds."""
    steps, x, y = 8, nothing_left(np.zeros(50, np.float32)), nothing_left(np.zeros(50, np.float32))
    like, rows = np.ones(3), np.zeros(3)
    stream = fake.stream()
    total, counted = np.zeros(50), np.zeros(3)
    if in_place:
        send, recv, y = MPI.IN_PLACE, [x, rows], x
    else:
        send, recv = [x, like], [y, rows]
    options = {"quorum": "solo", "deliver": "all", "history": 64}
    with pc.Allreduce_init(comm, send, recv, **options) as h:
        for step in range(steps):
            x.set(step + 1.0, stream, late_us=(step + comm.rank) % 3 * 300)
            rows[:] = 1  # it is the send buffer in place
            h.Start(stream=stream)
            rnd = h.Wait(timeout=60, stream=stream)
            total += y.get(stream)
            counted += rows
            assert (sum(one.buffers[1] for one in rnd.results) == rows).all()

        def passed(rnd):
            nonlocal total, counted
            total += y.get()
            counted += rows

        assert h.recv_buffer[0] is y
        h.join(passed)
    assert (total == comm.size * steps * (steps + 1) / 2).all()
    assert (counted == comm.size * steps).all()
    x.free()
    y.free()
    fake.end_stream(stream)


# Gossip


def test_gossip(comm, fake, nothing_left):
    """The sum over all ranks, with pending deltas, is constant. x changes on the device."""
    count = 700
    x, v = nothing_left(np.zeros(count)), nothing_left(np.zeros(count))
    here = np.zeros(count)
    with pc.GossipBuffer(comm, like=x, topology="complete") as buffer:
        assert buffer.shape == (count,) and buffer.dtype == np.float64
        x.set(np.arange(count) + comm.rank, late_us=LATE_US)
        assert buffer.publish(x) == 1
        comm.Barrier()
        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        for peer in peers:
            out = nothing_left(np.zeros(count))
            assert buffer.read(peer, out=out)[0] is out
            assert (out.get() == np.arange(count) + peer).all()
        comm.Barrier()  # ranks must publish between two averages
        for peer in peers:
            buffer.average(x, peer, momentum=v, ratio=2.0)
        comm.Barrier()
        buffer.collect(x, momentum=v, ratio=2.0)
        comm.Barrier()
        moved = x.get() - (np.arange(count) + comm.rank)
        assert np.allclose(v.get(), 2 * moved)
        comm.Allreduce(x.get(), here)
        assert np.allclose(here, comm.size * np.arange(count) + sum(range(comm.size)))
        assert buffer.collect(x) == 0


def test_gossip_queue(comm, fake, nothing_left):
    count, codec = 300, pc.Lattice(bits=8)
    x, key = nothing_left(np.zeros(count)), np.zeros(count)
    sent, out = nothing_left(np.ones(count)), nothing_left(np.ones(count))
    with pc.GossipBuffer(comm, like=x, topology="complete", codec=codec) as buffer:
        x.set(np.linspace(-1, 1, count), late_us=LATE_US)
        to = (comm.rank + 1) % comm.size
        if comm.size > 1:
            assert buffer.push(to, x, key=key, sent=sent)
            comm.Barrier()
            found, source = buffer.peek(comm.rank, key=key, out=out)
            assert found is out and source == (comm.rank - 1) % comm.size
            theirs = comm.sendrecv(sent.get(), to, source=source)  # each rank dithers its own
            assert np.array_equal(out.get(), theirs)
            ((_, message),) = buffer.drain(key=key)
            assert np.array_equal(message, theirs)
            assert np.abs(sent.get() - x.get()).max() < 0.1


def test_bad_gossip(comm, fake, nothing_left):
    x = nothing_left(np.zeros(9))
    with pc.GossipBuffer(comm, like=np.zeros(9), topology="complete") as buffer:
        with pytest.raises(ValueError, match=r"x: expected shape \(9,\), got \(8,\)"):
            buffer.publish(nothing_left(np.zeros(8)))
        with pytest.raises(TypeError, match="x: expected dtype float64, got float32"):
            buffer.publish(nothing_left(np.zeros(9, np.float32)))
        with pytest.raises(ValueError, match="momentum: expected buffers apart"):
            buffer.collect(x, momentum=x)
        gone = DeviceArray(fake, np.zeros(9))
        gone.free()
        gone.address = 4096
        with pytest.raises(ValueError, match="0x1000, which the CUDA driver does not know"):
            buffer.publish(gone)
        other = fake.stream()
        fake.capture(other, True)
        named = nothing_left(np.zeros(9), stream=other.ptr)
        with pytest.raises(ValueError, match="records a CUDA graph"):
            buffer.publish(named)
        fake.end_stream(other)


# Groups


@pytest.mark.parametrize("in_place", [False, True])
def test_groups(comm, fake, nothing_left, in_place):
    stream = fake.stream()
    x, y = nothing_left(np.zeros(500)), nothing_left(np.zeros(500))
    pair = (MPI.IN_PLACE, y) if in_place else (x, y)
    with pc.GroupAllreduce_init(comm, *pair, grid=(comm.size,), timeout=240) as group:
        source = y if in_place else x
        for step in range(3):
            source.set(step + comm.rank, stream=stream, late_us=LATE_US)
            group.Start(stream=stream)
            rnd = group.Wait(timeout=60, stream=stream)
            assert rnd.exact and rnd.active == comm.size
            mean = step + (comm.size - 1) / 2
            assert np.allclose(y.get(stream=stream), mean)
        assert group.send_buffer is source and group.recv_buffer is y
    x.free()
    y.free()
    fake.end_stream(stream)
    group = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.zeros(3), grid=(comm.size,))
    with pytest.raises(ValueError, match="stream: expected None with buffers of the host"):
        group.Start(stream=0)
    group.Free()
    with pytest.raises(ValueError, match="on one device, got devices 0, 1"):
        pc.GroupAllreduce_init(comm, nothing_left(np.zeros(3), 0), nothing_left(np.zeros(3), 1))


# Schedules


class Part:
    """A part of an array, which overlaps it."""

    def __init__(self, whole, begin, end):
        self.whole, self.begin, self.count = whole, begin, end - begin

    @property
    def __cuda_array_interface__(self):
        said = self.whole.__cuda_array_interface__
        address = said["data"][0] + self.begin * self.whole.dtype.itemsize
        return {**said, "shape": (self.count,), "data": (address, False)}


def test_schedule(comm, fake, nothing_left):
    """A ring with overlapping parts of one allocation, and with host memory."""
    count, stream = 3000, fake.stream()
    whole, total = nothing_left(np.zeros(2 * count)), np.zeros(count)
    own, come = Part(whole, 0, count), Part(whole, count, 2 * count)
    s = pc.Schedule(comm)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    send, recv = s.send(own, to), s.recv(come, source)
    add = s.after(s.reduce(come, total), recv)
    last = s.after(s.copy(Part(whole, count - 10, count + 10), Part(whole, 0, 20)), [send, add])
    with s.after(last, add).schedule.commit():
        for step in range(3):
            values = np.arange(2 * count) + 1000 * comm.rank + step
            whole.set(values, stream=stream, late_us=LATE_US)
            total[:] = 0
            s.Start(stream=stream)
            with pytest.raises(pc.StateError):
                s.Start(stream=stream)
            if step == 1:
                while not s.Test(stream=stream):
                    pass
            else:
                s.Wait(timeout=60, stream=stream)
            got = np.arange(count) + 1000 * source + step
            assert (total == got).all()
            found = whole.get(stream=stream)
            assert (found[count:] == got).all()
            assert (found[10:20] == got[:10]).all() and (
                found[:10] == values[count - 10 : count]
            ).all()
    whole.free()
    fake.end_stream(stream)


def test_schedule_reads_what_it_reads(comm, fake, nothing_left):
    """Receive-only data is not copied to the host, and send-only data not to the device."""
    x, y, none = (nothing_left(np.ones(1000)) for _ in range(3))
    with pc.Schedule(comm) as s:
        s.send(x, comm.rank)
        s.recv(y, comm.rank)
        s.recv(none, MPI.PROC_NULL)
        s.commit()
        before = fake.counts()
        for _ in range(2):
            s.Start()
            s.Wait(timeout=60)
        y.get()
        after = fake.counts()
    for way in ("to_host", "to_device"):
        assert after[way] - before[way] == 2 * 8000
    assert (none.get() == 1).all()
    with pc.Schedule(comm) as s:
        s.nop()
        s.commit()
        with pytest.raises(ValueError, match="stream: expected None with buffers of the host"):
            s.Start(stream=3)
