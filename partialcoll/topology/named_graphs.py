# SPDX-License-Identifier: Apache-2.0
"""The edges of the named topologies, and of networkx graphs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .graph import Floats, Graph, Ints, Offsets, Rows

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


def squarest(n: int) -> tuple[int, int]:
    """Two sides of product n, as equal as possible."""
    short = max(side for side in range(1, math.isqrt(n) + 1) if n % side == 0)
    return short, n // short


def undirected(n: int, ends: Ints, others: Ints, weights: Floats) -> Rows:
    """A graph whose edges are given once."""
    arcs = (np.concatenate([ends, others]), np.concatenate([others, ends]), np.tile(weights, 2))
    return Rows(n, arcs, False)


def star(n: int) -> Rows:
    """Rank 0 joined with all others."""
    leaves = np.arange(1, n)
    return undirected(n, np.zeros_like(leaves), leaves, np.ones(n - 1))


def random_regular(n: int, degree: int, seed: int) -> Graph:
    """A connected graph of this degree, uniform among them."""
    import networkx

    low = 0 if n == 1 else 1 if n == 2 else 2
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
    edges = [(a, b, _weight(a, b, w)) for a, b, w in graph.edges(data="weight")]
    ends = np.array([a for a, _, _ in edges], dtype=np.int64)
    others = np.array([b for _, b, _ in edges], dtype=np.int64)
    weights = np.array([weight for _, _, weight in edges], dtype=np.float64)
    if graph.is_directed():
        return Rows(n, (ends, others, weights), True)
    return undirected(n, ends, others, weights)


def _weight(a: int, b: int, weight: Any) -> float:
    if a == b:
        raise ValueError(f"topology: expected no loops, got one at rank {a}")
    weight = 1.0 if weight is None else weight
    if not isinstance(weight, (int, float, np.number)) or not 0 < weight < math.inf:
        raise ValueError(f"topology: expected weights above 0, got {weight!r} for {a} to {b}")
    return float(weight)
