# SPDX-License-Identifier: Apache-2.0
"""What is left of a topology when ranks have died: their edges go, and where the graph falls apart
without them, those who were next to them may be joined across the gap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx


def without(
    graphs: Sequence[networkx.Graph], dead: Collection[int], *, bridged: bool
) -> list[networkx.Graph]:
    """The graph of each round without the edges of the dead, who stay as nodes; `bridged`: with
    a path through the neighbors of each gap."""
    left = [graph.copy() for graph in graphs]
    for graph in left:
        graph.remove_nodes_from(dead)
        graph.add_nodes_from(dead)
        for a, b in _bridges(graphs, dead) if bridged else ():
            graph.add_edge(a, b, weight=1.0)
            graph.add_edge(b, a, weight=1.0)
    return left


def _bridges(graphs: Sequence[networkx.Graph], dead: Collection[int]) -> Iterator[tuple[int, int]]:
    """Pairs of living ranks: a path, ascending, through those who were next to each of the gaps;
    dead ranks that were neighbors are one gap."""
    import networkx

    everything = networkx.compose_all([graph.to_undirected() for graph in graphs])
    for gap in networkx.connected_components(everything.subgraph(dead)):
        edge = sorted({rank for one in gap for rank in everything[one]} - gap)
        yield from zip(edge, edge[1:])
