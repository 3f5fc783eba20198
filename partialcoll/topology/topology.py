# SPDX-License-Identifier: Apache-2.0
"""Topologies: who may average with whom, and how fast a graph mixes.

A topology is an object, its text, or a networkx graph; all are accepted wherever one is expected.

>>> t = Topology.make("exponential", 8)
>>> t.neighbors(0)
(1, 2, 4, 6, 7)
>>> round(t.chi1(), 4), round(t.chi2(), 4)
(1.5, 0.9637)
>>> Topology.make("torus:4x2", 8)
Topology('torus:4x2', n=8)
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
import numpy.typing as npt

from .._core import checks

if TYPE_CHECKING:
    import networkx

# A topology keeps its edges in one of two forms. `Offsets` is a graph that looks the same from
# every rank (ring, complete, exponential, torus, hypercube): one list of offsets serves all ranks,
# so a hundred thousand cost no more than one, and its spectrum is a Fourier transform. `Rows` is
# any other graph, row by row.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Arcs = tuple[Ints, Ints, Floats]  # source, target, weight


class Offsets:
    """Rank i is connected with i + offset, for the same offsets everywhere. Ranks are the points of
    a grid of `shape` that closes up in every direction, numbered as numpy numbers elements; an
    offset is the rank that it leads to from rank 0."""

    def __init__(self, shape: Iterable[int], weights: Mapping[int, float], directed: bool) -> None:
        self.shape = tuple(side for side in shape if side > 1) or (1,)
        self.n = math.prod(self.shape)
        self.directed = directed
        self.offsets: Ints = np.array(sorted(weights), dtype=np.int64)
        self.weights: Floats = np.array([weights[o] for o in sorted(weights)], dtype=np.float64)
        self._sums = list(np.cumsum(self.weights))
        self._known = {int(o) for o in self.offsets}
        # Equal for the same edges in this form.
        self.key = self.shape, self.offsets.tobytes(), self.weights.tobytes(), directed

    def move(self, rank: int, offset: int, sign: int = 1) -> int:
        """Return the rank at which an offset ends that begins at `rank`."""
        if len(self.shape) == 1:
            return (rank + sign * offset) % self.n
        end, stride = 0, 1
        for side in reversed(self.shape):
            end += (rank + sign * offset) % side * stride
            rank, offset, stride = rank // side, offset // side, stride * side
        return end

    def row(self, rank: int, sign: int = 1) -> tuple[Ints, Floats]:
        """Return the ranks that `rank` reaches (-1: that reach it), ascending, and weights."""
        start = np.array(np.unravel_index(rank, self.shape))[:, None]
        there = start + sign * np.array(np.unravel_index(self.offsets, self.shape))
        ends = np.ravel_multi_index(tuple(there), self.shape, mode="wrap")
        order = np.argsort(ends)
        return np.asarray(ends, dtype=np.int64)[order], self.weights[order]

    def pick(self, rank: int, u: float) -> int | None:
        """Return whom `rank` reaches, drawn by weight with a u in [0, 1)."""
        if not self._sums:
            return None
        k = bisect_right(self._sums, u * self._sums[-1])
        return self.move(rank, int(self.offsets[min(k, len(self._sums) - 1)]))

    def has(self, source: int, target: int) -> bool:
        return self.move(target, source, -1) in self._known

    def arcs(self) -> Arcs:
        """Return all edges, once for each direction in which they lead."""
        peers, weights = zip(*(self.row(rank) for rank in range(self.n)))
        sources = np.repeat(np.arange(self.n), len(self.offsets))
        return sources, np.concatenate(peers), np.concatenate(weights)


class Rows:
    """Any graph, row by row, with the methods of `Offsets`. Weights of equal arcs add up."""

    def __init__(self, n: int, arcs: Arcs, directed: bool) -> None:
        self.n = n
        self.directed = directed
        places, where = np.unique(arcs[0] * n + arcs[1], return_inverse=True)
        self._peers: Ints = places % n
        self._weights: Floats = np.bincount(where, arcs[2], len(places)).astype(np.float64)
        self._begin: Ints = np.searchsorted(places, np.arange(n + 1) * n)

    @property
    def key(self) -> tuple[Any, ...]:
        return *(a.tobytes() for a in (self._begin, self._peers, self._weights)), self.directed

    def row(self, rank: int, sign: int = 1) -> tuple[Ints, Floats]:
        if sign < 0 and self.directed:
            sources, targets, weights = self.arcs()
            return sources[targets == rank], weights[targets == rank]
        here = slice(self._begin[rank], self._begin[rank + 1])
        return self._peers[here], self._weights[here]

    def pick(self, rank: int, u: float) -> int | None:
        peers, weights = self.row(rank)
        if not len(peers):
            return None
        sums = np.cumsum(weights)
        k = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(peers[min(k, len(peers) - 1)])

    def has(self, source: int, target: int) -> bool:
        peers, _ = self.row(source)
        k = int(np.searchsorted(peers, target))
        return k < len(peers) and int(peers[k]) == target

    def arcs(self) -> Arcs:
        return np.repeat(np.arange(self.n), np.diff(self._begin)), self._peers, self._weights


Graph = Union[Offsets, Rows]


def merged(graphs: tuple[Graph, ...]) -> Graph:
    """All edges of several graphs of the same ranks, weights added up."""
    first = graphs[0]
    if len(graphs) == 1:
        return first
    directed = any(graph.directed for graph in graphs)
    alike = [graph for graph in graphs if isinstance(graph, Offsets)]
    if len(alike) == len(graphs) and len({graph.shape for graph in alike}) == 1:
        weights: Counter[int] = Counter()
        for graph in alike:
            weights.update(dict(zip(graph.offsets.tolist(), graph.weights.tolist())))
        return Offsets(alike[0].shape, weights, directed)
    arcs: Any = tuple(map(np.concatenate, zip(*(graph.arcs() for graph in graphs))))
    return Rows(first.n, arcs, directed)


# The edges of the named topologies, and of networkx graphs.

_TRIES = 100  # draws of a random regular graph until one is connected


def powers(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]  # those below n


def circulant(n: int, hops: Iterable[int], directed: bool = False) -> Offsets:
    """Neighbors at these hops on the ring; weights of hops to the same rank add up."""
    return Offsets([n], Counter(hop % n for hop in hops if hop % n), directed)


def imported(graph: networkx.Graph) -> Rows:
    """A networkx graph whose nodes are ranks."""
    n = graph.number_of_nodes()
    if set(graph) != set(range(n)) or not n:
        raise ValueError(
            f"topology: expected a graph with the nodes 0 to {max(n - 1, 0)}, got others (see "
            "networkx.convert_node_labels_to_integers)"
        )
    edges = list(graph.edges(data="weight", default=1.0))
    for a, b, weight in edges:
        if a == b:
            raise ValueError(f"topology: expected no loops, got one at rank {a}")
        if not isinstance(weight, (int, float, np.number)) or not 0 < weight < math.inf:
            raise ValueError(f"topology: expected weights above 0, got {weight!r} for {a} to {b}")
    ends, others = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2).T
    weights = np.array([weight for _, _, weight in edges], np.float64)
    if graph.is_directed():
        return Rows(n, (ends, others, weights), True)
    both = np.concatenate([ends, others]), np.concatenate([others, ends]), np.tile(weights, 2)
    return Rows(n, both, False)


# The matrices of a topology and what their eigenvalues say. `Offsets` are diagonal after a Fourier
# transform, which takes n log n steps where eigenvalues of a dense matrix take n cubed.
#
# Chi's and parameters: Nabli, Belilovsky, Oyallon, "A2CiD2: Accelerating Asynchronous Communication
# in Decentralized Deep Learning", NeurIPS 2023, section 3.


def weights(graph: Graph) -> Floats:
    """The weight of the edge from i to j, as a dense matrix."""
    matrix = np.zeros((graph.n, graph.n))
    sources, targets, values = graph.arcs()
    matrix[sources, targets] = values
    return matrix


def _row(graph: Offsets) -> Any:
    row = np.zeros(graph.n)  # weights of the edges of rank 0, laid out on the grid
    row[graph.offsets] = graph.weights
    return row.reshape(graph.shape)


def bridges(graphs: Sequence[networkx.Graph], dead: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of living ranks to be joined: a path, ascending, through the neighbors of
    each gap; dead ranks that were neighbors are one gap."""
    import networkx

    everything = networkx.compose_all([graph.to_undirected() for graph in graphs])
    for gap in networkx.connected_components(everything.subgraph(dead)):
        edge = sorted({rank for one in gap for rank in everything[one]} - gap)
        yield from zip(edge, edge[1:])


