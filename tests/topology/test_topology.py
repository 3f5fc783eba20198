# SPDX-License-Identifier: Apache-2.0
"""Topologies: edges, text, spectra against closed forms, networkx, and each other."""

import doctest
import math
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import topology_table

import partialcoll as pc
from partialcoll.topology import A2CiD2Parameters
from partialcoll.topology import topology as graphs
from partialcoll.topology.topology import Rows

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

T = pc.Topology
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
UNDIRECTED = ("ring", "complete", "exponential", "torus", "star")
DIRECTED = ("directed_exponential", "one_peer_exponential")


def everything():
    """Yield one of each kind at every size that it has."""
    for n in SIZES:
        yield from (T.make(name, n) for name in (*UNDIRECTED, *DIRECTED))
        if n % 2 == 0 or n == 1:
            yield T.make("bipartite_ring", n)
        if n & (n - 1) == 0:
            yield T.make("hypercube", n)
        if n > 4:
            yield T.make("random_regular:4,seed=1", n)
    yield T.make("torus:2x3x2", 12)
    yield T.make("torus:1x7x1", 7)
    yield T.from_networkx(nx.path_graph(5))
    yield T.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    yield T.time_varying([T.ring(6), T.star(6), T.random_regular(6, 3)])


ALL = tuple(everything())
STATIC = tuple(t for t in ALL if t.period == 1)


def ids(topology):
    return f"{topology}-{topology.n}"


# ---- edges


def test_neighbors():
    assert T.ring(5).neighbors(0) == (1, 4)
    assert T.ring(2).neighbors(1) == (0,)
    assert T.complete(4).neighbors(2) == (0, 1, 3)
    assert T.exponential(8).neighbors(1) == (0, 2, 3, 5, 7)
    assert T.exponential(8).edges()[:5] == [
        (0, 1, 1.0),
        (0, 2, 1.0),
        (0, 4, 2.0),
        (0, 6, 1.0),
        (0, 7, 1.0),
    ]
    assert T.star(4).neighbors(0) == (1, 2, 3) and T.star(4).neighbors(3) == (0,)
    assert T.hypercube(8).neighbors(5) == (1, 4, 7)
    assert T.torus(12).neighbors(0) == (1, 3, 4, 8)  # 3 x 4
    assert T.torus(8, (4, 2)).neighbors(0) == (1, 2, 6)
    assert T.torus(6, np.array([6])).neighbors(0) == T.ring(6).neighbors(0)
    directed = T.directed_exponential(8)
    assert directed.out_neighbors(6) == (0, 2, 7)
    assert directed.in_neighbors(6) == (2, 4, 5)
    assert directed.neighbors(6) == (0, 2, 4, 5, 7)
    assert all(t.neighbors(0) == () for t in ALL if t.n == 1)


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_views_agree(t):
    """Neighbors, edges, has_edge, networkx and choices show the same edges."""
    graph = t.to_networkx()
    assert graph.is_directed() == t.directed and list(graph) == list(range(t.n))
    assert sorted((a, b, w) for a, b, w in graph.edges(data="weight")) == t.edges()
    for rank in range(t.n):
        out = tuple(sorted(graph.successors(rank) if t.directed else graph[rank]))
        into = tuple(sorted(graph.predecessors(rank) if t.directed else graph[rank]))
        assert t.out_neighbors(rank) == out and t.in_neighbors(rank) == into
        assert t.neighbors(rank) == tuple(sorted({*out, *into}))
        assert rank not in out
        assert [other for other in range(t.n) if t.has_edge(rank, other)] == list(out)
        rounds = range(t.period)
        drawn = {t.choose(rank, u / 97, round=k) for u in range(97) for k in rounds}
        assert drawn == (set(out) or {None})
    connected = nx.is_strongly_connected if t.directed else nx.is_connected
    assert t.is_connected == connected(graph)
    assert t.is_bipartite == nx.is_bipartite(graph.to_undirected())


