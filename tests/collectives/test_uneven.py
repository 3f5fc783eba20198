# SPDX-License-Identifier: Apache-2.0
"""Ranks that make different numbers of calls, lag far behind, join or leave."""

import time

import numpy as np
import pytest

import partialcoll as pc

pytestmark = pytest.mark.mpi

POLICIES = ("solo", "majority", "full", "quorum:0.75", "full,deadline=2ms")


def wait_until(condition, limit_s=60.0):
    """Wait for the agents, which need no calls."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(1e-3)


@pytest.mark.parametrize("quorum", POLICIES)
def test_join_with_uneven_data(comm, quorum):
    """Rank r has r+1 batches in each of two epochs: join brings all to the same round."""
    send, recv = np.zeros(2), np.zeros(2)
    h = pc.Allreduce_init(comm, send, recv, quorum=quorum)
    for _ in range(2):
        total, deposited = np.zeros(2), 0.0
        for t in range(3 * (comm.rank + 1)):
            send[:] = t + 1
            deposited += t + 1
            h.Start()
            h.Wait()
            total += recv

        def add(rnd):
            nonlocal total
            total += recv

        last = h.join(on_round=add)
        assert len(set(comm.allgather(last.index))) == 1
        assert total[0] == comm.allreduce(deposited)
    send[:] = 1
    h.Start()
    assert h.Wait().index == last.index + 1
    h.Free()


def test_join_ends_when_all_have_joined(comm):
    """No rank returns before the last one has joined (one clock on one machine)."""
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="solo")
    if comm.rank == comm.size - 1:
        time.sleep(0.05)
    before = time.monotonic()
    h.join()
    after = time.monotonic()
    assert after >= max(comm.allgather(before))
    h.Free()


@pytest.mark.parametrize("quorum", POLICIES)
def test_leave(comm, quorum):
    """Ranks that leave do not delay others. Their last deposit is not lost."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum=quorum)
    leaves = comm.rank > 0 and comm.rank % 2 == 1
    calls = 5 if leaves else 40
    total = 0.0
    for _ in range(calls):
        h.Start()
        h.Wait(timeout=60)
        total += recv[0]
    if leaves:
        h.leave()
        with pytest.raises(pc.StateError, match="left"):
            h.Start()
    else:
        rounds = []
        h.join(on_round=lambda r: rounds.append(recv[0]))
        total += sum(rounds)
    totals = comm.allgather(total)
    if not leaves:
        assert total == max(totals)
        assert total == 5 * (comm.size // 2) + 40 * (comm.size - comm.size // 2)
    h.Free()


@pytest.mark.parametrize("quorum", POLICIES)
def test_leave_and_free_at_once(comm, quorum):
    """Free after leave waits for the others' loops and still takes part in their rounds."""
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum=quorum)
    if comm.rank == 0 or comm.size == 1:
        for _ in range(20):
            h.Start()
            h.Wait(timeout=60)
    else:
        h.leave()
    h.Free()


def test_far_behind_one(comm):
    """deliver="one": all ranks get every round; the slow one limits the others by `history`."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", history=4)
    for t in range(30):
        if comm.rank == comm.size - 1:
            time.sleep(2e-3)
        h.Start()
        r = h.Wait(timeout=60)
        assert r.index == t and r.lost == 0 and r.lag <= 4
    h.Free()


def test_far_behind_all(comm):
    """deliver="all": the slow rank skips ahead, and the rounds that it never saw are counted."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", deliver="all", history=3)
    slow = comm.size > 1 and comm.rank == comm.size - 1
    calls, seen, lost = 0, 0, 0
    if slow:
        comm.recv(source=0)
    for r in h.until(60):
        calls += 1
        if comm.rank == 0 and calls == 10 and comm.size > 1:
            comm.send(None, comm.size - 1)
        seen += len(r.results)
        lost += r.lost
        assert len(r.results) <= 3
        assert seen + lost == r.index + 1
        if slow:
            time.sleep(20e-3)
        else:
            time.sleep(0.2e-3)
    if comm.rank == 0 and calls < 10 and comm.size > 1:  # itself late, it has skipped most
        comm.send(None, comm.size - 1)
    assert h.stats.lost == lost and h.stats.delivered == seen
    assert seen + lost >= 60
    if slow:
        assert calls < 60
    h.Free()


