# SPDX-License-Identifier: Apache-2.0
"""Grouped allreduce under MPI: the result of a round for any group; handles; bad input.
test_group_members.py has members that leave, are late or stop."""

import contextlib
import hashlib
import threading

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain]

# Longer than a test may take: no rank counts as late in these tests.
PATIENT = 240.0
DTYPES = [np.float64, np.float32, np.float16]
with contextlib.suppress(ImportError):
    from ml_dtypes import bfloat16

    DTYPES.append(bfloat16)
FULL = {
    1: [(1,), (1, 1)],
    2: [(2,), (2, 1), (1, 2)],
    3: [(3,), (1, 3)],
    4: [(4,), (2, 2), (2, 1, 2)],
    5: [(5,), (1, 5)],
    8: [(8,), (2, 4), (4, 2), (2, 2, 2)],
}
# The matchmaking window for dynamic keys where ranks may leave: how long it waits for others.
WINDOW = 0.05
ROOMY = {1: [(2,)], 2: [(2, 2)], 3: [(2, 2)], 4: [(2, 3)], 5: [(2, 3), (2, 2, 2)], 8: [(3, 3)]}
PIECES = 400_009  # float64: a quarter is more than three pieces


def several(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")


def full_grids(comm):
    return FULL.get(comm.size, [(comm.size,)])


def roomy_grids(comm):
    return ROOMY.get(comm.size, [(comm.size + 1,)])


def start(rank, dtype=np.float64, count=1009):
    return (np.random.default_rng(rank).normal(size=count) + rank).astype(dtype)


def mean(comm, dtype=np.float64, count=1009):
    return sum(start(r, dtype, count).astype(np.float64) for r in range(comm.size)) / comm.size


def tolerance(dtype):
    """Tolerance for a few roundings of numbers of about 10."""
    name = np.dtype(dtype).name
    return {"float64": 1e-12, "float32": 1e-5, "float16": 0.03, "bfloat16": 0.25}[name]


def groups(comm, x, y=None, **options):
    send, recv = (MPI.IN_PLACE, x) if y is None else (x, y)
    return pc.GroupAllreduce_init(comm, send, recv, **{"timeout": PATIENT, **options})


def one_round(t):
    t.Start()
    return t.Wait()


def same_everywhere(comm, x):
    return len(set(comm.allgather(hashlib.sha256(x.tobytes()).digest()))) == 1


def check_alike(comm, rnd):
    """Members report the same group. Each is in it, at its position."""
    said = comm.allgather(rnd)
    assert rnd.group[rnd.position] == comm.rank
    assert list(rnd.group) == sorted(set(rnd.group))
    for rank in rnd.group:
        other = said[rank]
        assert (other.group, other.index, other.axis) == (rnd.group, rnd.index, rnd.axis)
        assert (other.active, other.shares, other.void) == (rnd.active, rnd.shares, rnd.void)
    assert len(rnd.shares) == len(rnd.group) and abs(sum(rnd.shares) - 1) < 1e-12
    return said


def check_no_rank_was_missed(t):
    assert t.suspects == () and not t.away  # some may have left: they are freeing theirs
    assert t.stats.suspected == t.stats.void_rounds == t.stats.null_rounds == 0


# The result of a round


def check_exact(comm, grid, dtype, count, y=None, **options):
    x = start(comm.rank, dtype, count)
    result = x if y is None else y
    with groups(comm, x, y, grid=grid, **options) as t:
        axes = len(t.grid)
        for i in range(2 * axes):
            rnd = one_round(t)
            assert rnd.index == i and rnd.axis == i % axes and not rnd.void and rnd.missed == 0
            assert rnd.active == len(rnd.group) == t.grid[rnd.axis]
            assert rnd.exact == (i + 1 >= axes), (i, rnd)
            check_alike(comm, rnd)
            if y is not None:
                x[...] = y
            assert not rnd.exact or same_everywhere(comm, result)
        error = np.abs(result.astype(np.float64).reshape(-1) - mean(comm, dtype, count))
        assert (error <= tolerance(dtype)).all(), error.max()
        assert t.stats.rounds == 2 * axes <= t.round
        check_no_rank_was_missed(t)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 1009])