@pytest.mark.parametrize("t", STATIC, ids=ids)
def test_choices_follow_the_weights(t):
    for rank in {0, t.n - 1}:
        weights = {(b if a == rank else a): w for a, b, w in t.edges() if rank in (a, b)}
        weights = {p: w for p, w in weights.items() if t.has_edge(rank, p)}
        if not weights:
            assert t.choose(rank, 0.5) is None
            continue
        points = 1000
        drawn = [t.choose(rank, (k + 0.5) / points) for k in range(points)]
        for peer, weight in weights.items():
            expected = points * weight / sum(weights.values())
            assert abs(drawn.count(peer) - expected) <= 1.5


@pytest.mark.parametrize("t", STATIC, ids=ids)
def test_networkx_and_back(t):
    again = T.make(t.to_networkx(), t.n)
    assert again.edges() == t.edges() and again.directed == t.directed
    assert again.spectral_gap() == pytest.approx(t.spectral_gap(), abs=1e-9)
    if t.is_connected:
        assert again.chi1() == pytest.approx(t.chi1()) and again.chi2() == pytest.approx(t.chi2())


def test_against_networkx_graphs():
    """The graph equals networkx's, if networkx has it."""
    for n in (3, 4, 7, 8):
        pairs = [
            (T.ring(n), nx.cycle_graph(n)),
            (T.complete(n), nx.complete_graph(n)),
            (T.star(n), nx.star_graph(n - 1)),
        ]
        for ours, theirs in pairs:
            assert nx.utils.graphs_equal(ours.to_networkx(), _weighted(theirs))
    assert nx.is_isomorphic(T.torus(15, (3, 5)).to_networkx(), nx.grid_graph((3, 5), periodic=True))
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(4))
    assert nx.is_isomorphic(T.hypercube(16).to_networkx(), cube)


def _weighted(graph):
    nx.set_edge_attributes(graph, 1.0, "weight")
    return graph


def test_multigraph_and_weights_add_up():
    multi = nx.MultiGraph([(0, 1), (0, 1), (1, 2)])
    multi.add_edge(1, 2, weight=0.5)
    assert T.from_networkx(multi).edges() == [(0, 1, 2.0), (1, 2, 1.5)]
    assert T.from_networkx(nx.MultiDiGraph([(0, 1), (0, 1)])).edges() == [(0, 1, 2.0)]


def test_random_regular():
    for n, degree in ((10, 3), (9, 4), (16, 15), (16, 12), (4, 2), (2, 1), (1, 0), (30, 2)):
        t = T.random_regular(n, degree, seed=3)
        assert {len(t.neighbors(rank)) for rank in range(n)} == {degree}
        assert t.is_connected
    assert T.random_regular(20, 4, seed=1) == T.make("random_regular:4,seed=1", 20)
    assert len({T.random_regular(20, 4, seed=s) for s in range(5)}) == 5


def test_random_regular_is_connected_or_refused(monkeypatch):
    assert all(T.random_regular(60, 2, seed=s).is_connected for s in range(10))
    monkeypatch.setattr(graphs, "_TRIES", 1)
    with pytest.raises(ValueError, match="connected"):
        for seed in range(10):
            T.random_regular(60, 2, seed=seed)


