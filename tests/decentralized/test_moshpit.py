# SPDX-License-Identifier: Apache-2.0
"""Moshpit SGD against its formulas in virtual time, and under MPI with ranks that leave, stop and
return."""

import time

import numpy as np
import pytest
from together import World

import partialcoll as pc
from partialcoll.decentralized import GlobalSum, MoshpitProcess
from partialcoll.tools.sim.simulated import group_reductions

pytestmark = pytest.mark.one_domain


class Simulated:
    """Moshpit on all ranks of a grid, in virtual time."""

    def __init__(self, sides, ranks, dim=5, window=1e6, latency=0.0, dtype=np.float64, **how):
        self.world = World("complete", ranks, dim, latency=latency, dtype=dtype)
        self.grid, self.ranks = pc.Grid(sides, ranks), ranks
        self.handles = group_reductions(
            ranks, sides, self.world.like, self.world.events, latency, window
        )
        self.first = np.random.default_rng(1).standard_normal((ranks, dim)).astype(dtype)
        totals = self.world.totals()
        self.processes = [
            MoshpitProcess(x, handle, total=total, **how)
            for x, handle, total in zip(self.first, self.handles, totals)
        ]

    @property
    def models(self):
        return np.array([p.model for p in self.processes])

    def step(self, updates, who=None):
        who = range(self.ranks) if who is None else who
        self.world.step([self.processes[i] for i in who], [updates[i] for i in who])

    def lines(self, round):
        return self.grid.line(np.arange(self.ranks), self.grid.axis(round))


def updates(step, ranks, dim=5):
    return np.random.default_rng((7, step)).standard_normal((ranks, dim))


def mean_of_lines(x, lines):
    return np.array([x[lines == line].mean(axis=0) for line in lines])


@pytest.mark.parametrize("tau", (1, 3))
def test_parameters(tau):
    """Every tau steps the mean over the line, one axis after the other; local steps between."""
    s = Simulated((2, 3), 6, local_steps=tau)
    x, round = s.first.copy(), 0
    for step in range(1, 13):
        u = updates(step, 6)
        s.step(u)
        x += u
        if step % tau == 0:
            x = mean_of_lines(x, s.lines(round))
            round += 1
        np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)
    counts = s.processes[0].stats
    assert (counts.steps, counts.communications, counts.skipped) == (12, round, 0)
    assert counts.received == sum(2 if t % 2 else 1 for t in range(round))


def test_as_many_rounds_as_axes_are_exact():
    s = Simulated((2, 2, 3), 12, local_steps=2, rounds=3)
    x = s.first.copy()
    for step in range(1, 5):
        u = updates(step, 12)
        s.step(u)
        x += u
        if step % 2 == 0:
            x[:] = x.mean(axis=0)
        np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)
    distances = s.world.carry_out([p.measuring() for p in s.processes])
    assert max(distances) < 1e-13


