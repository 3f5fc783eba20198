# SPDX-License-Identifier: Apache-2.0
"""D-PSGD: decentralized parallel SGD, in lock-step with the neighbors only.

Source: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can Decentralized Algorithms Outperform Centralized
Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017,
Algorithm 1: x_i becomes sum_j W_ij x_j minus the gradient step that was computed at x_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from ..errors import StateError
from ..topology.topology import Topology, connected
from .process import Alone, Array, NeighborExchange, NeighborJoin, Process, Steps, check_like
from .strategy import LocalStrategy, Setup, over

Neighbors = Union[Sequence[Sequence[int]], Mapping[int, Sequence[int]]]


def metropolis(neighbors: Neighbors, rank: int) -> dict[int, float]:
    """Return row `rank` of a symmetric, doubly stochastic W for any graph: 1/(1 + the larger degree
    of the two) for each neighbor, the rest for the rank itself. `neighbors`: those of all ranks, or
    of this one and its neighbors. Source: Xiao, Boyd, Lall, IPSN 2005."""
    degree = {j: len(set(neighbors[j])) for j in (rank, *neighbors[rank])}
    weights = {j: 1 / (1 + max(degree[rank], degree[j])) for j in sorted(set(neighbors[rank]))}
    weights[rank] = 1 - math.fsum(weights.values())
    return weights


@dataclass(frozen=True)
class DPSGD(LocalStrategy):
    """D-PSGD: in lock-step with the neighbors, whose models go into a weighted mean each step.

    `topology` (str, networkx graph or Topology) says who is whose neighbor; weights are
    Metropolis', for any graph. `clip_norm` as for `GossipStrategy`. The models are sent before
    forward and backward. Source: Lian et al., NeurIPS 2017, Algorithm 1.
    """

    topology: Any = "ring"
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    def check(self, comm: MPI.Intracomm) -> None:
        super().check(comm)
        graph = connected(self.topology, comm.size)
        if graph.directed or graph.period > 1:
            raise ValueError(
                f"topology: expected an undirected one, always the same, got {graph!r}"
            )

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        if comm.size == 1:
            return Setup(Alone(x, **common))
        graph, rank = Topology.make(self.topology, comm.size), comm.rank
        around = {j: graph.neighbors(j) for j in (rank, *graph.neighbors(rank))}
        models, flags = (over(comm).neighbors(like, around[rank]) for like in (x, np.zeros(1)))
        process = DPSGDProcess(x, models, metropolis(around, rank), rank, **common)
        return Setup(process, NeighborJoin(flags, comm.size), [models, flags])


class DPSGDProcess(Process):
    """One rank of D-PSGD. Each step waits for the neighbors' models of the step before. `begin`
    sends this rank's early, so that the exchange goes on behind the computation. Who changes the
    model in place (`lend`) must `begin` before.

    `x`, `common`: see `Process`. `exchange`: a `NeighborExchange` with vectors like x. `weights`
    maps ranks to floats, a row of W: a weight for each neighbor, and if wanted for `rank`, this
    rank, whose weight is the rest, at least 0. Columns must add up to 1 as well, over all ranks,
    else the average is not preserved: see `metropolis`.
    """

    def __init__(
        self,
        x: Array,
        exchange: NeighborExchange,
        weights: Mapping[int, float],
        rank: int,
        **common: Any,
    ) -> None:
        super().__init__(x, **common)
        check_like("exchange: expected vectors", exchange.send_buffer, self._x)
        others = {j: checks.number(f"weights[{j}]", w, 0, 1) for j, w in weights.items()}
        own = others.pop(rank, None)
        if set(others) != set(exchange.received):
            raise ValueError(
                f"weights: expected the neighbors {sorted(exchange.received)}, got {sorted(others)}"
            )
        rest = 1 - math.fsum(others.values())
        if rest < -1e-9 or (own is not None and abs(own - rest) > 1e-9):
            raise ValueError(
                f"weights: expected a sum of 1, got {math.fsum(others.values()) + (own or 0):g}"
            )
        self._exchange = exchange
        self._weights = dict(sorted(others.items()))
        self._own_weight = max(0.0, rest)
        self._begun = False

    def begin(self) -> None:
        """Send the model to the neighbors; the next step does it otherwise. Local."""
        if not self._begun:
            np.copyto(self._exchange.send_buffer, self._x)
            self._exchange.Start()
            self._begun = True

    def _completing(self) -> Steps[None]:  # what comes is not used
        self.begin()
        yield self._exchange
        self._begun = False

    def _reset(self, model: Array) -> None:
        if self._begun:
            raise StateError("the model was sent to the neighbors by begin: finish the step first")
        super()._reset(model)

    def advancing(self, update: Array | None = None) -> Steps[None]:
        """See `Process.advancing`: waits for the neighbors' models. StateError if a model that was
        changed in place was not sent before."""
        self._check_step(update)
        if update is None and not self._begun:
            raise StateError("apply_in_place: the model has been changed before begin()")
        with self._exposed():
            self.begin()
            yield from super().advancing(update)

    def _advancing(self) -> Steps[None]:
        # x has the update; what was sent is x without it, and moves by W - I.
        yield self._exchange
        self._begun = False
        change = (self._own_weight - 1) * self._exchange.send_buffer
        for j, weight in self._weights.items():
            change += weight * self._exchange.received[j]
        self._x += change
        self._counts.steps += 1
        self._counts.communications += len(self._weights)
        self._counts.received += len(self._weights)
