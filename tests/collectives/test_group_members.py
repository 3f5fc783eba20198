# SPDX-License-Identifier: Apache-2.0
"""Members of groups that leave, return, are late or stop: the others continue, and the sum over all
ranks stays constant. No durations are checked. Where no rank may wait, the timeout is so long that
a test with a waiting rank never ends."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi

PATIENT = 240.0
SHORT = 0.4
COUNT = 1009


def several(comm, ranks=2):
    if comm.size < ranks:
        pytest.skip(f"needs {ranks} ranks")


def start(rank):
    return np.random.default_rng(rank).normal(size=COUNT) + rank


def groups(comm, x, **options):
    return pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, **{"timeout": PATIENT, **options})


def one_round(t):
    t.Start()
    return t.Wait()


def shapes(comm):
    """Return a line, a plane, and a plane with free cells."""
    rows = 2 if comm.size % 2 == 0 else 1
    return [
        dict(grid=(comm.size,)),
        dict(grid=(rows, comm.size // rows)),
        dict(grid=(2, comm.size // 2 + 1), keys="dynamic", window=0.05),
    ]


def check_sum(comm, x, total):
    assert np.allclose(comm.allreduce(x), total, rtol=1e-12, atol=1e-10)


def rounds_until(comm, t, enough, act=lambda: None):
    """Make rounds until all ranks have seen enough. A rank that then leaves delays none."""
    rounds, agreed = [], None
    while agreed is None or not agreed.Test():
        act()
        rounds.append(one_round(t))
        if agreed is None and enough(rounds):
            agreed = comm.Ibarrier()
    t.leave()
    return rounds


def all_together(comm):
    return lambda rounds: rounds[-1].active == comm.size and not rounds[-1].void


# Leaving and returning


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("who", ["first", "last"])
def test_the_others_continue(comm, who, shape):
    several(comm)
    away = 0 if who == "first" else comm.size - 1
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, **shapes(comm)[shape]) as t:
        for _ in t.grid:
            last = one_round(t)
        if comm.rank == away:
            mine = x.copy()
            t.leave()
            assert t.away
            t.leave()
            with pytest.raises(pc.StateError, match="rejoin first"):
                t.Start()
        else:
            while away in t.live:  # may take some time
                one_round(t)
            for _ in range(20):
                rnd = one_round(t)
                assert rnd.void or rnd.active >= 1
            assert away not in rnd.group and away not in t.live
            t.leave()  # the others may have made one round less
        comm.Barrier()
        assert t.away and (comm.rank != away or (x == mine).all())
        t.rejoin()
        assert not t.away
        t.rejoin()

        rounds = rounds_until(comm, t, lambda rounds: shape or all_together(comm)(rounds))
        if comm.rank == away:
            first = rounds[0]
            assert first.missed == first.index - last.index - 1 >= 15
            assert not any(r.exact for r in rounds[: len(t.grid) - 1])
        assert t.stats.suspected == 0
        check_sum(comm, x, total)


@pytest.mark.parametrize("shape", range(3))
def test_several_leave(comm, shape):
    """All but one leave, then all return."""
    several(comm)
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, **shapes(comm)[shape]) as t:
        one_round(t)
        for stay in range(comm.size):
            comm.Barrier()
            if comm.rank != stay:
                t.leave()
            else:
                for _ in range(10):
                    rnd = one_round(t)
                while t.live != (stay,):
                    rnd = one_round(t)
                rnd = one_round(t)
                rnd = one_round(t)
                assert rnd.group == (stay,) and rnd.active == 1 and not rnd.exact
            comm.Barrier()
            if comm.rank != stay:
                t.rejoin()
            rounds_until(comm, t, lambda rounds: len(rounds) > 3)
            comm.Barrier()
            t.rejoin()
        assert t.stats.suspected == 0
        check_sum(comm, x, total)


@pytest.mark.parametrize("shape", range(3))
def test_all_leave_and_return(comm, shape):
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, **shapes(comm)[shape]) as t:
        for i in range(10):
            for _ in range(comm.rank % 2 + 1):
                one_round(t)
            t.leave()
            if i % 2:
                comm.Barrier()
                assert t.live == () or comm.rank not in t.live
            t.rejoin()
        if shape == 0:
            rounds = rounds_until(comm, t, all_together(comm))
            assert np.abs(x - total / comm.size).max() < 1e-10 and rounds
        t.leave()
        comm.Barrier()
        assert t.stats.suspected == 0
        check_sum(comm, x, total)


@pytest.mark.parametrize("shape", range(3))
def test_leave_right_after_start(comm, shape):
    """A started round is completed."""
    several(comm)
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, **shapes(comm)[shape]) as t:
        for i in range(40):
            t.Start()
            if (comm.rank + i) % comm.size == 0:
                t.leave()
                rnd = t.Wait()
                assert rnd.void or rnd.active >= 1
                t.rejoin()
            else:
                t.Wait()
        t.leave()
        comm.Barrier()
        assert t.stats.suspected == 0
        check_sum(comm, x, total)


def test_the_last_wish_counts(comm):
    several(comm)
    x = start(comm.rank)
    with groups(comm, x, grid=(comm.size,)) as t:
        if comm.rank == 0:
            for i in range(100):
                if i < 99:
                    one_round(t)
                for _ in range(i % 3):
                    t.leave()
                    t.rejoin()
                t.leave()
                assert t.away
                with pytest.raises(pc.StateError, match="rejoin first"):
                    t.Start()
                if i < 99:
                    t.rejoin()
            for other in range(1, comm.size):
                comm.send(None, other)
        else:
            while not comm.Iprobe(source=0) or 0 in t.live:
                one_round(t)
            comm.recv(source=0)
            t.leave()
        comm.Barrier()
        assert t.away and 0 not in t.live and t.stats.suspected == 0


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("seed", range(3))
def test_coming_and_going(comm, seed, shape):
    """Ranks leave and return often, several at once. None waits, and none is suspected."""
    several(comm)
    rng = np.random.default_rng(1000 * seed + comm.rank)
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, **shapes(comm)[shape]) as t:
        for _ in range(60):
            kind = rng.random()
            if kind < 0.3:
                t.leave()
                if rng.random() < 0.7:
                    time.sleep(rng.random() * 2e-3)  # away for some rounds, or for none
                t.rejoin()
            elif kind < 0.4:
                time.sleep(rng.random() * 2e-3)  # late
            t.Start()
            if rng.random() < 0.1:
                t.leave()
                t.Wait()
                t.rejoin()
            else:
                t.Wait()
        t.leave()
        comm.Barrier()
        assert t.stats.suspected == 0 and t.suspects == ()
        check_sum(comm, x, total)


@pytest.mark.parametrize("seed", range(3))
def test_freeing_at_any_moment(comm, seed):
    rng = np.random.default_rng(1000 * seed + comm.rank)
    x = start(comm.rank)
    for shape in shapes(comm) * 3:
        total = comm.allreduce(x)
        t = groups(comm, x, **shape)
        for _ in range(rng.integers(12)):
            one_round(t)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 1e-3)
        t.Free()
        check_sum(comm, x, total)


# Applications that are late


@pytest.mark.parametrize("shape", range(3))
def test_a_late_rank_is_passed_over(comm, shape):
    """A late rank's agent takes no part until the application comes."""
    several(comm)
    late = comm.size - 1
    x = start(comm.rank)
    mine, total = x.copy(), comm.allreduce(x)
    with groups(comm, x, timeout=SHORT, **shapes(comm)[shape]) as t:
        if comm.rank != late:
            for _ in range(4):
                rnd = one_round(t)
                assert rnd.active <= len(rnd.group)
                assert late not in rnd.group or rnd.active < len(rnd.group)
        comm.Barrier()
        if comm.rank == late:
            assert (x == mine).all()
        for _ in range(10):
            rnd = one_round(t)
        if shape == 0:
            rounds_until(comm, t, all_together(comm))
            assert np.abs(x - total / comm.size).max() < 1e-10
        comm.Barrier()
        t.leave()
        comm.Barrier()
        check_sum(comm, x, total)


