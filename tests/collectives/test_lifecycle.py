# SPDX-License-Identifier: Apache-2.0
"""Creating, sharing and freeing handles; communicators; threads; and what stays usable."""

import gc
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core.ffi import lib

pytestmark = pytest.mark.mpi


def one_round(h):
    h.Start()
    return h.Wait(timeout=60)


def test_free_is_idempotent(comm):
    h = pc.Allreduce_init(comm, np.ones(1), quorum="full")
    one_round(h)
    h.Free()
    h.Free()
    for call in (h.Start, h.Wait, h.Test, h.leave, lambda: h.stats, lambda: str(h.schedule)):
        with pytest.raises(pc.StateError, match="freed"):
            call()
    assert "freed" in repr(h)


def test_free_with_a_call_under_way(comm):
    """Free completes a round that was started and never waited for, or never starts it."""
    for quorum in ("solo", "majority", "full"):
        h = pc.Allreduce_init(comm, np.ones(1), quorum=quorum)
        if comm.rank % 2 == 0:
            h.Start()
        h.Free()


def test_tags_are_used_again(comm):
    """Far more handles, one after the other, than can exist at once. Old ones continue to work."""
    keep = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    for k in range(60):
        h = pc.Allreduce_init(
            comm, np.full(1, float(k)), np.zeros(1), quorum=("solo", "full")[k % 2]
        )
        one_round(h)
        h.Free()
        one_round(keep)
    assert keep.recv_buffer[0] == comm.size
    keep.Free()


def test_many_handles_at_once(comm):
    handles = [
        pc.Allreduce_init(comm, np.full(1, k + 1.0), np.zeros(1), quorum="full") for k in range(40)
    ]
    pc.Startall(handles)
    pc.Waitall(handles)
    assert [h.recv_buffer[0] for h in handles] == [(k + 1) * comm.size for k in range(40)]
    for h in handles:
        h.Free()


def test_a_thousand_handles(comm):
    """On one communicator at once, started and waited for in different orders by rank."""
    sends = np.arange(1000.0) + comm.rank
    handles = [
        pc.Allreduce_init(comm, sends[k : k + 1], quorum="solo", name=str(k)) for k in range(1000)
    ]
    order = np.random.default_rng(comm.rank).permutation(1000)
    totals = np.zeros(1000)
    for k in order:
        handles[k].Start()
    for k in order[::-1]:
        handles[k].Wait()
        totals[k] = handles[k].recv_buffer[0]
    for k, h in enumerate(handles):
        h.join(
            on_round=lambda rnd, k=k: totals.__setitem__(
                k, totals[k] + float(np.asarray(rnd.results[0])[0])
            )
        )
    assert list(totals) == [k * comm.size + sum(range(comm.size)) for k in range(1000)]
    for h in handles:
        h.Free()


def test_sub_communicators(comm):
    half = comm.Split(comm.rank % 2)
    h = pc.Allreduce_init(half, np.ones(1), np.zeros(1), quorum="full")
    w = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    for _ in range(10):
        one_round(h)
        one_round(w)
    assert h.recv_buffer[0] == half.size and w.recv_buffer[0] == comm.size
    h.Free()
    w.Free()
    half.Free()


def test_communicators_one_after_the_other(comm):
    """Communicators of the same ranks, in another order, and of fewer. Ranks free them at different
    times."""
    x, y = np.ones(3), np.zeros(3)
    for k in range(20):
        some = [comm.Dup(), comm.Split(0, -comm.rank), comm.Split(comm.rank % 2), comm.Dup()]
        for c in some:
            x[:] = k + c.rank
            with pc.Allreduce_init(c, x, y, quorum="full") as h:
                one_round(h)
            assert (y == k * c.size + sum(range(c.size))).all()
        for c in some if (comm.rank + k) % 2 else reversed(some):
            c.Free()
        if comm.rank == k % comm.size:
            time.sleep(1e-3)


