# SPDX-License-Identifier: Apache-2.0
"""Gossip buffers under MPI: the guarantees of register, accumulator and queue under any timing."""

import contextlib
import time

import numpy as np
import pytest

import partialcoll as pc
from partialcoll import pairing

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain]

COUNT = 70_001  # two chunks
DTYPES = [np.float64, np.float32, np.float16]
with contextlib.suppress(ImportError):
    from ml_dtypes import bfloat16

    DTYPES.append(bfloat16)
CODECS = [None, pc.Lattice(8), pc.Lattice(4), pc.Lattice(16), pc.Lattice(5, rotate=True)]


def several(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")


def start(comm, dtype=np.float64, count=COUNT):
    return np.random.default_rng(comm.rank).normal(size=count).astype(dtype)


def sum_over_ranks(comm, x):
    return comm.allreduce(x.astype(np.float64))


def others(g):
    return sorted(g.topology.neighbors(g.rank))


def distance(comm, x):
    x = x.astype(np.float64)
    mean = comm.allreduce(x) / comm.size
    return np.sqrt(comm.allreduce(((x - mean) ** 2).sum()) / comm.size)


def gossip(comm, g, x, rounds, collects_every=1, **moving):
    """Average with random peers, all ranks at their own pace. One rank collects rarely."""
    rng = np.random.default_rng(comm.rank)
    peers, averaged = others(g), 0
    g.publish(x)
    comm.Barrier()
    for i in range(rounds):
        if i % collects_every == 0:
            g.collect(x, **moving)
            g.publish(x)
        averaged += g.average(x, peers[rng.integers(len(peers))], **moving)
        if rng.random() < 0.1:
            time.sleep(rng.random() * 1e-3)  # a rank is late now and then
    comm.Barrier()
    return averaged


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_stays(comm, dtype, codec):
    several(comm)
    x = start(comm, dtype)
    before = sum_over_ranks(comm, x)
    limit = 1e-12 if dtype == np.float64 else 1e-5
    with pc.GossipBuffer(comm, like=x, topology="complete", codec=codec) as g:
        gossip(comm, g, x, 40, collects_every=10 if comm.rank == 0 else 1)
        for _ in range(2):
            now = sum_over_ranks(comm, x.astype(np.float64) + g.pending())
            assert np.linalg.norm(now - before) <= limit * np.linalg.norm(before)
            comm.Barrier()
            g.collect(x)  # the accumulator keeps what 16 bits cannot hold
            comm.Barrier()


@pytest.mark.parametrize("codec", [None, pc.Lattice(8)], ids=str)
def test_ranks_converge(comm, codec):
    several(comm)
    x = start(comm)
    first = distance(comm, x)
    with pc.GossipBuffer(comm, like=x, topology="ring", codec=codec) as g:
        for _ in range(200):  # until it has shrunk: how many averagings happen depends
            gossip(comm, g, x, 30, collects_every=5 if comm.rank == 0 else 1)
            g.collect(x)
            if distance(comm, x) < first / 100:
                return
        raise AssertionError(f"from {first} to {distance(comm, x)}")


def test_momentum_moves_in_proportion(comm):
    several(comm)
    x = start(comm)
    momentum = x + 1
    x0, momentum0 = x.copy(), momentum.copy()
    total = sum_over_ranks(comm, x + momentum)
    with pc.GossipBuffer(comm, like=x, topology="ring") as g:
        gossip(comm, g, x, 30, momentum=momentum, ratio=1.75)
        assert np.allclose(momentum - momentum0, 1.75 * (x - x0), rtol=1e-9, atol=1e-9)
        after = sum_over_ranks(comm, x + momentum + 2.75 * g.pending())
        assert np.allclose(after, total, rtol=1e-12, atol=1e-11)


def test_weight(comm):
    several(comm)
    x = np.full(COUNT, float(comm.rank))
    with pc.GossipBuffer(comm, like=x, topology="ring") as g:
        g.publish(x)
        comm.Barrier()
        peer = (comm.rank + 1) % comm.size
        assert g.average(x, peer, weight=0.25)
        assert np.allclose(x, comm.rank + 0.25 * (peer - comm.rank))
        comm.Barrier()
        given = 0.25 * ((comm.rank - 1) % comm.size - comm.rank)
        assert np.allclose(g.pending(), given)
        assert g.collect(x) == 1 and np.allclose(g.pending(), 0)
        assert np.allclose(x, comm.rank + 0.25 * (peer - comm.rank) + given)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_register_is_read_whole(comm, codec):
    """A read returns one version, never older than one seen before, whatever the owner does."""
    several(comm)
    x = np.empty(COUNT)
    error = 1e-4
    if codec is not None:  # a step, for keys at distance 60
        error = codec.margin * 2 * 60 / (2**codec.bits - 1) * (8 if codec.rotate else 1)
    with pc.GossipBuffer(comm, like=x, topology="ring", codec=codec) as g:
        peer = others(g)[0]
        x[:] = 1.0
        assert g.publish(x) == 1
        comm.Barrier()
        seen = 0
        for i in range(2, 60):
            x[:] = i
            assert g.publish(x) == i
            try:
                y, version = g.read(peer, key=x)
            except pc.StateError as said:
                assert "faster than it can be read" in str(said)
                continue
            assert (np.abs(y - version) <= error).all() and version >= seen
            seen = version
        comm.Barrier()
        y, version = g.read(peer, key=x)
        assert version == 59 and (np.abs(y - 59) < error).all()


def test_a_call_waits_for_no_other_rank(comm):
    """The others make all kinds of calls while rank 0 sleeps in the operating system."""
    several(comm)
    x = start(comm)
    with pc.GossipBuffer(comm, like=x, topology="complete", queue_slots=2) as g:
        g.publish(x)
        comm.Barrier()
        if comm.rank:
            averaged = sum(g.average(x, 0) for _ in range(5))
            assert averaged <= 2
            g.push(0, x)
            g.read(0)
            g.peek(0)
        request = comm.Ibarrier()
        while not request.Test():
            time.sleep(0.01)  # leaves the core to the others
        if comm.rank == 0:
            assert 1 <= g.collect(x) <= 2  # the cap
            assert 1 <= len(g.drain()) <= 2
        comm.Barrier()


def test_a_correction_is_made_once(comm):
    """Several averages before any collect, with all ranks at once, of two that average with each
    other and of all around a ring: deltas given before are taken into account."""
    several(comm)
    x, rounds = start(comm), 20
    begin, total = distance(comm, x), sum_over_ranks(comm, x)
    peer = (comm.rank + 1) % comm.size
    with pc.GossipBuffer(comm, like=x, topology="complete") as g:
        for _ in range(rounds):
            g.collect(x)
            comm.Barrier()
            g.publish(x)
            for _ in range(3):
                comm.Barrier()
                g.average(x, peer)
            comm.Barrier()
        g.collect(x)
        comm.Barrier()
        assert distance(comm, x) <= (1.01 if comm.size == 2 else 0.9**rounds) * begin
        np.testing.assert_allclose(sum_over_ranks(comm, x), total, atol=1e-11)


def test_uncollected_deltas_belong_to_the_peer(comm):
    """A second average finds the first one's correction there and changes nothing. Without a
    publication in between, other ranks would use this rank's old position."""
    if comm.size != 2:
        pytest.skip("for two ranks")
    x = np.full(COUNT, 8.0 * comm.rank)
    with pc.GossipBuffer(comm, like=x, topology="ring", max_uncollected=9) as g:
        g.publish(x)
        comm.Barrier()
        for _ in range(3):
            if comm.rank == 0:
                assert g.average(x, 1) and (x == 4).all()
            comm.Barrier()
        assert g.stats.publishes == (3 if comm.rank == 0 else 1)
        if comm.rank == 1:
            assert g.average(x, 0) and (x == 6).all()  # it has not seen its own -4
            assert g.collect(x) == 3 and (x == 2).all()
        comm.Barrier()
        g.collect(x)
        assert (x == (6 if comm.rank == 0 else 2)).all()
        comm.Barrier()


def test_the_cap(comm):
    several(comm)
    x = start(comm)
    with pc.GossipBuffer(comm, like=x, topology="ring", max_uncollected=1) as g:
        g.publish(x)
        comm.Barrier()
        if comm.rank == 1:
            assert g.average(x, 0)
            before = x.copy()
            assert not g.average(x, 0) and (x == before).all()
            assert g.stats.skipped == 1 and g.stats.averages == 1
        comm.Barrier()
        if comm.rank == 0:
            assert g.collect(x) == 1 and g.collect(x) == 0
        comm.Barrier()
        if comm.rank == 1:
            assert g.average(x, 0)
        comm.Barrier()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_messages(comm, dtype, codec):
    """Every message that push accepted arrives once, unchanged."""
    several(comm)
    x = start(comm, dtype, 5000)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with pc.GossipBuffer(comm, like=x, topology="ring", codec=codec, queue_slots=3) as g:
        sent = []
        for i in range(3):
            copy = np.empty_like(x)
            assert g.push(right, (x + i).astype(dtype), sent=copy)
            sent.append(copy)
        comm.Barrier()
        assert not g.push(right, x) and g.stats.queue_full == 1
        expected = comm.sendrecv(sent, dest=right, source=left)
        newest, source = g.peek(comm.rank)
        assert source == left and (newest == expected[2]).all()
        comm.Barrier()
        got = g.drain()
        assert [source for source, _ in got] == [left] * 3
        for (_, a), b in zip(got, expected, strict=True):
            assert (a == b).all()
        assert g.drain() == [] and g.peek(comm.rank) is None
        comm.Barrier()
        assert g.push(right, x)  # there is room again
        comm.Barrier()


def test_a_key_makes_messages_exact(comm):
    several(comm)
    x = start(comm, np.float32, 5000)
    right = (comm.rank + 1) % comm.size
    key = np.full(5000, 1000.0, np.float32)
    with pc.GossipBuffer(comm, like=x, topology="ring", codec=pc.Lattice(16)) as g:
        assert g.push(right, key + x / 1000, key=key)
        comm.Barrier()
        ((_, got),) = g.drain(key=key)
        theirs = np.random.default_rng((comm.rank - 1) % comm.size).normal(size=5000) / 1000
        assert np.abs(got - 1000 - theirs).max() < 1e-3
        comm.Barrier()
        assert g.push(right, key + x / 1000, key=key)
        comm.Barrier()
        assert g.drain() == [] and g.stats.decode_failures == 1  # another key


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_depends_on_the_distance(comm, dtype):
    """The error depends on the distance, and not on the width of the elements."""
    several(comm)
    common = np.random.default_rng(7).normal(size=COUNT)
    distance = (comm.size - 1) / 8
    x = (common + comm.rank / 8).astype(dtype)
    codec = pc.Lattice(8)
    with pc.GossipBuffer(
        comm, like=x, topology="complete", codec=codec, max_uncollected=comm.size
    ) as g:
        for _ in range(2):
            g.publish(x)
            comm.Barrier()
            for peer in others(g):
                assert g.average(x, peer, weight=0.0)
            comm.Barrier()
            g.collect(x)
        g.publish(x)
        comm.Barrier()
        peer = others(g)[0]
        y, _ = g.read(peer, key=x)
        rounding = 8 * float(np.finfo(np.float32).eps) + (
            0.02 if np.dtype(dtype).itemsize == 2 else 0
        )
        error = np.abs(y.astype(np.float64) - (common + peer / 8)).max()
        assert error <= codec.margin * distance / 250 + rounding, error
        comm.Barrier()


def test_values_beyond_float16_wait(comm):
    several(comm)
    x = np.full(COUNT, 60000.0 if comm.rank == 0 else -60000.0, np.float16)
    with pc.GossipBuffer(comm, like=x, topology="complete") as g:
        g.publish(x)
        comm.Barrier()
        if comm.rank == 0:
            assert g.average(x, 1)  # 0 here, 60000 more for rank 1
            x[:] = 60000.0
            g.publish(x)
        comm.Barrier()
        if comm.rank == 1:
            g.collect(x)
            assert (x == 0).all()
            x[:] = 50000.0
            g.average(x, 0, weight=-3.0)  # away from it
            assert np.isfinite(x).all()
        comm.Barrier()
        if comm.rank == 0:
            g.collect(x)
        assert np.isfinite(x.astype(np.float64) + g.pending()).all() and np.isfinite(x).all()
        comm.Barrier()


def test_nothing_published(comm):
    several(comm)
    x = start(comm)
    with pc.GossipBuffer(comm, like=x, topology="ring") as g:
        for call in (lambda p: g.read(p), lambda p: g.average(x, p)):
            with pytest.raises(pc.StateError, match="has not published anything yet"):
                call(others(g)[0])
        assert g.collect(x) == 0
        comm.Barrier()


def test_bits_save_bytes(comm):
    several(comm)
    x = start(comm, np.float32)
    near = x / 1000
    read = {}
    for codec in (None, pc.Lattice(8)):
        with pc.GossipBuffer(comm, like=near, topology="ring", codec=codec) as g:
            for _ in range(3):  # the first one measures the distances
                g.publish(near)
                comm.Barrier()
                for peer in others(g):
                    g.average(near, peer, weight=0.01)
                comm.Barrier()
                g.collect(near)
                comm.Barrier()
            g.publish(near)
            comm.Barrier()
            before = g.stats.bytes_read
            g.read(peer, key=near)
            read[codec] = g.stats.bytes_read - before
            comm.Barrier()
    assert read[pc.Lattice(8)] < 0.4 * read[None], read


def test_reading_ones_own_model(comm):
    """Reading one's own model returns what others read. It does not count as a distance."""
    several(comm)
    model = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)  # the same on all ranks
    with pc.GossipBuffer(comm, like=model, topology="complete", codec=pc.Lattice(8)) as g:
        own = model + np.float32(comm.rank)
        peer = (comm.rank + 1) % comm.size
        g.publish(own)
        comm.Barrier()
        g.read(peer, key=own)  # now steps follow from the distances
        comm.Barrier()
        g.publish(own)
        comm.Barrier()
        seen, version = g.read(comm.rank, key=own)
        assert version == 2 and g.stats.reads == 1
        error = np.abs(seen - own).max()
        assert 0 < error < 2 * comm.size / 255
        there = comm.sendrecv(seen, dest=(comm.rank - 1) % comm.size, source=peer)
        np.testing.assert_array_equal(g.read(peer, key=own)[0], there)
        for _ in range(100):
            g.read(comm.rank, key=own)
        comm.Barrier()  # all have finished comparing
        g.publish(own)
        again = np.abs(g.read(comm.rank, key=own)[0] - own).max()
        assert again > error / 2  # not finer steps
        comm.Barrier()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=str)
