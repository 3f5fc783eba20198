# SPDX-License-Identifier: Apache-2.0
"""SGP: stochastic gradient push, gradient descent over push-sum gossip on a directed graph.

Source: Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning",
ICML 2019, Algorithm 1, and section 3 for the time-varying directed exponential graph. Push-sum:
Kempe, Dobra, Gehrke, FOCS 2003.

Each rank keeps x and a weight w, initially 1. It pushes half of both to the next out-neighbor and
keeps the other half, adds what arrives, and computes gradients at z = x/w. No rank waits: late
shares are added late, and a share that finds the queue full is kept. The sums of x and of w, with
the queues, are conserved, and z converges to the average whatever the delays.

Updates are added to x as they are, as in Algorithm 1, so z moves by update/w. In lock-step w is 1
at every update. Without lock-step it is 4/3 with steps at evenly spread times, and less on a rank
that receives little. A rank with w below 1/2 keeps its weight, and holds its updates back (training
sees them), until it receives a share. So a step in z is at most twice an update; when it was up to
16 times an update, fast ranks diverged.

Weight would accumulate at ranks that are slow or wait for others, and the steps of the other ranks
would grow. Such ranks pass on, without a step, what they have above 1: ranks that wait in a sum
over all ranks (`GlobalSum.waiting`) if it is more than 1/(2P) of P ranks, and slow ranks, which
received two shares for each push of a step since their last update, if it is more than 1/2. This
comes to rest: a rank that has passed weight on keeps 1, and the weights together are P, as long as
the queues have room and every rank reaches every other. If R of P ranks make steps and the others
wait, these keep less than P - R + 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from ..topology import Topology
from ..topology.pairing import Hops
from .decoupled import Decoupled
from .process import Alone, Array, Exchange, PeerSource, check_model
from .strategy import LocalStrategy, Setup, check_progress, over

_LEAST_WEIGHT = 1 / 2  # of a rank that pushes, or adds updates
_SLOW_SHARES, _SLOW_WEIGHT = 2, 1.5
_WAITING_NAP = 4e-3  # seconds; what is passed on sleeps at each rank that waits


class ExponentialPeers(Hops):
    """Out-neighbors on the time-varying directed exponential graph: 1, 2, 4 ... ranks further,
    one after the other. A peer source, of rank number `rank` of `size` ones."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(Topology.exponential(size), rank)


@dataclass(frozen=True)
class SGP(LocalStrategy):
    """Stochastic gradient push: push-sum over the time-varying directed exponential graph. No rank
    waits: it is the paper's algorithm without lock-step.

    `rate` (float): pushes per own step; Algorithm 1 has one. `progress`, `clip_norm`: as for
    `GossipStrategy`. Source: Assran et al., ICML 2019, Algorithm 1.
    """

    rate: float = 1.0
    progress: str | None = None
    clip_norm: float | None = None

    def check_values(self) -> None:
        checks.number("rate", self.rate, 0)
        check_progress(self.progress)

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        if comm.size == 1:
            return Setup(Alone(x, **common))
        ranks, slots = over(comm), SGPProcess.queue_slots(comm.size)
        how = {"topology": "exponential", "queue_slots": slots, "progress": self.progress}
        buffer = ranks.gossip(SGPProcess.message(x), **how)  # has edges in both directions
        peers = ranks.peers("hops", buffer)
        return Setup(SGPProcess(x, buffer, peers, **common, **vars(self)), owned=[buffer])