def test_handle_outlives_its_communicator(comm):
    dup = comm.Dup()
    h = pc.Allreduce_init(dup, np.ones(1), np.zeros(1), quorum="full")
    dup.Free()
    assert one_round(h).active == comm.size
    h.Free()


def test_drop_in_handles_go_with_the_communicator(comm):
    for _ in range(5):
        dup = comm.Dup()
        recv = np.zeros(1)
        pc.Allreduce(dup, np.ones(1), recv, quorum="full")
        assert recv[0] == comm.size
        dup.Free()


def test_leaked_handle_warns_and_does_not_communicate(comm):
    h = pc.Allreduce_init(comm, np.ones(1), quorum="full")
    one_round(h)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del h
        gc.collect()
    assert any(issubclass(w.category, ResourceWarning) for w in caught)
    other = pc.Allreduce_init(comm, np.ones(1), quorum="full")
    one_round(other)
    other.Free()


def test_no_pickling(comm):
    h = pc.Allreduce_init(comm, np.ones(1), quorum="full")
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(h)
    h.Free()


def test_second_thread_is_turned_away(comm):
    """The last rank comes only after the second thread of each rank has been refused."""
    h = pc.Allreduce_init(comm, np.ones(1), quorum="full")
    last = comm.rank == comm.size - 1
    if comm.size == 1 or last:
        comm.Barrier()
        one_round(h)
        h.Free()
        return
    h.Start()
    waiter = threading.Thread(target=h.Wait)
    waiter.start()
    refused = 0
    limit = time.monotonic() + 60
    while not refused and time.monotonic() < limit:
        try:
            h.Start()
        except pc.StateError:
            refused += 1
    assert refused
    comm.Barrier()
    waiter.join(60)
    assert not waiter.is_alive()
    h.Free()


def test_different_handles_in_different_threads(comm):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("takes MPI_THREAD_MULTIPLE")
    handles = [pc.Allreduce_init(comm, np.ones(3), np.zeros(3), quorum="full") for _ in range(3)]
    errors = []

    def loop(h):
        try:
            for t in range(30):
                assert one_round(h).index == t
                assert h.recv_buffer[0] == comm.size
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(h,)) for h in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors and not any(thread.is_alive() for thread in threads)
    for h in handles:
        h.Free()


def test_timeout_leaves_the_handle_waitable(comm):
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    if comm.rank == 0 and comm.size > 1:
        h.Start()
        assert h.Test() is None
        with pytest.raises(TimeoutError):
            h.Wait(timeout=0.01)
        comm.Barrier()
        assert h.Wait(timeout=60).active == comm.size
    else:
        comm.Barrier() if comm.size > 1 else None
        one_round(h)
    h.Free()


def serving(comm, called, tag):
    """Return a function for a waiting rank: answer the rank that it waits for."""

    def serve():
        called.append(comm.rank)
        if comm.Iprobe(0, tag):
            comm.Recv(np.empty(1), 0, tag)
            comm.Send(np.ones(1), 0, tag)
        return len(called) % 2 == 0

    return serve


def test_a_waiting_rank_serves(comm):
    """A rank that waits for rank 0, in Wait with and without a limit, in join and in Free, answers
    it. Otherwise none would continue."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    waits = (h.Wait, lambda: h.Wait(timeout=60), h.join, h.Free)
    for tag, wait in enumerate(waits):  # a late answer must not count for the next wait
        called = []
        starts = wait not in (h.join, h.Free)
        if comm.rank == 0:
            for peer in range(1, comm.size):
                comm.Send(np.ones(1), peer, tag)
                comm.Recv(np.empty(1), peer, tag)
        else:
            h._while_waiting = serving(comm, called, tag)
        if starts:
            h.Start()
        wait()
        h._while_waiting = None
        assert (len(called) > 0) == (comm.rank > 0)


def test_an_error_in_a_waiting_rank_ends_the_wait(comm):
    """The handle can be waited for again."""
    if comm.size < 2:
        pytest.skip("takes two ranks")

    def refuse():
        raise KeyError("served")

    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    if comm.rank == 0:
        comm.Barrier()
        one_round(h)
    else:
        h.Start()
        h._while_waiting = refuse
        with pytest.raises(KeyError, match="served"):
            h.Wait()
        h._while_waiting = None
        comm.Barrier()
        assert h.Wait().active == comm.size
    h.Free()


def test_manual_progress(comm):
    """Without the agent a rank takes part whenever it enters the library."""
    send, recv = np.ones(1), np.zeros(1)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", progress="manual", late="drop")
    for t in range(20):
        h.progress()
        r = one_round(h)
        assert r.index == t and recv[0] == r.active
    h.Free()


def others_time():
    """Return the CPU seconds of this process's other threads."""
    return time.process_time() - time.thread_time()