def test_a_reading_rank_saves_bytes_as_well(comm, dtype):
    """A rank that only reads and pushes, as in SwarmSGD, learns the distances by reading."""
    several(comm)
    x = start(comm, dtype)
    near, out = x / 1000, np.empty_like(x)
    with pc.GossipBuffer(comm, like=near, topology="ring", codec=pc.Lattice(6, margin=4)) as g:
        for _ in range(3):
            g.publish(near)
            comm.Barrier()
            before = g.stats.fallbacks
            for peer in others(g):
                g.read(peer, key=near, out=out)
            found = g.stats.fallbacks - before
            comm.Barrier()
    assert found == 0, found


@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_free_ranks_find_each_other(comm, topology):
    """The board makes mutual pairs. A rank that has left does not delay others."""
    several(comm)
    x = np.zeros(3)
    with pc.GossipBuffer(comm, like=x, topology=topology) as g:
        free = pairing.make("available", g.topology, comm.rank, board=g.board)
        rng = np.random.default_rng(comm.rank)
        took, end = [], None
        while end is None or not end.Test():
            if rng.random() < 0.2:
                time.sleep(rng.random() * 1e-3)  # a rank is late now and then
            if end is not None:
                continue
            peer = free.poll()
            if isinstance(peer, int):
                took.append(peer)
            if len(took) + free.taken >= 40 or (peer is None and comm.Iprobe(tag=7)):
                free.leave()
                for other in range(comm.size):  # no partner may be left for them
                    if other != comm.rank:
                        comm.send(None, other, tag=7)
                end = comm.Ibarrier()
        for other in range(comm.size):
            if other != comm.rank:
                comm.recv(source=other, tag=7)
        pairs = comm.allgather((took, free.taken))
        chosen = [peer for peers, _ in pairs for peer in peers]
        assert [chosen.count(rank) for rank in range(comm.size)] == [taken for _, taken in pairs]
        assert len(chosen) >= 20
        assert all(peer in g.topology.neighbors(comm.rank) for peer in took)
        assert (g.board.read_all() == 0).all()
        comm.Barrier()