def test_sides():
    t = T.bipartite_ring(6)
    assert [t.side(rank) for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    two = T.from_networkx(nx.disjoint_union(nx.path_graph(3), nx.path_graph(2)))
    assert [two.side(rank) for rank in range(5)] == [0, 1, 0, 0, 1] and not two.is_connected
    assert T.hypercube(8).is_bipartite and not T.exponential(8).is_bipartite
    with pytest.raises(ValueError, match="bipartite"):
        T.ring(5).side(0)


# ---- rounds


def test_one_peer_exponential():
    t = T.one_peer_exponential(8)
    assert t.period == 3
    assert [t.at(k).out_neighbors(7) for k in range(4)] == [(0,), (1,), (3,), (0,)]
    assert [t.choose(7, 0.9, round=k) for k in range(4)] == [0, 1, 3, 0]
    # One period averages exactly: Ying et al., NeurIPS 2021, section 4.
    product = np.linalg.multi_dot([t.at(k).push_matrix() for k in range(3)])
    assert np.allclose(product, 1 / 8, atol=1e-15)
    assert not t.at(1).is_connected and t.is_connected
    assert t.edges() == T.directed_exponential(8).edges()


def test_time_varying():
    members = [T.ring(6), T.star(6)]
    t = T.time_varying(members)
    assert t.period == 2 and t.at(3).edges() == members[1].edges()
    assert t.neighbors(0) == (1, 2, 3, 4, 5) and t.neighbors(3) == (0, 2, 4)
    mean = (members[0].laplacian() + members[1].laplacian()) / 2
    assert np.allclose(t.laplacian(), mean)
    assert T.time_varying([t, T.ring(6)]).period == 3
    assert T.time_varying([T.ring(6)]) == T.ring(6)
    for call in (t.mixing_matrix, t.push_matrix, t.spectral_gap):
        with pytest.raises(ValueError, match="one round"):
            call()
    with pytest.raises(ValueError, match="same number of ranks"):
        T.time_varying([T.ring(6), T.ring(5)])
    for wrong in ([], ["ring"]):
        with pytest.raises(TypeError, match="rounds"):
            T.time_varying(wrong)


# ---- spectra


def closed_forms(n):
    """Yield chi1 and chi2 at rate 1, by closed forms."""
    yield T.ring(n), 1 / (1 - math.cos(2 * math.pi / n)), (n - 1) / n
    yield T.complete(n), (n - 1) / n, (n - 1) / n
    # Every edge of a star has rate (1 + 1 / (n - 1)) / 2. Eigenvalues: that and n times that.
    edge = (1 + 1 / (n - 1)) / 2
    yield T.star(n), 1 / edge if n > 2 else 1 / (2 * edge), 1 / (2 * edge)
    if n & (n - 1) == 0:
        bits = n.bit_length() - 1
        yield T.hypercube(n), bits / 2, (n - 1) / n


@pytest.mark.parametrize("n", (2, 3, 4, 5, 8, 16, 31, 64))
def test_closed_forms(n):
    for t, chi1, chi2 in closed_forms(n):
        assert t.chi1() == pytest.approx(chi1, rel=1e-12)
        assert t.chi2() == pytest.approx(chi2, rel=1e-12)
        parameters = t.a2cid2()
        assert parameters.eta == pytest.approx(1 / (2 * math.sqrt(chi1 * chi2)))
        assert parameters.alpha_tilde == pytest.approx(math.sqrt(chi1 / chi2) / 2)
        assert parameters.alpha == 0.5 and parameters.accelerated


def test_reference_values():
    """Values computed from the definitions of the paper's authors, n = 8."""
    for t, chi1, chi2, eta, alpha_tilde in (
        (T.ring(8), 3.4142, 0.875, 0.28928, 0.98767),
        (T.complete(8), 0.875, 0.875, 0.57143, 0.5),
        (T.exponential(8), 1.5, 0.9637, 0.41586, 0.62380),
    ):
        assert t.chi1() == pytest.approx(chi1, abs=5e-5)
        assert t.chi2() == pytest.approx(chi2, abs=5e-5)
        assert t.a2cid2().eta == pytest.approx(eta, abs=5e-6)
        assert t.a2cid2().alpha_tilde == pytest.approx(alpha_tilde, abs=5e-6)


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_rates(t):
    """The rate divides the chi's and multiplies eta. alpha_tilde does not depend on it."""
    if not t.is_connected:
        return
    one, three = t.a2cid2(), t.a2cid2(3.0)
    assert t.chi1(3.0) == pytest.approx(t.chi1() / 3) and t.chi2(3) == pytest.approx(t.chi2() / 3)
    assert three.eta == pytest.approx(3 * one.eta)
    assert three.alpha_tilde == pytest.approx(one.alpha_tilde)
    assert np.allclose(t.laplacian(3.0), 3 * t.laplacian())
    assert t.a2cid2(3.0, accelerated=False) == A2CiD2Parameters(0.0, 0.5, 0.5)
    assert t.chi1() >= t.chi2() * (1 - 1e-12) and one.alpha_tilde >= 0.5 - 1e-12
    # `rate` averagings per rank, on average over the ranks: two take part in each.
    rates = t.edge_rates(2.5)
    assert rates.sum() / t.n == pytest.approx(2.5 if t.n > 1 else 0.0)
    assert np.array_equal(rates, rates.T)
    edges = {(a, b) for a, b, _ in t.edges()}
    expected = {(min(e), max(e)) for e in edges}
    assert {(int(a), int(b)) for a, b in zip(*np.nonzero(rates)) if a < b} == expected


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_laplacian_is_its_definition(t):
    rates = t.edge_rates(1.7)
    expected = np.zeros((t.n, t.n))
    for i in range(t.n):
        for j in range(i):
            e = np.zeros(t.n)
            e[i], e[j] = 1, -1
            expected += rates[i, j] * np.outer(e, e)
    assert np.allclose(t.laplacian(1.7), expected, atol=1e-13)


def test_regular_graphs_have_rate_over_degree():
    for t, degree in ((T.ring(9), 2), (T.torus(12), 4), (T.random_regular(10, 3), 3)):
        rates = t.edge_rates(5.0)
        assert np.allclose(rates[rates > 0], 5.0 / degree)


@pytest.mark.parametrize("n", (3, 4, 5, 8, 12, 16))
def test_directed_ones_average_alike(n):
    """Averaging has no direction: the Laplacian is that of the undirected graph."""
    for t in (T.directed_exponential(n), T.one_peer_exponential(n)):
        assert np.allclose(t.laplacian(), T.exponential(n).laplacian())
        assert t.chi1() == pytest.approx(T.exponential(n).chi1())
        assert t.chi2() == pytest.approx(T.exponential(n).chi2())


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_fourier_and_dense_agree(t):
    """Two computations of the same values. The general one does not use offsets."""
    if t.n == 1 or not t.is_connected:
        return
    rows = tuple(Rows(t.n, graph.arcs(), graph.directed) for graph in t._graphs)
    dense = T(t.n, t.text, rows)
    assert dense._chi == pytest.approx(t._chi)
    for k in range(t.period):
        assert dense.at(k).spectral_gap() == pytest.approx(t.at(k).spectral_gap(), abs=1e-9)


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_chis_against_networkx(t):
    """networkx's own Laplacian and resistances, of the graph weighted by the rates."""
    pytest.importorskip("scipy")  # networkx needs it for these
    if t.n == 1 or not t.is_connected:
        return
    graph = nx.from_numpy_array(t.edge_rates())
    laplacian = nx.laplacian_matrix(graph).toarray()
    assert np.allclose(laplacian, t.laplacian())
    assert t.chi1() == pytest.approx(1 / np.linalg.eigvalsh(laplacian)[1])
    half = [nx.resistance_distance(graph, a, b, "weight", False) / 2 for a, b in graph.edges]
    assert t.chi2() == pytest.approx(max(half))


@pytest.mark.parametrize("t", ALL, ids=ids)
def test_foster(t):
    """Rate times resistance, summed over the edges of a connected graph, is n - 1 (Foster 1949)."""
    if not t.is_connected:
        return
    pseudo, rates = np.linalg.pinv(t.laplacian()), t.edge_rates()
    own = np.diag(pseudo)
    resistances = own[:, None] + own[None, :] - 2 * pseudo
    assert (rates * resistances).sum() / 2 == pytest.approx(t.n - 1, abs=1e-9)


@pytest.mark.parametrize("t", STATIC, ids=ids)
def test_matrices_are_stochastic(t):
    push = t.push_matrix()
    assert np.allclose(push.sum(axis=0), 1) and (push >= 0).all() and (np.diag(push) > 0).all()
    reached = {(int(j), int(i)) for i, j in zip(*np.nonzero(push)) if i != j}
    assert reached == {(a, b) for a in range(t.n) for b in t.out_neighbors(a)}
    if t.directed:
        with pytest.raises(ValueError, match="undirected"):
            t.mixing_matrix()
        return
    mixing = t.mixing_matrix()
    assert np.allclose(mixing, mixing.T) and np.allclose(mixing.sum(axis=1), 1)
    assert (mixing >= 0).all()
    gap = t.spectral_gap()
    assert 0 <= gap <= 1
    distance = np.linalg.norm(mixing - 1 / t.n, 2)
    assert gap == pytest.approx(1 - distance, abs=1e-9)


def test_gaps_by_hand():
    assert T.complete(9).spectral_gap() == pytest.approx(1)
    assert T.ring(10).spectral_gap() == pytest.approx(2 / 3 * (1 - math.cos(math.pi / 5)))
    assert T.star(5).spectral_gap() == pytest.approx(1 / 5)
    assert T.ring(1).spectral_gap() == 1.0
    apart = T.from_networkx(nx.disjoint_union(nx.path_graph(2), nx.path_graph(2)))
    assert apart.spectral_gap() == pytest.approx(0)


def test_push_sum_averages_on_a_lopsided_graph():
    t = T.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2), (2, 3), (3, 0)]))
    x, w = np.array([4.0, -1.0, 7.5, 2.0]), np.ones(4)
    for _ in range(200):
        x, w = t.push_matrix() @ x, t.push_matrix() @ w
    assert np.allclose(x / w, 12.5 / 4, atol=1e-12)


