# SPDX-License-Identifier: Apache-2.0
"""Quorums and the modifiers under MPI: what each of them guarantees."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi

ROUNDS = 40


def handle(comm, quorum, **options):
    send, recv = np.full(4, comm.rank + 1.0), np.zeros(4)
    return pc.Allreduce_init(comm, send, recv, quorum=quorum, **options)


def arrived(rnd):
    return rnd.active - rnd.stored


def some_time(rng):
    if rng.random() < 0.5:
        time.sleep(rng.random() * 1e-3)


@pytest.mark.parametrize("share", (0.01, 0.3, 0.5, 0.75, 1.0))
def test_quorum_is_exact(comm, share):
    rng = np.random.default_rng(comm.rank)
    needed = max(1, int(np.ceil(share * comm.size - 1e-9)))
    with handle(comm, pc.Quorum(share)) as h:
        for _ in range(ROUNDS):
            some_time(rng)
            h.Start()
            rnd = h.Wait()
            assert arrived(rnd) >= needed and not rnd.below_quorum


def test_quorum_of_ranks(comm):
    rng = np.random.default_rng(comm.rank)
    for ranks in range(1, comm.size + 1):
        with handle(comm, f"quorum:{ranks}", late="drop") as h:
            for _ in range(10):
                some_time(rng)
                h.Start()
                rnd = h.Wait()
                assert rnd.active >= ranks and rnd.stored == 0
                assert np.all(h.recv_buffer == (np.flatnonzero(rnd.mask) + 1).sum())


@pytest.mark.parametrize("first", (True, False))
def test_drawn_ranks(comm, first):
    """With m = P, first_of waits for any rank, and last_of for all."""
    policy = pc.FirstOf(comm.size) if first else pc.LastOf(comm.size)
    rng = np.random.default_rng(comm.rank)
    with handle(comm, policy) as h:
        for _ in range(ROUNDS):
            some_time(rng)
            h.Start()
            rnd = h.Wait()
            assert arrived(rnd) >= (1 if first else comm.size)


def test_first_of_one_is_majority(comm):
    """All ranks draw alike: both policies start the same rounds with the same ranks."""
    initiators = []
    for policy in (pc.FirstOf(1), pc.LastOf(1), pc.Majority()):
        with handle(comm, policy, seed=5) as h:
            own = []
            for _ in range(20):
                h.Start()
                own.append(h.Wait().initiator)
        initiators.append(own)
    assert initiators[0] == initiators[1] == initiators[2]


@pytest.mark.parametrize("quorum", ("full", "quorum:1.0", "last_of:1", "majority", "first_of:1"))
def test_deadline(comm, quorum):
    """One rank is away until the others have finished, which deadlines alone allow."""
    away = comm.size - 1
    with handle(comm, f"{quorum},deadline=5ms", history=64) as h:
        below = 0
        if comm.rank != away:
            for _ in range(8):
                h.Start()
                rnd = h.Wait(timeout=60)
                below += rnd.below_quorum
                if rnd.below_quorum:
                    assert not rnd.mask[away] or rnd.stored_mask[away]
        comm.Barrier()  # only now the last rank begins
        if comm.rank == away:
            for _ in range(8):
                h.Start()
                below += h.Wait(timeout=60).below_quorum
        if comm.size > 1 and quorum in ("full", "quorum:1.0"):
            assert below == 8
    if quorum == "full":
        assert below == (8 if comm.size > 1 else 0)


def test_no_deadline_no_cut(comm):
    """If all ranks arrive at once nothing is cut short, whatever the modifiers."""
    with handle(comm, "full,deadline=100s,linger=10ms,max_staleness=1") as h:
        for _ in range(20):
            h.Start()
            rnd = h.Wait()
            assert rnd.active == comm.size and not rnd.below_quorum


def test_linger(comm):
    """With a linger longer than any delay, all ranks are in every round."""
    rng = np.random.default_rng(comm.rank)
    with handle(comm, pc.Solo(linger=100.0)) as h:
        for _ in range(20):
            some_time(rng)
            h.Start()
            assert arrived(h.Wait()) == comm.size


def test_linger_ends(comm):
    """A linger does not wait for a rank that never comes."""
    with handle(comm, pc.Solo(linger=2e-3), history=64) as h:
        if comm.rank == 0:
            for _ in range(5):
                h.Start()
                h.Wait(timeout=60)
        comm.Barrier()
        if comm.rank:
            for _ in range(5):
                h.Start()
                h.Wait(timeout=60)


@pytest.mark.parametrize("most", (1, 2, 5))
@pytest.mark.parametrize("quorum", ("solo", "majority", "quorum:0.5"))
def test_max_staleness(comm, quorum, most):
    rng = np.random.default_rng(comm.rank)
    absent = np.zeros(comm.size, int)
    with handle(comm, f"{quorum},max_staleness={most}", history=100) as h:
        for step in range(ROUNDS):
            if comm.rank == 0 and step % 3 == 0:
                time.sleep(2e-3)
            some_time(rng)
            h.Start()
            absent = np.where(h.Wait().mask, 0, absent + 1)
            assert absent.max() <= most


@pytest.mark.parametrize(
    "quorum", ("quorum:0.5", "last_of:1", "solo,linger=1ms", "full,deadline=3ms")
)
def test_ranks_that_leave(comm, quorum):
    """Policies count live ranks only: the last one continues alone."""
    with handle(comm, quorum) as h:
        for _ in range(3 + 2 * comm.rank):
            h.Start()
            h.Wait(timeout=60)
        h.leave()


@pytest.mark.parametrize(
    "quorum", ("quorum:1.0", "last_of:1,linger=1ms", "first_of:1,max_staleness=2")
)
def test_uneven_loops(comm, quorum):
    with handle(comm, quorum) as h:
        for epoch in range(2):
            for _ in range(3 + (comm.rank * 5 + epoch) % 4):
                h.Start()
                h.Wait(timeout=60)
            h.join()


def test_many_handles_of_all_kinds(comm):
    """Handles of all policies are started in the same order on all ranks."""
    quorums = ["solo", "quorum:1.0", "last_of:1,linger=200us", "majority,max_staleness=1",
               "full,deadline=2ms", "quorum:0.5,linger=100us,deadline=1ms,max_staleness=2",
               "full", "first_of:1"]  # fmt: skip
    rng = np.random.default_rng(comm.rank)
    handles = [handle(comm, quorum) for quorum in quorums]
    for _ in range(25):
        for h in handles:
            some_time(rng)
            h.Start()
        for h in handles:
            h.Wait(timeout=60)
    for h in handles:
        h.Free()


@pytest.mark.parametrize(
    ("quorum", "complaint"),
    (
        ("quorum:99", "quorum: expected 1 to . ranks, got 99"),
        ("first_of:99", "quorum: expected 1 to . ranks, got 99"),
        (pc.LastOf(99), "quorum: expected 1 to . ranks, got 99"),
    ),
)
def test_more_ranks_than_there_are(comm, quorum, complaint):
    with pytest.raises(ValueError, match=complaint):
        handle(comm, quorum)


def test_timers_need_the_agent(comm):
    with pytest.raises(ValueError, match="linger and deadline need the agent"):
        handle(comm, "solo,linger=1us", progress="manual")
    handle(comm, "quorum:0.5,max_staleness=2", progress="manual").Free()


@pytest.mark.parametrize(
    ("mine", "other", "what"),
    (
        ("quorum:1", "solo", "quorum"),
        ("quorum:0.5", "quorum:0.6", r"quorum \(fraction\): 0\.[56] on rank 0"),
        ("solo,linger=1ms", "solo,linger=2ms", r"quorum \(linger\): 0\.00[12]"),
        ("solo,deadline=1s", "solo", r"quorum \(deadline\)"),
        ("solo,max_staleness=1", "solo,max_staleness=2", r"quorum \(max_staleness\)"),
    ),
)
def test_ranks_disagree(comm, mine, other, what):
    if comm.size == 1:
        return
    with pytest.raises(pc.MismatchError, match=what):
        handle(comm, mine if comm.rank else other)


def test_free_with_reports_under_way(comm):
    """Handles are created and freed in one slot repeatedly: old reports do not count."""
    for _ in range(15):
        with handle(comm, "quorum:0.5") as h:
            for _ in range(3):
                h.Start()
                assert arrived(h.Wait(timeout=60)) >= (comm.size + 1) // 2


def test_drop_in(comm):
    send, recv = np.ones(3), np.zeros(3)
    for _ in range(5):
        rnd = pc.Allreduce(comm, send, recv, op=MPI.SUM, quorum=pc.Quorum(1.0))
        assert rnd.active == comm.size and np.all(recv == comm.size)