# Bad input


@pytest.mark.parametrize(
    "other, what",
    [
        (dict(like=np.zeros(4)), "number of elements"),
        (dict(like=np.zeros((3, 1))), "shape"),
        (dict(max_uncollected=3), "max_uncollected"),
        (dict(like=np.zeros(3, np.float32)), "dtype"),
        (dict(topology="complete"), "topology"),
        (dict(codec=pc.Lattice(7)), "codec"),
        (dict(queue_slots=5), "queue_slots"),
    ],
)
def test_ranks_disagree(comm, other, what):
    if comm.size < 4:
        pytest.skip("a ring and a complete graph are the same")
    options = {"like": np.zeros(3), "topology": "ring", **(other if comm.rank == 1 else {})}
    with pytest.raises(pc.MismatchError, match=what):
        pc.GossipBuffer(comm, **options)
    with pc.GossipBuffer(comm, like=np.zeros(3)):  # nothing is left behind
        pass


def test_one_rank_is_wrong(comm):
    several(comm)
    if comm.rank == 1:
        with pytest.raises(ValueError, match="margin"):
            lattice = pc.Lattice(8)
            object.__setattr__(lattice, "margin", 0.0)
            pc.GossipBuffer(comm, like=np.zeros(3), codec=lattice)
    else:
        with pytest.raises(pc.MismatchError, match="rank 1 are not valid: margin"):
            pc.GossipBuffer(comm, like=np.zeros(3), codec=pc.Lattice(8))


