# SPDX-License-Identifier: Apache-2.0
"""The processes of decentralized training under MPI: synchronous ones against their formulas, and
invariants of gossip with all threads running."""

import time
from functools import partial

import numpy as np
import pytest
from together import Fixed

import partialcoll as pc
from partialcoll import Topology, pairing
from partialcoll.codec import Lattice
from partialcoll.collectives.gossip import GossipBuffer
from partialcoll.decentralized import (
    A2CiD2Process,
    ADPSGDProcess,
    AllreduceSGD,
    DPSGDProcess,
    GlobalSum,
    LocalSGDProcess,
    NeighborExchange,
    SGPProcess,
    SlowMoProcess,
    SwarmProcess,
    metropolis,
)
from partialcoll.decentralized.decoupled import Pace

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain]


def updates(comm, step, dim, dtype):
    """Return the updates of all ranks in one step."""
    return np.random.default_rng(step).standard_normal((comm.size, dim)).astype(dtype)


def handle_like(comm, x):
    return pc.Allreduce_init(comm, None, None, like=x, quorum="full")


def in_place(process, update):
    """Update like an optimizer that changes the model itself."""
    process.begin()
    process.lend()[:] += update
    process.apply_in_place()


def as_vector(process, update):
    process.apply(update)


ways = pytest.mark.parametrize("apply", (as_vector, in_place), ids=lambda x: x.__name__)


@ways
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_allreduce_sgd(comm, dtype, apply):
    """The mean of the updates, and the same bits on all ranks."""
    x = np.linspace(0, 1, 37).astype(dtype)
    with handle_like(comm, x) as handle, AllreduceSGD(x, handle, learning_rate=0.5) as p:
        for step in range(5):
            u = updates(comm, step, 37, dtype)
            apply(p, dtype(-0.5) * u[comm.rank])
            x = x - 0.5 * u.astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(p.model, x, rtol=1e-4 if dtype == np.float32 else 1e-12)
        assert len(set(comm.allgather(p.model.tobytes()))) == 1
        assert p.stats.steps == p.stats.communications == 5


