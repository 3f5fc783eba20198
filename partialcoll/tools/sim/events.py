# SPDX-License-Identifier: Apache-2.0
"""Virtual time for Python: a queue of things to do, and latencies."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any, Callable, Protocol

import numpy as np


class Source(Protocol):
    """What has a queue of its own, and lets things happen by itself."""

    @property
    def waits(self) -> bool:
        """Does somebody wait for something of it? Else it may go on for ever."""

    def run(self, until: float) -> tuple[float, Callable[[], Any]] | None:
        """Go on to that time, or up to something that concerns others: when, and what is to be
        done then."""


class Events:
    """What happens when, in order; of what happens at one time, what was asked for first."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()
        self.now = 0.0

    def after(self, delay: float, action: Callable[[], Any]) -> None:
        """Do this after so much time."""
        heapq.heappush(self._heap, (self.now + delay, next(self._order), action))

    def step(self, until: float = math.inf) -> bool:
        """Do the next thing; False if there is none before that time."""
        due = min(until, self._heap[0][0] if self._heap else math.inf)
        for source in self.sources:
            happened = source.run(due) if due < math.inf or source.waits else None
            if happened is not None:
                self.now = max(self.now, happened[0])
                happened[1]()
                return True
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True

    def run(self, until: float) -> None:
        """Do everything up to that time, which it then is."""
        while self.step(until):
            pass
        self.now = until


def latencies(mean: float, seed: object) -> Callable[[], float]:
    """Draws exponential latencies; always 0 with a mean of 0."""
    random = np.random.default_rng(seed)  # type: ignore[arg-type]
    return lambda: float(random.exponential(mean)) if mean else 0.0
