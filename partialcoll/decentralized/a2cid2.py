# SPDX-License-Identifier: Apache-2.0
"""A²CiD²: gossip averaging accelerated by a continuous local momentum.

Source: Nabli, Belilovsky, Oyallon, "A²CiD²: Accelerating Asynchronous Communication in
Decentralized Deep Learning", NeurIPS 2023: the dynamic of equation 4, Algorithm 1, parameters of
proposition 3.6.

Besides x each rank keeps x~, which starts as x. Between events the two relax towards each other:
d(x, x~) = eta (x~ - x, x - x~) dt, applied lazily, at the next event. Gradients and averagings are
added to both, averagings with weight alpha to x and alpha~ to x~. The order in an event is: mix
(averaging an unmixed x would let the sum drift), add the deltas of others, average, publish (a
register that lacks the average until the next event has an error that, times alpha~, grows on a
ring of 64 ranks, as simulated).

variant="paper" has the paper's constants of the topology and the rate, in the time of a clock whose
unit is a gradient step. One thing differs from Algorithm 1: a rank waits for no peer. It averages
with the model of the peer's last event, and the peer adds its half of the difference at its next
event. variant="bounded" counts time in averagings made, and each rank has the eta and alpha~ that
it can bear now.

Two ranks that average can have a different alpha~. x + x~ is conserved all the same: of a
difference m a rank loses (alpha + own alpha~) m from the two, and gives the peer as much; each
splits what it loses or gets by its own alpha~. Half of it travels, which without momentum is what
x itself loses.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from .._core import checks
from .._core.settings import logger
from .decoupled import Decoupled, StepTime
from .process import Array, Exchange, PeerSource
from .strategy import GossipStrategy

# The two rules for the momentum of a rank.
#
# `PaperMomentum` is the paper's: eta and alpha~ are constants of proposition 3.6, and x and x~
# relax by the clock, for averagings that arrive at a known rate. The paper's Lyapunov function
# |x|^2 + |x~|^2, the latter weighted by the inverse Laplacian, falls as long as eta·alpha~ <= 1/(4
# chi2). chi2 grows as 1/rate: if only half of the averagings happen, the bound is exceeded by a
# factor of two, and the models diverge.
#
# `BoundedMomentum` adapts eta and alpha~ so that missing averagings do no harm:
#
# - Time is counted in averagings that this rank has made. The rate cancels out: x and x~ relax by
#   the same part for each averaging, whenever it happens, and not at all without one.
# - The momentum grows with the averagings made. After k of them a disturbance has spread over
#   about k ranks, and the topology at large makes no difference yet: chi1 counts as min(chi1, (1 +
#   0.3 k²) chi2). With the whole momentum from the beginning, and nothing but consensus to reach,
#   the models of a ring of 64 are up to a third further apart than without momentum during the
#   first thirty averagings.
# - The momentum shrinks when models are out of date. alpha~ amplifies what a peer's register
#   lacks. A rank estimates that from the peers that refuse it, because too much lies there
#   uncollected. With q the refused part of the averagings lately begun, eta and alpha~ are both
#   divided by 1 + 40 q, down to alpha~ = alpha, which is the baseline. The estimate starts with
#   one refusal in 20, until peers have proved to be up to date.
# - A topology with chi1 < 4 chi2 (alpha~ < 2 alpha) has no momentum unless it is forced: there the
#   bounds above leave little of it, and delays make a loss of that.
#
# The numbers were found by simulation: rings, exponential and complete graphs of 4 to 64 ranks, a
# fiftieth of the averagings asked for to all of them, latencies of 0.02 to 40 steps, ranks that
# are slow or stop; bench/paper/a2cid2.py makes the table.

LEAST_RATIO = 2.0
_GROWTH = 0.3
_CAUTION = 40.0
_PRIOR = 1.0, 20.0  # refused, tried
_LATELY = 128.0  # averagings begun


class PaperMomentum:
    """The paper's constants: `eta`, the relaxation of x and x~ per gradient step of an average
    rank, and `ratio`, alpha~/alpha."""

    def __init__(self, eta: float, ratio: float) -> None:
        self.any = eta > 0
        self._eta, self._ratio = eta, ratio

    def begin_anew(self) -> None:
        """All models are the same."""

    def averaged(self, times: int) -> None:
        """Note `times` averagings made, begun by this rank or by others."""

    def tried(self, went_through: bool) -> None:
        """Note an averaging that this rank has begun, or that its peer has refused."""

    def ratio(self) -> float:
        """Return alpha~/alpha for the next averaging; 1 without momentum."""
        return self._ratio if self.any else 1.0

    def part(self, steps: float) -> float:
        """Return the part of x~ - x that passes from each to the other now; `steps` is the time
        since the last call, in gradient steps of an average rank."""
        return _part(self._eta * steps)


def _part(eta_dt: float) -> float:
    """Part of x~ - x that passes from each to the other, which is (1 - exp(-2 eta dt))/2."""
    return -0.5 * math.expm1(-2 * eta_dt)


class BoundedMomentum(PaperMomentum):
    """Momentum that grows with the averagings made, and shrinks with those refused. `eta`, per
    averaging that a rank takes part in, and `ratio` are upper limits. `force`: keep the momentum on
    topologies that have little to gain."""

    def __init__(self, eta: float, ratio: float, *, force: bool = False) -> None:
        super().__init__(eta, ratio)
        self.any = eta > 0 and (force or ratio >= LEAST_RATIO)
        self._made = self._unmixed = 0
        self._refused, self._tried = _PRIOR

    def begin_anew(self) -> None:
        self._made = self._unmixed = 0

    def averaged(self, times: int) -> None:
        self._made += times
        self._unmixed += times

    def tried(self, went_through: bool) -> None:
        keep = min(1.0, (_LATELY - 1) / self._tried)
        self._refused = keep * self._refused + (not went_through)
        self._tried = keep * self._tried + 1

    def _levels(self) -> tuple[float, float]:
        """Return the ratio that the averagings made so far allow, and the divisor for refusals."""
        allowed = min(self._ratio, math.sqrt(1 + _GROWTH * self._made**2))
        return allowed, min(allowed, 1 + _CAUTION * self._refused / self._tried)

    def ratio(self) -> float:
        allowed, caution = self._levels()
        return allowed / caution if self.any else 1.0

    def part(self, steps: float) -> float:
        """See `PaperMomentum`; for the averagings since the last call, in place of `steps`."""
        unmixed, self._unmixed = self._unmixed, 0
        if not self.any or not unmixed:
            return 0.0
        allowed, caution = self._levels()
        # eta = 1/(2 sqrt(chi1 chi2)), for the chi1 that counts.
        return _part(self._eta * self._ratio / (allowed * caution) * unmixed)


_LATE = 0.05  # of a step: a quarter of the latency at which it becomes unstable on a ring
_VARIANTS = ("bounded", "paper")
_MOMENTUM = ("auto", "force")


@functools.cache
def _warn_off(graph: str, ranks: int, gain: float) -> None:
    """Log once for each graph why there is no momentum; `gain` is chi1/chi2."""
    logger.warning(
        "A2CiD2 has no momentum on the topology %s of %d ranks, and is its own baseline: with "
        "chi1/chi2 = %.2f there is little to gain, and the bounded variant starts at %g; "
        "variant='paper' is the paper's algorithm, momentum='force' keeps the bounded momentum "
        "on, accelerated=False asks for the baseline",
        *(graph, ranks, gain, LEAST_RATIO**2),
    )


@dataclass(frozen=True)
class A2CiD2(GossipStrategy):
    """A²CiD²: pairwise averages, accelerated by a second model that each rank keeps, and which
    receives the very step that the inner optimizer made. Source: Nabli, Belilovsky, Oyallon,
    NeurIPS 2023, Algorithm 1.

    The worse connected the `topology` is, the more there is to gain. `rate` (float): averagings per
    own step that a rank takes part in, on average. It begins half of them, the others the other
    half. `accelerated`: False is the paper's asynchronous baseline, eta = 0 and alpha~ = alpha =
    1/2. `poisson`: a Poisson number of averagings for each step, as in the paper; else always the
    same.

    `variant`: "paper", eta and alpha~ of proposition 3.6 for this topology and `rate`, from the
    first step on, in the time of a clock. It needs ranks of about the same speed that make the
    averagings they are asked for; it diverges where clearly fewer happen. "bounded": these are
    upper limits, and the momentum follows the averagings that happen. `momentum`, of the bounded
    variant: "auto", no momentum, and a warning, where chi1 < 4 chi2: rings of up to 8 ranks, the
    torus of 16, exponential graphs of up to 256, hypercubes of up to 128, stars, complete graphs.
    "force": the momentum stays on, as far as its bounds let it.

    `unit` (float or None): seconds of a gradient step of an average rank: the paper's unit of time,
    in which x and x~ relax. Both variants look for the deltas of others several times in each.
    None: the running mean of this rank's own steps; give a value if ranks differ much in speed.
    `pairing`: as for `ADPSGD`. The other options: see `GossipStrategy`.
    """

    topology: Any = "ring"
    rate: float = 1.0
    accelerated: bool = True
    variant: str = "bounded"
    momentum: str = "auto"
    poisson: bool = True
    pairing: str = "random"
    unit: float | None = None

    def check_values(self) -> None:
        checks.number("rate", self.rate, 0)
        checks.one_of("variant", self.variant, _VARIANTS)
        checks.one_of("momentum", self.momentum, _MOMENTUM)
        if self.unit is not None:
            checks.number("unit", self.unit, above=0, what="a time")

    def process(self, x: Any, exchange: Any, peers: Any, **common: Any) -> A2CiD2Process:
        return A2CiD2Process(x, exchange, peers, **common, **vars(self))


class A2CiD2Process(Decoupled):
    """One rank of A²CiD², or of its baseline without acceleration.

    `x`, `exchange`, `peers`: see `Decoupled`. `parameters`: an object with `eta` (per gradient step
    at this rate), `alpha` and `alpha_tilde` of proposition 3.6; None: those of the exchange's
    topology. `clock`: returns the time in seconds, or in the unit that `unit` is given in; None:
    the exchange's, if it has one, else ``time.perf_counter``. `common`: ``learning_rate`` and
    ``total``, see `Process`, and the options of `A2CiD2`.

    Attributes: `eta`, how fast x and x~ relax, per gradient step; of the bounded variant the most,
    where `rate` is met; 0 without momentum. `ratio`: alpha~/alpha, of the bounded variant the most;
    1 without momentum.

    Invariant: the sum over all ranks of (x + x~)/2 and of what lies uncollected changes by updates
    only. `averaged_model` is that by the ranks.
    """

    options_type = A2CiD2

    def __init__(
        self,
        x: Array,
        exchange: Exchange,
        peers: PeerSource,
        *,
        parameters: Any = None,
        clock: Callable[[], float] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(x, exchange, peers, **common)
        own = self._options
        if parameters is None:
            # Without averagings there is nothing to relax towards either.
            accelerated = own.accelerated and own.rate > 0
            parameters = exchange.topology.a2cid2(own.rate or 1.0, accelerated=accelerated)
        self.eta = checks.number("parameters.eta", parameters.eta, 0)
        self._alpha = checks.number("parameters.alpha", parameters.alpha, 0, 1)
        self.ratio = checks.number("parameters.alpha_tilde", parameters.alpha_tilde, 0)
        self.ratio /= self._alpha
        if own.variant == "paper":
            self._rule = PaperMomentum(self.eta, self.ratio)
        else:
            eta, force = self.eta / own.rate if own.rate else 0.0, own.momentum == "force"
            self._rule = BoundedMomentum(eta, self.ratio, force=force)
        if not self._rule.any:
            if self.eta and exchange.rank == 0:
                graph = exchange.topology
                _warn_off(graph.text, graph.n, self.ratio**2)
            self.eta, self.ratio = 0.0, 1.0
        self._momentum = self._x.copy()  # x~
        self._landed = np.zeros_like(self._x)  # zero but within an event
        self._moved = np.empty_like(self._x)  # work space
        default: Callable[[], float] = getattr(exchange, "clock", time.perf_counter)
        self._clock = clock or default
        self._mixed_at = self._clock()
        self._step_time = StepTime()
        self._random = np.random.default_rng((own.seed, exchange.rank, 1))
        exchange.publish(self._x)

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
        longest, step = super()._longest_nap(), self._options.unit or self._step_time.mean
        return min(longest, _LATE * step) if self.eta and step else longest

    def _event(self) -> bool:
        peer = self._next_peer()
        if not self._renew():
            if peer is None:
                return False
            self._mix()
        if peer is not None:
            self._give(peer)
        self._exchange.publish(self._x)
        self._show()
        return True

    def _renew(self) -> bool:
        """Mix; then add the updates of this rank and the deltas of others to x and x~. An update
        adds the same to both, which mixing does not change; deltas do not, so they are taken aside
        before the mixing. Without either nothing is to be done, mixing included."""
        update = self._shared.take()
        landed = self._exchange.collect(self._landed)
        self._counts.received += landed
        if update is None and landed == 0:
            return False
        self._mix()
        if update is not None:
            self._x += update
            self._momentum += update
        if landed:
            self._get()
            self._rule.averaged(landed)
        return True

    def _get(self) -> None:
        ratio = self._rule.ratio()
        self._landed *= 2 / (1 + ratio)
        self._x += self._landed
        self._landed *= ratio
        self._momentum += self._landed
        self._landed.fill(0)

    def _give(self, peer: int) -> None:
        """Average: x loses alpha m, m the difference to the peer's model, and x~ ratio times that;
        the peer is given half of both together."""
        ratio = self._rule.ratio()
        weight = self._alpha * (1 + ratio) / 2
        both = {"momentum": self._momentum, "ratio": 2 * ratio / (1 + ratio)}
        taken = 2 / (1 + ratio)  # as `_get` does at the peer, if its ratio is the same
        if ratio != 1:
            np.copyto(self._moved, self._x)
        went_through = self._average(peer, weight=weight, taken=taken, **both)
        self._rule.tried(went_through)
        self._rule.averaged(int(went_through))
        if went_through and ratio != 1:  # of what x has given, the part above alpha m comes back
            self._moved -= self._x
            self._moved *= 1 - self._alpha / weight
            self._x += self._moved

    def _mix(self) -> None:
        """Apply equation 4: (x, x~) times exp(eta dt [[-1, 1], [1, -1]]), for the steps or, in the
        bounded variant, the averagings dt since the last time. No steps while their length is
        unknown, when x and x~ are still the same."""
        now, unit = self._clock(), self._options.unit or self._step_time.mean
        passed, self._mixed_at = now - self._mixed_at, now
        part = self._rule.part(passed / unit if unit else 0.0)
        if part == 0:
            return
        np.subtract(self._momentum, self._x, out=self._moved)
        self._moved *= part
        self._x += self._moved
        self._momentum -= self._moved

    def _mass(self) -> tuple[Array, float]:
        return (self._x.astype(np.float64) + self._momentum) / 2, 1.0

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        np.copyto(self._momentum, model)
        self._step_time.pause()
        self._rule.begin_anew()
        self._mixed_at = self._clock()
        self._exchange.publish(self._x)

    def _kept(self) -> dict[str, Array]:
        return {"momentum": self._momentum}

    def _new_state(self) -> dict[str, Any]:
        return {"momentum": self.model.copy()}
