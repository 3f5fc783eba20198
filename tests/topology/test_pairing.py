# SPDX-License-Identifier: Apache-2.0
"""Choice of partners. `available` runs in every order of its operations (interleavings.py)."""

import heapq
import math
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from interleavings import PLANTED, World, Wrong, draw, explore

import partialcoll as pc
from partialcoll import pairing
from partialcoll.topology.pairing import TAKEN, Available, Bipartite, Board, Hops, Random

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

T = pc.Topology
PATH = T.from_networkx(nx.path_graph(3))


def peers(kind, topology, rank, calls, seed=0):
    one = kind(topology, rank, seed=seed)
    return [one.next_peer() for _ in range(calls)]


def chi_squared(counts, expected):
    """Return Pearson's statistic of some counts, and its bound.

    The bound is the mean of the chi-squared distribution plus four standard deviations: about one
    sample in 10^4 exceeds it if the counts are uniform.
    """
    counts, freedom = np.array(counts), len(counts) - 1
    expected = np.array(expected) * counts.sum() / np.sum(expected)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic, freedom + 4 * math.sqrt(2 * freedom)


# ---- random, bipartite, hops


@pytest.mark.parametrize("name", ("ring", "complete", "exponential", "star", "random_regular:3"))
def test_random_follows_the_weights(name):
    t = T.make(name, 10)
    for rank in (0, 3):
        drawn = Counter(peers(Random, t, rank, 4000, seed=7))
        row = {(b if a == rank else a): w for a, b, w in t.edges() if rank in (a, b)}
        assert set(drawn) == set(row)
        if len(row) > 1:
            statistic, bound = chi_squared([drawn[p] for p in row], list(row.values()))
            assert statistic < bound


def test_random_is_reproducible():
    t = T.complete(16)
    runs = [peers(Random, t, rank, 50, seed=seed) for rank in (0, 1) for seed in (0, 1)]
    again = [peers(Random, t, rank, 50, seed=seed) for rank in (0, 1) for seed in (0, 1)]
    assert runs == again
    assert len({tuple((p - rank) % 16 for p in run) for run, rank in zip(runs, (0, 0, 1, 1))}) == 4


def test_random_follows_the_rounds():
    assert peers(Random, T.one_peer_exponential(8), 6, 5) == [7, 0, 2, 7, 0]
    idle = T.time_varying([T.from_networkx(nx.Graph([(0, 1)])), T.from_networkx(nx.empty_graph(2))])
    assert peers(Random, idle, 0, 4) == [1, None, 1, None]


def test_bipartite():
    t = T.bipartite_ring(8)
    for rank in range(8):
        drawn = peers(Bipartite, t, rank, 40)
        assert Bipartite(t, rank).active == (rank % 2 == 0)
        assert set(drawn) == ({(rank - 1) % 8, (rank + 1) % 8} if rank % 2 == 0 else {None})
    assert peers(Bipartite, T.hypercube(4), 0, 30) == peers(Random, T.hypercube(4), 0, 30)
    with pytest.raises(ValueError, match="topology: expected a bipartite one"):
        Bipartite(T.exponential(8), 0)


def test_hops():
    assert peers(Hops, T.exponential(8), 6, 5) == [7, 0, 2, 7, 0]
    assert peers(Hops, T.complete(5), 4, 4) == [0, 1, 3, 0]
    assert peers(Hops, T.directed_exponential(6), 0, 4) == [1, 2, 4, 1]
    for name in ("ring", "star", "torus"):
        with pytest.raises(ValueError, match="topology: expected one with edges of 2\\^k hops"):
            Hops(T.make(name, 8), 1)


def without(one, *dead):
    """Return the pairing `one` after these ranks have died."""
    one.topology = one.topology.without(dead, on_disconnect="bridge")
    return one


def test_hops_leave_out_the_dead():
    one = without(Hops(T.exponential(8), 6), 0)
    assert [one.next_peer() for _ in range(5)] == [7, 2, 7, 2, 7]
    one = without(one, 7, 2)
    assert {one.next_peer() for _ in range(50)} == set(one.topology.neighbors(6))


