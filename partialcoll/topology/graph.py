# SPDX-License-Identifier: Apache-2.0
"""How a topology keeps its edges: two forms with the same few methods, and nothing else.

`Offsets` is a graph that looks the same from every rank (ring, complete, exponential, torus,
hypercube): one list of offsets serves all ranks, so a hundred thousand of them cost no more than
one, and its spectrum is a Fourier transform. `Rows` is any other graph, row by row. Algorithms on
graphs are networkx's; what comes out of a spectrum is in `_spectrum`."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Arcs = tuple[Ints, Ints, Floats]  # source, target, weight


class Offsets:
    """Rank i is connected with i + offset, for the same offsets everywhere.

    Ranks are the points of a grid of `shape` that closes up in every direction, numbered as
    numpy numbers elements; an offset is the rank that it leads to from rank 0.
    """

    def __init__(self, shape: Iterable[int], weights: Mapping[int, float], directed: bool) -> None:
        self.shape = tuple(side for side in shape if side > 1) or (1,)
        self.n = math.prod(self.shape)
        self.directed = directed
        self.offsets: Ints = np.array(sorted(weights), dtype=np.int64)
        self.weights: Floats = np.array([weights[o] for o in sorted(weights)], dtype=np.float64)
        self._sums = list(np.cumsum(self.weights))
        self._known = {int(o) for o in self.offsets}

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same edges in this form."""
        return self.shape, self.offsets.tobytes(), self.weights.tobytes(), self.directed

    def move(self, rank: int, offset: int, sign: int = 1) -> int:
        """The rank at which an offset ends that begins at `rank`."""
        if len(self.shape) == 1:
            return (rank + sign * offset) % self.n
        end, stride = 0, 1
        for side in reversed(self.shape):
            end += (rank + sign * offset) % side * stride
            rank, offset, stride = rank // side, offset // side, stride * side
        return end

    def row(self, rank: int, sign: int = 1) -> tuple[Ints, Floats]:
        """Whom `rank` reaches over one edge (with -1: who reaches it), ascending, and the
        weights."""
        start = np.array(np.unravel_index(rank, self.shape))[:, None]
        there = start + sign * np.array(np.unravel_index(self.offsets, self.shape))
        ends = np.ravel_multi_index(tuple(there), self.shape, mode="wrap")
        order = np.argsort(ends)
        return np.asarray(ends, dtype=np.int64)[order], self.weights[order]

    def pick(self, rank: int, u: float) -> int | None:
        """Whom `rank` reaches, drawn by weight: u is uniform in [0, 1)."""
        if not self._sums:
            return None
        k = bisect_right(self._sums, u * self._sums[-1])
        return self.move(rank, int(self.offsets[min(k, len(self._sums) - 1)]))

    def has(self, source: int, target: int) -> bool:
        """Is there an edge from `source` to `target`?"""
        return self.move(target, source, -1) in self._known

    def arcs(self) -> Arcs:
        """All edges, once for each direction in which they lead."""
        peers, weights = zip(*(self.row(rank) for rank in range(self.n)))
        sources = np.repeat(np.arange(self.n), len(self.offsets))
        return sources, np.concatenate(peers), np.concatenate(weights)


