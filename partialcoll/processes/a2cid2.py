# SPDX-License-Identifier: Apache-2.0
"""A²CiD²: gossip averaging accelerated by a continuous local momentum.

Source: Nabli, Belilovsky, Oyallon, "A²CiD²: Accelerating Asynchronous Communication in
Decentralized Deep Learning", NeurIPS 2023: the dynamic of equation 4, Algorithm 1, parameters of
proposition 3.6.

Besides x each rank keeps x~, which starts as x. Between events the two relax towards each other:
d(x, x~) = eta (x~ - x, x - x~) dt, applied lazily, at the next event. Gradients and averagings are
added to both, averagings with weight alpha to x and alpha~ to x~. The order in an event is: mix,
take in what others gave, average, publish. Who averages an unmixed x lets the sum drift; who
publishes before the average and not after it leaves a register that lacks it until the next event,
and on a ring of 64 ranks that error, times alpha~, grows (simulated).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from ._decoupled import Decoupled
from ._exchange import Array, Exchange, PeerSource
from ._process import LearningRate, check_number
from ._total import Total

_LATE = 0.05  # of a step: a quarter of the latency at which it becomes unstable on a ring


class StepTime:
    """Running mean of the seconds between steps: the unit of time."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0 as long as there is no measure
        self._last: float | None = None
        self._steps = 0

    def stepped(self, now: float) -> None:
        """A gradient step has been made."""
        if self._last is not None:
            took = now - self._last
            if self._steps >= 10:  # who evaluates in between makes no long step
                took = min(took, 10 * self.mean)
            self._steps += 1
            # A plain mean at first, then one of the last hundred or so.
            self.mean += (took - self.mean) / min(self._steps, 100)
        self._last = now

    def pause(self) -> None:
        """What comes before the next step is none."""
        self._last = None

    def units(self, seconds: float) -> float:
        """A time in units."""
        return seconds / self.mean if self.mean else 0.0


