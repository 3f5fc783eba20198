# SPDX-License-Identifier: Apache-2.0
"""How much momentum a rank of A²CiD² may have now. Decisions only: it is told of averagings.

In the paper x and x~ relax by the clock, for averagings that come at a known rate. Its Lyapunov
function |x|^2 + |x~|^2, the latter weighted by the inverse Laplacian, falls as long as
eta·alpha~ <= 1/(4 chi2); chi2 grows as 1/rate, so where half of the averagings happen it is off by
two, and the models diverge. Here

- time is counted in averagings that this rank has made. The rate cancels out: x and x~ relax by
  the same part for each averaging, whenever it comes, and not at all without one.
- the momentum grows with the averagings made. After k of them a disturbance has spread over some k
  ranks, and the topology at large makes no difference yet: chi1 counts as min(chi1, (1 + 0.3 k²)
  chi2). With all of the momentum from the beginning, a ring of 64 has models that are up to a third
  further apart than without any for the first thirty averagings.
- where models are out of date, it gives way. alpha~ amplifies what a peer's register lacks; how
  much that is, a rank learns from the peers that refuse it, since too much lies there uncollected.
  With q the refused part of those lately begun, eta and alpha~ are both divided by 1 + 40 q.
  Between 1 and alpha~ = alpha nothing is a cliff, and at alpha~ = alpha it is the baseline. It is
  to be proved, not presumed, that peers are up to date: q starts with one refusal in 20.
- a topology with less than `_LEAST_RATIO` to gain has none: that is lost in the noise, and delays
  make a loss of it.

The numbers were found by simulation: rings, exponential and complete graphs of 4 to 64 ranks, a
fiftieth of the averagings asked for to all of them, latencies of 0.02 to 40 steps, ranks that are
slow or stop; bench/paper/shortfall.py has the table.
"""

from __future__ import annotations

import math

_LEAST_RATIO = 2.0
_GROWTH = 0.3
_CAUTION = 40.0
_PRIOR = 1.0, 20.0  # refused, tried
_LATELY = 128.0  # averagings begun


class Momentum:
    """Of one rank.

    Parameters
    ----------
    eta : float
        How fast x and x~ relax, per averaging that a rank takes part in; the most.
    ratio : float
        alpha~/alpha, the most.
    """

    def __init__(self, eta: float, ratio: float) -> None:
        self.any = eta > 0 and ratio >= _LEAST_RATIO
        self._eta, self._most = eta, ratio
        self._made = self._unmixed = 0
        self._refused, self._tried = _PRIOR

    def begin_anew(self) -> None:
        """All models are the same."""
        self._made = self._unmixed = 0

    def averaged(self, times: int) -> None:
        """So many averagings have been made, begun here or elsewhere."""
        self._made += times
        self._unmixed += times

    def tried(self, went_through: bool) -> None:
        """This rank has begun one, or was refused."""
        keep = min(1.0, (_LATELY - 1) / self._tried)
        self._refused = keep * self._refused + (not went_through)
        self._tried = keep * self._tried + 1

    def _levels(self) -> tuple[float, float]:
        """What the topology would bear by now, and what it is divided by."""
        bears = min(self._most, math.sqrt(1 + _GROWTH * self._made**2))
        return bears, min(bears, 1 + _CAUTION * self._refused / self._tried)

    def ratio(self) -> float:
        """alpha~/alpha for the next averaging; 1 without momentum."""
        if not self.any:
            return 1.0
        bears, caution = self._levels()
        return bears / caution

    def part(self) -> float:
        """Of the difference between x and x~: what passes from each to the other now, for the
        averagings since the last time."""
        unmixed, self._unmixed = self._unmixed, 0
        if not self.any or not unmixed:
            return 0.0
        bears, caution = self._levels()
        # eta = 1/(2 sqrt(chi1 chi2)), for the chi1 that counts.
        eta = self._eta * self._most / (bears * caution)
        return -0.5 * math.expm1(-2 * eta * unmixed)
