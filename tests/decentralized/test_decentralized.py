# SPDX-License-Identifier: Apache-2.0
"""The processes of decentralized training on simulated ranks: invariants, convergence, and each
algorithm against its formula."""

import re
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from together import Fixed, Uniform, World

from partialcoll import Error, Lattice, StateError, pairing
from partialcoll.decentralized import (
    A2CiD2Process,
    ADPSGDProcess,
    AllreduceSGD,
    DPSGDProcess,
    ExponentialPeers,
    LocalSGDProcess,
    SGPProcess,
    SlowMoProcess,
    SwarmProcess,
    metropolis,
)
from partialcoll.decentralized.a2cid2 import BoundedMomentum, _warn_off
from partialcoll.decentralized.decoupled import CommunicationThread, Pace, SharedModel
from partialcoll.tools.sim.gossip import Logistic, Quadratic
from partialcoll.tools.sim.simulated import neighbor_exchanges

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

SEEDS = range(5)


# The conserved mass of a process, including data in flight. An update adds `gain` times itself.


def waiting(process):
    shared = process._shared
    assert not shared._any_taken or shared._taken.any()  # only within an event
    return shared._waiting


def mass_adpsgd(process, buffer):
    return process._x + waiting(process) + buffer.pending() + buffer.on_the_way()


def mass_a2cid2(process, buffer):
    under_way = buffer.pending() + buffer.on_the_way()
    return process._x + process._momentum + 2 * (waiting(process) + under_way)


def mass_swarm(process, buffer):
    change = 0 if process._change is None else process._change
    return process._x + change + sum(buffer.undrained(), np.zeros_like(process._x))


def mass_sgp(process, buffer):
    own = process._xw + np.append(waiting(process), 0)
    return own + sum(buffer.undrained(), np.zeros_like(process._xw))


def adpsgd(x, buffer, peers, world, **how):
    return ADPSGDProcess(x, buffer, peers, **how)


def a2cid2(x, buffer, peers, world, **how):
    return A2CiD2Process(x, buffer, peers, clock=lambda: world.events.now, unit=1.0, **how)


def a2cid2_paper(x, buffer, peers, world, **how):
    return a2cid2(x, buffer, peers, world, variant="paper", **how)


def baseline(x, buffer, peers, world, **how):
    return a2cid2(x, buffer, peers, world, accelerated=False, **how)


def swarm(x, buffer, peers, world, **how):
    return SwarmProcess(x, buffer, peers, local_steps=2, **how)


def swarm_geometric(x, buffer, peers, world, **how):
    return SwarmProcess(x, buffer, peers, local_steps=3, geometric=True, **how)


def swarm_registers(x, buffer, peers, world, **how):
    return SwarmProcess(x, buffer, peers, local_steps=2, variant="registers", **how)


def sgp(x, buffer, peers, world, **how):
    return SGPProcess(x, buffer, peers, **how)


CONSERVING = [
    (adpsgd, mass_adpsgd, 1),
    (a2cid2, mass_a2cid2, 2),
    (a2cid2_paper, mass_a2cid2, 2),
    (baseline, mass_a2cid2, 2),
    (swarm, mass_swarm, 1),
    (swarm_geometric, mass_swarm, 1),
    (sgp, mass_sgp, 1),
]
GOSSIP = [make for make, _, _ in CONSERVING] + [swarm_registers]


def in_place(process, update):
    """Update like an optimizer that changes the model itself."""
    process.begin()
    process.lend()[:] += update
    process.apply_in_place()


def as_vector(process, update):
    process.apply(update)


WAYS = (as_vector, in_place)


def make_all(make, world, first, **how):
    like = SGPProcess.message(world.like) if make is sgp else world.like
    everybody = list(zip(first, world.buffers(like), world.peers()))
    return [make(x, buffer, peers, world, **how) for x, buffer, peers in everybody]


@pytest.mark.parametrize("dtype", (np.float64, np.float32))
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("make", "mass", "gain"), CONSERVING, ids=lambda x: getattr(x, "__name__", x)
)
@pytest.mark.parametrize("apply", WAYS, ids=lambda x: x.__name__)
def test_conservation(make, mass, gain, seed, dtype, apply):
    """In any interleaving, with messages in flight, the sum changes by updates only."""
    random = np.random.default_rng(seed)
    ranks = 16 if make is a2cid2 else 6  # a ring on which momentum helps
    world = World("ring", ranks, 5, latency=0.2, seed=seed, dtype=dtype)
    first = random.standard_normal((ranks, 5)).astype(dtype)
    processes = make_all(make, world, first)
    held = [p._exchange for p in processes]

    def sum_of_mass():
        masses = [mass(p, b).astype(np.float64) for p, b in zip(processes, held)]
        return np.sum(masses, axis=0)

    expected = sum_of_mass()
    scale = 20 * np.abs(first).sum()
    events = 0
    for _ in range(100 * ranks):
        rank = int(random.integers(ranks))
        what = random.integers(3)
        if what == 0:
            update = random.standard_normal(5).astype(dtype)
            apply(processes[rank], update)
            expected[:5] += gain * update.astype(np.float64)
        elif what == 1:
            events += processes[rank].communicate()
        else:
            world.events.step()
            world.events.now += 0.1
        error = np.abs(sum_of_mass() - expected).max()
        assert error <= (1e-12 if dtype == np.float64 else 1e-4) * scale
    assert events > 40
    counts = [p.stats for p in processes]
    assert sum(c.communications for c in counts) > 30 and sum(c.received for c in counts) > 30
    if make is a2cid2:  # ranks with different momentum averaged with each other
        ratios = [p._rule.ratio() for p in processes]
        assert min(ratios) == 1 and max(ratios) > 1.3 and len(set(ratios)) > 2


