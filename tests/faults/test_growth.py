# SPDX-License-Identifier: Apache-2.0
"""Newcomers take the numbers of ranks that have died (`AllreduceHandle.grow`, ``join=True``,
`partialcoll.elastic`)."""

from pathlib import Path

import pytest
import stopped
from mpi4py import MPI
from ulfm import needs_ulfm

pytestmark = [needs_ulfm, pytest.mark.one_domain]

PREPARE = """
    import faulthandler, signal
    from partialcoll import elastic
    faulthandler.dump_traceback_later(60, exit=True)
    joined = elastic.joined()
    world = MPI.COMM_WORLD if joined is None else joined
    new = joined is not None

    def end(*error):  # MPI_Finalize may not return once a rank has died
        sys.__excepthook__(*error)
        os._exit(1)

    sys.excepthook = end

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def step(handle):
        handle.Start()
        return handle.Wait()

    def until(ready):
        while not ready():
            time.sleep(0.005)

    def refused(kind, call, *words):
        try:
            call()
        except kind as error:
            assert all(word in str(error) for word in words), error
            return error
        raise AssertionError(f"{kind} was not raised")

    def make(comm, *arguments, **options):
        options = {"quorum": "full", "domain": domain, "on_failure": "continue", **options}
        return pc.Allreduce_init(comm, *arguments, **options)
"""


def in_turn(run, program, ranks, domain="node", arguments=(), env=None):
    done = run(
        f"    domain = {domain!r}\n{PREPARE}{program}",
        ranks=ranks,
        arguments=arguments,
        env=env,
        launcher_options=["--with-ft", "ulfm"],
    )
    return done, done.stdout.splitlines()


# All but the last one die and are replaced, one after the other, without a pause.
REPLACED = """
    order = []
    x, y = np.zeros(7), np.zeros(7)
    h = make(world, x, y, join=new, on_membership=lambda h, *who: order.append(who))
    total = h.size * (h.size + 1) / 2
    if new:
        assert h.last_round.index % 10 == 9 and (y == total).all(), (h.last_round, y)
        say("joined", h.rank, h.last_round.index)
    first = h.last_round.index + 1 if new else 0
    for call in range(first, 10 * h.size):
        if call % 10 == 0 and call and call != first:
            victim = call // 10 - 1
            h.comm.Barrier()
            if victim == h.rank:
                die()
            until(lambda: h.failed[victim])
            h.grow(elastic.respawn(h.comm, [sys.executable, *sys.argv], to=h.size))
            assert not h.failed.any() and order == [([victim], [victim])], order
            order.clear()
        x[:] = h.rank + 1
        rnd = step(h)
        assert rnd.index == call and rnd.active == h.size and not rnd.failed.any(), rnd
        assert (y == total).all(), y
    assert h.comm.allreduce(1) == h.size
    say("end", h.rank)
    if str(h.rank) in sys.argv[1:]:
        raise SystemExit(3)
    h.Free()
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("domain", ["node", "rank", "node:2"])
def test_each_is_replaced(run, domain):
    done, said = in_turn(run, REPLACED, 3, domain)
    for rank in range(3):
        assert said.count(f"end {rank}") == 1, f"{done.stdout}\n{done.stderr}"
        joined = said.count(f"joined {rank} {10 * rank + 9}")
        assert joined == (rank < 2), f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.in_turns
@pytest.mark.parametrize("fails", ["1", "2"])  # a newcomer, a rank that mpiexec has started
def test_the_status_is_that_of_a_rank_that_fails_at_the_end(run, fails):
    done, said = in_turn(run, REPLACED, 3, arguments=[fails])
    assert sum(line.startswith("end") for line in said) == 3, f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 3, f"{done.stdout}\n{done.stderr}"


# Rank 0 dies, and in the growth that follows another rank or the newcomer dies, until all ranks are
# present.
DIES = """
    who, moment = sys.argv[1:]
    x, y = np.ones(7), np.zeros(7)
    if new:
        if who == "newcomer" and not os.path.exists("died"):
            open("died", "w").close()
            os.environ["PARTIALCOLL_DIE"] = moment + ":1"
        try:
            h = make(world, x, y, join=True)
        except pc.RankFailedError as error:
            os._exit(1)
        say("new", h.rank)
    else:
        if who == "survivor" and world.rank == 2:
            os.environ["PARTIALCOLL_DIE"] = moment + ":1"  # read only once
        h = make(world, x, y)
        for _ in range(5):
            step(h)
        if world.rank:
            h.Start()  # rank 0 never comes
        if world.rank == 0:
            world.Barrier()
            die()
        world.Barrier()
        assert h.Wait().failed[0] and (y == 3).all(), y
    whole = 0
    while whole < 5:  # rounds in a row
        while h.failed.any():
            whole = 0
            try:
                h.grow(elastic.respawn(h.comm, [sys.executable, *sys.argv], to=h.size))
            except pc.RankFailedError as error:
                time.sleep(0.05)  # until h.comm has only live ranks
        whole += step(h).active == h.size
    assert (y == 4).all(), y
    say("end", h.rank, h.last_round.index)
    h.Free()
    os._exit(0)