@ways
def test_local_sgd(comm, apply):
    x = np.zeros(5)
    own = np.zeros((comm.size, 5))
    with handle_like(comm, x) as handle, LocalSGDProcess(x, handle, local_steps=3) as p:
        for step in range(1, 8):
            u = updates(comm, step, 5, np.float64)
            apply(p, u[comm.rank])
            own += u
            if step % 3 == 0:
                own[:] = own.mean(axis=0)
            np.testing.assert_allclose(p.model, own[comm.rank], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("topology", ("ring", "star", "complete", "exponential"))
@pytest.mark.parametrize("begin_early", (False, True))
@ways
def test_dpsgd(comm, topology, begin_early, apply):
    """X(k+1) = W X(k) + U(k)."""
    graph = Topology.make(topology, comm.size)
    around = [graph.neighbors(rank) for rank in range(comm.size)]
    w = np.zeros((comm.size, comm.size))
    for i in range(comm.size):
        for j, weight in metropolis(around, i).items():
            w[i, j] = weight
    x = updates(comm, 99, 6, np.float64)
    own = x[comm.rank].copy()
    weights = metropolis(around, comm.rank)
    exchange = NeighborExchange(comm, own, around[comm.rank])
    with exchange, DPSGDProcess(own, exchange, weights, comm.rank) as p:
        for step in range(9):
            u = updates(comm, step, 6, np.float64)
            if begin_early:
                p.begin()
            apply(p, u[comm.rank])
            x = w @ x + u
            np.testing.assert_allclose(p.model, x[comm.rank], rtol=1e-11, atol=1e-11)


def test_a_model_that_is_changed_too_early(comm):
    """D-PSGD sends the model without the update to the neighbors."""
    x = np.zeros(2)
    graph = Topology.make("ring", comm.size)
    around = [graph.neighbors(rank) for rank in range(comm.size)]
    exchange = NeighborExchange(comm, x, around[comm.rank])
    with exchange, DPSGDProcess(x, exchange, metropolis(around, comm.rank), comm.rank) as p:
        p.lend()[:] += 1
        with pytest.raises(pc.StateError, match=r"before begin"):
            p.apply_in_place()


def test_a_model_that_was_not_lent(comm):
    x = np.zeros(2)
    with GossipBuffer(comm, like=x, topology="complete") as exchange:
        peers = pairing.make("random", exchange.topology, comm.rank)
        process = ADPSGDProcess(x, exchange, peers)
        with process, pytest.raises(pc.StateError, match="not been lent"):
            process.apply_in_place()


def test_neighbors_that_do_not_agree(comm):
    if comm.size == 1:
        return
    neighbors = [1] if comm.rank == 0 else []
    with pytest.raises(pc.MismatchError):
        NeighborExchange(comm, np.zeros(3), neighbors)
    with pytest.raises(ValueError, match="neighbors: expected other ranks"):
        NeighborExchange(comm, np.zeros(3), [comm.rank])


def test_averages(comm):
    """More than one piece of the sum: exact, whatever the dtype."""
    dim = 70001
    models = updates(comm, 0, dim, np.float32)
    mean = models.astype(np.float64).mean(axis=0)
    x = models[comm.rank]
    total = GlobalSum.over(comm)
    with handle_like(comm, x) as handle, LocalSGDProcess(x, handle, total=total) as p:
        np.testing.assert_allclose(p.averaged_model(), mean, rtol=1e-6, atol=1e-7)
        apart = np.sqrt(((models - mean) ** 2).sum(axis=1).mean())
        assert p.consensus_distance() == pytest.approx(apart, rel=1e-12)
        p.average_models()
        np.testing.assert_array_equal(p.model, mean.astype(np.float32))
        assert p.consensus_distance() == pytest.approx(0, abs=1e-4)
        assert len(set(comm.allgather(p.model.tobytes()))) == 1
    total.Free()
    total.Free()


def test_slowmo(comm):
    """Around local SGD without its own averages: Algorithm 1."""
    x = np.ones(4)
    total = GlobalSum.over(comm)
    begin, mean, u = x.copy(), x.copy(), np.zeros(4)
    with handle_like(comm, x) as handle:
        inner = LocalSGDProcess(x, handle, local_steps=1000, learning_rate=0.25, total=total)
        with SlowMoProcess(inner, tau=4, beta=0.5, alpha=0.8) as p:
            for step in range(1, 13):
                drawn = updates(comm, step, 4, np.float64)
                p.step(drawn[comm.rank])
                mean = mean - 0.25 * drawn.mean(axis=0)
                if step % 4 == 0:
                    u = 0.5 * u + (begin - mean) / 0.25
                    begin = mean = begin - 0.8 * 0.25 * u
                    np.testing.assert_allclose(p.model, begin, rtol=1e-11, atol=1e-12)
                    assert len(set(comm.allgather(p.model.tobytes()))) == 1
    total.Free()


# The momentum of more ranks: few ranks gain nothing from it.
ACCELERATED = partial(A2CiD2Process, parameters=Topology.make("ring", 16).a2cid2())

GOSSIP = {
    "adpsgd": ADPSGDProcess,
    "a2cid2": ACCELERATED,
    "a2cid2, paper": partial(A2CiD2Process, variant="paper"),
    "baseline": partial(A2CiD2Process, accelerated=False),
    "swarm": SwarmProcess,
    "swarm, 8 bits": SwarmProcess,
    "sgp": SGPProcess,
}


def until_all(comm, enough):
    """Yield until every rank has had enough. A finished rank continues for the others."""
    all_have = None
    while all_have is None or not all_have.Test():
        yield
        if all_have is None and enough():
            all_have = comm.Ibarrier()
        time.sleep(1e-4)  # leaves the core to the other threads


@ways
@pytest.mark.parametrize("name", GOSSIP)
def test_nothing_is_lost(comm, name, apply):
    """With threads and windows, in any interleaving, the exact average is that of all updates."""
    dim = 300
    models = updates(comm, 0, dim, np.float64)
    drawn = updates(comm, 1, dim, np.float64) * 0.01
    own = models[comm.rank]
    like = SGPProcess.message(own) if name == "sgp" else own
    topology = Topology.make("exponential", comm.size)
    codec = Lattice(bits=8) if "bits" in name else None
    peers = pairing.make("random", topology, comm.rank)
    total = GlobalSum.over(comm)
    exchange = GossipBuffer(comm, like=like, topology=topology, codec=codec)
    with exchange, GOSSIP[name](own, exchange, peers, total=total) as p:
        steps = 0
        for _ in until_all(comm, lambda: comm.size == 1 or p.stats.communications >= 10):
            apply(p, drawn[comm.rank])
            steps += 1
        all_steps = comm.allgather(steps)
        expected = models.mean(axis=0) + np.array(all_steps) @ drawn / comm.size
        # The other ranks of a delayed rank make very many updates, whose rounding errors add up.
        most = 1e-9 * max(1.0, (max(all_steps) / 20_000) ** 2)
        np.testing.assert_allclose(p.averaged_model(), expected, rtol=0, atol=most)
        p.average_models()
        p.stop()
        np.testing.assert_allclose(p.model, expected, rtol=0, atol=most)
        assert len(set(comm.allgather(p.averaged_model().tobytes()))) == 1
    total.Free()


def test_swarm_registers_in_few_bits(comm):
    """One rank after the other, as in Algorithm 1: written data decodes at the peer."""
    if comm.size == 1:
        pytest.skip("no other rank to write to")
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    peer = Fixed((comm.rank + 1) % comm.size)
    with GossipBuffer(comm, like=x, topology="complete", codec=Lattice(bits=8)) as exchange:
        p = SwarmProcess(x, exchange, peer, local_steps=1, variant="registers")
        for step in range(10):
            for rank in range(comm.size):
                comm.Barrier()
                if rank == comm.rank:
                    p.apply(updates(comm, step, 5000, np.float32)[rank] * np.float32(0.01))
                    assert p.communicate()
        comm.Barrier()
        assert p.stats.communications == 10
        assert p.stats.received >= 9 and p.exchange_stats.decode_failures == 0
        p.Free()


def test_a2cid2_that_falls_short_agrees(comm):
    """With ten times as many averagings requested as ranks can make, they still agree, and report
    the requests."""
    if comm.size == 1:
        pytest.skip("no other rank to average with")
    rate, dim = 1000.0, 2000
    parameters = Topology.make("ring", 16).a2cid2(rate)
    total = GlobalSum.over(comm)
    with GossipBuffer(comm, like=np.zeros(dim), topology="ring") as exchange:
        peers = pairing.make("random", exchange.topology, comm.rank)
        make = partial(A2CiD2Process, parameters=parameters, rate=rate)
        with make(np.zeros(dim), exchange, peers, total=total) as p:
            p.average_models()
            p.apply(updates(comm, 0, dim, np.float64)[comm.rank])
            first = p.consensus_distance()
            for _ in until_all(comm, lambda: p.stats.communications >= 100):
                p.apply(np.zeros(dim))
            counts = p.stats
            assert p.consensus_distance() < 0.5 * first
            p.average_models()
    assert counts.asked > counts.achieved > 0
    assert 0 < counts.backlog <= rate * Pace.LATEST
    under_way = 1  # neither waiting any more nor counted yet
    known = counts.achieved + counts.skipped + counts.backlog + counts.given_up
    assert known <= counts.asked <= known + under_way
    total.Free()


@pytest.mark.parametrize("collective", ("average_models", "averaged_model"))
@pytest.mark.parametrize("name", ("adpsgd", "a2cid2", "sgp"))
def test_a_rank_that_waits_for_an_average_answers(comm, name, collective):
    """A waiting rank answers: the others average more with it than it can leave uncollected."""
    if comm.size == 1:
        pytest.skip("no rank waits")
    own = np.zeros(10)
    like = SGPProcess.message(own) if name == "sgp" else own
    total = GlobalSum.over(comm)
    with GossipBuffer(comm, like=like, topology="complete") as exchange:
        peers = None if name == "sgp" else Fixed(0 if comm.rank else 1)
        with GOSSIP[name](own, exchange, peers, total=total) as p:
            while comm.rank and p.stats.communications < 50:
                p.apply(np.ones(10))
                time.sleep(1e-4)  # leaves the core to the other threads
            getattr(p, collective)()
    total.Free()


def test_slowmo_around_gossip(comm):
    """The outer step is exact, whatever the inner process has in flight."""
    topology = Topology.make("exponential", comm.size)
    peers = pairing.make("random", topology, comm.rank)
    x = np.ones(6)
    begin, mean, u = x.copy(), x.copy(), np.zeros(6)
    total = GlobalSum.over(comm)
    with GossipBuffer(comm, like=x, topology=topology) as exchange:
        inner = ADPSGDProcess(x, exchange, peers, learning_rate=0.5, total=total)
        with SlowMoProcess(inner, tau=3, beta=0.7) as p:
            for step in range(1, 31):
                drawn = updates(comm, step, 6, np.float64)
                p.apply(drawn[comm.rank])
                mean = mean + drawn.mean(axis=0)
                if step % 3 == 0:
                    u = 0.7 * u + (begin - mean) / 0.5
                    begin = mean = begin - 0.5 * u
                    np.testing.assert_allclose(p.averaged_model(), begin, rtol=0, atol=1e-9)
    total.Free()


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_global_average(comm, dtype):
    """Several vectors, larger and smaller than a piece: in place, in float64, rounded once."""
    total = GlobalSum.over(comm)
    drawn = np.random.default_rng(1).normal(size=(comm.size, 70_000 + 5 + 70_000))
    everybody = drawn.astype(dtype)
    x = everybody[comm.rank].copy()
    expected = (everybody.astype(np.float64).sum(0) / comm.size).astype(dtype)
    total.average([x[:70_000], x[70_000:70_005], np.empty(0, dtype), x[70_005:]])
    np.testing.assert_allclose(x, expected, rtol=2 * np.finfo(dtype).eps, atol=1e-12)
    assert all((other == x).all() for other in comm.allgather(x))
    apart = everybody - everybody.astype(np.float64).mean(0)
    distance = np.sqrt((apart**2).sum(1).mean())
    assert total.distance(everybody[comm.rank]) == pytest.approx(distance, rel=1e-12)
    total.Free()


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_the_average_of_equal_models_is_the_model(comm, dtype):
    """Bit for bit on any number of ranks, with distance 0. Non-finite values stay."""
    rng = np.random.default_rng(2)
    x = (rng.normal(size=70_000) * 10.0 ** rng.integers(-4, 4, 70_000)).astype(dtype)
    x[:3] = np.inf, -np.inf, np.nan
    total = GlobalSum.over(comm)
    averaged = x.copy()
    total.average([averaged])
    np.testing.assert_array_equal(averaged, x)
    assert total.distance(x[3:]) == 0
    total.Free()


def test_one_wide_model_is_wide_for_all(comm):
    """Ranks agree on how they average, whatever dtypes they have."""
    total = GlobalSum.over(comm)
    x = np.full(100_000, comm.rank, np.float64 if comm.rank == 0 else np.float32)
    total.average([x])
    np.testing.assert_allclose(x, (comm.size - 1) / 2, rtol=1e-6)
    total.Free()
