# SPDX-License-Identifier: Apache-2.0
"""The nine invariants of docs/semantics.md, by name, under MPI with random delays."""

import os
import time
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi

POLICIES = ("solo", "majority", "full", "quorum:0.5", "last_of:1,linger=200us,max_staleness=2")
# All ranks of a node in shared memory; pairs in shared memory with messages between; messages only.
PLANES = [("node", "auto"), *product(("node:2",), ("recdbl", "ring")),
          *product(("rank",), ("recdbl", "rabenseifner", "ring", "native"))]  # fmt: skip
DOMAIN = os.environ.get("PARTIALCOLL_DOMAIN")
ROUNDS = 60


@pytest.fixture(
    autouse=True,
    params=[p for p in PLANES if DOMAIN is None or p[0].startswith(DOMAIN)],
    ids=" ".join,
)
def plane(request, monkeypatch):
    """Run every test on all planes, or on that of the environment if it is set."""
    domain, algorithm = request.param
    monkeypatch.setenv("PARTIALCOLL_DOMAIN", domain)
    monkeypatch.setenv("PARTIALCOLL_ALGORITHM", algorithm)


def delay(rng, most_ms=2.0):
    """Arrive at a random time: half of the calls at once, the others late."""
    if rng.random() < 0.5:
        time.sleep(rng.random() * most_ms * 1e-3)


def gather_equal(comm, value):
    """Check that all ranks hold the same value, and return it."""
    values = comm.allgather(value)
    assert all(v == values[0] for v in values), values
    return values[0]


@pytest.mark.parametrize("deliver", ("one", "all"))
@pytest.mark.parametrize("quorum", POLICIES)
def test_conservation(comm, quorum, deliver):
    """Deposits are integers, so every sum is exact. After join nothing is pending, and all rounds
    together hold exactly the deposits."""
    rng = np.random.default_rng(comm.rank)
    send, recv = np.zeros(5), np.zeros(5)
    h = pc.Allreduce_init(comm, send, recv, quorum=quorum, deliver=deliver, history=4096)
    deposited, rounds = np.zeros(5), {}

    def note(rnd):
        assert rnd.lost == 0
        for result in rnd.results:
            rounds[result.index] = result.buffers[0].copy()

    for _ in range(ROUNDS if deliver == "one" else 20 + 7 * comm.rank):
        send[:] = rng.integers(1, 1000, 5)
        deposited += send
        delay(rng)
        h.Start()
        note(h.Wait())
    note(h.join(on_round=note))
    assert sorted(rounds) == list(range(len(rounds)))
    total = np.zeros(5)
    comm.Allreduce(deposited, total)
    np.testing.assert_array_equal(sum(rounds.values()), total)
    h.Free()


@pytest.mark.parametrize("quorum", POLICIES)
def test_agreement(comm, quorum):
    """Every rank sees the same bits, mask, counts and initiator of every round."""
    rng = np.random.default_rng(100 + comm.rank)
    send, recv = np.zeros(17), np.zeros(17)
    h = pc.Allreduce_init(comm, send, recv, quorum=quorum)
    seen = []
    for _ in range(ROUNDS):
        send[:] = rng.standard_normal(17)
        delay(rng)
        h.Start()
        r = h.Wait()
        seen.append((r.index, recv.tobytes(), r.mask.tobytes(), r.active, r.stored, r.initiator))
    gather_equal(comm, seen)
    h.Free()


def test_quorum(comm):
    """full: all ranks have arrived. majority: the drawn rank. solo: at least one."""
    rng = np.random.default_rng(200 + comm.rank)
    for quorum in POLICIES:
        send, recv = np.ones(3), np.zeros(3)
        h = pc.Allreduce_init(comm, send, recv, quorum=quorum, late="drop")
        for _ in range(ROUNDS):
            delay(rng)
            h.Start()
            r = h.Wait()
            assert not r.below_quorum
            assert 1 <= r.active <= comm.size
            assert r.active == r.mask.sum() == recv[0]
            assert r.mask[r.initiator]
            assert quorum != "full" or r.active == comm.size
        h.Free()


@pytest.mark.parametrize("history", (1, 3))
def test_staleness(comm, history):
    """deliver="one": a rank that lags by `history` rounds delays the others, but not earlier."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", history=history, late="carry")
    slow = comm.size - 1
    for t in range(12):
        if comm.rank == slow:
            time.sleep(5e-3)
        h.Start()
        r = h.Wait()
        assert r.index == t
        assert r.lag <= history
    h.Free()


def test_stale_deposit_rides_in_the_next_round(comm):
    """A deposit that misses its round is in the next one."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    send, recv = np.zeros(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo")
    late = comm.rank == comm.size - 1
    for t in range(10):
        comm.Barrier()
        send[0] = 1.0 if comm.rank == 0 else 100.0 if late else 0.0
        if comm.rank == 0:
            h.Start()
            h.Wait()
        comm.Barrier()  # round t is complete on rank 0, so no other rank can start it
        if comm.rank != 0:
            h.Start()
            h.Wait()
        values = comm.bcast(recv[0])
        assert recv[0] == values
        if t and late:
            assert h.stats.stored > 0
    comm.Barrier()
    assert h.stats.calls == 10
    h.Free()