@pytest.mark.parametrize(
    "wrong",
    [dict(like=np.zeros(3, np.int32)), dict(queue_slots=0), dict(codec=3), dict(topology="?")],
)
def test_the_others_are_notified(comm, wrong):
    """A refusal on one rank does not leave the others waiting."""
    several(comm)
    options = {"like": np.zeros(3), "topology": "ring", **(wrong if comm.rank == 1 else {})}
    expected = (TypeError, ValueError) if comm.rank == 1 else pc.MismatchError
    with pytest.raises(expected):
        pc.GossipBuffer(comm, **options)


@pytest.mark.parametrize(
    "options, error, words",
    [
        (dict(like=np.zeros(3, np.int32)), TypeError, "like: expected float16"),
        (dict(like="text"), TypeError, "like"),
        (dict(like=np.zeros(3), codec=8), TypeError, "codec: expected a Lattice"),
        (dict(like=np.zeros(3), queue_slots=0), ValueError, "queue_slots"),
        (dict(like=np.zeros(3), queue_slots=1.5), TypeError, "queue_slots"),
        (dict(like=np.zeros(3), max_uncollected=0), ValueError, "max_uncollected"),
        (dict(like=np.zeros(3), topology="cube"), ValueError, "topology"),
        (dict(like=np.zeros(3), progress="fast"), ValueError, "progress"),
    ],
)
def test_bad_options(comm, options, error, words):
    with pytest.raises(error, match=words):
        pc.GossipBuffer(comm, **options)