@pytest.mark.parametrize("shape", range(3))
def test_all_ranks_are_late_now_and_then(comm, shape):
    rng = np.random.default_rng(comm.rank)
    x = start(comm.rank)
    total = comm.allreduce(x)
    with groups(comm, x, timeout=0.1, **shapes(comm)[shape]) as t:
        for _ in range(30):
            if rng.random() < 0.1:
                time.sleep(rng.random() * 0.2)
            rnd = one_round(t)
            assert rnd.void or 1 <= rnd.active <= len(rnd.group)
        t.leave()
        comm.Barrier()
        check_sum(comm, x, total)


# Processes that stop

STOPPED = """
        import signal

        grid, keys, victim = eval(sys.argv[1]), sys.argv[2], int(sys.argv[3])
        pids = comm.allgather(os.getpid())
        x = np.random.default_rng(comm.rank).normal(size=5000)
        total = comm.allreduce(x)
        waker = 1 if victim == 0 else 0

        t = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, grid=grid, keys=keys, timeout=0.4)
        for _ in range(4):
            t.Start(); t.Wait()
        comm.Barrier()
        if comm.rank == victim:
            t.Start()
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            while state(pids[victim]) != "T":
                time.sleep(0.001)
            rounds = 0
            while rounds < 8 or (t.keys == "static" and victim not in t.suspects):
                t.Start()
                rnd = t.Wait()
                rounds += 1
            say("the others went on", comm.rank)
            for other in range(comm.size):
                if other not in (victim, comm.rank):
                    comm.send(None, other, tag=1)
            for other in range(comm.size):
                if other not in (victim, comm.rank):
                    comm.recv(source=other, tag=1)
            if comm.rank == waker:
                os.kill(pids[victim], signal.SIGCONT)
        if comm.rank == victim:
            t.Wait()
        back, agreed = 0, None
        while agreed is None or not agreed.Test():
            t.Start()
            rnd = t.Wait()
            back += victim in rnd.group and len(rnd.group) > 1
            done = back >= 3 and t.suspects == () if victim_line(t, victim) else True
            if agreed is None and done:
                agreed = comm.Ibarrier()
        t.leave()
        comm.Barrier()
        assert np.allclose(comm.allreduce(x), total, rtol=1e-12, atol=1e-10)
        say("conserved", t.stats)
        t.Free()
"""
HELPERS = """
def victim_line(t, victim):  # ranks that are ever in a group with it
    return len(t.grid) == 1
"""