def test_exact_after_as_many_rounds_as_axes(comm, dtype, count):
    for grid in full_grids(comm):
        check_exact(comm, grid, dtype, count)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 63, 64, 4099, PIECES])
def test_counts(comm, count):
    for grid in full_grids(comm)[:2]:
        check_exact(comm, grid, np.float64, count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_pieces(comm, dtype):
    check_exact(comm, full_grids(comm)[0], dtype, PIECES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_buffers(comm, dtype):
    for grid in full_grids(comm):
        check_exact(comm, grid, dtype, 1009, y=np.zeros(1009, dtype))


def test_full_grid_with_dynamic_keys(comm):
    """Cells move, but every rank still meets every other one."""
    x = start(comm.rank)
    for grid in full_grids(comm):
        x[:] = start(comm.rank)
        with groups(comm, x, grid=grid, keys="dynamic", window=PATIENT) as t:
            assert t.keys == "dynamic"
            for i in range(3 * len(grid)):
                rnd = one_round(t)
                assert rnd.active == len(rnd.group) == grid[rnd.axis] and not rnd.void
                assert rnd.exact == (i + 1 >= len(grid))
                check_alike(comm, rnd)
            assert np.abs(x - mean(comm)).max() < 1e-12
            check_no_rank_was_missed(t)


def test_the_grid_is_found(comm):
    x = start(comm.rank)
    with groups(comm, x) as t:
        cells = int(np.prod(t.grid))
        assert cells >= comm.size and t.keys == ("static" if cells == comm.size else "dynamic")
        assert len(t.grid) == (1 if comm.size <= 3 else 2 if comm.size < 8 else len(t.grid))
        assert len(set(comm.allgather((t.grid, t.keys)))) == 1
        if cells == comm.size:
            for _ in t.grid:
                rnd = one_round(t)
            assert rnd.exact and np.abs(x - mean(comm)).max() < 1e-12


def test_the_send_buffer_stays(comm):
    x, y = start(comm.rank), np.full(1009, np.nan)
    before = x.copy()
    with groups(comm, x, y, grid=(comm.size,)) as t:
        t.Start()
        x[:] = np.nan  # may be used again at once
        assert t.Wait().exact
        assert np.isnan(x).all() and np.abs(y - mean(comm)).max() < 1e-12
        x[:] = before
        y[:] = 0
        one_round(t)
        assert (x == before).all() and np.abs(y - mean(comm)).max() < 1e-12
        assert t.send_buffer is not t.recv_buffer


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (1,), (7, 11), (2, 3, 4)])
def test_shapes(comm, shape):
    x, y = np.full(shape, comm.rank + 1.0), np.full(shape, -1.0)
    with groups(comm, x, y, grid=(comm.size,)) as t:
        rnd = one_round(t)
        assert rnd.exact and rnd.active == comm.size
        assert y.shape == shape and (np.abs(y - (comm.size + 1) / 2) < 1e-12).all()


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_halves_are_added_in_float32(comm, dtype):
    """Sums that 16 bits cannot hold, and addends that 16 bits would lose."""
    big = 40_000.0 if np.dtype(dtype) == np.float16 else 3e38
    limit = float(np.finfo(np.float16).max) if np.dtype(dtype) == np.float16 else 3.39e38
    x = np.array([2048.0 if comm.rank == 0 else 1.0, 256.0 if comm.rank == 0 else 0.75, 1.0])
    x = np.repeat(x, 50).astype(dtype)
    if np.dtype(dtype) == np.float16:
        x[-50:] = big
    every = comm.allgather(x.astype(np.float32))
    total = every[0].copy()
    for other in every[1:]:
        total += other
    with groups(comm, x, grid=(comm.size,)) as t:
        one_round(t)
    expected = (total / np.float32(comm.size)).astype(dtype)
    assert (x == expected).all() and (np.abs(x.astype(np.float64)) <= limit).all()