def test_disconnected(comm):
    several(comm)
    networkx = pytest.importorskip("networkx")
    graph = networkx.empty_graph(comm.size)
    with pytest.raises(ValueError, match="connected"):
        pc.GossipBuffer(comm, like=np.zeros(3), topology=graph)


class OnlyAnArray:
    """Converts to a new array each time."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((3, 4), dtype)


def test_bad_arguments(comm):
    if comm.size < 4:
        pytest.skip("all ranks are neighbors")
    x = np.zeros((3, 4))
    with pc.GossipBuffer(comm, like=x, topology="ring") as g:
        g.publish(x)
        comm.Barrier()
        peer, far = (comm.rank + 1) % comm.size, (comm.rank + 2) % comm.size
        for bad, error, words in (
            (comm.size, ValueError, "peer: expected a rank from 0"),
            (-1, ValueError, "peer"),
            (far, ValueError, "neighbor"),
            (comm.rank, ValueError, "neighbor"),
            (1.5, TypeError, "peer"),
            (True, TypeError, "peer"),
        ):
            calls = [lambda p: g.average(x, p), lambda p: g.push(p, x)]
            if bad != comm.rank:  # a rank may read its own model
                calls.append(g.read)
            for call in calls:
                with pytest.raises(error, match=words):
                    call(bad)
        frozen = x.copy()
        frozen.flags.writeable = False
        for bad, error, words in (
            (np.zeros((4, 3)), ValueError, "shape"),
            (np.zeros((3, 4), np.float32), TypeError, "dtype"),
            (np.zeros((4, 3)).T, ValueError, "contiguous"),
            (frozen, ValueError, "x"),
        ):
            with pytest.raises(error, match=words):
                g.average(bad, peer)
        for bad in (float("nan"), float("inf"), 1e300):
            with pytest.raises(ValueError, match="weight"):
                g.average(x, peer, weight=bad)
            with pytest.raises(ValueError, match="ratio"):
                g.collect(x, ratio=bad)
        for both in (x, x[:]):
            with pytest.raises(ValueError, match="apart"):
                g.average(x, peer, momentum=both)
            with pytest.raises(ValueError, match="apart"):
                g.collect(x, momentum=both)
        for both in (x, x[:]):
            for call in (g.peek, g.read):
                with pytest.raises(ValueError, match="out: expected other memory"):
                    call(peer, key=x, out=both)
        with pytest.raises(TypeError, match="x: expected an array whose memory"):
            g.average(OnlyAnArray(), peer)
        g.publish(OnlyAnArray())  # a source may be a copy
        with pytest.raises(ValueError, match="timeout"):
            g.Free(timeout=-1)
        g.publish(frozen)
        comm.Barrier()


@pytest.mark.parametrize("dtype", ("float64", "float32", "float16"))
def test_part_that_a_peer_will_take(comm, dtype):
    """A²CiD²'s x takes a part of a delta, and x~ the rest. An averaging rank accounts for that."""
    if comm.size < 2:
        pytest.skip("needs two ranks")
    x = np.full(3, float(comm.rank == 0), dtype)
    with pc.GossipBuffer(comm, like=x, topology="complete", max_uncollected=4) as g:
        g.publish(x)
        comm.Barrier()
        if comm.rank == 0:
            found = []
            for part in ({}, {"taken": 0.25}, {"taken": 0.25}, {}):
                assert g.average(x, 1, **part)
                found.append(x[0])
            theirs = [0, 0.25 * 0.5, 0.25 * 0.6875, 1 - 0.2421875]
            expected = [1.0]
            for one in theirs:
                expected.append((expected[-1] + one) / 2)
            assert found == expected[1:]
            for bad in (-0.1, 1.5, float("nan")):
                with pytest.raises(ValueError, match="taken"):
                    g.average(x, 1, taken=bad)
        comm.Barrier()
        given = comm.bcast(x, root=0)
        assert comm.rank != 1 or (g.pending() == 1 - given).all()
        comm.Barrier()