@pytest.mark.parametrize("t", [t for t in ALL if t.n == 1], ids=ids)
def test_one_rank(t):
    assert t.chi1() == t.chi2() == 0 and t.a2cid2() == A2CiD2Parameters(0.0, 0.5, 0.5)
    assert t.is_connected and t.is_bipartite and t.laplacian().tolist() == [[0.0]]
    assert t.at(0).push_matrix().tolist() == [[1.0]] and t.choose(0, 0.5) is None
    assert t.edges() == []


def test_two_ranks():
    for name in (*UNDIRECTED, *DIRECTED, "hypercube", "bipartite_ring", "random_regular:1"):
        t = T.make(name, 2)
        assert t.neighbors(0) == (1,) and t.is_connected and t.is_bipartite
        assert np.allclose(t.laplacian(3.0), [[3, -3], [-3, 3]])
        assert t.chi1() == pytest.approx(0.5) and t.chi2() == pytest.approx(0.5)


def test_many_ranks():
    """No matrix is created: a dense one of this size would take 80 GB."""
    n = 100_000
    for name in ("ring", "complete", "exponential", "torus:250x400", "one_peer_exponential"):
        t = T.make(name, n)
        assert t.choose(n - 1, 0.3) in range(n)
    assert T.ring(n).chi1() == pytest.approx(1 / (2 * math.sin(math.pi / n) ** 2), rel=1e-6)
    assert T.complete(n).chi2() == pytest.approx((n - 1) / n)
    assert T.exponential(n).is_connected and T.exponential(n).chi1() < 20
    assert T.hypercube(1 << 16).chi1() == pytest.approx(8)