def test_liveness(comm):
    """solo: the round of an arriving rank completes although no other application enters the
    library."""
    send, recv = np.full(4, comm.rank + 1.0), np.zeros(4)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo")
    comm.Barrier()
    if comm.rank == 0:
        h.Start()
        r = h.Wait(timeout=60)
        assert r.active == 1 and r.initiator == 0 and recv[0] == 1.0
    comm.Barrier()
    if comm.rank != 0:
        h.Start()
        r = h.Wait(timeout=60)
        assert r.index == 0 and not r.included and recv[0] == 1.0
    h.Free()


def test_liveness_of_mixed_handles(comm):
    """Handles with different policies in one loop of fixed length, which would deadlock if rounds
    could be missed."""
    rng = np.random.default_rng(300 + comm.rank)
    sends = [np.full(3, comm.rank + 1.0) for _ in POLICIES]
    recvs = [np.zeros(3) for _ in POLICIES]
    handles = [
        pc.Allreduce_init(comm, s, r, quorum=q, history=2)
        for s, r, q in zip(sends, recvs, POLICIES)
    ]
    for t in range(ROUNDS):
        for h in handles:
            delay(rng, 1.0)
            h.Start()
            assert h.Wait(timeout=60).index == t
    for _ in range(10):
        pc.Startall(handles)
        pc.Waitall(handles, timeout=60)
    for h in handles:
        h.Free()


def test_order(comm):
    """deliver="one" returns all rounds in order. "all" returns them in order or reports the gap."""
    rng = np.random.default_rng(400 + comm.rank)
    send, recv = np.ones(2), np.zeros(2)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", deliver="all", history=2)
    expected = 0
    for t, r in enumerate(h.until(80)):
        indices = [result.index for result in r.results]
        assert indices == list(range(indices[0], indices[-1] + 1))
        assert indices[0] == expected + r.lost
        assert r.index == indices[-1]
        expected = r.index + 1
        if comm.rank == comm.size - 1 and t % 5 == 0:
            time.sleep(10e-3)
        delay(rng, 0.5)
    assert expected >= 80
    gather_equal(comm, expected >= 80)
    h.Free()


def test_at_most_once(comm):
    """All start at once: one round in spite of the maximal number of duplicate activations."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", late="drop")
    for t in range(ROUNDS):
        comm.Barrier()
        h.Start()
        r = h.Wait()
        assert r.index == t
        assert recv[0] == r.active
    assert h.stats.rounds >= ROUNDS
    h.Free()


def test_isolation(comm):
    """Handles and the user's messages on one communicator are not mixed up."""
    rng = np.random.default_rng(500 + comm.rank)
    n = 4
    sends = [np.zeros(3, np.int64) for _ in range(n)]
    recvs = [np.zeros(3, np.int64) for _ in range(n)]
    handles = [pc.Allreduce_init(comm, s, r, quorum="full") for s, r in zip(sends, recvs)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for t in range(30):
        mine = np.array([comm.rank, t])
        theirs = np.empty_like(mine)
        request = comm.Irecv(theirs, source=left, tag=t)
        for k, h in enumerate(handles):
            sends[k][:] = (comm.rank + 1) * 10**k
            h.Start()
        comm.Send(mine, dest=right, tag=t)
        delay(rng, 0.5)
        for k, h in enumerate(handles):
            h.Wait()
            assert recvs[k][0] == comm.size * (comm.size + 1) // 2 * 10**k
        request.Wait()
        assert list(theirs) == [left, t]
    for h in handles:
        h.Free()


def test_bitwise_reproducible(comm):
    """Equal contributions with other arrival times give the same bits."""
    values = np.random.default_rng(comm.rank).standard_normal((20, 100)).astype(np.float32)
    runs = []
    for run in range(3):
        rng = np.random.default_rng(run * 1000 + comm.rank)
        send, recv = np.zeros(100, np.float32), np.zeros(100, np.float32)
        h = pc.Allreduce_init(comm, send, recv, quorum="full")
        bits = []
        for row in values:
            send[:] = row
            delay(rng, 1.0)
            h.Start()
            h.Wait()
            bits.append(recv.tobytes())
        h.Free()
        runs.append(bits)
    assert runs[0] == runs[1] == runs[2]


def test_thousand_rounds(comm):
    """A long run with random delays, in which every round is checked against its mask."""
    rng = np.random.default_rng(600 + comm.rank)
    send, recv = np.full(8, float(2**comm.rank)), np.zeros(8)
    h = pc.Allreduce_init(comm, send, recv, quorum="majority", late="drop")
    for t in range(1000):
        if rng.random() < 0.02:
            time.sleep(rng.random() * 3e-3)
        h.Start()
        r = h.Wait()
        assert r.index == t
        assert recv[0] == (2.0 ** np.flatnonzero(r.mask)).sum()
    assert MPI.COMM_WORLD.size >= 1
    h.Free()