"""
MOMENTS = ("paused", "regrouped", "growth rebuilt", "growth inherited", "grown")


@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", ["survivor", "newcomer"])
def test_another_one_dies_while_they_grow(run, who, moment):
    domain = ("node", "rank", "node:2")[MOMENTS.index(moment) % 3]
    done, said = in_turn(run, DIES, 4, domain, (who, moment))
    ends = sorted(line for line in said if line.startswith("end"))
    assert [end.split()[1] for end in ends] == ["0", "1", "2", "3"], f"{said}\n{done.stderr}"
    assert len({end.split()[2] for end in ends}) == 1, ends
    come = {line.split()[1] for line in said if line.startswith("new")}
    assert come == ({"0", "2"} if who == "survivor" else {"0"}), f"{said}\n{done.stderr}"


# Rank 0 dies, and another one is suspended for two seconds in the growth that follows.
STOPS = """
    moment, = sys.argv[1:]
    x, y = np.ones(7), np.zeros(7)
    if not new and world.rank == 2:
        os.environ["PARTIALCOLL_DIE"] = moment + ":1:stop"
        go_on_later()
    h = make(world, x, y, join=new)
    if not new:
        step(h)
        if world.rank == 0:
            die()
        while not h.failed.any():
            time.sleep(0.01)
        assert h.failed.tolist() == [True, False, False], h.failed
        h.grow(elastic.respawn(h.comm, [sys.executable, *sys.argv], to=h.size))
    for _ in range(5):
        rnd = step(h)
        assert rnd.active == 3 and not rnd.failed.any(), rnd
    say("end", h.rank, os.path.exists("stood still"))
    h.Free()
    os._exit(0)
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_suspended_meanwhile_is_not_dead(run, moment):
    domain = ("node", "rank", "node:2")[MOMENTS.index(moment) % 3]
    done, said = in_turn(run, stopped.GO_ON_LATER + STOPS, 3, domain, (moment,))
    ends = sorted(line for line in said if line.startswith("end"))
    assert ends == [f"end {rank} True" for rank in range(3)], f"{said}\n{done.stderr}"


# Refused calls raise on all ranks and leave the handle unchanged.
REFUSED = """
    x, y = np.ones(7), np.zeros(7)
    if new:
        with_size = int(sys.argv[1])
        call = lambda size=7, **options: make(world, np.ones(size), np.zeros(size), **options)
        differ = ("count", "7 on rank 0", "8 on rank 2")
        refused(pc.MismatchError, lambda: call(with_size, join=True), *differ)
        refused(ValueError, lambda: call(join=True, on_failure="raise"), "join")
        refused(pc.MismatchError, lambda: call(join=True), "rank 0")  # in a call
        refused(pc.MismatchError, lambda: call(join=True), "ranks 0, 1 of comm")
        h = make(world, x, y, join=True)
    else:
        h = make(world, x, y)
        raises = pc.Allreduce_init(world, x, y)
        step(h)
        refused(pc.StateError, lambda: raises.grow(world), 'on_failure="continue"')
        refused(ValueError, lambda: h.grow(world.Dup()) or h.grow(world.Split(world.rank)),
                "rank", "is not in it")
        refused(TypeError, lambda: h.grow(None), "comm")
        if world.rank == 2:
            die()
        until(lambda: h.failed[2])
        two = elastic.respawn(h.comm, [sys.executable, *sys.argv, "8"], to=3)
        refused(pc.MismatchError, lambda: h.grow(two), "count", "7 on rank 0", "8 on rank 2")
        refused(pc.MismatchError, lambda: h.grow(two), "rank 2 of comm")
        if not h.rank:
            h.Start()
        kind = pc.StateError if not h.rank else pc.MismatchError
        refused(kind, lambda: h.grow(two), "rank 0 of comm" if h.rank else "wait for the round")
        if h.rank:
            h.Start()
        h.Wait()
        refused(pc.RankFailedError, lambda: raises.grow(two), "rank 2 has died")
        h.grow(two)
    if not new:
        more = elastic.respawn(two, [sys.executable, "-c", MORE], to=4)
        refused(ValueError, lambda: h.grow(more), "1 ranks are to join", "0 of 3")
    else:
        refused(ValueError, lambda: h.grow(elastic.respawn(world, ["x"], to=4)), "are to join")
    assert step(h).active == 3 and (y == 3).all()
    say("end", h.rank)
    h.Free()
    os._exit(0)
"""
MORE = """
import os
import numpy as np
import partialcoll as pc
from partialcoll import elastic
try:
    pc.Allreduce_init(elastic.joined(), np.ones(7), quorum="full", on_failure="continue", join=True)
except ValueError:
    os._exit(0)
os._exit(1)
"""


