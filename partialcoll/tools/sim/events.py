# SPDX-License-Identifier: Apache-2.0
"""Virtual time for Python: a queue of things to do, and latencies."""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Callable

import numpy as np


class Events:
    """What happens when, in order; of what happens at one time, what was asked for first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()
        self.now = 0.0

    def after(self, delay: float, action: Callable[[], Any]) -> None:
        """Do this after so much time."""
        heapq.heappush(self._heap, (self.now + delay, next(self._order), action))

    def step(self) -> bool:
        """Do the next thing; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True

    def run(self, until: float) -> None:
        """Do everything up to that time, which it then is."""
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = until


def latencies(mean: float, seed: object) -> Callable[[], float]:
    """Draws exponential latencies; always 0 with a mean of 0."""
    random = np.random.default_rng(seed)  # type: ignore[arg-type]
    return lambda: float(random.exponential(mean)) if mean else 0.0