def test_not_connected():
    t = T.from_networkx(nx.empty_graph(3))
    assert t.edges() == [] and t.neighbors(1) == ()
    for call in (t.chi1, t.chi2, t.a2cid2, T.one_peer_exponential(8).at(1).chi1):
        with pytest.raises(ValueError, match="connected"):
            call()


# ---- text and objects


@pytest.mark.parametrize("t", [t for t in ALL if not t.text.startswith("custom")], ids=ids)
def test_text_and_back(t):
    again = T.make(str(t), t.n)
    assert again == t and hash(again) == hash(t) and again.fingerprint == t.fingerprint
    assert pickle.loads(pickle.dumps(t)) == t
    assert repr(t) == f"Topology({str(t)!r}, n={t.n})"


def test_make_takes_objects():
    t = T.ring(4)
    assert T.make(t, 4) is t
    assert T.make(nx.path_graph(4), 4).edges() == [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0)]
    assert t == T.ring(4) and t != T.ring(5) and t != T.star(4) and t != "ring"
    assert T.directed_exponential(8) != T.exponential(8)


def test_frozen():
    with pytest.raises(AttributeError):
        T.ring(4).n = 5


@pytest.mark.parametrize(
    "text",
    (
        "",
        "rign",
        "RING",
        " ring",
        "ring ",
        "ring:",
        "ring:4",
        "make",
        "from_networkx",
        "n",
        "torus:",
        "torus:x",
        "torus:4x",
        "torus:4,2",
        "torus:4X2",
        "torus:-4x-2",
        "torus:3x2",
        "torus:0x8",
        "torus:8x1x",
        "torus:٤x2",
        "random_regular",
        "random_regular:",
        "random_regular:3.5",
        "random_regular:3,",
        "random_regular:3,seed",
        "random_regular:3,seed=",
        "random_regular:3,seed=-1",
        "random_regular:3,speed=1",
        "random_regular:3,seed=1,seed=2",
        "random_regular:0",
        "random_regular:1",
        "random_regular:8",
        "random_regular:3\n",
        "exponential:2",
        "\x00",
    ),
)
def test_wrong_text(text):
    with pytest.raises(ValueError, match="topology: "):
        T.make(text, 8)