def test_bfloat16_without_its_numpy_type(comm):
    """Without ml_dtypes, arrays contain the elements' bits."""
    torch = pytest.importorskip("torch")
    x = torch.full((8,), comm.rank + 1.5, dtype=torch.bfloat16)
    with pc.GossipBuffer(comm, like=x, topology="complete") as g:
        g.dtype = np.dtype(np.uint16)  # as without ml_dtypes
        g.publish(x)
        comm.Barrier()
        peer = (comm.rank + 1) % comm.size
        model, _ = g.read(peer)
        assert model.dtype == np.uint16
        assert (torch.from_numpy(model).view(torch.bfloat16) == peer + 1.5).all()
        if comm.size > 1:
            assert g.push(peer, x)
            comm.Barrier()
            source = (comm.rank - 1) % comm.size
            ((sender, got),) = g.drain()
            assert sender == source
            assert (torch.from_numpy(got).view(torch.bfloat16) == source + 1.5).all()
        comm.Barrier()


def test_freed(comm):
    g = pc.GossipBuffer(comm, like=np.zeros(3), topology="ring")
    assert "rank" in repr(g) and g.memory >= 4 * 24
    g.Free()
    g.Free()
    assert "freed" in repr(g)
    for call in (lambda: g.publish(np.zeros(3)), lambda: g.stats, lambda: g.drain()):
        with pytest.raises(pc.StateError, match="freed"):
            call()