class Rows:
    """Any graph: for each rank whom it reaches, with weights. Arcs are added up."""

    def __init__(self, n: int, arcs: Arcs, directed: bool) -> None:
        self.n = n
        self.directed = directed
        places, where = np.unique(arcs[0] * n + arcs[1], return_inverse=True)
        self._peers: Ints = places % n
        self._weights: Floats = np.bincount(where, arcs[2], len(places)).astype(np.float64)
        self._begin: Ints = np.searchsorted(places, np.arange(n + 1) * n)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same edges in this form."""
        rows = (self._begin, self._peers, self._weights)
        return *(array.tobytes() for array in rows), self.directed

    def row(self, rank: int, sign: int = 1) -> tuple[Ints, Floats]:
        """Whom `rank` reaches over one edge (with -1: who reaches it), ascending, and the
        weights."""
        if sign < 0 and self.directed:
            sources, targets, weights = self.arcs()
            return sources[targets == rank], weights[targets == rank]
        here = slice(self._begin[rank], self._begin[rank + 1])
        return self._peers[here], self._weights[here]

    def pick(self, rank: int, u: float) -> int | None:
        """Whom `rank` reaches, drawn by weight: u is uniform in [0, 1)."""
        peers, weights = self.row(rank)
        if not len(peers):
            return None
        sums = np.cumsum(weights)
        k = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(peers[min(k, len(peers) - 1)])

    def has(self, source: int, target: int) -> bool:
        """Is there an edge from `source` to `target`?"""
        peers, _ = self.row(source)
        k = int(np.searchsorted(peers, target))
        return k < len(peers) and int(peers[k]) == target

    def arcs(self) -> Arcs:
        """All edges, once for each direction in which they lead."""
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
        weights: dict[int, float] = {}
        for graph in alike:
            for offset, weight in zip(graph.offsets.tolist(), graph.weights.tolist()):
                weights[offset] = weights.get(offset, 0.0) + weight
        return Offsets(alike[0].shape, weights, directed)
    arcs: Any = tuple(map(np.concatenate, zip(*(graph.arcs() for graph in graphs))))
    return Rows(first.n, arcs, directed)


# The edges of the named topologies, and of networkx graphs.

if TYPE_CHECKING:
    import networkx

_TRIES = 100  # draws of a random regular graph until one is connected


def powers(n: int) -> list[int]:
    """The powers of two below n."""
    return [1 << k for k in range((n - 1).bit_length())]


def circulant(
    n: int, hops: Iterable[int], *, once: bool = False, directed: bool = False
) -> Offsets:
    """Neighbors at these hops on the ring; hops to the same rank count `once`, or add up."""
    weights: dict[int, float] = {}
    for hop in hops:
        if hop % n:
            weights[hop % n] = 1.0 if once else weights.get(hop % n, 0.0) + 1.0
    return Offsets([n], weights, directed)


def grid(n: int, sides: Sequence[int]) -> Offsets:
    """A torus with these sides, whose product is n."""
    if min(sides, default=0) < 1 or math.prod(sides) != n:
        raise ValueError(f"topology: torus expected sides of product {n}, got {tuple(sides)}")
    weights, stride = {}, n
    for side in sides:
        stride //= side
        if side > 1:
            weights[stride] = weights[(side - 1) * stride] = 1.0
    return Offsets(sides, weights, False)


def undirected(n: int, ends: Ints, others: Ints, weights: Floats) -> Rows:
    """A graph whose edges are given once."""
    arcs = (np.concatenate([ends, others]), np.concatenate([others, ends]), np.tile(weights, 2))
    return Rows(n, arcs, False)


def random_regular(n: int, degree: int, seed: int) -> Graph:
    """A connected graph of this degree, uniform among them."""
    import networkx

    low = min(n - 1, 2)
    if not low <= degree < n or degree * n % 2:
        raise ValueError(
            f"topology: random_regular expected a degree from {low} to {n - 1} whose product "
            f"with the {n} ranks is even, got {degree}"
        )
    draws = random.Random(seed)
    sparse = min(degree, n - 1 - degree)  # of a dense one, draw the edges that it does not have
    for _ in range(_TRIES):
        graph = networkx.random_regular_graph(sparse, n, seed=draws)
        graph = graph if sparse == degree else networkx.complement(graph)
        if networkx.is_connected(graph):
            return imported(graph)
    raise ValueError(
        f"topology: expected a connected random_regular:{degree} of {n} ranks, got none in "
        f"{_TRIES} draws with seed {seed}; a larger degree is more often connected"
    )


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
    return undirected(n, ends, others, weights)


# The matrices of a topology and what their eigenvalues say. `Offsets` are diagonal after a Fourier
# transform, which takes n log n steps where eigenvalues of a dense matrix take n cubed; tests
# compare the two.
#
# Chi's and parameters: Nabli, Belilovsky, Oyallon, "A2CiD2: Accelerating Asynchronous Communication
# in Decentralized Deep Learning", NeurIPS 2023, section 3.


def choices(graph: Graph) -> Floats:
    """P[i, j]: how often i, when it chooses, chooses j. Rows sum to 1, or 0 without neighbors."""
    matrix = weights(graph)
    sums = matrix.sum(axis=1, keepdims=True)
    return matrix / np.where(sums > 0, sums, 1.0)


def weights(graph: Graph) -> Floats:
    """The weight of the edge from i to j, as a dense matrix."""
    matrix = np.zeros((graph.n, graph.n))
    sources, targets, values = graph.arcs()
    matrix[sources, targets] = values
    return matrix


def chi_dense(matrix: Floats) -> tuple[float, float]:
    """Return chi1 and chi2 for the Laplacian of a connected topology at rate 1."""
    values, vectors = np.linalg.eigh(matrix)
    pseudo = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
    own = np.diag(pseudo)
    resistance = own[:, None] + own[None, :] - 2 * pseudo
    edges = matrix < 0
    return float(1 / values[1]), float(0.5 * resistance[edges].max())


def chi_fourier(graphs: list[Offsets]) -> tuple[float, float]:
    """Return the same for graphs on one grid. Their Laplacian is 1 - (P + P^T) / 2: the real part
    of the transform does the transposing."""
    row = sum(_row(graph) / graph.weights.sum() for graph in graphs) / len(graphs)
    values = (1.0 - np.fft.fftn(row).real).ravel()
    inverse = np.concatenate(([0.0], 1 / values[1:]))
    pseudo = np.fft.ifftn(inverse.reshape(row.shape)).real.ravel()
    resistance = 2 * (pseudo[0] - pseudo[np.flatnonzero(row)])
    return float(1 / values[1:].min()), float(0.5 * resistance.max())


def _row(graph: Offsets) -> Any:
    """Weights of the edges of rank 0, laid out on the grid."""
    row = np.zeros(graph.n)
    row[graph.offsets] = graph.weights
    return row.reshape(graph.shape)


def moduli(graph: Offsets) -> Floats:
    """Return the moduli of the eigenvalues of the mixing (if directed, push) matrix."""
    found: Floats = np.abs(1 + np.fft.fftn(_row(graph))).ravel() / (1 + graph.weights.sum())
    return found


def bridges(graphs: Sequence[networkx.Graph], dead: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of living ranks that are joined where ranks have died: a path, ascending,
    through the neighbors of each gap; dead ranks that were neighbors are one gap."""
    import networkx

    everything = networkx.compose_all([graph.to_undirected() for graph in graphs])
    for gap in networkx.connected_components(everything.subgraph(dead)):
        edge = sorted({rank for one in gap for rank in everything[one]} - gap)
        yield from zip(edge, edge[1:])