@pytest.mark.parametrize(
    "grid, keys, victim",
    [
        ("(4,)", "static", 0),
        ("(4,)", "static", 3),
        ("(2, 2)", "static", 0),
        ("(2, 2)", "static", 3),
        ("(4,)", "dynamic", 0),
        ("(2, 3)", "dynamic", 2),
    ],
)
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own")
def test_a_rank_that_stops(run, grid, keys, victim):
    """The others continue without it, it returns by itself, and nothing is lost."""
    done = run(STOPPED, ranks=4, before=HELPERS, arguments=[grid, keys, str(victim)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the others went on") == 3, done.stdout
    assert done.stdout.count("conserved") == 4, done.stdout


RANDOM = """
        import random, signal, subprocess
        grid, keys, seed = eval(sys.argv[1]), sys.argv[2], int(sys.argv[3])
        pids = comm.allgather(os.getpid())
        x = np.random.default_rng(comm.rank).normal(size=5000)
        total = comm.allreduce(x)
        t = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, grid=grid, keys=keys, timeout=0.2)
        stopper = None
        comm.Barrier()
        if comm.rank == 0:
            code = '''if True:
                import os, random, signal, sys, time
                rng = random.Random(int(sys.argv[1]))
                pids = [int(word) for word in sys.argv[2:]]
                for _ in range(25):
                    pid = rng.choice(pids)
                    time.sleep(rng.random() * 0.05)
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(rng.choice([0.001, 0.05, 0.3, 0.7]) * rng.random())
                    os.kill(pid, signal.SIGCONT)
                '''
            words = [sys.executable, "-c", code, str(seed), *map(str, pids)]
            stopper = subprocess.Popen(words)
        over, rounds = None, 0
        while over is None or not over.Test():
            t.Start()
            rnd = t.Wait()
            assert rnd.void or 1 <= rnd.active <= len(rnd.group), rnd
            rounds += 1
            if over is None and (stopper is None or stopper.poll() is not None):
                over = comm.Ibarrier()
        t.leave()
        comm.Barrier()
        assert np.allclose(comm.allreduce(x), total, rtol=1e-12, atol=1e-10)
        say("conserved", rounds, t.stats)
        t.Free()
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "grid, keys", [("(4,)", "static"), ("(2, 2)", "static"), ("(2, 3)", "dynamic")]
)
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own")
def test_ranks_that_stop_at_any_moment(run, grid, keys, seed):
    done = run(RANDOM, ranks=4, arguments=[grid, keys, str(seed)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("conserved") == 4, done.stdout


# The end of the job


@pytest.mark.parametrize("ranks", [None, 2, 4])
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own")
def test_groups_are_left_to_finalize(run, ranks):
    """Some groups are in a round, some were never used, and one has a rank that has left."""
    done = run(
        """
        a = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.ones(1000))
        b = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.ones(10), grid=(comm.size, 2))
        c = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.ones(10))
        for _ in range(5):
            a.Start(); a.Wait()
        if comm.rank == 0:
            a.Start()
        else:
            b.leave()
        say("done")
        """,
        ranks=ranks,
    )
    assert done.returncode == 0 and done.stdout.count("done") == (ranks or 1), done.stderr


@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own")
def test_after_finalize(run):
    done = run(
        """
        a = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.ones(1000))
        a.Start(); a.Wait()
        MPI.Finalize()
        for call in (a.Start, a.Wait, a.leave, lambda: a.stats):
            try:
                call()
            except pc.StateError as error:
                say("refused")
        a.Free()
        say("done")
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 8 and done.stdout.count("done") == 2