class A2CiD2(Decoupled):
    """One rank of A²CiD², or of its baseline without acceleration.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied.
    exchange : Exchange
        A `partialcoll.GossipBuffer` of the same shape and dtype.
    peers : PeerSource
        Whom to average with; anything with ``next_peer() -> int | None``.
    accelerated : bool
        False: the paper's asynchronous baseline, eta = 0 and alpha~ = alpha = 1/2.
    parameters : object with `eta`, `alpha` and `alpha_tilde`, or None
        Proposition 3.6's, of eta per gradient step. None: of the exchange's topology for `rate`.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    rate : float
        Averagings per gradient step that a rank takes part in, on average. It begins half of
        them, the others the other half.
    poisson : bool
        A Poisson number of them for each step, as in the paper; else always the same.
    seed : int
        Of these draws; they differ between ranks.
    clock : callable
        The time; any unit, if `unit` is given in it.
    unit : float or None
        The unit of time, that is a gradient step of an average rank, in the clock's seconds. None:
        the running mean of this rank's own steps, which is the paper's choice; give one if
        ranks differ much in speed.
    total : Total or None
        For what is collective: `averaged_model`, `synchronise`, `consensus_distance`.

    Invariant: the sum over all ranks of x + x~, and of what lies uncollected times
    1 + alpha~/alpha, changes by updates only. `averaged_model` is half of that by the ranks.
    """

    def __init__(
        self,
        x: Array,
        exchange: Exchange,
        peers: PeerSource,
        *,
        accelerated: bool = True,
        parameters: Any = None,
        learning_rate: LearningRate = 0.1,
        rate: float = 1.0,
        poisson: bool = True,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        unit: float | None = None,
        total: Total | None = None,
    ) -> None:
        super().__init__(
            x,
            exchange,
            peers,
            learning_rate=learning_rate,
            rate=check_number("rate", rate, 0),
            poisson=poisson,
            seed=seed,
            total=total,
        )
        if parameters is None:
            # Without averagings there is nothing to relax towards either.
            accelerated = accelerated and rate > 0
            parameters = exchange.topology.a2cid2(rate or 1.0, accelerated=accelerated)
        self._eta = check_number("parameters.eta", parameters.eta, 0)
        self._alpha = check_number("parameters.alpha", parameters.alpha, 0, 1)
        self._ratio = check_number("parameters.alpha_tilde", parameters.alpha_tilde, 0)
        self._ratio /= self._alpha
        if unit is not None and check_number("unit", unit, 0) == 0:
            raise ValueError(f"unit: expected a time above 0, got {unit}")
        self._unit = unit
        self._momentum = self._x.copy()  # x~
        self._landed = np.zeros_like(self._x)  # zero but within an event
        self._moved = np.empty_like(self._x)  # work space
        self._clock = clock
        self._mixed_at = clock()
        self._step_time = StepTime()
        self._random = np.random.default_rng((seed, exchange.rank, 1))
        exchange.publish(self._x)

    @property
    def eta(self) -> float:
        """How fast x and x~ relax, per unit of time."""
        return self._eta

    @property
    def ratio(self) -> float:
        """alpha~/alpha."""
        return self._ratio

    def _stepped(self) -> None:
        self._step_time.stepped(self._clock())
        super()._stepped()

    def _times(self, events: int) -> Sequence[float]:
        """At random within the next step, which makes Poisson numbers a Poisson process."""
        now, step = self._clock(), self._step_time.mean
        return [now + step * part for part in self._random.random(events).tolist()]

    def _now(self) -> float:
        return self._clock()

    def _longest_nap(self) -> float:
        """With momentum, averages that come late feed on themselves: see for them in time."""
        longest, step = super()._longest_nap(), self._step_time.mean
        return min(longest, _LATE * step) if self._eta and step else longest

    def _event(self) -> bool:
        peer = self._next_peer()
        if not self._renew():
            if peer is None:
                return False
            self._mix()
        if peer is not None:
            self._average(peer, weight=self._alpha, momentum=self._momentum, ratio=self._ratio)
        self._exchange.publish(self._x)
        self._handover.show(self._x)
        return True

    def _renew(self) -> bool:
        """Mix; then x and x~ get the updates of this rank and the deltas of others.

        An update adds the same to both, which mixing does not change: it does not matter that it
        may have come before the mixing. Deltas do not, so they are taken aside first: where
        there are none, and no update, nothing is to be done, mixing included.
        """
        update = self._handover.take()
        landed = self._exchange.collect(self._landed)
        self._counts.received += landed
        if update is None and landed == 0:
            return False
        self._mix()
        if update is not None:
            self._x += update
            self._momentum += update
        if landed:
            self._x += self._landed
            self._landed *= self._ratio
            self._momentum += self._landed
            self._landed.fill(0)
        return True

    def _mix(self) -> None:
        """Equation 4 between two events: (x, x~) times exp(delta eta [[-1, 1], [1, -1]])."""
        now = self._clock()
        elapsed, self._mixed_at = now - self._mixed_at, now
        if self._eta == 0:
            return
        delta = elapsed / self._unit if self._unit else self._step_time.units(elapsed)
        # Half of 1 - e: the part of their difference that passes from each to the other.
        part = -0.5 * math.expm1(-2 * self._eta * delta)
        np.subtract(self._momentum, self._x, out=self._moved)
        self._moved *= part
        self._x += self._moved
        self._momentum -= self._moved

    def _settle(self) -> None:
        self._renew()
        self._handover.show(self._x)

    def _mass(self) -> tuple[Array, float]:
        return (self._x.astype(np.float64) + self._momentum) / 2, 1.0

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        np.copyto(self._momentum, model)
        self._step_time.pause()
        self._mixed_at = self._clock()
        self._handover.reset(self._x)
        self._exchange.publish(self._x)

    def _more_state(self) -> dict[str, Any]:
        return {"momentum": self._momentum.copy()}

    def _new_state(self) -> dict[str, Any]:
        return {"momentum": self.model.copy()}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        np.copyto(self._momentum, state["momentum"])