def test_refused_calls_leave_all_unchanged(run):
    done, said = in_turn(run, f"    MORE = {MORE!r}\n{REFUSED}", 3)
    assert sorted(said) == ["end 0", "end 1", "end 2"], f"{said}\n{done.stderr}"


# A newcomer dies before it joins: the waiting ranks are notified, and can start others.
DEAD = """
import os
from mpi4py import MPI
from partialcoll import elastic
os.kill(os.getpid(), 9)
"""
EARLY = """
    start = lambda *words: elastic.respawn(world, [sys.executable, *words], to=3)
    if not new:
        refused(pc.RankFailedError, lambda: start("-c", DEAD), "has died")
        world = start(*sys.argv)
    assert world.size == 3 and world.allreduce(1) == 3
    say("end", world.rank)
    tell(f"end {world.rank}")
    hear("end 0", "end 1", "end 2")  # data that others wait for is lost when a rank ends
    os._exit(0)
"""


# The ranks that started it have ended before they contact it.
ORPHAN = """
    import faulthandler
    faulthandler.dump_traceback_later(60, exit=True)
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:
        hear("gone 0", "gone 1")
        time.sleep(1)
        from partialcoll import elastic
        say("there")
        os._exit(0)
    from partialcoll import elastic
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), on_failure="continue")
    elastic.Spawned(h.comm, [sys.executable, *sys.argv], 1)
    say("started")
    tell(f"gone {comm.rank}")
    os._exit(0)
"""


@pytest.mark.in_turns
def test_a_newcomer_left_alone_ends(run):
    done = run(
        ORPHAN,
        ranks=2,
        env={"PARTIALCOLL_TIMEOUT": "1"},
        launcher_options=["--with-ft", "ulfm"],
    )
    assert done.stdout.splitlines() == ["started"] * 2
    assert "this process ends: nothing is heard of those" in done.stderr


@pytest.mark.in_turns
def test_a_newcomer_that_dies_early_delays_no_other(run):
    done, said = in_turn(run, f"    DEAD = {DEAD!r}\n{EARLY}", 2)
    assert sorted(said) == ["end 0", "end 1", "end 2"], f"{said}\n{done.stderr}"


def test_joining_needs_an_mpi_that_reports_deaths():
    import numpy as np

    import partialcoll as pc

    with pytest.raises(ValueError, match="join: expected a comm with ranks"):
        pc.Allreduce_init(MPI.COMM_SELF, np.ones(3), on_failure="continue", join=True)


@pytest.mark.in_turns
@pytest.mark.parametrize("quorum, domain", [("solo", "node"), ("majority", "rank")])
def test_all_that_are_killed_are_replaced(quorum, domain):
    killing = pytest.importorskip("partialcoll.tools.bench.faults.killing")
    job = killing.KilledJob(3, quorum, domain, "7", 2, respawn=True)
    verdict = job.run()
    faults = [fault for fault in verdict.faults if "was silent" not in fault]  # for how long
    assert not faults, (faults, job.given)
    # Two are left each time, or one if the second one is killed before it has written that down.
    assert len(job.killed) - job.ended_by_mpi == 2
    assert job.ended_by_mpi or len(verdict.rejoin_s) in (3, 4)
    job.forget()


@pytest.mark.in_turns
def test_the_example(run):
    text = (Path(__file__).parents[2] / "examples" / "elastic.py").read_text()
    done = run(text, ranks=4, launcher_options=["--with-ft", "ulfm"])
    for rank in range(4):
        assert f"rank {rank}: " in done.stdout, f"{done.stdout}\n{done.stderr}"
    assert "0 missing" in done.stdout and "rank 2 is back" in done.stdout