def test_missed_rounds_are_summed_or_the_newest(comm):
    """A call that delivers several rounds puts their sum or the newest into the buffer."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    for missed in ("sum", "latest"):
        send, recv = np.ones(1), np.zeros(1)
        h = pc.Allreduce_init(
            comm, send, recv, quorum="solo", deliver="all", late="drop", missed=missed, history=16
        )
        if comm.rank == 0:
            for _ in range(5):
                h.Start()
                h.Wait()
        comm.Barrier()
        wait_until(lambda h=h: h.stats.rounds == 5)
        if comm.rank != 0:
            h.Start()
            r = h.Wait()
            assert [result.index for result in r.results] == list(range(5))
            assert [result.buffers[0][0] for result in r.results] == [1.0] * 5
            assert np.asarray(r.results[0])[0] == 1.0
            assert recv[0] == (5.0 if missed == "sum" else 1.0)
        comm.Barrier()
        h.Free()


def test_late_policies(comm):
    """carry adds a late deposit to the next, latest replaces it, drop discards it."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    outcome = {}
    for late in ("carry", "latest", "drop"):
        send, recv = np.zeros(1), np.zeros(1)
        h = pc.Allreduce_init(comm, send, recv, quorum="solo", late=late)
        if comm.rank == 0:
            for _ in range(3):
                h.Start()
                h.Wait()
        comm.Barrier()
        # Rank 1 is late to rounds 0, 1 and 2. Round 3 may start only after that.
        if comm.rank == 1:
            for value in (1, 10, 100):
                send[0] = value
                h.Start()
                assert not h.Wait().included
        elif comm.rank > 1:
            for _ in range(3):
                h.Start()
                h.Wait()
        comm.Barrier()
        send[0] = 0
        if comm.rank == 0:
            h.Start()
            h.Wait()
        comm.Barrier()
        if comm.rank != 0:
            h.Start()
            h.Wait()
        outcome[late] = comm.bcast(recv[0])
        h.Free()
    assert outcome == {"carry": 111.0, "latest": 100.0, "drop": 0.0}


def test_stored_differs_from_arrived(comm):
    """active counts the contributing ranks, stored those of them that had come before the round."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="solo")
    if comm.rank == 0:
        h.Start()
        h.Wait()
    comm.Barrier()
    if comm.rank != 0:
        h.Start()
        h.Wait()
    comm.Barrier()
    if comm.rank == 0:
        h.Start()
        r = h.Wait()
        assert (r.active, r.stored, r.initiator) == (comm.size, comm.size - 1, 0)
        assert list(r.results[0].stored_mask) == [False] + [True] * (comm.size - 1)
    comm.Barrier()
    if comm.rank != 0:
        h.Start()
        h.Wait()
    h.Free()


@pytest.mark.parametrize("history", (1, 8))
def test_slow_reader_leaves_join_with_the_same_round(comm, history):
    """deliver="all": a rank that is slow in join returns with the round with which all had joined,
    although the others continue at once."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", deliver="all", history=history)
    last = h.join(on_round=lambda r: time.sleep(0.02) if comm.rank == 0 else None)
    assert last.joined
    assert len(set(comm.allgather(last.index))) == 1 if comm.rank == 0 else True
    if comm.rank != 0:
        for _ in range(2 * history + 2):
            h.Start()
            assert not h.Wait(timeout=60).joined
        comm.allgather(last.index)
    h.Free()


def test_interrupted_join_continues(comm):
    """After an exception in on_round join continues when called again; other calls fail."""

    class Stop(Exception):
        pass

    def stop(rnd):
        raise Stop

    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="solo")
    try:
        h.join(on_round=stop)
    except Stop:
        pass
    else:
        raise AssertionError("on_round was not called")
    if not h.last_round.joined:
        with pytest.raises(pc.StateError):
            h.Start()
        assert h.join().joined
    h.Free()
