# SPDX-License-Identifier: Apache-2.0
"""The two rules for the momentum of a rank of A²CiD². Decisions only: a rule is told of averagings
and of time, and answers how far x and x~ move.

`PaperMomentum` is the paper's: eta and alpha~ are constants of proposition 3.6, and x and x~ relax
by the clock, for averagings that arrive at a known rate. The paper's Lyapunov function
|x|^2 + |x~|^2, the latter weighted by the inverse Laplacian, falls as long as
eta·alpha~ <= 1/(4 chi2). chi2 grows as 1/rate: if only half of the averagings happen, the bound is
exceeded by a factor of two, and the models diverge.

`BoundedMomentum` adapts eta and alpha~ so that missing averagings do no harm:

- Time is counted in averagings that this rank has made. The rate cancels out: x and x~ relax by
  the same part for each averaging, whenever it happens, and not at all without one.
- The momentum grows with the averagings made. After k of them a disturbance has spread over about
  k ranks, and the topology at large makes no difference yet: chi1 counts as
  min(chi1, (1 + 0.3 k²) chi2). With the whole momentum from the beginning, and nothing but
  consensus to reach, the models of a ring of 64 are up to a third further apart than without
  momentum during the first thirty averagings.
- The momentum shrinks when models are out of date. alpha~ amplifies what a peer's register lacks.
  A rank estimates that from the peers that refuse it, because too much lies there uncollected.
  With q the refused part of the averagings lately begun, eta and alpha~ are both divided by
  1 + 40 q, down to alpha~ = alpha, which is the baseline. The estimate starts with one refusal in
  20, until peers have proved to be up to date.
- A topology with chi1 < 4 chi2 (alpha~ < 2 alpha) has no momentum unless it is forced: there the
  bounds above leave little of it, and delays make a loss of that.

The numbers were found by simulation: rings, exponential and complete graphs of 4 to 64 ranks, a
fiftieth of the averagings asked for to all of them, latencies of 0.02 to 40 steps, ranks that are
slow or stop; bench/paper/a2cid2.py makes the table.
"""

from __future__ import annotations

import math

LEAST_RATIO = 2.0
_GROWTH = 0.3
_CAUTION = 40.0
_PRIOR = 1.0, 20.0  # refused, tried
_LATELY = 128.0  # averagings begun


def _part(eta_dt: float) -> float:
    """Part of x~ - x that passes from each to the other, which is (1 - exp(-2 eta dt))/2."""
    return -0.5 * math.expm1(-2 * eta_dt)


class PaperMomentum:
    """The paper's constants.

    Parameters
    ----------
    eta : float
        Relaxation of x and x~ per gradient step of an average rank.
    ratio : float
        alpha~/alpha.
    """

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


class BoundedMomentum(PaperMomentum):
    """Momentum that grows with the averagings made, and shrinks with those refused.

    Parameters
    ----------
    eta : float
        Relaxation of x and x~ per averaging that a rank takes part in; an upper limit.
    ratio : float
        alpha~/alpha; an upper limit.
    force : bool
        Keep the momentum on topologies that have little to gain.
    """

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
        if not self.any:
            return 1.0
        allowed, caution = self._levels()
        return allowed / caution

    def part(self, steps: float) -> float:
        """Return the part of x~ - x that passes from each to the other now, for the averagings
        since the last call; the time in `steps` does not matter."""
        unmixed, self._unmixed = self._unmixed, 0
        if not self.any or not unmixed:
            return 0.0
        allowed, caution = self._levels()
        # eta = 1/(2 sqrt(chi1 chi2)), for the chi1 that counts.
        return _part(self._eta * self._ratio / (allowed * caution) * unmixed)
