# SPDX-License-Identifier: Apache-2.0
"""How many communication events belong to a gradient step, and what if there are fewer."""

from __future__ import annotations

import math

import numpy as np

from .._core import checks
from .._core.settings import logger
from .local_model import Counts


class Pace:
    """Draws the number of events for one gradient step after the other.

    Where communication does not keep up, events wait. They are worth making up for after a gap,
    but no more of them than there is disagreement: a burst of averagings without a step in between
    soon finds models that agree, and where more is asked for than can be made it never ends. So
    those of the last `LATEST` steps may wait, and older ones are given up.

    Parameters
    ----------
    rate : float
        Events per gradient step, on average.
    poisson : bool
        Poisson numbers; else the same for every step, but for rounding.
    seed : int or sequence of int
        Of the draws.
    """

    LATEST = 64

    def __init__(self, rate: float, poisson: bool, seed: object = 0) -> None:
        self.rate = checks.number("rate", rate, 0, what="events per gradient step")
        self.most = math.ceil(self.LATEST * self.rate)  # that may wait
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


class Shortfall:
    """Says so, once, when clearly fewer events are made than the steps ask for."""

    _EVENTS, _STEPS = 64, 16  # to judge by: events of the last step need not have come yet
    _ENOUGH = 0.75

    def __init__(self) -> None:
        self._since = Counts()
        self._said = False

    def look(self, counts: Counts) -> None:
        """After a step."""
        since = self._since
        asked = counts.asked - since.asked
        if self._said or asked < self._EVENTS or counts.steps - since.steps < self._STEPS:
            return
        achieved = counts.achieved - since.achieved
        self._since = Counts(**vars(counts))
        if achieved < self._ENOUGH * asked:
            self._said = True
            logger.warning(
                "rate: of %d averagings or messages that the last %d steps asked for, %d were made "
                "(%d are waiting, %d were refused): the ranks agree less than this rate would have "
                "them; ask for fewer, or see what holds communication up",
                asked,
                counts.steps - since.steps,
                achieved,
                counts.backlog,
                counts.skipped - since.skipped,
            )