def test_the_agent_spins_no_longer_than_its_handle(comm):
    x = np.ones(4)
    for progress in ("spin", "agent"):
        h = pc.Allreduce_init(comm, x, np.empty(4), quorum="full", progress=progress, domain="rank")
        one_round(h)
        comm.Barrier()
        limit = time.monotonic() + 60
        while progress == "agent":  # until it sleeps: the first handle is freed
            before = others_time()
            time.sleep(0.2)
            if others_time() - before < 0.01:
                break
            assert time.monotonic() < limit, "the agent still burns a core"
        h.Free()


def test_statistics_and_looks(comm):
    send, recv = np.ones(100, np.float32), np.zeros(100, np.float32)
    h = pc.Allreduce_init(comm, send, recv, quorum="solo", history=3, domain="rank")
    for _ in range(7):
        one_round(h)
    s = h.stats
    assert s.calls == 7 and s.delivered == 7 and s.arrived + s.stored == 7 and s.lost == 0
    assert h.memory == pc.memory_estimate(comm, send, recv, quorum="solo", history=3, domain="rank")
    assert h.memory >= (3 + 3 + 1) * 400
    text, dot = str(h.schedule), h.schedule.to_dot()
    assert "ends the round" in text and dot.startswith("digraph")
    assert h.last_round.index == 6
    h.Free()


def test_many_activations_at_once(comm):
    """One rank starts many handles while the others' agents take the activations in batches."""
    handles = [
        pc.Allreduce_init(comm, np.full(600, k + 1.0), np.zeros(600), quorum="solo", late="drop")
        for k in range(60)
    ]
    for _ in range(5):
        comm.Barrier()
        if comm.rank == 0:
            pc.Startall(handles)
            pc.Waitall(handles, timeout=60)
        comm.Barrier()
        if comm.rank != 0:
            pc.Startall(handles)
            pc.Waitall(handles, timeout=60)
        for k, h in enumerate(handles):
            assert (h.recv_buffer == (k + 1.0) * h.last_round.active).all()
    for h in handles:
        h.Free()


def test_frees_that_overlap(comm):
    """Two handles begin to close before either is closed, at different times on each rank."""
    for _ in range(5):
        handles = [pc.Allreduce_init(comm, np.ones(1), quorum=q) for q in ("full", "solo")]
        if comm.rank == 0:
            handles[0].Start()
        for h in handles:
            assert lib.pcoll_handle_free_begin(h._core()) == 0
            with pytest.raises(pc.StateError, match="being freed"):
                h.Start()
            if comm.rank == comm.size - 1:
                time.sleep(2e-3)
        if comm.rank % 2:  # their slots are free here, but not yet on the other ranks
            for h in handles:
                h.Free()
        other = pc.Allreduce_init(comm, np.ones(1), quorum="full")
        one_round(other)
        for h in reversed(handles):
            h.Free()
        other.Free()


@pytest.mark.parametrize("deliver", ["one", "all"])
def test_a_handle_is_small(comm, deliver):
    """Instances with more than 30 attributes have their own dictionaries of five times the size.
    Ranks that come out of a computation must load all of that, and were late because of it."""
    h = pc.Allreduce_init(comm, np.ones(1), quorum="full", deliver=deliver)
    one_round(h)
    assert len(vars(h)) <= 30 - 2  # the cache of the drop-in adds two
    h.Free()