def test_cells_are_given(comm):
    """The average is over all ranks, whatever their cells."""
    for grid in full_grids(comm):
        for seed in range(3):
            cells = np.random.default_rng(seed).permutation(comm.size)
            x = start(comm.rank)
            with groups(comm, x, grid=grid, cell=int(cells[comm.rank])) as t:
                for _ in grid:
                    rnd = one_round(t)
                    shape = np.unravel_index(cells, grid)
                    mine = np.array(shape)[:, comm.rank]
                    line = [
                        r
                        for r in range(comm.size)
                        if all(shape[a][r] == mine[a] for a in range(len(grid)) if a != rnd.axis)
                    ]
                    assert list(rnd.group) == line
                assert rnd.exact and np.abs(x - mean(comm)).max() < 1e-12
                if max(grid) <= 2 or len(grid) == 1:  # else the order of addition differs
                    assert same_everywhere(comm, x)


# Bandwidths


@pytest.mark.parametrize("count", [0, 3, 1009, PIECES])
@pytest.mark.parametrize("kind", ["different", "two are fast", "one is slow", "tiny", "huge"])
def test_bandwidths(comm, kind, count):
    """Shares follow the bandwidths of the group. The result is the same."""
    bandwidth = {
        "different": [1.0 + r for r in range(comm.size)],
        "two are fast": [1000.0 if r in (0, comm.size - 1) else 1e-3 for r in range(comm.size)],
        "one is slow": [1e-6 if r == comm.size // 2 else 1e6 for r in range(comm.size)],
        "tiny": [1e-60 * (1 + r) for r in range(comm.size)],
        "huge": [1e300 / (1 + r) for r in range(comm.size)],
    }[kind]
    for grid in full_grids(comm)[:2]:
        x = start(comm.rank, count=count)
        with groups(comm, x, grid=grid, bandwidth=bandwidth[comm.rank]) as t:
            assert t.bandwidth == bandwidth[comm.rank]
            for i in range(2 * len(grid)):
                rnd = one_round(t)
                assert rnd.active == len(rnd.group) and rnd.exact == (i + 1 >= len(grid)), rnd
                check_alike(comm, rnd)
                if kind not in ("tiny", "huge"):
                    expected = pc.bandwidth_shares([bandwidth[r] for r in rnd.group])
                    assert np.allclose(rnd.shares, expected, atol=1e-6)
                if kind == "two are fast" and len(rnd.group) == comm.size > 3:
                    assert rnd.shares.count(0.0) == comm.size - 2
            assert count == 0 or np.abs(x - mean(comm, count=count)).max() < 1e-12
            check_no_rank_was_missed(t)


def test_all_know_the_number_of_contributions(comm):
    """This includes a rank that reduces nothing, and so needs no other rank's input."""
    x = np.array([comm.rank + 1.0])
    with groups(comm, x, grid=(comm.size,)) as t:
        for _ in range(300):
            rnd = one_round(t)
            assert rnd.active == comm.size and rnd.exact


def test_bandwidth_may_change(comm):
    x = start(comm.rank)
    with groups(comm, x, grid=(comm.size,), bandwidth=1.0) as t:
        assert one_round(t).shares == (1 / comm.size,) * comm.size
        t.bandwidth = 1.0 + comm.rank
        assert t.bandwidth == 1.0 + comm.rank
        for _ in range(2):  # the first group may be formed already
            rnd = one_round(t)
            check_alike(comm, rnd)
        assert comm.size < 3 or rnd.shares[-1] > rnd.shares[0]
        for bad in (0, -1.0, float("nan"), float("inf"), "fast", None, True):
            with pytest.raises((TypeError, ValueError), match="bandwidth"):
                t.bandwidth = bad
        assert t.bandwidth == 1.0 + comm.rank


def test_measured_bandwidths_do_no_harm(comm):
    grid = full_grids(comm)[0]
    check_exact(comm, grid, np.float32, PIECES, bandwidth="measured", measure_every=1)


# Grids with free cells


def spread(comm, x):
    center = comm.allreduce(x) / comm.size
    return comm.allreduce(float(((x - center) ** 2).sum()))


@pytest.mark.parametrize("keys", ["static", "dynamic"])
def test_under_full(comm, keys):
    """The sum is constant, the ranks converge, and no group is larger than the side."""
    for grid in roomy_grids(comm):
        x = start(comm.rank)
        total, first = comm.allreduce(x), spread(comm, x)
        with groups(comm, x, grid=grid, keys=keys, window=PATIENT) as t:
            assert t.keys == keys and t.grid == grid
            for i in range(12 * len(grid)):
                rnd = one_round(t)
                assert not rnd.exact and not rnd.void and rnd.index == i and rnd.missed == 0
                assert rnd.active == len(rnd.group) <= grid[rnd.axis]
                said = check_alike(comm, rnd)
                assert sum(1 / len(other.group) for other in said) == pytest.approx(
                    len({other.group for other in said})
                )
            assert np.allclose(comm.allreduce(x), total, rtol=1e-12, atol=1e-11)
            assert spread(comm, x) <= 1e-2 * first
            check_no_rank_was_missed(t)


def test_ranks_need_not_keep_step(comm):
    """Ranks that start at different times get the same results."""
    rng = np.random.default_rng(comm.rank)
    for grid in full_grids(comm):
        x = start(comm.rank)
        with groups(comm, x, grid=grid) as t:
            for i in range(10 * len(grid)):
                x[:] = start(comm.rank) * (i + 1) if i % len(grid) == 0 else x
                for _ in range(rng.integers(3)):
                    MPI.Wtime() and comm.Iprobe()
                t.Start()
                while rng.random() < 0.5:
                    comm.Iprobe()
                rnd = t.Wait()
                if i % len(grid) == len(grid) - 1:
                    assert rnd.exact
                    error = np.abs(x - mean(comm) * (i // len(grid) * len(grid) + 1)).max()
                    assert error < 1e-11 * (i + 1)
            check_no_rank_was_missed(t)


# Handles


def test_attributes_of_a_handle(comm):
    x = start(comm.rank)
    with groups(comm, x, timeout=331.5, window=302.25) as t:
        assert (t.rank, t.size) == (comm.rank, comm.size)
        assert t.timeout == 331.5 and t.window == 302.25 and t.memory >= 3 * x.nbytes
        comm.Barrier()
        assert t.round == 0 and not t.away and t.live == tuple(range(comm.size))
        assert t.suspects == () and t.bandwidth == 0
        assert f"rank {comm.rank} of {comm.size}" in repr(t)
        assert "round 0" in t.pending()
        with pytest.raises(pc.StateError, match="no round"):
            t.last_round  # noqa: B018
        comm.Barrier()
        t.Start()
        while (rnd := t.Test()) is None:
            comm.Iprobe()
        assert t.last_round is rnd and t.round >= 1  # more if the others have left already
        assert t.stats.rounds == 1 and t.stats.bytes_fetched >= 0
    assert "freed" in repr(t)


@pytest.mark.parametrize("keys", ["static", "dynamic"])
def test_the_round_is_counted_when_wait_returns(comm, keys):
    x = np.zeros(1)
    with groups(comm, x, grid=(comm.size,), keys=keys, window=PATIENT) as t:
        for i in range(200):
            t.Start()
            rnd = t.Wait()
            assert rnd.index == i and t.round >= i + 1 and t.stats.rounds == i + 1


def test_the_group_is_known_ahead(comm):
    x = np.zeros(1)
    with groups(comm, x, grid=(comm.size,)) as t:
        for _ in range(20):
            one_round(t)
            while "looks for" in t.pending():  # in the background
                comm.Iprobe()
            comm.Barrier()
        assert t.stats.matched_ahead >= 19


def test_order_of_calls(comm):
    x = np.ones(3)
    t = groups(comm, x)
    for call in (t.Wait, t.Test):
        with pytest.raises(pc.StateError, match="not started"):
            call()
    t.Start()
    with pytest.raises(pc.StateError, match="wait for the round first"):
        t.Start()
    t.Wait()
    with pytest.raises(pc.StateError, match="not started"):
        t.Wait()
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            t.Wait(bad)
        with pytest.raises(ValueError, match="timeout"):
            t.Free(bad)
    t.rejoin()  # no effect
    assert not t.away
    t.Free()
    t.Free()
    for call in (
        t.Start, t.Wait, t.Test, t.leave, t.rejoin, t.pending,
        lambda: t.stats, lambda: t.live, lambda: t.suspects, lambda: t.away, lambda: t.round,
    ):  # fmt: skip
        with pytest.raises(pc.StateError, match="freed"):
            call()
    assert t.timeout == PATIENT and t.memory > 0 and t.grid  # known without the object


def test_wait_times_out_and_continues(comm):
    several(comm)
    x = np.full(1000, comm.rank + 1.0)
    with groups(comm, x, grid=(comm.size,)) as t:
        if comm.rank == 0:
            t.Start()
            for timeout in (0, 0.01, 0.2):
                with pytest.raises(TimeoutError, match=r"not over within.*round 0: "):
                    t.Wait(timeout)
                assert t.Test() is None
            while "no input yet of rank" not in t.pending():  # once the group is known
                comm.Iprobe()
            assert (x == 1.0).all()
        comm.Barrier()
        if comm.rank:
            t.Start()
        assert t.Wait().exact and np.allclose(x, (comm.size + 1) / 2)


def test_numbers_of_rounds_differ(comm):
    """No rank waits for a rank that frees its handle."""
    for grid in (*full_grids(comm)[:2], *roomy_grids(comm)[:1]):
        x = np.ones(100) * comm.rank
        full = int(np.prod(grid)) == comm.size
        t = groups(comm, x, grid=grid, window=None if full else WINDOW)
        for _ in range(3 * (comm.rank + 1)):
            rnd = one_round(t)  # void if a leave crosses with its list
            assert rnd.void or rnd.active >= 1
        assert t.stats.suspected == 0
        t.Free()


def test_free_while_others_continue(comm):
    several(comm)
    for who in range(comm.size):
        x = start(comm.rank)
        total = comm.allreduce(x)
        t = groups(comm, x, grid=(comm.size,))
        one_round(t)
        if comm.rank == who:
            with pytest.raises(TimeoutError, match="not all ranks have freed"):
                t.Free(0)
            for call in (t.Start, t.leave, t.rejoin):
                with pytest.raises(pc.StateError, match="being freed"):
                    call()
        else:
            for _ in range(5):
                rnd = one_round(t)
                assert rnd.void or rnd.active >= 1
            assert who not in rnd.group and t.stats.suspected == 0
            t.leave()  # the others may have made one round less
        comm.Barrier()
        t.Free()
        assert np.allclose(comm.allreduce(x), total, rtol=1e-12, atol=1e-11)


def test_free_in_mid_round(comm):
    """Free during a round that was started and never waited for."""
    x = np.ones(1000)
    for _ in range(10):
        t = groups(comm, x, grid=(comm.size,))
        one_round(t)
        if comm.rank % 2 == 0:
            t.Start()
        t.Free()
        assert (x == 1.0).all()


def test_several_handles(comm):
    """Handles on two communicators, freed in another order on each rank."""
    other = comm.Dup()
    for i in range(5):
        xs = [start(comm.rank, count=100 * (k + 1)) for k in range(4)]
        ts = [
            groups(c, x, grid=grid, window=window)
            for c, x, grid, window in (
                (comm, xs[0], full_grids(comm)[-1], None),
                (comm, xs[1], roomy_grids(comm)[0], WINDOW),
                (other, xs[2], (comm.size,), None),
                (other, xs[3], (comm.size + 1,), WINDOW),
            )
        ]
        order = np.random.default_rng(100 * i + comm.rank).permutation(4)
        for _ in range(3):
            for k in order:
                ts[k].Start()
            for k in reversed(order):
                rnd = ts[k].Wait()
                # With a window, slow messages on a busy machine may void a group.
                assert not rnd.void or k in (1, 3)
        assert np.abs(xs[2] - mean(comm, count=300)).max() < 1e-12
        for k in order:
            with contextlib.suppress(TimeoutError):
                ts[k].Free(0)
        for t in ts:
            t.Free()
    other.Free()


def test_beside_other_handles(comm):
    x, z = start(comm.rank), np.full(50, comm.rank + 1.0)
    w = np.zeros(50)
    with (
        groups(comm, x, grid=(comm.size,)) as t,
        pc.Allreduce_init(comm, z, w, quorum="full") as h,
        pc.GossipBuffer(comm, like=z, topology="complete") as g,
    ):
        g.publish(z)
        for _ in range(20):
            t.Start()
            h.Start()
            if comm.size > 1 and g.topology.neighbors(comm.rank):
                g.collect(z.copy())
            h.Wait()
            assert (w == comm.size * (comm.size + 1) / 2).all()
            assert t.Wait().exact
        comm.Barrier()


def test_memory_is_given_back(comm):
    several(comm)
    x = np.ones(1 << 20)
    used = []
    for _ in range(6):
        with groups(comm, x, grid=(comm.size,)) as t:
            one_round(t)
        comm.Barrier()
        used.append(resident())
        comm.Barrier()
    assert max(used[2:]) - used[1] < 2 * x.nbytes, used


def resident():
    """Return the resident bytes of this process, including shared ones."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_messages_of_the_user_are_left_alone(comm):
    several(comm)
    x = np.ones(2000) * comm.rank
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    got = np.zeros(1)
    status = MPI.Status()
    with groups(comm, x, grid=(comm.size,)) as t:
        request = comm.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
        for _ in range(20):
            one_round(t)
            assert not request.Test()
        comm.Barrier()
        send = comm.Isend(np.array([comm.rank + 0.5]), right, tag=3)
        request.Wait(status)
        send.Wait()
        assert (got[0], status.source, status.tag) == (left + 0.5, left, 3)
        comm.Barrier()
        assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        comm.Barrier()


def test_two_threads(comm):
    """Only one thread may use the handle. Another one gets an error, and nothing breaks."""
    x = start(comm.rank)
    refused, over = [], threading.Event()

    def look(t):
        while not over.wait(1e-4):
            try:
                assert t.round <= 201 and t.stats.rounds <= 200 and not t.away
                t.pending()
            except pc.StateError as error:
                refused.append(str(error))

    with groups(comm, x, grid=(comm.size,)) as t:
        thread = threading.Thread(target=look, args=(t,))
        thread.start()
        try:
            for _ in range(200):
                for call in (t.Start, t.Wait):
                    while True:
                        try:
                            rnd = call()
                            break
                        except pc.StateError as error:
                            assert "in use by another thread" in str(error)
                assert not rnd.void
        finally:
            over.set()
            thread.join()
        assert np.abs(x - mean(comm)).max() < 1e-12
    assert all("in use by another thread" in words for words in refused), set(refused)


@pytest.mark.parametrize("progress", ["agent", "manual", "spin"])
def test_progress(comm, progress):
    x = start(comm.rank)
    with groups(comm, x, progress=progress, grid=full_grids(comm)[-1]) as t:
        for _ in t.grid:
            rnd = one_round(t)
        assert rnd.exact


# Bad input


@pytest.mark.parametrize(
    "options, error, words",
    [
        (dict(grid=()), (TypeError, ValueError), "grid"),
        (dict(grid=(0,)), ValueError, "grid: sides: expected 1 to 4294967295"),
        (dict(grid=(-2, 4)), ValueError, "grid: sides: expected 1 to 4294967295"),
        (dict(grid=(2**32,)), ValueError, "grid: sides: expected 1 to 4294967295"),
        (dict(grid=(2**31, 2**31, 2)), ValueError, "cells"),
        (dict(grid=(2,) * 17), ValueError, "1 to 16 axes"),
        (dict(grid=(2.5, 2)), TypeError, "grid"),
        (dict(grid=(True, 8)), TypeError, "grid"),
        (dict(grid=3.5), TypeError, "grid"),
        (dict(grid="square"), ValueError, "grid"),
        (dict(grid=None), TypeError, "grid"),
        (dict(bandwidth=0), ValueError, "bandwidth"),
        (dict(bandwidth=-1.0), ValueError, "bandwidth"),
        (dict(bandwidth=float("nan")), ValueError, "bandwidth"),
        (dict(bandwidth=float("inf")), ValueError, "bandwidth"),
        (dict(bandwidth="fast"), ValueError, "bandwidth"),
        (dict(bandwidth=True), TypeError, "bandwidth"),
        (dict(bandwidth=[1.0]), TypeError, "bandwidth"),
        (dict(timeout=0), ValueError, "timeout"),
        (dict(timeout=-1.0), ValueError, "timeout"),
        (dict(timeout=float("nan")), ValueError, "timeout"),
        (dict(timeout=float("inf")), ValueError, "timeout"),
        (dict(timeout="1"), TypeError, "timeout"),
        (dict(window=0), ValueError, "window"),
        (dict(window=-0.5), ValueError, "window"),
        (dict(window=float("nan")), ValueError, "window"),
        (dict(keys="moving"), ValueError, "keys"),
        (dict(measure_every=0), ValueError, "measure_every"),
        (dict(measure_every=1.5), TypeError, "measure_every"),
        (dict(cell=-1), ValueError, "cell"),
        (dict(cell=1.0), TypeError, "cell"),
        (dict(progress="fast"), ValueError, "progress"),
    ],
)
def test_bad_options(comm, options, error, words):
    """Bad options raise on all ranks. If one rank is wrong, the others get an error as well."""
    x = np.zeros(3)
    with pytest.raises(error, match=words):
        groups(comm, x, **options)
    wrong = comm.size - 1
    with pytest.raises(error if comm.rank == wrong else pc.MismatchError) as caught:
        groups(comm, x, **(options if comm.rank == wrong else {}))
    assert comm.rank == wrong or f"rank {wrong}" in str(caught.value)
    with groups(comm, x) as t:  # nothing is left behind
        one_round(t)


def test_the_grid_holds_all(comm):
    several(comm)
    for grid in [(comm.size - 1,), (1,), (comm.size - 1, 1)]:
        with pytest.raises(ValueError, match=f"grid: expected cells for {comm.size} peers"):
            groups(comm, np.zeros(3), grid=grid)


def test_huge_grid(comm):
    x = np.ones(3) * comm.rank
    with groups(comm, x, grid=(2**31, 2**31)) as t:
        for _ in range(4):
            assert not one_round(t).void
        assert np.allclose(x, (comm.size - 1) / 2)


def test_cells(comm):
    several(comm)
    with pytest.raises(ValueError, match=r"cell: expected a cell for each rank, got 0 on ranks 0"):
        groups(comm, np.zeros(3), cell=0)
    with pytest.raises(ValueError, match=rf"cell: expected 0 to {comm.size - 1}, got {comm.size}"):
        groups(comm, np.zeros(3), grid=(comm.size,), cell=comm.size - comm.rank)
    with pytest.raises(ValueError, match="cell: expected a cell for each rank"):
        groups(comm, np.zeros(3), grid=(comm.size,), cell=1 if comm.rank == 0 else None)


@pytest.mark.parametrize(
    "other, what",
    [
        (dict(count=4), "number of elements"),
        (dict(dtype=np.float32), "dtype"),
        (dict(keys="dynamic"), "keys"),
        (dict(grid="other"), r"grid \(side of axis 0\): \d+ on rank 0"),
        (dict(grid="more axes"), r"grid \(axes\): 1 on rank 0"),
        (dict(timeout=1.0), "timeout"),
        (dict(window=1.0), "window"),
        (dict(bandwidth=1.0), "bandwidth"),
        (dict(bandwidth="measured"), "bandwidth"),
        (dict(measure_every=3), "measure_every"),
    ],
)
def test_ranks_disagree(comm, other, what):
    several(comm)
    grids = {"other": (comm.size + 1,), "more axes": (comm.size, 1)}
    options = {"count": 3, "dtype": np.float64, "grid": (comm.size,)}
    if comm.rank == comm.size - 1:
        options |= {k: grids.get(v, v) if k == "grid" else v for k, v in other.items()}
    x = np.zeros(options.pop("count"), options.pop("dtype"))
    with pytest.raises(pc.MismatchError, match=what):
        groups(comm, x, **options)
    with groups(comm, np.ones(3)) as t:
        one_round(t)


def test_bad_buffers(comm):
    x = np.zeros((4, 6))
    read_only = x.copy()
    read_only.flags.writeable = False
    raw = np.zeros(20)
    for send, recv, error, words in (
        (MPI.IN_PLACE, np.zeros(3, np.int32), TypeError, "recvbuf"),
        (MPI.IN_PLACE, np.zeros(3, np.complex128), TypeError, "recvbuf"),
        (MPI.IN_PLACE, np.zeros(3, bool), TypeError, "recvbuf"),
        (MPI.IN_PLACE, np.zeros(3, ">f8"), TypeError, "recvbuf"),
        (MPI.IN_PLACE, np.zeros(3, np.longdouble), TypeError, "recvbuf"),
        (np.zeros(3, np.int64), np.zeros(3, np.int64), TypeError, "float16"),
        (MPI.IN_PLACE, x[:, ::2], ValueError, "contiguous"),
        (MPI.IN_PLACE, x.T, ValueError, "contiguous"),
        (x[::2], np.zeros((2, 6)), ValueError, "contiguous"),
        (MPI.IN_PLACE, read_only, ValueError, "writable"),
        (np.full((), 1.0), np.float64(1), TypeError, "memory can be written to"),
        (x, np.zeros((4, 6), np.float32), TypeError, "dtype"),
        (x, np.zeros((4, 5)), ValueError, "elements"),
        (raw[:12], raw[8:], ValueError, "IN_PLACE"),
        (x, x, ValueError, "IN_PLACE"),
        (MPI.IN_PLACE, MPI.IN_PLACE, TypeError, "recvbuf"),
        (x, MPI.IN_PLACE, TypeError, "recvbuf"),
        (None, x, TypeError, "sendbuf"),
        (MPI.IN_PLACE, "text", TypeError, "recvbuf"),
        ([x, x], [x, x], TypeError, "recvbuf"),
    ):
        with pytest.raises(error, match=words):
            pc.GroupAllreduce_init(comm, send, recv)
    with pc.GroupAllreduce_init(comm, read_only, x) as t:  # a source may be read-only
        one_round(t)


def test_bad_communicators(comm):
    x = np.zeros(3)
    freed = comm.Dup()
    freed.Free()
    for bad in (MPI.COMM_NULL, freed, None, 3, "comm"):
        with pytest.raises((TypeError, ValueError), match="comm"):
            groups(bad, x)
    if comm.size > 1:
        half = comm.Split(comm.rank % 2)
        inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2, tag=5)
        with pytest.raises((TypeError, ValueError), match="comm"):
            groups(inter, x)
        inter.Free()
        half.Free()


def test_subset(comm):
    """A group on some of the ranks does not involve the others."""
    part = comm.Split(comm.rank % 2, -comm.rank)
    x = np.full(9, comm.rank + 1.0)
    expected = part.allreduce(comm.rank + 1.0) / part.size
    with groups(part, x, grid=(part.size,)) as t:
        assert one_round(t).exact and np.allclose(x, expected)
    part.Free()


def test_the_communicator_may_go_first(comm):
    other = comm.Dup()
    x = start(comm.rank)
    t = groups(other, x, grid=(comm.size,))
    other.Free()
    assert one_round(t).exact and np.abs(x - mean(comm)).max() < 1e-12
    t.Free()
