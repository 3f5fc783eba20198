# SPDX-License-Identifier: Apache-2.0
"""AD-PSGD: asynchronous decentralised parallel SGD.

Source: Lian, Zhang, Zhang, Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent",
ICML 2018, Algorithm 1; training and communication in two threads, appendix A. Where the paper
overwrites both models by the mean of two snapshots, this moves the difference: a gradient that
comes in between is not lost, and the sum over the ranks is conserved.
"""

from __future__ import annotations

from ._decoupled import Decoupled
from ._exchange import Array, Exchange, PeerSource
from ._process import LearningRate
from ._total import Total


class ADPSGD(Decoupled):
    """One rank of AD-PSGD.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied.
    exchange : Exchange
        A `partialcoll.GossipBuffer` of the same shape and dtype.
    peers : PeerSource
        Whom to average with; anything with ``next_peer() -> int | None``.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    rate : float or None
        Averagings per gradient step that this rank takes part in. It begins half of them, the
        others the other half: 2 is Algorithm 1, where every gradient step comes with one.
        None: one after the other without pause, as in appendix A, which keeps a core busy.
    total : Total or None
        For what is collective: `averaged_model`, `synchronise`, `consensus_distance`.

    Invariant: the sum over all ranks of x, of what lies uncollected and of updates not yet in x
    changes by updates only.
    """

    def __init__(
        self,
        x: Array,
        exchange: Exchange,
        peers: PeerSource,
        *,
        learning_rate: LearningRate = 0.1,
        rate: float | None = 2.0,
        total: Total | None = None,
    ) -> None:
        super().__init__(
            x,
            exchange,
            peers,
            learning_rate=learning_rate,
            rate=rate,
            poisson=False,
            seed=0,
            total=total,
        )
        exchange.publish(self._x)

    def _event(self) -> bool:
        peer = self._next_peer()
        if not self._renew() and peer is None:
            return False
        if peer is not None:
            self._average(peer)
        self._exchange.publish(self._x)
        self._handover.show(self._x)
        return True

    def _renew(self) -> bool:
        """x gets the updates of this rank and the deltas of others; were there any?"""
        update = self._handover.take()
        if update is not None:
            self._x += update
        landed = self._exchange.collect(self._x)
        self._counts.received += landed
        return update is not None or landed > 0

    def _settle(self) -> None:
        self._renew()
        self._handover.show(self._x)

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        self._handover.reset(self._x)
        self._exchange.publish(self._x)