# Topologies as text:
#
#     topology = name | "torus:" side {"x" side} | "random_regular:" degree [",seed=" seed]
#
# The constructor of each graph checks its own conditions (a product of sides, an even number).

_PLAIN = "ring complete exponential star hypercube bipartite_ring directed_exponential "
NAMES = (*_PLAIN.split(), "one_peer_exponential", "torus", "random_regular")
_TORUS = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")
_REGULAR = re.compile(r"([0-9]{1,9})(,seed=([0-9]{1,18}))?")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the constructor of Topology that a text names, and its arguments."""
    name, colon, argument = text.partition(":")
    expected = f"{name} without an argument"
    if name not in NAMES:
        expected = f"one of {', '.join(NAMES)}"
    elif name == "random_regular":
        if found := _REGULAR.fullmatch(argument):
            return name, {"degree": int(found[1]), "seed": int(found[3] or 0)}
        expected = "random_regular:degree or random_regular:degree,seed=number"
    elif not colon:
        return name, {}
    elif name == "torus":
        if _TORUS.fullmatch(argument):
            return name, {"shape": [int(side) for side in argument.split("x")]}
        expected = "torus or torus: and the sides, as in torus:4x8"
    raise ValueError(f"topology: expected {expected}, got {text!r}")


@dataclass(frozen=True)
class A2CiD2Parameters:
    """The parameters of A2CiD2's two updates, for one topology and one rate. Between two events of
    a rank x and its momentum x~ relax towards each other with rate `eta` per unit of time; an
    averaging of ranks i and j with m = x_i - x_j subtracts alpha m from x_i and alpha_tilde m from
    x~_i. Source: Nabli et al., NeurIPS 2023, (4) and proposition 3.6."""

    eta: float
    alpha: float
    alpha_tilde: float

    @property
    def accelerated(self) -> bool:
        """False for plain averaging: no mixing, and x~ follows x."""
        return self.eta > 0


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A graph on n ranks: which pairs may average, with weights; fixed, or changing by round. All
    constructors take the number of ranks, `n`: an int from 1 on, ValueError if there is no such
    graph of so many.

    It does not change; compare, hash and print it freely. Equal ones have the same edges in every
    round; a copy by way of networkx, which keeps edges one by one, is not equal to a ring that does
    not. Weights are relative: a rank that chooses takes a neighbor with a probability proportional
    to the weight of the edge. A directed edge leads from who chooses (or sends) to who is chosen.

    Attributes: `n`, the number of ranks; `text`, the name, as `make` takes it, or "custom".
    """

    n: int
    text: str
    _graphs: tuple[Graph, ...]
    _dead: frozenset[int] = frozenset()
    _origin: Topology | None = None  # before they died

    @classmethod
    def make(cls, topology: Topology | str | networkx.Graph, n: int) -> Topology:
        """Return the topology of `n` ranks that a `topology` describes: an object, a text as
        "ring", "torus:4x8", "random_regular:4,seed=1" (docs/topologies.md lists them) or a networkx
        graph. Raises TypeError or ValueError, naming ``topology``, for anything else and for a
        graph of another number of ranks."""
        n = _ranks(n)
        if isinstance(topology, str):
            name, arguments = parse(topology)
            return cast("Topology", getattr(cls, name)(n, **arguments))
        if not isinstance(topology, Topology):
            topology = cls.from_networkx(topology)
        if topology.n != n:
            raise ValueError(f"topology: expected one of {n} ranks, got one of {topology.n}")
        return topology

    @classmethod
    def ring(cls, n: int) -> Topology:
        """Return a ring of `n` ranks: r - 1 and r + 1 are the neighbors of r."""
        return cls(_ranks(n), "ring", (circulant(n, {1, n - 1}),))

    @classmethod
    def bipartite_ring(cls, n: int) -> Topology:
        """Return a ring of an even number `n` of ranks, for the pairing `bipartite`. Source: Lian
        et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018,
        sections 3.3.1 and 3.3.2."""
        if _ranks(n) % 2 and n > 1:
            raise ValueError(f"topology: bipartite_ring expected an even number of ranks, got {n}")
        return cls(n, "bipartite_ring", (circulant(n, {1, n - 1}),))

    @classmethod
    def complete(cls, n: int) -> Topology:
        """Return `n` ranks that are all each other's neighbors."""
        return cls(_ranks(n), "complete", (circulant(n, range(1, n)),))

    @classmethod
    def exponential(cls, n: int) -> Topology:
        """Return the graph of `n` ranks with neighbors at r + 2^k and r - 2^k for every 2^k below
        n, on the ring. Where two of these are the same rank, the edge has their weights together:
        half way round at n = 8 it has weight 2. Source: ICML 2018 (see `bipartite_ring`), section
        3.3.2."""
        hops = powers(_ranks(n))
        return cls(n, "exponential", (circulant(n, [s * h for h in hops for s in (1, -1)]),))

    @classmethod
    def directed_exponential(cls, n: int) -> Topology:
        """Return the graph of `n` ranks in which r sends to r + 2^k for every 2^k below n. Source:
        Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019, appendix
        A."""
        graph = circulant(n, powers(_ranks(n)), directed=True)
        return cls(n, "directed_exponential", (graph,))

    @classmethod
    def one_peer_exponential(cls, n: int) -> Topology:
        """Return the time-varying graph in which rank r of `n` sends, in round t, to r + 2^k alone,
        k = t mod ceil(log2 n). For n a power of two a period of exact averagings is an average over
        all ranks. Source: ICML 2019 (see `directed_exponential`), appendix A; Ying et al., NeurIPS
        2021, section 4."""
        graphs = [circulant(n, [hop], directed=True) for hop in powers(_ranks(n))]
        return cls(n, "one_peer_exponential", tuple(graphs) or (circulant(n, []),))

    @classmethod
    def torus(cls, n: int, shape: Iterable[int] | None = None) -> Topology:
        """Return a grid of `n` ranks that closes up in every direction; ranks are numbered row by
        row. `shape` has any number of sides, whose product is n; None: two, as equal as possible
        (for a prime n one of them is 1, which makes a ring). A side of 2 has one edge, not two."""
        n, text = _ranks(n), "torus"
        if shape is None:
            short = max(side for side in range(1, math.isqrt(n) + 1) if n % side == 0)
            sides = [short, n // short]
        else:
            sides = [checks.integer("shape", side) for side in shape]
            text = "torus:" + "x".join(map(str, sides))
        if min(sides, default=0) < 1 or math.prod(sides) != n:
            raise ValueError(f"topology: torus expected sides of product {n}, got {tuple(sides)}")
        weights, stride = {}, n
        for side in sides:
            stride //= side
            if side > 1:
                weights[stride] = weights[(side - 1) * stride] = 1.0
        return cls(n, text, (Offsets(sides, weights, False),))

    @classmethod
    def hypercube(cls, n: int) -> Topology:
        """Return the graph in which neighbors differ in one bit; `n` must be a power of two."""
        bits = _ranks(n).bit_length() - 1
        if n != 1 << bits:
            raise ValueError(f"topology: hypercube expected a power of two of ranks, got {n}")
        weights = {1 << bit: 1.0 for bit in range(bits)}
        return cls(n, "hypercube", (Offsets([2] * bits, weights, False),))

    @classmethod
    def star(cls, n: int) -> Topology:
        """Return `n` ranks, of which 0 is everybody's only neighbor."""
        leaves = np.arange(1, _ranks(n))
        ends = np.zeros_like(leaves), leaves
        arcs = np.concatenate(ends), np.concatenate(ends[::-1]), np.ones(2 * (n - 1))
        return cls(n, "star", (Rows(n, arcs, False),))

    @classmethod
    def random_regular(cls, n: int, degree: int, *, seed: int = 0) -> Topology:
        """Return a connected graph of `n` ranks that all have `degree` neighbors, drawn uniformly
        by networkx: the same for the same `seed` and version of networkx."""
        import networkx

        degree, seed = checks.integer("degree", degree), checks.integer("seed", seed)
        text = f"random_regular:{degree}" + (f",seed={seed}" if seed else "")
        n, draws = _ranks(n), random.Random(seed)
        low = min(n - 1, 2)
        if not low <= degree < n or degree * n % 2:
            raise ValueError(
                f"topology: random_regular expected a degree from {low} to {n - 1} whose product "
                f"with the {n} ranks is even, got {degree}"
            )
        sparse = min(degree, n - 1 - degree)  # of a dense one, draw the edges that it does not have
        for _ in range(_TRIES):
            graph = networkx.random_regular_graph(sparse, n, seed=draws)
            graph = graph if sparse == degree else networkx.complement(graph)
            if networkx.is_connected(graph):
                return cls(n, text, (imported(graph),))
        raise ValueError(
            f"topology: expected a connected random_regular:{degree} of {n} ranks, got none in "
            f"{_TRIES} draws with seed {seed}; a larger degree is more often connected"
        )

    @classmethod
    def from_networkx(cls, graph: networkx.Graph) -> Topology:
        """Return a graph of one's own, directed or not. The nodes of `graph` are the ranks 0 to n -
        1, the attribute ``weight`` of an edge its weight (1 where there is none); parallel edges of
        a multigraph add up. Raises TypeError for what is no networkx graph and ValueError for other
        nodes, loops, or weights that are not positive."""
        import networkx

        if not isinstance(graph, networkx.Graph):
            raise TypeError(
                "topology: expected a Topology, a string or a networkx graph, got "
                f"{type(graph).__name__}"
            )
        return cls(graph.number_of_nodes(), "custom", (imported(graph),))

    @classmethod
    def time_varying(cls, rounds: Iterable[Topology]) -> Topology:
        """Return a cycle of topologies, the `rounds`, of the same ranks: round t uses number t mod
        their number. TypeError or ValueError, naming them, if they are none."""
        members = tuple(rounds)
        if not members or not all(isinstance(member, Topology) for member in members):
            raise TypeError("rounds: expected one topology or more, got something else")
        sizes = sorted({member.n for member in members})
        if len(sizes) > 1:
            raise ValueError(
                f"rounds: expected topologies of the same number of ranks, got {sizes}"
            )
        if len(members) == 1:
            return members[0]
        text = "custom:" + "+".join(member.text for member in members)
        graphs = tuple(graph for member in members for graph in member._graphs)
        return cls(members[0].n, text, graphs)

    @property
    def period(self) -> int:
        """After how many rounds the graphs repeat; 1 for a static topology."""
        return len(self._graphs)

    def at(self, round: int) -> Topology:
        """Return the static topology of round number `round`."""
        if self.period == 1:
            return self
        k = checks.integer("round", round) % self.period
        origin = self._origin and self._origin.at(k)
        return Topology(self.n, f"{self.text} in round {k}", (self._graphs[k],), self._dead, origin)

    def without(self, dead: Iterable[int], *, on_disconnect: str = "raise") -> Topology:
        """Return the topology of the ranks that survive the death of the `dead`, which add to the
        dead of an earlier call. Ranks keep their numbers. The dead have no edges; spectra and
        connectedness refer to the survivors, and weights that follow from a rank's edges
        (`mixing_matrix`, `push_matrix`) are those of its remaining edges.

        Where the others are not connected any more, `on_disconnect` says what happens: "raise",
        ValueError; or "bridge", new edges of weight 1, a path through the neighbors of each gap, by
        their numbers. Of a ring it makes a ring again, of a star without its center a line.
        """
        checks.one_of("on_disconnect", on_disconnect, ("raise", "bridge"))
        dead = self._dead.union(self._rank(rank) for rank in dead)
        if not dead:
            return self
        whole = self._origin or self
        names = ", ".join(map(str, sorted(dead)))
        rounds = [whole.at(t).to_networkx() for t in range(self.period)]
        for bridged in (False, True)[: 1 + (on_disconnect == "bridge")]:
            graphs = [graph.copy() for graph in rounds]
            for graph in graphs:
                graph.remove_nodes_from(dead)
                graph.add_nodes_from(dead)
                for a, b in bridges(rounds, dead) if bridged else ():
                    graph.add_edge(a, b, weight=1.0)
                    graph.add_edge(b, a, weight=1.0)
            text = f"{whole.text} without {names}"
            left = Topology(self.n, text, tuple(imported(g) for g in graphs), dead, whole)
            if left.is_connected:
                return left
        raise ValueError(
            f"on_disconnect: without rank {names} the ranks of {whole!r} are not connected; "
            '"bridge" joins those who were next to them'
        )

    @property
    def directed(self) -> bool:
        """Do edges lead in one direction only?"""
        return self._all.directed

    def out_neighbors(self, rank: int) -> tuple[int, ...]:
        """Return whom `rank` may choose, or sends to, ascending; in any round."""
        return tuple(self._all.row(self._rank(rank))[0].tolist())

    def in_neighbors(self, rank: int) -> tuple[int, ...]:
        """Return who may choose `rank`, or sends to it, ascending."""
        return tuple(self._all.row(self._rank(rank), -1)[0].tolist())

    def neighbors(self, rank: int) -> tuple[int, ...]:
        """Return who shares an edge with `rank`, in either direction, ascending."""
        if not self.directed:
            return self.out_neighbors(rank)
        return tuple(sorted({*self.out_neighbors(rank), *self.in_neighbors(rank)}))

    def has_edge(self, source: int, target: int) -> bool:
        """Return whether there is an edge from `source` to `target`, without listing neighbors."""
        return self._all.has(self._rank(source), self._rank(target))

    def choose(self, rank: int, u: float, *, round: int = 0) -> int | None:
        """Return an out-neighbor of `rank` in round number `round`, drawn by weight; None without
        one. `u` is uniform in [0, 1), else ValueError: the same u gives the same neighbor."""
        if not 0 <= u < 1:
            raise ValueError(f"u: expected a number in [0, 1), got {u!r}")
        return self._graphs[round % self.period].pick(self._rank(rank), u)

    def edges(self) -> list[tuple[int, int, float]]:
        """All edges as (source, target, weight); undirected ones once, source < target."""
        sources, targets, weights = self._all.arcs()
        arcs = zip(sources.tolist(), targets.tolist(), weights.tolist())
        return sorted((i, j, w) for i, j, w in arcs if self.directed or i < j)

    def to_networkx(self) -> networkx.Graph:
        """A networkx Graph, if directed a DiGraph, with the weights as attribute ``weight``."""
        import networkx

        graph = networkx.DiGraph() if self.directed else networkx.Graph()
        graph.add_nodes_from(range(self.n))
        graph.add_weighted_edges_from(self.edges())
        return graph

    @cached_property
    def is_connected(self) -> bool:
        """Does every rank reach every other, over a period? (Strongly, where directed.)"""
        if self._dead:
            return self._living.is_connected
        graph = self._all
        if isinstance(graph, Offsets) and len(graph.shape) == 1:
            return math.gcd(graph.n, *graph.offsets.tolist()) == 1
        import networkx

        reaches = networkx.is_strongly_connected if self.directed else networkx.is_connected
        return bool(reaches(self.to_networkx()))

    @cached_property
    def is_bipartite(self) -> bool:
        """Can the ranks be divided into two sides such that every edge joins both?"""
        return self._sides is not None

    def side(self, rank: int) -> int:
        """Return the side of `rank`, 0 or 1; 0 for the lowest of those that are connected.
        ValueError unless the topology is bipartite."""
        if self._sides is None:
            raise ValueError(f"topology: expected a bipartite one, got {self!r}")
        return int(self._sides[self._rank(rank)])

    def edge_rates(self, rate: float = 1.0) -> Floats:
        """Return the expected averagings of each edge per unit of time: an (n, n) symmetric matrix.
        Each rank starts rate / 2 of them and chooses by weight, so a rank takes part in `rate`
        averagings, on average over the ranks; rate / d per edge of a d-regular graph. Time-varying
        topologies: the mean over a period."""
        half = checks.number("rate", rate, above=0) / 2
        matrices = [weights(graph) for graph in self._graphs]
        # Frequencies at which a choosing rank takes each other rank; zeros without neighbors.
        sums = [np.maximum(matrix.sum(axis=1, keepdims=True), 1e-300) for matrix in matrices]
        total: Floats = half * np.mean([m / s for m, s in zip(matrices, sums)], axis=0)
        return total + total.T

    def laplacian(self, rate: float = 1.0) -> Floats:
        """Return Lambda = sum over edges of lambda_ij (e_i - e_j)(e_i - e_j)^T, an (n, n) matrix.
        lambda_ij is `edge_rates` at `rate`, above 0: averagings per unit of time, in which a rank
        takes one gradient step. Source: Nabli et al., NeurIPS 2023, definition 3.1, (1)."""
        rates = self.edge_rates(rate)
        return np.asarray(np.diag(rates.sum(axis=1)) - rates)

    def chi1(self, rate: float = 1.0) -> float:
        """Return chi1: 1 / chi1 is the smallest eigenvalue of the `laplacian` at `rate` that is not
        zero. 0 for one rank; ValueError if the topology is not connected. Source: Nabli et al.,
        (2)."""
        return self._chi[0] / checks.number("rate", rate, above=0)

    def chi2(self, rate: float = 1.0) -> float:
        """Return half the largest resistance of an edge, (e_i - e_j)^T Lambda^+ (e_i - e_j) / 2, of
        the `laplacian` Lambda at `rate`. 0 for one rank; ValueError if the topology is not
        connected. Source: Nabli et al., (3)."""
        return self._chi[1] / checks.number("rate", rate, above=0)

    def a2cid2(self, rate: float = 1.0, *, accelerated: bool = True) -> A2CiD2Parameters:
        """Return the parameters of A2CiD2 at `rate` averagings per rank and gradient step: eta = 1
        / (2 sqrt(chi1 chi2)), alpha = 1/2, alpha_tilde = sqrt(chi1 / chi2) / 2; with
        ``accelerated=False`` (and for one rank) eta = 0, alpha = alpha_tilde = 1/2. Source: Nabli
        et al., proposition 3.6."""
        one, two = self.chi1(rate), self.chi2(rate)
        if not accelerated or one == 0:  # alone
            return A2CiD2Parameters(0.0, 0.5, 0.5)
        return A2CiD2Parameters(0.5 / math.sqrt(one * two), 0.5, 0.5 * math.sqrt(one / two))

    def mixing_matrix(self) -> Floats:
        """Return the Metropolis weights W, (n, n), symmetric and doubly stochastic: x becomes W x.
        W_ij = w_ij / (1 + max(s_i, s_j)) with s_i the sum of i's weights; the rest is W_ii.
        Undirected static topologies only. Source: Xiao, Boyd, Kim, "Distributed average consensus
        with least-mean-square deviation", J. Parallel Distrib. Comput. 2007, section 2."""
        if self.directed:
            raise ValueError("mixing_matrix: expected an undirected topology, got a directed one")
        matrix = weights(self._static("mixing_matrix"))
        sums = matrix.sum(axis=1)
        matrix /= 1 + np.maximum(sums[:, None], sums[None, :])
        np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
        return matrix

    def push_matrix(self) -> Floats:
        """Return the (n, n) column-stochastic matrix of push-sum: x becomes P x, and so does w.
        P_ji = w_ij / (1 + s_i) is the share that i sends to j, and 1 / (1 + s_i) the one that it
        keeps. Static topologies only. Source: Assran et al., ICML 2019, algorithm 1."""
        matrix = weights(self._static("push_matrix")).T + np.eye(self.n)
        return np.asarray(matrix / matrix.sum(axis=0, keepdims=True))

    def spectral_gap(self) -> float:
        """Return 1 - the second largest modulus of an eigenvalue of the mixing matrix, or of the
        push matrix where edges have a direction: in [0, 1], 1 for one rank. The larger, the faster
        rounds of averaging converge. Static topologies only."""
        if self._dead:
            return self._living.spectral_gap()
        graph = self._static("spectral_gap")
        if self.n == 1:
            return 1.0
        if isinstance(graph, Offsets):
            moduli = np.abs(1 + np.fft.fftn(_row(graph))).ravel() / (1 + graph.weights.sum())
        elif self.directed:
            moduli = np.abs(np.linalg.eigvals(self.push_matrix()))
        else:
            moduli = np.abs(np.linalg.eigvalsh(self.mixing_matrix()))
        return max(0.0, float(1 - np.sort(moduli)[-2]))

    @cached_property
    def fingerprint(self) -> int:
        """63 bits that are equal on all ranks if they made the same topology."""
        digest = hashlib.blake2b(repr(self._key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def __str__(self) -> str:
        """The text, as `make` takes it."""
        return self.text

    def __repr__(self) -> str:
        return f"Topology({self.text!r}, n={self.n})"

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Topology) else NotImplemented

    def __hash__(self) -> int:
        return self.fingerprint

    @property
    def _key(self) -> Any:
        return (self.n, tuple(graph.key for graph in self._graphs), *sorted(self._dead))

    @cached_property
    def _all(self) -> Graph:
        return merged(self._graphs)

    @cached_property
    def _chi(self) -> tuple[float, float]:
        if not self.is_connected:
            raise ValueError(f"topology: expected a connected one, got {self!r}")
        if self._dead:
            return self._living._chi
        if self.n == 1:
            return 0.0, 0.0
        alike = [graph for graph in self._graphs if isinstance(graph, Offsets)]
        if len(alike) < self.period or len({graph.shape for graph in alike}) > 1:
            matrix = self.laplacian()
            values, vectors = np.linalg.eigh(matrix)
            pseudo = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
            own = np.diag(pseudo)
            resistance = own[:, None] + own[None, :] - 2 * pseudo
            return float(1 / values[1]), float(0.5 * resistance[matrix < 0].max())
        # The Laplacian is 1 - (P + P^T) / 2: the real part of the transform does the transposing.
        row = sum(_row(graph) / graph.weights.sum() for graph in alike) / self.period
        values = (1.0 - np.fft.fftn(row).real).ravel()
        inverse = np.concatenate(([0.0], 1 / values[1:]))
        pseudo = np.fft.ifftn(inverse.reshape(row.shape)).real.ravel()
        resistance = 2 * (pseudo[0] - pseudo[np.flatnonzero(row)])
        return float(1 / values[1:].min()), float(0.5 * resistance.max())

    @cached_property
    def _living(self) -> Topology:
        import networkx

        left = sorted({*range(self.n)} - self._dead)
        numbers = {rank: i for i, rank in enumerate(left)}
        graphs = (self.at(t).to_networkx().subgraph(left) for t in range(self.period))
        anew = tuple(imported(networkx.relabel_nodes(g, numbers)) for g in graphs)
        return Topology(len(left), self.text, anew)

    @cached_property
    def _sides(self) -> Ints | None:
        """0 or 1 for each rank, or None if the graph is not bipartite."""
        import networkx

        graph = self.to_networkx().to_undirected()
        try:
            color = networkx.bipartite.color(graph)
        except networkx.NetworkXError:
            return None
        sides = np.zeros(self.n, dtype=np.int64)
        for part in map(list, networkx.connected_components(graph)):
            sides[part] = [color[rank] ^ color[min(part)] for rank in part]
        return sides

    def _static(self, what: str) -> Graph:
        if self.period > 1:
            raise ValueError(
                f"{what}: expected the topology of one round, as at(t) gives it, got one with "
                f"{self.period}"
            )
        return self._graphs[0]

    def _rank(self, rank: int) -> int:
        return checks.integer("rank", rank, 0, self.n - 1)


def connected(topology: Any, n: int) -> Topology:
    graph = Topology.make(topology, n)
    if not graph.is_connected:
        raise ValueError(
            f"topology: expected a connected graph, got {graph!r}: what is not connected never "
            "agrees"
        )
    return graph


def _ranks(n: Any) -> int:
    return checks.integer("n", n, 1, 2**31 - 1)