def test_passive_ranks_cross_a_bridge():
    """On a ring of six, 0, 2 and 4 choose. Without 0 and 2, rank 1 has only passive neighbors."""
    ranks = [without(Bipartite(T.bipartite_ring(6), rank), 0, 2) for rank in range(6)]
    assert [one.active for one in ranks] == [True, True, True, True, True, True]
    assert {ranks[1].next_peer() for _ in range(50)} == {3, 5}
    assert ranks[4].next_peer() in {3, 5}
    unbridged = without(Bipartite(T.hypercube(8), 7), 0)
    assert not unbridged.active and unbridged.next_peer() is None


@pytest.mark.parametrize("kind", (Random, Bipartite, Hops))
def test_one_rank_has_no_peer(kind):
    assert peers(kind, T.ring(1), 0, 3) == [None] * 3


# ---- available: every order of operations


@pytest.mark.parametrize(
    ("topology", "wanted", "options"),
    (
        (T.ring(2), 3, {}),
        (T.ring(2), 2, {"leaves": (0, 1), "dies": (0, 1)}),
        (PATH, 1, {"leaves": (0, 1), "dies": (2,)}),
        (T.complete(3), 1, {"leaves": (0,), "dies": (1,)}),
    ),
    ids=("two", "two leave or die", "a path", "all three"),
)
def test_every_order(topology, wanted, options):
    """No two ranks take the same one, none takes and is taken, no two neighbors wait forever, and
    the oldest is first. An end can be reached from every state."""
    states, ends = explore(World(Available, topology, wanted, **options))
    assert states > 1000 and ends > 2


@pytest.mark.parametrize("kind", PLANTED)
def test_every_planted_mistake_is_found(kind):
    with pytest.raises(Wrong):
        explore(World(kind, PATH, 1, leaves=(0,)))


@pytest.mark.parametrize("name", ("ring", "complete", "exponential", "star"))
@pytest.mark.parametrize("n", (4, 5, 8))
def test_drawn_orders(name, n):
    for seed in range(8):
        world = World(Available, T.make(name, n), 4, leaves=(0, 2), dies=(1,))
        assert draw(world, random.Random(seed)) > n


@pytest.mark.parametrize("kind", [k for k in PLANTED if k.__name__ == "SkipsTheSecondScan"])
def test_drawn_orders_find_a_mistake(kind):
    with pytest.raises(Wrong, match="wait for ever"):
        for seed in range(30):
            draw(World(kind, T.ring(6), 4), random.Random(seed))


# ---- available in use


class LocalBoard(Board):
    """A Board of `n` words in the memory of one process, for one thread."""

    def __init__(self, n):
        self._words, self._counter = np.zeros(n, dtype=np.int64), 0

    def read_all(self):
        return self._words.copy()

    def compare_and_swap(self, index, expected, desired):
        old = int(self._words[index])
        if old == expected:
            self._words[index] = desired
        return old

    def fetch_add(self, delta):
        self._counter += delta
        return self._counter - delta


def waiters(topology):
    board = LocalBoard(topology.n)
    return board, [Available(topology, rank, board) for rank in range(topology.n)]


def test_first_in_first_out():
    _, ranks = waiters(T.ring(8))
    for early in (1, 3, 5, 7):  # not neighbors of each other
        assert ranks[early].poll() is None and ranks[early].waiting
    assert ranks[4].poll() == 3
    assert ranks[4].poll() == 5
    assert ranks[4].poll() is None
    assert [ranks[r].poll() for r in (1, 3, 5, 7)] == [None, TAKEN, TAKEN, None]
    assert ranks[3].taken == 1 and not ranks[3].waiting
    assert ranks[3].poll() == 4  # free again
    assert ranks[2].poll() == 1 and ranks[1].next_peer() is None and ranks[1].taken == 1


def test_a_returning_rank_is_last():
    _, ranks = waiters(T.star(4))
    assert [ranks[r].poll() for r in (1, 2)] == [None, None]
    assert ranks[0].poll() == 1 and ranks[1].poll() is TAKEN and ranks[1].poll() is None
    assert ranks[0].poll() == 2 and ranks[0].poll() == 1


def test_leave():
    board, ranks = waiters(T.ring(2))
    assert ranks[0].leave() is None
    assert ranks[0].poll() is None and ranks[0].leave() is None
    assert not board.read_all().any() and not ranks[0].waiting
    assert ranks[1].poll() is None and ranks[0].poll() == 1
    assert ranks[1].leave() is TAKEN and ranks[1].taken == 1
    assert ranks[0].poll() is None and ranks[1].next_peer() == 0