def test_texts_that_do_not_fit_the_number_of_ranks():
    for text, n in (
        ("bipartite_ring", 7),
        ("hypercube", 12),
        ("random_regular:3", 7),
        ("random_regular:1", 4),
        ("torus:2x4", 9),
    ):
        with pytest.raises(ValueError, match="topology: "):
            T.make(text, n)
    for other in (T.ring(3), nx.path_graph(3)):
        with pytest.raises(ValueError, match="expected one of 4 ranks, got one of 3"):
            T.make(other, 4)


@pytest.mark.parametrize("wrong", (None, 3, ["ring"], np.eye(3), {"ring": 3}))
def test_wrong_type(wrong):
    with pytest.raises(TypeError, match="topology: expected"):
        T.make(wrong, 3)


@pytest.mark.parametrize(
    "graph",
    (
        nx.Graph(),
        nx.path_graph(range(1, 4)),
        nx.grid_graph((2, 2)),
        nx.Graph([("a", "b")]),
        nx.Graph([(0, 0), (0, 1)]),
        nx.Graph([(0, 1, {"weight": 0})]),
        nx.Graph([(0, 1, {"weight": -1.0})]),
        nx.Graph([(0, 1, {"weight": math.nan})]),
        nx.Graph([(0, 1, {"weight": math.inf})]),
        nx.Graph([(0, 1, {"weight": "2"})]),
    ),
)
def test_wrong_graph(graph):
    with pytest.raises(ValueError, match="topology: expected"):
        T.from_networkx(graph)


def test_wrong_numbers():
    for n in (0, -1):
        with pytest.raises(ValueError, match="n: "):
            T.make("ring", n)
    for n in (2.0, True, "4", None):
        with pytest.raises(TypeError, match="n: "):
            T.make("ring", n)
    assert T.make("ring", np.int64(4)) == T.ring(4)
    with pytest.raises(TypeError, match="degree: "):
        T.random_regular(8, 2.5)
    with pytest.raises(TypeError, match="seed: "):
        T.random_regular(8, 3, seed=None)
    with pytest.raises(TypeError, match="shape: "):
        T.torus(8, (4.0, 2.0))
    t = T.ring(4)
    for rank in (-1, 4):
        for call in (t.neighbors, t.in_neighbors, t.out_neighbors, t.side):
            with pytest.raises(ValueError, match="rank: expected 0 to 3"):
                call(rank)
        with pytest.raises(ValueError, match="rank"):
            t.has_edge(0, rank)
    for rate in (0, -1.0, math.nan, math.inf):
        for call in (t.chi1, t.chi2, t.laplacian, t.edge_rates, t.a2cid2):
            with pytest.raises(ValueError, match="rate: "):
                call(rate)
    for u in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="u: "):
            t.choose(0, u)