class SGPProcess(Decoupled):
    """One rank of stochastic gradient push.

    `x`: see `Process`. `exchange`: a `partialcoll.GossipBuffer` made ``like=SGP.message(x)``: one
    element more than x, for the weight, and with ``queue_slots=SGP.queue_slots(ranks)``. Without a
    codec: it would round the weight as if it were a parameter. `peers`: whom to push to, in turn;
    one must come from every rank to every other; None: `ExponentialPeers`. `common`:
    ``learning_rate`` and ``total``, see `Process`, and the options of `SGP`.

    Invariant: the sums over all ranks of x, which changes by updates only, and of w, which is the
    number of ranks, with all messages in the queues.
    """

    options_type = SGP
    _beside_x = 1  # the weight

    def __init__(
        self, x: Array, exchange: Exchange, peers: PeerSource | None = None, **common: Any
    ) -> None:
        if hasattr(peers, "poll"):
            raise TypeError(f"peers: a push takes no partner's consent, got {type(peers).__name__}")
        if peers is None:
            peers = ExponentialPeers(exchange.rank, exchange.size)
        super().__init__(x, exchange, peers, **common)
        self._xw = self.message(self._x)  # x and w in one vector, as they travel
        self._x = self._xw[:-1]
        self._moved, self._sent = np.empty_like(self._xw), np.empty_like(self._xw)
        self._idle_shares = 0  # that came since this rank's last update
        self._slow_shares = _SLOW_SHARES * max(1.0, self._options.rate)

    @staticmethod
    def message(x: Array) -> Array:
        """Return what is pushed for a model `x`: one element more, the weight."""
        return np.append(check_model("x", x), x.dtype.type(1))

    @staticmethod
    def queue_slots(ranks: int) -> int:
        """Return the number of slots for `ranks` ranks. Each message carries about half of a rank's
        weight, and a suspended rank takes no message out: with more slots the other ranks would
        have less than 1/2 left, and would add no updates until it continues."""
        return 1 if ranks < 4 else 2

    @property
    def weight(self) -> float:
        """The weight w, by which x is divided. Local."""
        return float(self._xw[-1])

    def _begun(self) -> float:
        return 1.0  # a push has one rank that begins it, and no other

    def _event(self) -> bool:
        peer = self._next_peer()
        renewed = self._renew()
        if peer is not None:
            self._count(self.weight >= _LEAST_WEIGHT and self._push(peer))
        elif not self._pass_on() and not renewed:
            return False
        self._show()
        return True

    def _pass_on(self) -> bool:
        """Push without a step, if this rank has too much; without room that can wait."""
        most = _SLOW_WEIGHT if self._idle_shares >= self._slow_shares else math.inf
        if self.weight <= (1 + 0.5 / self._exchange.size if self._waits() else most):
            return False
        peer = self._checked(self._peers.next_peer())
        pushed = peer is not None and self._push(peer, part=1 - 1 / self.weight)
        self._counts.communications += pushed
        return pushed

    def _waits(self) -> bool:
        return self._total is not None and self._total.waiting

    def _longest_nap(self) -> float:
        return _WAITING_NAP if self._waits() else super()._longest_nap()

    def _show(self) -> None:
        self._shared.show(np.divide(self._x, self.weight, out=self._moved[:-1]))

    def _renew(self, least_weight: float = _LEAST_WEIGHT) -> bool:
        """Add others' shares to x and w, updates to x; return whether there were any."""
        messages = self._exchange.drain()
        for _, share in messages:
            self._xw += share
        self._idle_shares += len(messages)
        update = self._shared.take() if self.weight >= least_weight else None
        if update is not None:
            self._idle_shares = 0
            self._x += update
        self._counts.received += len(messages)
        return update is not None or bool(messages)

    def _settle(self) -> None:
        self._renew(least_weight=0)
        self._show()

    def _push(self, peer: int, part: float = 0.5) -> bool:
        """Push a part of x and w, if there is room; what is kept and sent is what there was."""
        np.multiply(self._xw, part, out=self._moved)
        pushed = self._exchange.push(peer, self._moved, sent=self._sent)
        if pushed:
            self._xw -= self._sent
        return pushed

    def _mass(self) -> tuple[Array, float]:
        return self._x, self.weight

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        self._xw[-1], self._idle_shares = 1, 0

    def _adopt(self, model: Array) -> None:
        weight = self._xw[-1]  # keep it, so that the sum of all weights does not change
        super()._adopt(model)
        self._xw *= weight

    def _more_state(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def _new_state(self) -> dict[str, Any]:
        return {"weight": 1.0}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        weight = float(state["weight"])
        if not weight > 0:
            raise ValueError(f"state['weight']: expected a weight above 0, got {weight}")
        self._xw[-1] = weight
        self._shared.reset(self._x / self._xw.dtype.type(weight))