def test_free_reports_missing_ranks(comm):
    several(comm)
    g = pc.GossipBuffer(comm, like=np.zeros(3), topology="ring")
    if comm.rank == 0:
        with pytest.raises(TimeoutError, match="freed the gossip buffer"):
            g.Free(timeout=0.05)
        with pytest.raises(pc.StateError, match="being freed"):
            g.publish(np.zeros(3))
    comm.Barrier()
    g.Free()


def test_several_buffers(comm):
    """Buffers are freed in another order on each rank."""
    several(comm)
    buffers = [pc.GossipBuffer(comm, like=np.zeros(3), topology="ring") for _ in range(3)]
    if comm.rank % 2:
        buffers.reverse()
    for g in buffers:
        with contextlib.suppress(TimeoutError):
            g.Free(timeout=0.01)
    for g in buffers:
        g.Free()


def test_buffers_of_two_communicators(comm):
    """Buffers are freed in any order, with timeouts in between."""
    several(comm)
    other = comm.Dup()
    for i in range(20):
        pair = [pc.GossipBuffer(c, like=np.zeros(3), topology="ring") for c in (comm, other)]
        if (comm.rank + i) % 2:
            pair.reverse()
        for g in pair:
            with contextlib.suppress(TimeoutError):
                g.Free(timeout=0)
        for g in pair:
            g.Free()
    other.Free()


def test_free_keeps_its_time(comm):
    """Free respects its timeout, even if another rank has asked, timed out, and moved on."""
    several(comm)
    g = pc.GossipBuffer(comm, like=np.zeros(3), topology="ring")
    if comm.rank == 0:
        with contextlib.suppress(TimeoutError):
            g.Free(timeout=0)
        while not comm.Iprobe(source=1):
            time.sleep(1e-3)  # leaves the core to the others
        comm.recv(source=1)
    elif comm.rank == 1:
        with contextlib.suppress(TimeoutError):
            g.Free(timeout=0.2)
        comm.send(None, 0)
    g.Free()


def test_memory_is_given_back(comm):
    several(comm)
    x = np.ones(1 << 20)
    used = []
    for _ in range(6):
        with pc.GossipBuffer(comm, like=x, topology="ring") as g:
            g.publish(x)
        comm.Barrier()
        used.append(resident())
        comm.Barrier()
    assert max(used[2:]) - used[1] < 2 * x.nbytes, used


def resident():
    """Return the resident bytes of this process, including shared ones."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_board(comm):
    with pc.GossipBuffer(comm, like=np.zeros(3)) as g:
        assert (g.board.read_all() == 0).all()
        comm.Barrier()
        ticket = g.board.fetch_add(1)
        assert g.board.compare_and_swap(comm.rank, 0, ticket + 1) == 0
        assert g.board.compare_and_swap(comm.rank, 0, 7) == ticket + 1
        comm.Barrier()
        assert sorted(g.board.read_all()) == list(range(1, comm.size + 1))
        comm.Barrier()
