# SPDX-License-Identifier: Apache-2.0
"""AD-PSGD: asynchronous decentralized parallel SGD.

Source: Lian, Zhang, Zhang, Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent",
ICML 2018, Algorithm 1; training and communication in two threads, appendix A. Where the paper
overwrites both models by the mean of two snapshots, this moves the difference: a gradient that
comes in between is not lost, and the sum over the ranks is conserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._core import checks
from .decoupled import Decoupled
from .process import Array, Exchange, PeerSource
from .strategy import GossipStrategy


@dataclass(frozen=True)
class ADPSGD(GossipStrategy):
    """AD-PSGD: each rank steps by itself, and averages with one other rank at a time. Source: Lian
    et al., ICML 2018, Algorithm 1.

    `rate` (float or None): averagings per own step that a rank takes part in. It begins half of
    them, the others the other half: 2 is Algorithm 1, where every gradient step comes with one.
    None: one after the other without pause, as in appendix A, which keeps a core busy. `pairing`
    ("random", "bipartite", "hops" or "available"): how a rank finds the next one; see
    `partialcoll.pairing`. The other options: see `GossipStrategy`.
    """

    rate: float | None = 2.0
    pairing: str = "random"

    def check_values(self) -> None:
        if self.rate is not None:
            checks.number("rate", self.rate, 0)

    def process(self, x: Any, exchange: Any, peers: Any, **common: Any) -> ADPSGDProcess:
        return ADPSGDProcess(x, exchange, peers, **common, **vars(self))


class ADPSGDProcess(Decoupled):
    """One rank of AD-PSGD. Parameters: see `Decoupled`; `common` has options of `ADPSGD`.

    Invariant: the sum over all ranks of x, of what lies uncollected and of updates not yet in x
    changes by updates only.
    """

    options_type = ADPSGD

    def __init__(self, x: Array, exchange: Exchange, peers: PeerSource, **common: Any) -> None:
        super().__init__(x, exchange, peers, **common)
        exchange.publish(self._x)

    def _event(self) -> bool:
        peer = self._next_peer()
        if not self._renew() and peer is None:
            return False
        if peer is not None:
            self._average(peer)
        self._exchange.publish(self._x)
        self._show()
        return True

    def _renew(self) -> bool:
        update = self._shared.take()
        if update is not None:
            self._x += update
        landed = self._exchange.collect(self._x)
        self._counts.received += landed
        return update is not None or landed > 0

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        self._exchange.publish(self._x)
