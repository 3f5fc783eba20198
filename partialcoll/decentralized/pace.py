# SPDX-License-Identifier: Apache-2.0
"""How many communication events belong to a gradient step."""

from __future__ import annotations

import math

import numpy as np

from .._core import checks


class Pace:
    """Draws the number of events for one gradient step after the other.

    Parameters
    ----------
    rate : float
        Events per gradient step, on average.
    poisson : bool
        Poisson numbers; else the same for every step, but for rounding.
    seed : int or sequence of int
        Of the draws.
    """

    def __init__(self, rate: float, poisson: bool, seed: object = 0) -> None:
        self.rate = checks.number("rate", rate, 0, what="events per gradient step")
        self._poisson = poisson
        self._random = np.random.default_rng(seed)  # type: ignore[arg-type]
        self._left_over = 0.0

    def draw(self) -> int:
        """Events for the next gradient step."""
        if self._poisson:
            return int(self._random.poisson(self.rate))
        whole = math.floor(self._left_over + self.rate + 1e-9)
        self._left_over += self.rate - whole
        return whole