@pytest.mark.parametrize("make", (adpsgd, baseline, swarm, sgp), ids=lambda m: m.__name__)
def test_averaged_model(make):
    """The average is exact, including data in flight."""
    random = np.random.default_rng(3)
    world = World("ring", 5, 4, latency=0.3)
    first = random.standard_normal((5, 4))
    like = SGPProcess.message(world.like) if make is sgp else world.like
    processes = [
        make(x, buffer, peers, world, total=total)
        for x, buffer, peers, total in zip(
            first, world.buffers(like), world.peers(), world.totals()
        )
    ]
    mean = first.mean(axis=0)
    for _ in range(40):
        for p in processes:
            update = random.standard_normal(4)
            p.apply(update)
            mean = mean + update / 5
            p.communicate()
            world.events.step()
    apart = world.carry_out([p.measuring() for p in processes])
    models = np.array([p.model for p in processes])
    spread = np.sqrt(((models - models.mean(axis=0)) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(apart, spread, rtol=1e-12)
    assert spread > 1e-7
    world.settle()
    results = world.carry_out([p.replacing(lambda model: model) for p in processes])
    for result, process in zip(results, processes):
        np.testing.assert_allclose(result, mean, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(process.model, results[0])
    assert max(world.carry_out([p.measuring() for p in processes])) < 1e-14


# Convergence


def train(world, processes, task, steps, noise_seed=0):
    """Make steps of random ranks, with communication in between."""
    random = np.random.default_rng(noise_seed)
    for _ in range(steps * world.ranks):
        rank = int(random.integers(world.ranks))
        process = processes[rank]
        process.step(task.gradient(rank, process.model, random))
        world.events.run(world.events.now + 1 / world.ranks)
        while process.communicate():
            pass
        processes[int(random.integers(world.ranks))].communicate()


@pytest.mark.parametrize("make", GOSSIP, ids=lambda m: m.__name__)
@pytest.mark.parametrize("kind", (Quadratic, Logistic))
def test_convergence(make, kind):
    """With heterogeneous data all ranks converge to the optimum of the mean."""
    ranks, dim = 8, 4
    task = kind(ranks, dim, 0.0, np.random.default_rng(1))
    world = World("exponential", ranks, dim, latency=0.05)
    # Large steps first, then decreasing ones, which consensus follows.
    rate = 0.6 if kind is Quadratic else 2.0
    processes = make_all(
        make, world, task.first, learning_rate=lambda t: rate / (1 + (t / 30) ** 1.5)
    )
    losses = lambda: [task.loss(p.model) - task.least for p in processes]  # noqa: E731
    begin = losses()
    assert min(begin) > 0.05
    train(world, processes, task, 400)
    # Races of "registers" lose updates, so it ends beside the optimum, as the paper says. Steps of
    # SGP are twice as large where the weight is half.
    bound = 0.05 if make in (swarm_registers, swarm_geometric, sgp) else 0.02
    assert max(losses()) < bound * min(begin), losses()


def test_tasks_know_their_optimum():
    for kind in (Quadratic, Logistic):
        task = kind(5, 3, 0.0, np.random.default_rng(0))
        mean = np.mean([task.gradient(i, task.optimum, None) for i in range(5)], axis=0)
        assert np.abs(mean).max() < 1e-10
        own = task.gradient(0, task.optimum, None)
        assert np.abs(own).max() > 0.05  # the data differ


# Formulas


def exponential(matrix):
    """Return the exponential of a symmetric matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.exp(values)) @ vectors.T


def test_a2cid2_mixing():
    """(x, x~) follows the linear equation for each averaging made, and not with time. An update is
    added to both."""
    now = [0.0]
    world = World("ring", 16, 3)
    buffers = world.buffers()
    p = A2CiD2Process(
        np.array([1.0, 2.0, 3.0]), buffers[0], Fixed(None), clock=lambda: now[0], rate=1.0
    )
    assert p.eta == pytest.approx(0.14247, abs=1e-5)
    assert p.ratio == pytest.approx(1.87169 / 0.5, abs=2e-5)
    for _ in range(100000):
        p._rule.tried(True)  # no averaging is refused
    p._rule.averaged(100)
    p._mix()
    p._momentum += [1.0, -1.0, 0.5]
    x, m = p._x.copy(), p._momentum.copy()
    for time, averagings in ((0.7, 0), (3.0, 1), (1e4, 0), (1e4, 3)):
        now[0] = time
        p._rule.averaged(averagings)
        update = np.array([0.1, -time, 0.2])
        p.apply(update)
        assert p.communicate()
        mixed = exponential(p.eta * averagings * np.array([[-1.0, 1.0], [1.0, -1.0]])) @ [x, m]
        x, m = mixed + update
        np.testing.assert_allclose(p._x, x, rtol=1e-13)
        np.testing.assert_allclose(p._momentum, m, rtol=1e-13)


def test_a2cid2_mixing_as_printed():
    """Between two events (x, x~) follows equation 4 with the constants of proposition 3.6, in time
    whose unit is a gradient step, independent of averagings."""
    now = [0.0]
    x, buffer = np.array([1.0, 2.0, 3.0]), World("ring", 8, 3).buffers()[0]
    how = {"variant": "paper", "clock": lambda: now[0], "unit": 2.0}
    p = A2CiD2Process(x, buffer, Fixed(None), **how)
    chi1, chi2 = 1 / (1 - np.cos(np.pi / 4)), 7 / 8
    assert p.eta == pytest.approx(1 / (2 * np.sqrt(chi1 * chi2)))
    assert p.ratio == pytest.approx(np.sqrt(chi1 / chi2))
    p._momentum += [1.0, -1.0, 0.5]
    m, before = p._momentum.copy(), 0.0
    for time, averagings in ((0.7, 0), (3.0, 1), (3.0, 0), (9.5, 3)):
        now[0] = time
        p._rule.averaged(averagings)
        update = np.array([0.1, -time, 0.2])
        p.apply(update)
        assert p.communicate()
        passed, before = (time - before) / 2, time
        mixed = exponential(p.eta * passed * np.array([[-1.0, 1.0], [1.0, -1.0]])) @ [x, m]
        x, m = mixed + update
        np.testing.assert_allclose(p._x, x, rtol=1e-13)
        np.testing.assert_allclose(p._momentum, m, rtol=1e-13)


def test_a2cid2_measures_its_unit_of_time():
    """The unit is the running mean of this rank's steps, as in the paper's section 4.1."""
    now = [0.0]
    buffer = World("ring", 8, 1).buffers()[0]
    p = A2CiD2Process(np.zeros(1), buffer, Fixed(None), variant="paper", clock=lambda: now[0])
    for now[0] in (1.0, 3.0, 7.0):  # steps of 2 and 4
        p.apply(np.zeros(1))
        p.communicate()
    p._momentum += 1.0
    now[0] += 1.5
    p._mix()
    assert p._x[0] == pytest.approx((1 - np.exp(-2 * p.eta * 1.5 / 3)) / 2)


@pytest.mark.parametrize("ranks", (8, 16))
def test_a2cid2_averaging_as_printed(ranks):
    """x loses alpha m and x~ alpha~ m on the initiating side. The peer gains the same, from the
    first averaging on."""
    world = World("ring", ranks, 2)
    buffers = world.buffers()
    first = np.random.default_rng(0).standard_normal((ranks, 2))
    how = {"rate": 2.0, "poisson": False, "variant": "paper", "clock": lambda: 0.0}
    a = A2CiD2Process(first[0], buffers[0], Fixed(1), **how)
    b = A2CiD2Process(first[1], buffers[1], Fixed(None), **how)
    alpha_tilde = 0.5 * np.sqrt(world.topology.chi1() / world.topology.chi2())
    m = first[0] - first[1]
    a.apply(np.zeros(2))
    assert a.communicate()
    world.settle()
    b.communicate()
    np.testing.assert_allclose(a._x, first[0] - 0.5 * m)
    np.testing.assert_allclose(b._x, first[1] + 0.5 * m)
    np.testing.assert_allclose(a._momentum, first[0] - alpha_tilde * m)
    np.testing.assert_allclose(b._momentum, first[1] + alpha_tilde * m)


@pytest.mark.parametrize("made", [(0, 0), (100, 100), (100, 6), (6, 100)], ids=str)
def test_a2cid2_averaging(made):
    """Two ranks: alpha to x and alpha~ to x~ on the initiating side. Both give and get the same in
    x and x~ together; each splits it by its own alpha~, which grows with its averagings."""
    world = World("ring", 16, 2)
    buffers = world.buffers()
    first = np.random.default_rng(0).standard_normal((16, 2))
    how = {"rate": 2.0, "poisson": False}
    a = A2CiD2Process(first[0], buffers[0], Fixed(1), **how)
    b = A2CiD2Process(first[1], buffers[1], Fixed(None), **how)
    for p, times in zip((a, b), made):
        p._rule.averaged(times)
    ratios = [p._rule.ratio() for p in (a, b)]
    assert [ratio > 1 for ratio in ratios] == [times > 0 for times in made]
    assert all(ratio <= world.topology.a2cid2().alpha_tilde / 0.5 for ratio in ratios)
    m = first[0] - first[1]
    a.apply(np.zeros(2))
    assert a.next_event() == 0
    assert a.communicate()
    world.settle()
    b.communicate()
    np.testing.assert_allclose(a._x, first[0] - 0.5 * m)
    np.testing.assert_allclose(a._momentum, first[0] - 0.5 * ratios[0] * m)
    both = 0.5 * (1 + ratios[0]) * m
    np.testing.assert_allclose(b._x, first[1] + both / (1 + ratios[1]))
    np.testing.assert_allclose(b._momentum, first[1] + both * ratios[1] / (1 + ratios[1]))


def test_bounded_momentum():
    """The momentum is 0 at first, that of the topology where no averaging is refused, and 0 where
    many are."""
    ratio, eta = 4.0, 0.1
    momentum = BoundedMomentum(eta, ratio)
    assert momentum.ratio() == 1 and momentum.part(1.0) == 0
    momentum.averaged(1)
    assert 1 <= momentum.ratio() < 1.5
    for _ in range(2000):
        momentum.averaged(1)
        momentum.tried(True)
    assert momentum.ratio() == pytest.approx(ratio, rel=1e-3)
    momentum.part(1.0)
    momentum.averaged(2)
    assert momentum.part(1.0) == pytest.approx(0.5 * (1 - np.exp(-2 * eta * 2)), rel=1e-3)
    assert momentum.part(1.0) == 0  # once for every averaging
    for _ in range(200):  # one in five
        for went_through in (False, True, True, True, True):
            momentum.tried(went_through)
    assert momentum.ratio() == 1
    momentum.averaged(1)  # the rest fades at the pace of the baseline
    assert momentum.part(1.0) == pytest.approx(0.5 * (1 - np.exp(-2 * eta / ratio)), rel=1e-3)
    for _ in range(2000):
        momentum.tried(True)
    assert momentum.ratio() == pytest.approx(ratio, rel=1e-3)
    momentum.begin_anew()
    assert momentum.ratio() == 1
    assert not BoundedMomentum(0.0, 4.0).any and not BoundedMomentum(0.1, 1.5).any
    assert BoundedMomentum(0.1, 1.5, force=True).any
    assert not BoundedMomentum(0.0, 1.5, force=True).any


@pytest.mark.parametrize("topology", ("ring", "exponential", "complete"))
def test_momentum_is_used_where_it_helps(topology):
    for ranks in (2, 4, 8, 16):
        world = World(topology, ranks, 2)
        p = A2CiD2Process(np.zeros(2), world.buffers()[0], Fixed(1))
        gains = topology == "ring" and ranks == 16
        assert (p.eta > 0, p.ratio > 1) == (gains, gains)
        for more in ({"momentum": "force"}, {"variant": "paper"}):
            p = A2CiD2Process(np.zeros(2), world.buffers()[0], Fixed(1), **more)
            known = world.topology.a2cid2()
            assert (p.eta, p.ratio) == (known.eta, known.alpha_tilde / known.alpha)


@pytest.mark.parametrize(
    "where", ("ring 4", "ring 8", "exponential 64", "hypercube 64", "torus 16")
)
def test_a2cid2_says_that_it_has_no_momentum(where, caplog):
    """Rank 0 reports it once for each graph, with the reason; not if it was requested or is on."""
    topology, ranks = where.split()
    world = World(topology, int(ranks), 1)
    buffers = world.buffers()
    _warn_off.cache_clear()
    for how in ({"accelerated": False}, {"momentum": "force"}, {"variant": "paper"}, {"rate": 0}):
        A2CiD2Process(np.zeros(1), buffers[0], Fixed(1), **how)
    A2CiD2Process(np.zeros(1), buffers[1], Fixed(0))
    assert not caplog.messages
    for _ in range(2):
        A2CiD2Process(np.zeros(1), buffers[0], Fixed(1))
    (message,) = caplog.messages
    assert f"no momentum on the topology {topology} of {ranks} ranks" in message
    gain = world.topology.chi1() / world.topology.chi2()
    assert f"chi1/chi2 = {gain:.2f}" in message and "starts at 4" in message
    assert "variant='paper'" in message and "momentum='force'" in message


def test_a_forced_momentum_moves():
    """On a ring of 8, after peers have proved to be up to date."""
    buffers = World("ring", 8, 1).buffers()
    p = A2CiD2Process(np.zeros(1), buffers[0], Fixed(None), momentum="force")
    for _ in range(2000):
        p._rule.averaged(1)
        p._rule.tried(True)
    assert p._rule.ratio() == pytest.approx(p.ratio, rel=1e-3) and p.ratio > 1.9


def test_a2cid2_an_event_far_ahead_holds_up_no_other():
    """After a long step events are drawn far ahead. Those of the next steps come before them."""
    now = [0.0]
    world = World("ring", 8, 2)
    x, buffer = np.zeros(2), world.buffers()[0]
    p = A2CiD2Process(x, buffer, Fixed(1), clock=lambda: now[0], rate=8.0, poisson=False)
    for now[0] in (0.0, 100.0, *np.arange(101.0, 160.0)):
        p.apply(np.zeros(2))
    assert max(p._due) > 160
    now[0] = 160.0
    while p.communicate():
        world.settle()
    assert min(p._due) > 160
    assert p.stats.communications + p.stats.skipped == 61 * 4 - len(p._due)


@pytest.mark.parametrize("begin_early", (False, True))
@pytest.mark.parametrize("topology", ("ring", "star", "exponential"))
def test_dpsgd(topology, begin_early):
    """X(k+1) = W X(k) + U(k)."""
    random = np.random.default_rng(0)
    world = World(topology, 6, 3, latency=0.4)
    around = [world.topology.neighbors(i) for i in range(6)]
    w = np.zeros((6, 6))
    for i in range(6):
        for j, weight in metropolis(around, i).items():
            w[i, j] = weight
    np.testing.assert_allclose(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1)
    assert w.min() >= 0
    x = random.standard_normal((6, 3))
    exchanges = neighbor_exchanges(world.topology, world.like, world.events, world.latency)
    processes = [DPSGDProcess(x[i], exchanges[i], metropolis(around, i), i) for i in range(6)]
    for _ in range(7):
        if begin_early:
            for p in processes:
                p.begin()
            world.events.step()
            with pytest.raises(StateError, match="finish the step"):
                processes[0].load_state_dict(processes[0].state_dict())
        u = random.standard_normal((6, 3))
        world.step(processes, u)
        x = w @ x + u
        np.testing.assert_allclose([p.model for p in processes], x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("drawn", (False, True))
@pytest.mark.parametrize("ranks", (2, 5, 8))
def test_sgp(ranks, drawn):
    """Push-sum: (x, w) is multiplied by column-stochastic matrices. Updates are added to x, later
    where w is below 1/2."""
    random = np.random.default_rng(0)
    world = World("complete", ranks, 3, latency=0, queue_slots=ranks)
    first = random.standard_normal((ranks, 3))
    buffers = world.buffers(SGPProcess.message(world.like))
    chosen = [[] for _ in range(ranks)]
    sources = [SimpleNamespace(next_peer=lambda c=c: c.pop()) for c in chosen]
    peers = sources if drawn else [None] * ranks
    processes = [SGPProcess(*each) for each in zip(first, buffers, peers)]
    xw, held_back = np.c_[first, np.ones(ranks)], np.zeros((ranks, 3))
    hops = [1 << k for k in range((ranks - 1).bit_length())]
    for k in range(12):
        u = random.standard_normal((ranks, 3))
        p = np.zeros((ranks, ranks))
        for i in range(ranks):
            hop = int(random.integers(1, ranks)) if drawn else hops[k % len(hops)]
            chosen[i][:] = [(i + hop) % ranks]
            kept = 0.5 if xw[i, 3] >= 1 / 2 else 1.0
            p[i, i] += kept
            p[(i + hop) % ranks, i] += 1 - kept
        for process, update in zip(processes, u):
            process.apply(update)
        for process in processes:
            process.communicate()
        world.settle()  # all must have sent before any receives
        adds = xw[:, 3:] >= 1 / 2
        held_back += u
        xw = p @ (xw + np.c_[adds * held_back, np.zeros(ranks)])
        held_back *= ~adds
        held = [q._xw + sum(b.undrained(), np.zeros(4)) for q, b in zip(processes, buffers)]
        np.testing.assert_allclose(held, xw, rtol=1e-12, atol=1e-12)
    for process in processes:
        process.communicate()
        process.apply(np.zeros(3))
    assert drawn == (np.abs(xw[:, 3] - 1).max() > 0.1) or ranks == 2
    np.testing.assert_allclose(
        [q.model for q in processes],
        xw[:, :3] / xw[:, 3:] + np.where(xw[:, 3:] >= 1 / 2, held_back / xw[:, 3:], held_back),
        rtol=1e-12,
        atol=1e-12,
    )


def test_sgp_keeps_what_it_cannot_push():
    world = World("complete", 2, 2, queue_slots=1)
    a, b = [SGPProcess(np.array([4.0, 8.0]), buffer) for buffer in world.buffers(np.zeros(3))]
    for _ in range(3):
        a.apply(np.zeros(2))
        a.communicate()
    assert a.weight == 0.5 and (a.stats.communications, a.stats.skipped) == (1, 2)
    np.testing.assert_array_equal(a.model, [4, 8])
    world.settle()
    assert b.communicate() and b.weight == 1.5
    np.testing.assert_array_equal(b.model, [4, 8])


def test_sgp_passes_on_what_is_too_much():
    """A rank that makes no steps does not keep the weight of the others."""
    world = World("complete", 8, 1)
    *others, c = [SGPProcess(np.array([1.0]), b) for b in world.buffers(np.zeros(2))]
    for _ in range(30):
        for p in others:
            p.apply(np.zeros(1))
        for p in (*others, c):
            while p.communicate():
                pass
            world.settle()
    assert c.weight <= 1.5 and c.stats.communications > 3


@pytest.mark.parametrize("ranks", (2, 3, 4, 8, 16))
@pytest.mark.parametrize("waits", (True, False))
def test_sgp_ends_with_what_the_last_ranks_learn(ranks, waits):
    """Ranks that have ended give their weight to those that continue: all but one if they wait for
    it in a sum, else half of them. All end with what these learn."""
    world = World("complete", ranks, 1)
    totals = [SimpleNamespace(waiting=False) for _ in range(ranks)]
    buffers = world.buffers(np.zeros(2))
    processes = [SGPProcess(np.zeros(1), *each, total=t) for *each, t in zip(buffers, totals)]
    still = 1 if waits else (ranks + 1) // 2
    weights, learned = [], np.zeros(1)

    def step(some, target):
        for p in some:
            update = 0.1 * (target - p.model)
            learned[:] += update
            p.apply(update)
            weights.append(p.weight)
            while any([q.communicate() for q in processes]):
                world.settle()

    for _ in range(10):
        step(processes, 1.0)
    for total in totals[still:]:
        total.waiting = waits
    weights.clear()
    for _ in range(150):
        step(processes[:still], 2.0)
    assert all(p.weight <= (1 + 0.5 / ranks if waits else 1.5) for p in processes[still:])
    assert np.mean(weights) > (0.99 if waits else 0.74)
    x, w = sum(mass_sgp(p, p._exchange) for p in processes)
    assert w == pytest.approx(ranks) and x == pytest.approx(learned[0])
    assert x / w > 1 + 0.6 * (1 - (1 - 0.1 * still / ranks) ** 150)  # if all were always the same


@pytest.mark.parametrize("ranks", (2, 3, 4, 5, 8))
@pytest.mark.parametrize("waits", (True, False))
def test_sgp_comes_to_rest(ranks, waits):
    """If no rank makes a step, passing of weight ends, however the weight is spread."""
    random = np.random.default_rng(ranks)
    for weights in ([0.8] * (ranks - 1), *random.dirichlet(np.ones(ranks), 20) * ranks):
        world = World("complete", ranks, 1)
        total = SimpleNamespace(waiting=waits)
        buffers = world.buffers(np.zeros(2))
        processes = [SGPProcess(np.zeros(1), buffer, total=total) for buffer in buffers]
        for p, w in zip(processes, [*weights[: ranks - 1], ranks - sum(weights[: ranks - 1])]):
            p._xw[-1], p._idle_shares = w, 3
        for _ in range(1000):
            if not any([p.communicate() for p in processes]):
                break
            world.settle()
        else:
            pytest.fail("it goes on")
        most = 1 + 0.5 / ranks if waits else 1.5
        assert all(p.weight <= most for p in processes)
        assert sum(p.weight for p in processes) == pytest.approx(ranks)


def test_sgp_without_room_is_idle():
    """A rank with too much weight that it cannot push is idle until the other one takes it."""
    world = World("complete", 2, 1, queue_slots=1)
    a, b = [SGPProcess(np.zeros(1), buffer) for buffer in world.buffers(np.zeros(2))]
    a._xw[-1] = 16
    for _ in range(2):
        assert b._push(0)
        world.settle()
        assert a.communicate()
    assert a.weight == 1 and b.weight == 1 / 4
    a._xw[-1] = 16  # and the queue of b is full
    assert not a.communicate() and a.stats.skipped == 0
    world.settle()
    assert b.communicate()
    world.settle()
    assert a.communicate() and a.weight == 1


def test_sgp_does_not_give_everything_away():
    """A rank that receives nothing stops at w = 1/4. Updates then move z by no more than themselves
    until something arrives, and all of them are in the average."""
    world = World("complete", 2, 1, queue_slots=99)
    a, b = [SGPProcess(np.array([3.0]), buffer) for buffer in world.buffers(np.zeros(2))]
    for _ in range(20):
        a.apply(np.ones(1))
        a.communicate()
    # The second was added at w = 1/2, and counted twice in z.
    assert a.weight == 1 / 4 and a.stats.communications == 2
    np.testing.assert_allclose(a.model, 3 + 20 + 1)
    a._settle()
    world.settle()
    b._settle()
    np.testing.assert_allclose(a._xw + b._xw, [2 * 3 + 20, 2])


@pytest.mark.parametrize("speeds", ((1,) * 8, (10,) + (1,) * 7, (0.1,) + (1,) * 7), ids=str)
@pytest.mark.parametrize(("make", "mass"), ((adpsgd, mass_adpsgd), (sgp, mass_sgp)))
def test_the_learning_rate_is_the_nominal_one(make, mass, speeds):
    """Whatever is in flight and whichever rank is faster, the average moves by all updates in full,
    and so do the models except for their lag."""
    ranks, end = len(speeds), 200
    world = World("exponential", ranks, 1, latency=0.01)
    processes = make_all(make, world, np.zeros((ranks, 1)))
    nominal = 0.0

    def step(rank):
        nonlocal nominal
        world.events.after(1 / speeds[rank], lambda: step(rank))
        nominal += 1 / ranks
        processes[rank].apply(np.ones(1))
        while processes[rank].communicate():
            pass

    for rank, speed in enumerate(speeds):
        world.events.after((rank + 0.5) / ranks / speed, lambda rank=rank: step(rank))
    world.events.run(end)
    total = sum(mass(p, p._exchange) for p in processes)
    assert total[0] / ranks == pytest.approx(nominal)
    assert make is adpsgd or total[1] == pytest.approx(ranks)
    assert np.mean([p.model for p in processes]) == pytest.approx(nominal, rel=0.1)


def test_allreduce_and_local_sgd():
    random = np.random.default_rng(0)
    world = World("ring", 3, 4, latency=0.2)
    x = random.standard_normal(4)
    exact = [AllreduceSGD(x, handle) for handle in world.handles()]
    local = [LocalSGDProcess(x, handle, local_steps=3) for handle in world.handles()]
    own = np.tile(x, (3, 1))
    for k in range(1, 8):
        u = random.standard_normal((3, 4))
        world.step(exact, u)
        world.step(local, u)
        x = x + u.mean(axis=0)
        own = own + u
        if k % 3 == 0:
            own[:] = own.mean(axis=0)
        np.testing.assert_allclose([p.model for p in exact], [x] * 3, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose([p.model for p in local], own, rtol=1e-13, atol=1e-14)
        assert all((p.model == exact[0].model).all() for p in exact)
    assert [p.stats.communications for p in exact] == [7] * 3
    assert [p.stats.communications for p in local] == [2] * 3


def test_slowmo_without_momentum_is_its_inner():
    random = np.random.default_rng(0)
    world = World("ring", 4, 3, latency=0.1)
    x = random.standard_normal(3)
    plain = [LocalSGDProcess(x, h, local_steps=4) for h in world.handles()]
    inner = [
        LocalSGDProcess(x, h, local_steps=4, total=t)
        for h, t in zip(world.handles(), world.totals())
    ]
    slow = [SlowMoProcess(p, tau=4, beta=0.0, alpha=1.0) for p in inner]
    for _ in range(13):
        u = random.standard_normal((4, 3))
        world.step(plain, u)
        world.step(slow, u)
        np.testing.assert_allclose(
            [p.model for p in slow], [p.model for p in plain], rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("make", (adpsgd, swarm, sgp), ids=lambda m: m.__name__)
def test_slowmo(make):
    """Around gossip: Algorithm 1 with the exact average of the inner processes' results."""
    random = np.random.default_rng(0)
    world = World("complete", 3, 2, latency=0.05)
    x = random.standard_normal(2)
    like = SGPProcess.message(world.like) if make is sgp else world.like
    how = {"learning_rate": 0.5}
    peers = [ExponentialPeers(rank, 3) for rank in range(3)]
    everybody = zip(world.buffers(like), peers, world.totals())
    slow = [
        SlowMoProcess(make(x, buffer, peers, world, total=total, **how), tau=3, beta=0.6, alpha=0.9)
        for buffer, peers, total in everybody
    ]
    begin, mean, u = x.copy(), x.copy(), np.zeros(2)
    for k in range(1, 13):
        updates = random.standard_normal((3, 2))
        mean = mean + updates.mean(axis=0)
        world.settle()  # so that the exact average includes all messages
        if k % 3 == 0:
            u = 0.6 * u + (begin - mean) / 0.5
            begin = mean = begin - 0.9 * 0.5 * u
        world.step(slow, updates)
        for p in slow:
            p.communicate()
        if k % 3 == 0:
            np.testing.assert_allclose([p.model for p in slow], [begin] * 3, rtol=1e-11, atol=1e-11)


def test_swarm_interaction():
    """Two ranks, an activation after H steps: half of the difference to the published model."""
    world = World("complete", 2, 2)
    buffers = world.buffers()
    a = SwarmProcess(np.array([0.0, 0.0]), buffers[0], Fixed(1), local_steps=2)
    b = SwarmProcess(np.array([8.0, 4.0]), buffers[1], Fixed(0), local_steps=99)
    for _ in range(2):
        assert a.next_event() is None and not a.communicate()
        a.apply(np.array([1.0, 0.0]))
    assert a.next_event() == 0 and a.communicate()
    np.testing.assert_array_equal(a.model, [2, 0])  # until the training thread takes it
    a.apply(np.zeros(2))
    np.testing.assert_array_equal(a.model, [5, 2])
    world.settle()
    assert b.communicate()
    b.apply(np.zeros(2))
    np.testing.assert_array_equal(b.model, [5, 2])


def test_swarm_registers():
    """Algorithm 1 taken literally, on the sequential model for which it is written."""
    random = np.random.default_rng(0)
    ranks, dim, steps = 5, 3, 2
    world = World("complete", ranks, dim, queue_slots=1000)
    x0 = random.standard_normal(dim)
    choices = [[] for _ in range(ranks)]
    sources = [SimpleNamespace(next_peer=lambda c=c: c.pop()) for c in choices]
    processes = [
        SwarmProcess(x0, buffer, peers, local_steps=steps, variant="registers")
        for buffer, peers in zip(world.buffers(), sources)
    ]
    current, outdated = np.tile(x0, (ranks, 1)), np.tile(x0, (ranks, 1))
    for _ in range(60):
        i, j = random.choice(ranks, 2, replace=False)
        choices[i].append(int(j))
        h = np.zeros(dim)
        for _ in range(steps):
            update = random.standard_normal(dim)
            processes[i].apply(update)
            h += update
        assert processes[i].communicate()
        processes[i]._take_change()
        world.settle()
        mean = (current[i] + current[j]) / 2
        current[i] = outdated[i] = mean + h
        current[j] = mean
        np.testing.assert_allclose(processes[i].model, outdated[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("latency, decoded", ((0.0, 1.0), (0.05, 0.97)))
def test_swarm_registers_in_few_bits(latency, decoded):
    """Line 8: data written by others is decoded with Q(X^_i), which they could read, and not with
    X^_i. So all of it decodes except for races, and 8 bits end like whole models."""
    ranks, dim = 6, 3000  # three blocks of the codec, each of which must decode
    task = Quadratic(ranks, dim, 0.0, np.random.default_rng(1))
    losses = []
    for codec in (None, Lattice(bits=8)):
        world = World("complete", ranks, dim, latency, dtype=np.float32, codec=codec)
        first = (task.first + 4).astype(np.float32)  # far from the optimum
        processes = make_all(swarm_registers, world, first, learning_rate=0.3)
        excess = lambda: np.mean([task.loss(p.model) - task.least for p in processes])  # noqa: B023, E731
        before = excess()
        random = np.random.default_rng(0)
        for _ in range(60 * ranks):
            rank = int(random.integers(ranks))
            p = processes[rank]
            p.step(task.gradient(rank, p.model, random).astype(np.float32))
            world.events.run(world.events.now + 1 / ranks)
            while p.communicate():
                pass
        losses.append(excess() / before)
        counts = [p.exchange_stats for p in processes]
        drained, lost = sum(c.drained for c in counts), sum(c.decode_failures for c in counts)
        assert drained > 100 and drained >= decoded * (drained + lost), (drained, lost)
    whole, few_bits = losses
    assert few_bits == pytest.approx(whole, rel=0.1) and whole < 0.5, losses


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("make", GOSSIP, ids=lambda m: m.__name__)
def test_non_finite_updates_are_left_out(make, bad, caplog):
    """An update with a non-finite element is left out, reported once and counted; later ones are
    not. Large updates are ordinary updates."""
    world = World("complete", 3, 4, dtype=np.float32)
    processes = make_all(make, world, np.zeros((3, 4), np.float32))
    for step in range(12):
        for rank, p in enumerate(processes):
            update = np.full(4, 1e30 if step == 0 else -1e30 if step == 1 else 1.0, np.float32)
            if rank == 0 and step in (5, 6):
                update[2] = bad
            p.apply(update)
            while p.communicate():
                pass
        world.settle()
    assert [p.stats.non_finite for p in processes] == [2, 0, 0]
    assert [p.stats.steps for p in processes] == [12] * 3
    assert all(np.isfinite(p.model).all() for p in processes)
    assert sum("is not finite" in message for message in caplog.messages) == 1


def test_lock_step_without_non_finite_updates():
    """Allreduce, local SGD and D-PSGD make their rounds without it."""
    world = World("complete", 3, 2)
    first, around = np.zeros((3, 2)), [[1, 2], [0, 2], [0, 1]]
    exchanges = neighbor_exchanges(world.topology, world.like, world.events, world.latency)
    made = (
        [AllreduceSGD(x, h) for x, h in zip(first, world.handles())],
        [LocalSGDProcess(x, h, local_steps=1) for x, h in zip(first, world.handles())],
        [
            DPSGDProcess(x, e, metropolis(around, i), i)
            for i, (x, e) in enumerate(zip(first, exchanges))
        ],
    )
    updates = np.ones((3, 2))
    updates[1, 0] = np.nan
    for processes in made:
        world.step(processes, updates)
        world.step(processes, np.zeros((3, 2)))  # D-PSGD averages the models before the update
        np.testing.assert_allclose([p.model for p in processes], np.full((3, 2), 2 / 3))
        assert [p.stats.non_finite for p in processes] == [0, 1, 0]


def test_no_update_waits_for_communication():
    """A rank's own updates are in the model at once: alone, a process is plain SGD."""
    world = World("complete", 1, 3)
    task = Quadratic(1, 3, 0.0, np.random.default_rng(0))
    x = np.zeros(3)
    (buffer,) = world.buffers()
    random = np.random.default_rng(0)
    p = ADPSGDProcess(x, buffer, Fixed(None), learning_rate=lambda t: 0.5 / (1 + t))
    for t in range(50):
        g = task.gradient(0, x, None)
        x = x - 0.5 / (1 + t) * g
        p.step(g)
        np.testing.assert_allclose(p.model, x, rtol=1e-12, atol=1e-14)
        for _ in range(random.integers(3)):
            p.communicate()
        np.testing.assert_allclose(p.model, x, rtol=1e-12, atol=1e-14)


# Between the two threads


@pytest.mark.parametrize("lent", (False, True))
def test_shared_model(lent):
    """Both sides in random order: the view has all own updates, and x gets each once."""
    random = np.random.default_rng(0)
    x = np.zeros(2)
    shared = SharedModel(x)
    added, others = np.zeros(2), np.zeros(2)
    shown_others = seen_others = 0.0
    taken = None
    for _ in range(3000):
        what = random.integers(3)
        if what == 0:
            update = random.integers(-5, 6, 2).astype(float)
            if lent:
                shared.lend()
                shared.view[:] += update
                shared.add_what_changed()
            else:
                shared.add(update)
            added += update
            seen_others = shown_others
            np.testing.assert_array_equal(shared.view, added + seen_others)
        elif what == 1 and taken is None:
            taken = shared.take()
            if taken is not None:
                x += taken
                others += 3
                x += 3
        elif taken is not None:
            shared.show(x)
            shown_others, taken = others[0], None
    assert others[0] > 100
    np.testing.assert_array_equal(x + (shared._waiting), added + others)


def test_threads():
    """Two processes with threads share a buffer under a lock: they agree, and stop."""
    world = World("complete", 2, 4)
    lock = threading.Lock()

    class Locked:
        """A simulated buffer for two threads, whose messages arrive at once."""

        def __init__(self, buffer):
            self._buffer = buffer

        def __getattr__(self, name):
            value = getattr(self._buffer, name)
            if not callable(value):
                return value

            def call(*arguments, **options):
                with lock:
                    result = value(*arguments, **options)
                    world.settle()
                    return result

            return call

    first = [np.zeros(4), np.full(4, 8.0)]
    buffers = [Locked(b) for b in world.buffers()]
    peers = [Fixed(1), Fixed(0)]
    agreed = threading.Event()
    with (
        ADPSGDProcess(first[0], buffers[0], peers[0]) as a,
        ADPSGDProcess(first[1], buffers[1], peers[1]) as b,
    ):
        for _ in range(100000):
            a.apply(np.zeros(4))
            b.apply(np.zeros(4))
            if np.abs(a.model - b.model).max() < 1e-9:
                agreed.set()
                break
            agreed.wait(1e-4)
    assert agreed.is_set()
    np.testing.assert_allclose(a.model + b.model, 8, atol=1e-6)
    assert threading.active_count() == 1 or not a._thread.running
    a.Free()
    with pytest.raises(StateError, match="freed"):
        a.apply(np.zeros(4))
    with pytest.raises(StateError, match="freed"):
        a.start()


def test_an_error_in_the_thread_surfaces():
    failed = threading.Event()

    def event():
        try:
            raise OSError("the network is gone")
        finally:
            failed.set()

    thread = CommunicationThread(event, lambda: None)
    thread.start()
    assert failed.wait(60)
    thread._thread.join(60)
    with pytest.raises(StateError, match="the network is gone"):
        thread.check()
    thread.check()  # only once
    assert not thread.running
    thread.stop()

    world = World("complete", 2, 2)
    buffers = world.buffers()
    p = ADPSGDProcess(np.zeros(2), buffers[0], Fixed(7))  # no such rank
    p.start()
    p.apply(np.ones(2))
    p._thread._thread.join(60)
    with pytest.raises(StateError, match="from 0 to 1, got 7"):
        p.step(np.ones(2))
    p.Free()

    # A with statement raises it at its end, unless there is another error.
    for error, expected in ((None, StateError), (KeyError("mine"), KeyError)):
        with pytest.raises(expected), ADPSGDProcess(np.zeros(2), buffers[0], Fixed(7)) as p:
            p.apply(np.ones(2))
            p._thread._thread.join(60)
            if error is not None:
                raise error


@pytest.mark.parametrize("make", GOSSIP, ids=lambda m: m.__name__)
def test_state(make):
    """A saved state continues unchanged. A state that does not fit changes nothing."""
    random = np.random.default_rng(0)
    world = World("complete", 3, 2)
    processes = make_all(make, world, random.standard_normal((3, 2)))
    for _ in range(9):
        for p in processes:
            p.apply(random.standard_normal(2))
            p.communicate()
    world.settle()
    saved = processes[0].state_dict()
    model = saved["model"] / saved.get("weight", 1.0)
    assert saved["steps"] == 9
    for _ in range(5):
        processes[0].apply(np.ones(2))
        processes[0].communicate()
    processes[0].load_state_dict(saved)
    np.testing.assert_allclose(processes[0].model, model, rtol=1e-12)
    assert processes[0].stats.steps == 9
    for key, value in processes[0].state_dict().items():
        np.testing.assert_allclose(value, saved[key], rtol=1e-12)
    for wrong in ({}, {**saved, "more": 1}, {**saved, "model": np.zeros(3)}):
        with pytest.raises((KeyError, ValueError)):
            processes[0].load_state_dict(wrong)
    np.testing.assert_allclose(processes[0].model, model, rtol=1e-12)


def test_state_of_slowmo():
    world = World("complete", 2, 2)
    inner = [
        LocalSGDProcess(np.zeros(2), h, total=t) for h, t in zip(world.handles(), world.totals())
    ]
    slow = [SlowMoProcess(p, tau=2) for p in inner]
    for _ in range(4):
        world.step(slow, np.ones((2, 2)))
    saved = slow[0].state_dict()
    assert saved["slow"].any() and saved["inner"]["steps"] == 4
    slow[0].load_state_dict(saved)
    with pytest.raises(KeyError, match="inner"):
        slow[0].load_state_dict({"model": np.zeros(2)})


# Choice of peers


def test_pace():
    assert [Pace(0.5, False).draw() for _ in range(1)] == [0]
    pace = Pace(0.4, False)
    assert sum(pace.draw() for _ in range(1000)) == 400
    poisson = Pace(2.5, True, 1)
    drawn = [poisson.draw() for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(2.5, rel=0.05)
    assert np.var(drawn) == pytest.approx(2.5, rel=0.1)
    with pytest.raises(ValueError, match="rate: expected events"):
        Pace(-1, True)


def rated(make, peers, rate):
    """Return a process whose time is its number of steps, and a function that communicates."""
    world = World("ring", 8, 2)
    like = SGPProcess.message(world.like) if make is SGPProcess else world.like
    own, *others = world.buffers(like)
    for other in others:
        other.publish(like)
    p = make(world.like, own, peers, rate=rate)
    p._clock = lambda: float(p.stats.steps)

    def communicate():
        """Make all pending communications; no queue is full."""
        for _ in range(p.stats.backlog):
            p.communicate()
            world.settle()
            for other in others:
                other.drain() if make is SGPProcess else other.collect(np.zeros(2))
            if make is SGPProcess:
                p._xw[-1] = 1  # it pushes half of its weight each time

    return p, communicate


RATED = pytest.mark.parametrize(
    "make",
    (ADPSGDProcess, partial(A2CiD2Process, poisson=False), SGPProcess),
    ids=("adpsgd", "a2cid2", "sgp"),
)


@RATED
def test_requested_and_achieved_communications(make):
    """Each requested communication is made, finds no partner, waits or is dropped. At most those of
    some steps wait, however many steps pass without communication."""
    some = iter([1, None] * 10000)
    p, communicate = rated(make, SimpleNamespace(next_peer=lambda: next(some)), rate=6.0)
    of_a_step = 6 if make is SGPProcess else 3
    for _ in range(5000):
        p.apply(np.zeros(2))
    most = of_a_step * Pace.LATEST
    counts = p.stats
    assert (counts.asked, counts.achieved, counts.backlog) == (5000 * of_a_step, 0, most)
    assert counts.given_up == counts.asked - most
    p._clock = lambda: np.inf
    communicate()
    counts = p.stats
    assert (counts.backlog, counts.given_up) == (0, 5000 * of_a_step - most)
    assert counts.achieved == counts.communications == most // 2 and counts.skipped == 0
    p.apply(np.zeros(2))
    p._reset(p.model.copy())
    assert (p.stats.backlog, p.stats.given_up) == (0, counts.given_up + of_a_step)


@RATED
@pytest.mark.parametrize("short", (False, True))
def test_it_says_when_it_falls_short(make, short, caplog):
    """Reported once, and not if the rate is reached."""
    p, communicate = rated(make, Fixed(1), rate=2.0)
    for step in range(400):
        p.apply(np.zeros(2))
        if not short or step % 200 == 0:
            communicate()
    said = [record.getMessage() for record in caplog.records]
    said = [text for text in said if "has no momentum" not in text]
    assert len(said) == short
    assert all(re.match(r"rate: of \d+ averagings or messages that the last", s) for s in said)


def test_exponential_peers():
    peers = ExponentialPeers(5, 6)
    assert [peers.next_peer() for _ in range(4)] == [0, 1, 3, 0]
    assert ExponentialPeers(0, 1).next_peer() is None


@pytest.mark.parametrize("name", pairing.NAMES)
def test_pairings(name):
    """However ranks are paired, each takes part in `rate` averagings per step."""
    world = World("bipartite_ring" if name != "hops" else "exponential", 8, 1)
    first = np.arange(8.0).reshape(8, 1)
    processes = []
    for rank, (x, buffer) in enumerate(zip(first, world.buffers())):
        peers = pairing.make(name, world.topology, rank, board=buffer.board)
        processes.append(ADPSGDProcess(x, buffer, peers, rate=1.0))
    steps = 200
    order = np.random.default_rng(0)
    for _ in range(steps):
        for p in processes:
            p.apply(np.zeros(1))
        for i in order.permutation(np.repeat(range(8), 4)):
            processes[i].communicate()
            world.settle()
    begun = sum(p.stats.communications for p in processes)
    assert 2 * begun / 8 / steps == pytest.approx(1.0, abs=0.05)
    models = [p.model for p in processes]
    np.testing.assert_allclose(models, 3.5, atol=1e-6)
    counts = [p.stats for p in processes]
    # With mutual pairs, an averaging satisfies the requests of both ranks.
    achieved = sum(c.achieved for c in counts)
    assert achieved == begun * (2 if name == "available" else 1)
    assert achieved == sum(c.asked - c.skipped - c.backlog - c.given_up for c in counts)


# Mistakes


def bad(*arguments, error=ValueError, match, **options):
    return pytest.param(arguments, options, error, match, id=match[:30])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    (
        bad([1.0], match="x: expected a numpy array, got list", error=TypeError),
        bad(np.zeros(3, int), match="x: expected float32 or float64, got int64", error=TypeError),
        bad(np.zeros((2, 2)), match=r"x: expected one dimension .*\(2, 2\)"),
        bad(np.zeros(0), match="x: expected one dimension and some elements"),
        bad(np.zeros(2), learning_rate=-1, match="learning_rate: expected at least 0, got -1"),
        bad(np.zeros(2), learning_rate="1", match="learning_rate: .* a number", error=TypeError),
        bad(np.zeros(2), rate=-1, match="rate: expected at least 0"),
        bad(np.zeros(2), rate=float("nan"), match="rate: expected at least 0, got nan"),
    ),
)
def test_bad_construction(arguments, options, error, match):
    (buffer, _) = World("complete", 2, 2).buffers()
    with pytest.raises(error, match=match):
        ADPSGDProcess(*arguments, buffer, Fixed(1), **options)


def test_an_exchange_of_another_shape():
    """Raised by the constructor, not in its thread."""
    exchanges = World("complete", 2, 3).buffers()
    with pytest.raises(ValueError, match=r"exchange: expected shape \(4,\) .*got \(3,\)"):
        ADPSGDProcess(np.zeros(4), exchanges[0], Fixed(1))
    with pytest.raises(ValueError, match=r"3 parameters and 1 more"):
        SGPProcess(np.zeros(3), exchanges[0], Fixed(1))
    with pytest.raises(ValueError, match="float32"):
        SwarmProcess(np.zeros(3, np.float32), exchanges[0], Fixed(1))


def test_bad_arguments():
    world = World("complete", 2, 2)
    buffer, _ = world.buffers()
    x = np.zeros(2)
    with pytest.raises(TypeError, match="peers: expected something with next_peer"):
        ADPSGDProcess(x, buffer, object())
    with pytest.raises(
        ValueError, match="variant: expected one of 'queue', 'registers', got 'both'"
    ):
        SwarmProcess(x, buffer, Fixed(1), variant="both")
    with pytest.raises(ValueError, match="local_steps: expected at least 1, got 0"):
        SwarmProcess(x, buffer, Fixed(1), local_steps=0)
    with pytest.raises(TypeError, match=r"local_steps: expected a whole number, got 2\.0"):
        SwarmProcess(x, buffer, Fixed(1), local_steps=2.0)
    with pytest.raises(ValueError, match="unit: expected a time above 0"):
        A2CiD2Process(x, buffer, Fixed(1), unit=0.0)
    with pytest.raises(ValueError, match="variant: expected one of 'bounded', 'paper'"):
        A2CiD2Process(x, buffer, Fixed(1), variant="printed")
    with pytest.raises(ValueError, match="momentum: expected one of 'auto', 'force'"):
        A2CiD2Process(x, buffer, Fixed(1), momentum=True)
    with pytest.raises(ValueError, match=r"parameters\.eta"):
        A2CiD2Process(
            x, buffer, Fixed(1), parameters=SimpleNamespace(eta=-1, alpha=1, alpha_tilde=1)
        )
    with pytest.raises(TypeError, match="inner: expected a process, got int"):
        SlowMoProcess(3)
    p = ADPSGDProcess(x, buffer, Fixed(1))
    with pytest.raises(ValueError, match="inner: expected a process made with total"):
        SlowMoProcess(p)
    with pytest.raises(StateError, match=r"total: expected GlobalSum.over\(comm\)"):
        p.averaged_model()
    for update, error in (
        ([0.0, 0.0], TypeError),
        (np.zeros(3), ValueError),
        (np.zeros(2, np.float32), TypeError),
    ):
        with pytest.raises(error, match="update: expected"):
            p.apply(update)
        with pytest.raises(error, match="gradient: expected"):
            p.step(update)
    assert p.stats.steps == 0
    handle = world.handles(3)[0]
    for kind in (AllreduceSGD, LocalSGDProcess):
        with pytest.raises(ValueError, match=r"handle: expected a buffer of shape \(2,\)"):
            kind(x, handle)
    with pytest.raises(TypeError, match="peers: a push takes no partner's consent"):
        SGPProcess(np.zeros(1), buffer, SimpleNamespace(next_peer=None, poll=None, leave=None))


@pytest.mark.parametrize(
    ("weights", "match"),
    (
        ({1: 0.5}, r"weights: expected the neighbors \[1, 3\], got \[1\]"),
        ({1: 0.5, 3: 0.6}, "weights: expected a sum of 1, got 1.1"),
        ({0: 0.5, 1: 0.3, 3: 0.3}, "weights: expected a sum of 1, got 1.1"),
        ({1: -0.5, 3: 0.6}, r"weights\[1\]: expected at least 0 and at most 1, got -0.5"),
    ),
)
def test_bad_weights(weights, match):
    world = World("ring", 4, 2)
    exchange = neighbor_exchanges(world.topology, world.like, world.events, world.latency)[0]
    with pytest.raises(ValueError, match=match):
        DPSGDProcess(np.zeros(2), exchange, weights, 0)


def test_a_peer_that_is_not_there_yet():
    """Skipped and counted."""
    world = World("complete", 2, 2)
    buffer, _ = world.buffers()
    for make in (adpsgd, swarm, swarm_registers, baseline):
        p = make(np.zeros(2), buffer, Fixed(1), world)
        for _ in range(8):
            p.apply(np.ones(2))
            p.communicate()
        assert p.stats.communications == 0 and p.stats.skipped >= 2
        p.apply(np.ones(2))
        np.testing.assert_array_equal(p.model, [9, 9])


def test_the_simulator_cannot_wait():
    world = World("ring", 3, 2, latency=1.0)
    handle = world.handles()[0]
    handle.Start()
    with pytest.raises(Error, match="virtual time"):
        handle.Wait()
    with pytest.raises(StateError, match="not complete"):
        handle.Start()


def test_uniform_peers_are_neighbors():
    world = World("ring", 5, 1)
    peers = Uniform(world.topology, 2)
    assert {peers.next_peer() for _ in range(50)} == {1, 3}


def test_a_change_while_the_model_is_handed_over():
    """The communication thread changes the model between the hand-over and the taking."""
    world = World("complete", 2, 2)
    p = SwarmProcess(np.zeros(2), world.buffers()[0], Fixed(None), local_steps=1)
    p.apply(np.array([1.0, 0.0]))
    p._alter(np.array([0.0, 5.0]))  # not part of the handed-over model
    assert p.communicate()
    np.testing.assert_array_equal(p._own, [1, 5])
    p.apply(np.zeros(2))
    np.testing.assert_array_equal(p.model, [1, 5])


def test_no_rank_waits_for_a_rank_at_rest():
    """While averages are computed this rank must not be chosen as a peer."""
    world = World("complete", 2, 1)
    buffer, _ = world.buffers()
    board = buffer.board
    peers = pairing.make("available", world.topology, 0, board=board)
    p = ADPSGDProcess(np.zeros(1), buffer, peers, rate=1.0)
    p.apply(np.zeros(1))
    p.communicate()
    assert board.read_all().any()
    p.state_dict()
    assert not board.read_all().any()
    assert p.next_event() == 0  # it keeps its turn