def test_a_rank_that_is_gone_is_taken_once():
    _, ranks = waiters(T.star(4))
    assert ranks[0].poll() is None  # and never returns
    assert ranks[1].poll() == 0
    assert [ranks[r].poll() for r in (1, 2, 3, 1, 2, 3)] == [None] * 6


def test_directed_neighbors_meet_both_ways():
    _, ranks = waiters(T.directed_exponential(5))
    assert ranks[0].poll() is None and ranks[4].poll() == 0 and ranks[0].poll() is TAKEN
    assert ranks[4].poll() is None and ranks[0].poll() == 4


def test_alone():
    board, ranks = waiters(T.ring(1))
    assert ranks[0].poll() is None and ranks[0].leave() is None and not board.read_all().any()


def test_a_board_of_unsigned_words():
    class Unsigned(LocalBoard):
        def read_all(self):
            return super().read_all().astype(np.uint64)

    board = Unsigned(2)
    board.fetch_add(2**53)
    first, second = (Available(T.ring(2), rank, board) for rank in (0, 1))
    assert first.poll() is None and second.poll() == 0 and first.poll() is TAKEN
    assert type(second.next_peer()) is not np.uint64


def meetings(topology, seed, many, kind=Available):
    """Return how often ranks meet if times between averagings are exponential."""
    rng, board = random.Random(seed), LocalBoard(topology.n)
    ranks = [kind(topology, rank, board) for rank in range(topology.n)]
    free = [(rng.expovariate(1), rank) for rank in range(topology.n)]
    heapq.heapify(free)
    met = Counter()
    while sum(met.values()) < many:
        now, rank = heapq.heappop(free)
        other = ranks[rank].poll()
        if other is not None:  # otherwise it will be taken
            assert ranks[other].poll() is TAKEN
            met[min(rank, other), max(rank, other)] += 1
            for done in (rank, other):
                heapq.heappush(free, (now + rng.expovariate(1), done))
    return met


@pytest.mark.parametrize("name", ("ring", "complete", "exponential"))
@pytest.mark.parametrize("seed", (0, 1, 2))
def test_all_edges_alike(name, seed):
    """The uniformity that the Laplacian assumes (A2CiD2, appendix E.2), with 16 ranks."""
    t = T.make(name, 16)
    met = meetings(t, seed, 4000)
    edges = [(a, b) for a, b, _ in t.edges()]
    assert set(met) <= set(edges)
    statistic, bound = chi_squared([met[e] for e in edges], np.ones(len(edges)))
    assert statistic < bound


def test_uneven_edges_are_noticed():
    """The same test detects a pairing that refuses every second meeting on half of the ring."""

    class Averse(Available):
        refused = 0

        def _may_meet(self, other):
            if abs(self.rank - other) == 8:
                self.refused += 1
            return super()._may_meet(other) and (abs(self.rank - other) != 8 or self.refused % 2)

    t = T.exponential(16)
    met = meetings(t, 0, 4000, Averse)
    statistic, bound = chi_squared([met[a, b] for a, b, _ in t.edges()], np.ones(len(t.edges())))
    assert statistic > bound


# ---- by name, and bad input


def test_make():
    t = T.bipartite_ring(8)
    for name, kind in (("random", Random), ("bipartite", Bipartite)):
        made = pairing.make(name, t, 2, seed=3)
        assert type(made) is kind and made.next_peer() == kind(t, 2, seed=3).next_peer()
    assert isinstance(pairing.make("hops", T.complete(8), 2), Hops)
    assert isinstance(pairing.make("available", t, 2, board=LocalBoard(8)), Available)
    assert {k.name for k in (Random, Bipartite, Hops, Available)} == set(pairing.NAMES)
    with pytest.raises(ValueError, match="board: expected one"):
        pairing.make("available", t, 2)
    for wrong in ("", "Random", "fifo", None):
        with pytest.raises(ValueError, match="pairing: expected one of random, bipartite, hops"):
            pairing.make(wrong, t, 2)


def test_bad_input():
    with pytest.raises(TypeError, match="topology: expected a Topology, got str"):
        Random("ring", 0)
    for rank in (-1, 4):
        with pytest.raises(ValueError, match="rank: expected 0 to 3"):
            Random(T.ring(4), rank)
    for seed in (-1, None, 0.5, True):
        with pytest.raises(ValueError, match="seed: "):
            Random(T.ring(4), 0, seed=seed)