@pytest.mark.parametrize("alpha, beta", ((1.0, 0.0), (0.5, 0.0), (1.0, 0.7), (0.7, 0.4)))
def test_pseudo_gradients(alpha, beta):
    """The outer step starts at the end of the last one, according to its formula."""
    how = {"outer_learning_rate": alpha, "outer_momentum": beta}
    s = Simulated((2, 2), 4, local_steps=2, average="pseudo-gradients", **how)
    x, anchor, slow = s.first.copy(), s.first.copy(), np.zeros((4, 5))
    for step in range(1, 13):
        u = updates(step, 4)
        s.step(u)
        x += u
        if step % 2 == 0:
            mean = mean_of_lines(x, s.lines(step // 2 - 1))
            slow = beta * slow + (anchor - mean)
            anchor = anchor - alpha * slow
            x = anchor.copy()
        np.testing.assert_allclose(s.models, x, rtol=1e-12, atol=1e-12)
    if (alpha, beta) == (1.0, 0.0):
        plain = Simulated((2, 2), 4, local_steps=2)
        for step in range(1, 13):
            plain.step(updates(step, 4))
        np.testing.assert_allclose(s.models, plain.models, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("beta", (0.0, 0.6))
@pytest.mark.parametrize("average", ("parameters", "pseudo-gradients"))
def test_overlap(average, beta):
    """The average of one boundary is applied at the next, as a difference: no step is lost."""
    if average == "parameters" and beta:
        pytest.skip("parameters have no outer step")
    how = {"outer_momentum": beta} if beta else {}
    s = Simulated((2, 2), 4, local_steps=2, overlap=True, average=average, latency=0.1, **how)
    x, anchor, slow = s.first.copy(), s.first.copy(), np.zeros((4, 5))
    at_start, round = None, 0
    for step in range(1, 15):
        u = updates(step, 4)
        s.step(u)
        x += u
        if step % 2 == 0:
            if at_start is not None:
                mean = mean_of_lines(at_start, s.lines(round))
                slow = beta * slow + (anchor - mean)
                anchor = mean if not beta else anchor - slow
                x += anchor - at_start
                round += 1
            at_start = x.copy()
        np.testing.assert_allclose(s.models, x, rtol=1e-12, atol=1e-12)
    if not beta:
        total = s.first.sum(axis=0) + sum(updates(t, 4).sum(axis=0) for t in range(1, 15))
        np.testing.assert_allclose(s.models.sum(axis=0), total, rtol=1e-12)
    before = s.processes[0].stats.communications
    s.world.carry_out([p.replacing(lambda model: model) for p in s.processes])
    assert s.processes[0].stats.communications == before + 1  # the round in progress
    assert np.ptp(s.models, axis=0).max() == 0
    if not beta:
        np.testing.assert_allclose(s.models.sum(axis=0), total, rtol=1e-12)


def test_a_void_round_changes_nothing():
    """A rank that is suspended in a round voids it for its group: the other members keep their
    models, and it is counted. The rank returns when it continues."""
    s = Simulated((2, 2), 4, window=1.0, latency=0.001)
    s.world.events.run(0.5)  # groups form in the background
    s.handles[3].stand(True)
    x, others, lost = s.first.copy(), [0, 1, 2], 1
    assert s.lines(0)[lost] == s.lines(0)[3]
    u = updates(0, 4)
    s.step(u, others)
    x[others] += u[others]
    x[[0, 2]] = x[[0, 2]].mean(axis=0)
    np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)
    counts = [p.stats for p in s.processes]
    assert [(c.communications, c.skipped, c.received) for c in counts] == [
        (1, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (0, 0, 0),
    ]
    assert s.handles[lost].suspects == (3,)
    s.handles[3].stand(False)
    for step in (1, 2):
        s.world.events.run(s.world.events.now + 10)
        s.step(updates(step, 4))
    s.world.events.run(s.world.events.now + 10)
    assert [handle.suspects for handle in s.handles] == [()] * 4
    assert [p.stats.communications > 1 for p in s.processes] == [True] * 4


@pytest.mark.parametrize("overlap", (False, True))
def test_a_void_round_is_no_pseudo_gradient(overlap):
    """A void round leaves model, anchor and momentum unchanged. The next average covers both."""
    how = {"average": "pseudo-gradients", "outer_learning_rate": 0.7, "outer_momentum": 0.6}
    s = Simulated((2, 2), 4, window=1.0, latency=0.001, overlap=overlap, **how)
    lost = s.processes[1]
    for step in range(3):  # so that there is momentum
        s.world.events.run(s.world.events.now + 0.5)
        s.step(updates(step, 4))
    if overlap:  # the round in progress, with rank 3
        s.world.carry_out([p._finishing() for p in s.processes])
    s.world.events.run(s.world.events.now + 0.5)
    while s.lines(s.handles[1].round)[1] != s.lines(s.handles[1].round)[3]:
        s.step(updates(9, 4))
        if overlap:
            s.world.carry_out([p._finishing() for p in s.processes])
        s.world.events.run(s.world.events.now + 0.5)
    before, u = lost.state_dict(), updates(3, 4)
    s.handles[3].stand(True)
    s.step(u, [0, 1, 2])
    if overlap:
        s.world.carry_out([p._finishing() for p in s.processes[:3]])
    assert lost.stats.skipped == 1 and s.processes[0].stats.skipped == 0
    after = lost.state_dict()
    np.testing.assert_allclose(after["model"], before["model"] + u[1], rtol=1e-13, atol=1e-13)
    for part in ("anchor", "slow"):
        assert np.abs(before[part]).max() > 0
        np.testing.assert_array_equal(after[part], before[part])


def test_a_rank_that_is_away_delays_no_other():
    """A rank that is away makes its own steps, and the others' groups are without it. After
    `rejoin` it takes part in the next round whose group is not formed yet, not the one after its
    last."""
    s = Simulated((2, 2), 4)
    s.step(updates(0, 4))
    s.processes[3].leave()
    x = s.models
    for step in (1, 2, 3):
        u = updates(step, 4)
        s.step(u)
        x += u
        lines = s.lines(step)
        x[:3] = mean_of_lines(x[:3], lines[:3])
        np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)
    assert s.processes[3].stats.communications == 1
    s.processes[3].rejoin()
    u = updates(4, 4)
    s.step(u, [0, 1, 2])
    x[:3] = mean_of_lines(x[:3] + u[:3], s.lines(4)[:3])
    np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)
    u = updates(5, 4)
    s.step(u)
    x = mean_of_lines(x + u, s.lines(5))
    np.testing.assert_allclose(s.models, x, rtol=1e-13, atol=1e-13)


def test_a_slow_rank_is_not_waited_for():
    """A group waits for its window, then continues with the ranks that have come."""
    s = Simulated((2,), 2, window=1.0)
    s.world.step([s.processes[0]], [updates(0, 2)[0]])
    s.world.settle()
    np.testing.assert_array_equal(s.models[0], s.first[0] + updates(0, 2)[0])
    assert s.world.events.now == 1.0
    s.world.step([s.processes[1]], [updates(0, 2)[1]])  # its round is over
    s.world.settle()
    assert s.handles[1].last_round.missed == 1 and s.handles[1].last_round.index == 1


def test_state():
    """Another process continues from the state exactly, momentum included. A state that does not
    fit is refused and changes nothing."""
    how = {"average": "pseudo-gradients", "outer_momentum": 0.5, "local_steps": 2}
    a, b = Simulated((3,), 3, **how), Simulated((3,), 3, **how)
    for step in range(5):
        a.step(updates(step, 3))
    states = [p.state_dict() for p in a.processes]
    assert set(states[0]) == {"model", "steps", "anchor", "slow"}
    for p, state in zip(b.processes, states):
        p.load_state_dict(state)
    for step in range(5, 9):
        a.step(updates(step, 3))
        b.step(updates(step, 3))
    np.testing.assert_array_equal(a.models, b.models)
    bad = {**states[0], "slow": np.zeros(6)}
    with pytest.raises(ValueError, match=r"state\['slow'\]: expected shape"):
        b.processes[0].load_state_dict(bad)
    with pytest.raises(KeyError, match="expected"):
        b.processes[0].load_state_dict({"model": np.zeros(5), "steps": 0})
    np.testing.assert_array_equal(a.models, b.models)


@pytest.mark.parametrize(
    "how, match",
    (
        ({"local_steps": 0}, "local_steps: expected at least 1"),
        ({"rounds": 0}, "rounds: expected at least 1"),
        ({"rounds": 2, "overlap": True}, "rounds: expected 1 with overlap"),
        ({"average": "gradients"}, "average: expected one of 'parameters', "),
        ({"outer_momentum": 0.5}, "expected average='pseudo-gradients'"),
        ({"average": "pseudo-gradients", "outer_momentum": 1.5}, "outer_momentum: expected"),
        ({"average": "pseudo-gradients", "outer_learning_rate": -1}, "outer_learning_rate: exp"),
    ),
)
def test_refused(how, match):
    with pytest.raises(ValueError, match=match):
        Simulated((2,), 2, **how)


def test_refused_handles():
    s = Simulated((2,), 2)
    for x in (np.zeros(4), np.zeros(5, np.float32)):
        with pytest.raises(ValueError, match="handle: expected a send_buffer of shape"):
            MoshpitProcess(x, s.handles[0])
    s.handles[0]._recv = s.handles[0]._send
    with pytest.raises(ValueError, match="expected two buffers"):
        MoshpitProcess(np.zeros(5), s.handles[0])
    with pytest.raises(pc.StateError, match="exchange: expected a StateExchange"):
        s.processes[1].resync()


# Under MPI


def make(comm, x, exchange=None, *, grid="auto", timeout=240.0, window=None, keys="auto", **how):
    """Return handle and process."""
    send, recv = np.empty_like(x), np.empty_like(x)
    handle = pc.GroupAllreduce_init(
        comm, send, recv, grid=grid, keys=keys, timeout=timeout, window=window
    )
    return handle, MoshpitProcess(x, handle, exchange=exchange, **how)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("overlap", (False, True))
def test_under_mpi(comm, dtype, overlap):
    """The result follows the formula on a full grid, with the same bits in a group."""
    grid = pc.Grid("auto", comm.size)
    x = np.full(1000, comm.rank, dtype)
    total = GlobalSum.over(comm)
    handle, p = make(
        comm, x, grid=grid.sides, keys="static", local_steps=2, overlap=overlap, total=total
    )
    everything = [np.full(1000, rank, dtype) for rank in range(comm.size)]
    xs, starts, round = np.array(everything, np.float64), None, 0
    for step in range(1, 13):
        u = updates(step, comm.size, 1000).astype(dtype)
        p.apply(u[comm.rank])
        xs += u
        if step % 2 == 0 and not overlap:
            xs = mean_of_lines(xs, grid.line(np.arange(comm.size), grid.axis(round)))
            round += 1
        elif step % 2 == 0:
            if starts is not None:
                lines = grid.line(np.arange(comm.size), grid.axis(round))
                xs += mean_of_lines(starts, lines) - starts
                round += 1
            starts = xs.copy()
        tolerance = 1e-4 if dtype == np.float32 else 1e-11
        np.testing.assert_allclose(p.model, xs[comm.rank], rtol=tolerance, atol=tolerance)
    if not grid.full:
        pytest.skip("the grid is not full")
    p.average_models()
    assert len(set(comm.allgather(p.model.tobytes()))) == 1
    assert p.consensus_distance() < 1e-4  # the mean of equal models is equal up to rounding
    np.testing.assert_allclose(p.model, xs.mean(axis=0), rtol=1e-4, atol=1e-4)
    counts = p.stats
    assert counts.steps == 12 and counts.communications == 6 and counts.skipped == 0
    p.Free()
    handle.Free()
    total.Free()


def serve(request, exchange, handle, process):
    """Serve at step boundaries without steps until all ranks are here."""
    while not request.Test():
        if not handle.away:
            exchange.serve(handle.round, process.state_dict)
        time.sleep(1e-3)


@pytest.mark.mpi
def test_leaves_and_returns(comm):
    """One rank leaves and the others continue. It returns with the model, the outer momentum and
    the number of steps of one of them, bit for bit."""
    if comm.size < 3:
        pytest.skip("needs others that go on")
    exchange = pc.StateExchange(comm)
    x = np.zeros(5000)
    how = {"average": "pseudo-gradients", "outer_momentum": 0.5, "local_steps": 2}
    handle, p = make(comm, x, exchange, grid=(comm.size,), timeout=240.0, **how)
    leaver = comm.size - 1
    for step in range(4):
        p.apply(updates(step, comm.size, 5000)[comm.rank])
    comm.Barrier()
    if comm.rank == leaver:
        p.leave()
        assert handle.away
    comm.Barrier()
    if comm.rank != leaver:
        for step in range(4, 10):
            p.apply(updates(step, comm.size, 5000)[comm.rank])
        # The group of the round after its leave may have been formed before.
        assert leaver not in handle.last_round.group and handle.last_round.active == comm.size - 1
        while leaver in handle.live:  # it notifies one rank after the other
            time.sleep(1e-3)
    else:
        assert p.stats.steps == 4
        p.apply(np.ones(5000))  # its own steps, forgotten when it returns
        p.apply(np.ones(5000))
        assert p.stats.communications == 2
    serve(comm.Ibarrier(), exchange, handle, p)
    if comm.rank == leaver:
        p.rejoin()
        assert not handle.away and p.stats.steps == 10
    serve(comm.Ibarrier(), exchange, handle, p)
    states = comm.allgather(p.state_dict())
    own = states.pop(leaver)
    same = [
        all(np.array_equal(own[name], state[name]) for name in ("model", "anchor", "slow"))
        for state in states
    ]
    assert any(same)
    met = 0
    for step in range(10, 40):
        p.apply(updates(step, comm.size, 5000)[comm.rank])
        met += leaver in handle.last_round.group
    p.leave()  # the ranks have made different numbers of rounds
    assert comm.allreduce(met) > 0
    p.Free()
    handle.Free()
    exchange.Free()


STOPS = """
import os, signal
from partialcoll.decentralized import MoshpitProcess
exchange = pc.StateExchange(comm, timeout=60)
x = np.zeros(20000)
handle = pc.GroupAllreduce_init(
    comm, x.copy(), x.copy(), grid=(2, 2), keys="static", timeout=0.5, window=0.5
)
p = MoshpitProcess(x, handle, exchange=exchange, stale_after=None)  # resynchronizes when told to
pids = comm.allgather(os.getpid())
for step in range(5):
    p.apply(np.full(20000, float(comm.rank)))
comm.Barrier()
if comm.rank == 3:
    request = comm.Irecv(bytearray(1), 0, 5)
    os.kill(os.getpid(), signal.SIGSTOP)
    request.Wait()
    p.resync()
    say("resynchronized at step", p.stats.steps)
else:
    while state(pids[3]) != "T":
        time.sleep(1e-3)
    for step in range(20):  # while rank 3 is suspended
        p.apply(np.full(20000, float(comm.rank)))
    say("went on", p.stats.steps, len(set(p.model)))
    if comm.rank:
        comm.Send(bytearray(1), 0, 5)
    else:  # the rank it asks has made them all
        for rank in (1, 2):
            comm.Recv(bytearray(1), rank, 5)
        os.kill(pids[3], signal.SIGCONT)
        comm.Send(bytearray(1), 3, 5)
over = comm.Ibarrier()
while not over.Test():
    exchange.serve(handle.round, p.state_dict)
    time.sleep(1e-3)
before = p.stats.communications
distance = 1
while distance >= 1:  # some rounds may be without a rank that was late again
    for step in range(4):
        p.apply(np.zeros(20000))
    distance = np.ptp(comm.allgather(p.model[0]))
assert p.stats.communications > before
say("in the end", len(set(p.model)))
p.Free()
handle.Free()
exchange.Free()
"""


def test_stops_and_returns(run):
    """SIGSTOP of a rank for longer than the timeout: the others continue, every model stays whole
    (all elements are equal), and the stopped rank takes the state of another."""
    done = run(STOPS, 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("went on 25 1") == 3, done.stdout
    assert done.stdout.count("in the end 1") == 4, done.stdout
    assert "resynchronized at step 25" in done.stdout