def test_networkx_is_imported_when_it_is_needed():
    """networkx is not imported with the package, nor for graphs that do not need it."""
    code = """
import sys, partialcoll as pc
t = pc.Topology.make("exponential", 16)
t.neighbors(0), t.is_connected, t.chi1(), t.a2cid2(), t.spectral_gap(), pc.Topology.star(9)
assert "networkx" not in sys.modules
t.to_networkx()
assert "networkx" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- docs


def test_docs():
    """The page's table equals the computed one. Its examples and the module's work."""
    page = topology_table.PAGE
    _, table, _ = topology_table.split(page.read_text())
    fixed = [line for line in topology_table.table().splitlines() if "random" not in line]
    assert [line for line in table.splitlines() if "random" not in line] == fixed
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert not failed and tried > 4
    failed, tried = doctest.testmod(sys.modules[T.__module__])
    assert not failed and tried > 3


# ---- without dead ranks


def test_the_dead_have_no_edges_and_the_others_keep_their_numbers():
    ring = T.ring(6)
    left = ring.without([2])
    assert left.n == 6 and left.neighbors(1) == (0,) and left.neighbors(2) == ()
    assert left.is_connected and left != ring and left == ring.without((2,))
    assert left.without([4], on_disconnect="bridge") == ring.without([4, 2], on_disconnect="bridge")
    line = T.from_networkx(nx.path_graph(5))
    assert left.chi1() == pytest.approx(line.chi1()) and left.chi2() == pytest.approx(line.chi2())
    assert left.spectral_gap() == pytest.approx(line.spectral_gap())
    assert left.a2cid2(2.0).eta == pytest.approx(line.a2cid2(2.0).eta)
    assert ring.without([]) is ring
    assert ring.without([0, 1, 2, 3, 4]).a2cid2().accelerated is False  # alone


def test_metropolis_weights_are_those_of_the_edges_that_are_left():
    w = T.complete(5).without([0, 3]).mixing_matrix()
    assert w[0, 0] == w[3, 3] == 1 and np.allclose(w.sum(0), 1) and np.allclose(w, w.T)
    assert np.allclose(w[np.ix_([1, 2, 4], [1, 2, 4])], T.complete(3).mixing_matrix())


@pytest.mark.parametrize(
    "topology, dead, edges",
    [
        ("ring", (2, 4), {(0, 1), (0, 5), (1, 3), (3, 5)}),
        ("ring", (1, 2, 4), {(0, 3), (0, 5), (3, 5)}),
        ("star", (0,), {(1, 2), (2, 3), (3, 4), (4, 5)}),
        ("complete", (1, 2), {(a, b) for a in (0, 3, 4, 5) for b in (0, 3, 4, 5) if a < b}),
    ],
)
def test_gaps_are_bridged_where_the_graph_falls_apart(topology, dead, edges):
    whole = T.make(topology, 6)
    left = whole.without(dead, on_disconnect="bridge")
    assert left.is_connected and {(a, b) for a, b, _ in left.edges()} == edges
    if topology != "complete":
        with pytest.raises(ValueError, match=r"on_disconnect: without rank .* are not connected"):
            whole.without(dead)


def test_without_in_every_round_of_a_directed_one():
    whole = T.one_peer_exponential(8)
    left = whole.without([1, 2, 5], on_disconnect="bridge")
    assert left.directed and left.period == whole.period and left.is_connected
    for t in range(left.period):
        assert not left.at(t).out_neighbors(1) and not left.at(t).in_neighbors(5)
    with pytest.raises(ValueError, match="on_disconnect"):
        whole.without([1], on_disconnect="maybe")
    with pytest.raises(ValueError, match="rank"):
        whole.without([8])
