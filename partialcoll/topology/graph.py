# SPDX-License-Identifier: Apache-2.0
"""How a topology keeps its edges: two forms with the same few methods, and nothing else.

`Offsets` is a graph that looks the same from every rank (ring, complete, exponential, torus,
hypercube): one list of offsets serves all ranks, so a hundred thousand of them cost no more than
one, and its spectrum is a Fourier transform. `Rows` is any other graph, row by row. Algorithms on
graphs are networkx's; what comes out of a spectrum is in `_spectrum`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Union

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

    def row(self, rank: int) -> tuple[Ints, Floats]:
        """Whom `rank` reaches over one edge, ascending, and the weights."""
        start = np.array(np.unravel_index(rank, self.shape))[:, None]
        there = start + np.array(np.unravel_index(self.offsets, self.shape))
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
        rows = [self.row(rank) for rank in range(self.n)]
        degree = len(self.offsets)
        empty = np.empty(0, dtype=np.int64)
        return (
            np.repeat(np.arange(self.n), degree),
            np.concatenate([empty, *(peers for peers, _ in rows)]),
            np.concatenate([np.empty(0), *(weights for _, weights in rows)]),
        )

    def transposed(self) -> Offsets:
        """The same edges, turned round."""
        pairs = zip(self.offsets, self.weights)
        turned = {self.move(0, int(offset), -1): float(weight) for offset, weight in pairs}
        return Offsets(self.shape, turned, self.directed)


class Rows:
    """Any graph: for each rank whom it reaches, with weights. Arcs are added up."""

    def __init__(self, n: int, arcs: Arcs, directed: bool) -> None:
        self.n = n
        self.directed = directed
        places, where = np.unique(arcs[0] * n + arcs[1], return_inverse=True)
        self._peers: Ints = places % n
        sums = np.bincount(where, weights=arcs[2], minlength=len(places))
        self._weights: Floats = sums.astype(np.float64)
        self._begin: Ints = np.searchsorted(places, np.arange(n + 1) * n)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same edges in this form."""
        rows = (self._begin, self._peers, self._weights)
        return *(array.tobytes() for array in rows), self.directed

    def row(self, rank: int) -> tuple[Ints, Floats]:
        """Whom `rank` reaches over one edge, ascending, and the weights."""
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

    def transposed(self) -> Rows:
        """The same edges, turned round."""
        return self if not self.directed else self._turned

    @cached_property
    def _turned(self) -> Rows:
        sources, targets, weights = self.arcs()
        return Rows(self.n, (targets, sources, weights), True)


Graph = Union[Offsets, Rows]


def merged(graphs: tuple[Graph, ...]) -> Graph:
    """All edges of several graphs of the same ranks, weights added up."""
    first = graphs[0]
    if len(graphs) == 1:
        return first
    directed = any(graph.directed for graph in graphs)
    if isinstance(first, Offsets):
        alike = [g for g in graphs if isinstance(g, Offsets) and g.shape == first.shape]
        if len(alike) == len(graphs):
            weights: dict[int, float] = {}
            for graph in alike:
                for offset, weight in zip(graph.offsets, graph.weights):
                    weights[int(offset)] = weights.get(int(offset), 0.0) + float(weight)
            return Offsets(first.shape, weights, directed)
    parts = [graph.arcs() for graph in graphs]
    arcs: Any = tuple(np.concatenate(column) for column in zip(*parts))
    return Rows(first.n, arcs, directed)