# Topologies as text: ``name[:argument][,key=value]``, without spaces.
#
#     topology = name | "torus:" side {"x" side} | "random_regular:" degree [",seed=" seed]
#     name     = "ring" | "complete" | "exponential" | "torus" | "star" | "hypercube"
#              | "bipartite_ring" | "directed_exponential" | "one_peer_exponential"
#
# Numbers are decimal, without sign. What the graph itself demands (a product of sides, an even
# number of ranks) is checked where it is made.

_PLAIN = "ring complete exponential star hypercube bipartite_ring directed_exponential "
NAMES = (*_PLAIN.split(), "one_peer_exponential", "torus", "random_regular")
_TORUS = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")
_REGULAR = re.compile(r"([0-9]{1,9})(,seed=([0-9]{1,18}))?")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Which constructor of Topology a text names, and with which arguments."""
    name, colon, argument = text.partition(":")
    if name not in NAMES:
        raise ValueError(f"topology: expected one of {', '.join(NAMES)}, got {text!r}")
    if name == "torus" and colon:
        if not _TORUS.fullmatch(argument):
            raise _wrong("torus or torus: and the sides, as in torus:4x8", text)
        return name, {"shape": [int(side) for side in argument.split("x")]}
    if name == "random_regular":
        found = _REGULAR.fullmatch(argument)
        if not found:
            raise _wrong("random_regular:degree or random_regular:degree,seed=number", text)
        return name, {"degree": int(found[1]), "seed": int(found[3] or 0)}
    if colon:
        raise _wrong(f"{name} without an argument", text)
    return name, {}


def _wrong(expected: str, text: str) -> ValueError:
    return ValueError(f"topology: expected {expected}, got {text!r}")
