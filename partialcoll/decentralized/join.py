# SPDX-License-Identifier: Apache-2.0
"""Joining: how a rank without data waits for the others, who may need it in their steps.

Where ranks are in lock-step, a rank that has joined goes on with empty steps, which change nothing
of its own, until all have joined; all then end at the same step. How they learn of it:

- `PeriodicJoin`: all ranks meet every so many steps anyway. They count there who has joined.
- `NeighborJoin`: only neighbors meet, in each step, so a count c travels beside the models: it is
  0 before this rank has joined, then 1 + the least of its own c and the neighbors'. Let the last
  rank join at step T. On every rank c is at most D, the diameter of the graph, up to step T + D,
  since a 0 spreads by one hop a step; from then on it is k after step T + k. So all ranks find
  that c exceeds any number from D on after the same step.

Nobody waits for a rank without lock-step: in `average_models` its communication thread answers.
"""

from __future__ import annotations

import numpy as np

from .base import Process
from .global_sum import GlobalSum
from .neighbors import NeighborExchange


class JoinHook:
    """Of ranks that need nobody in their steps."""

    def begin(self) -> None:
        """The gradient of a step is about to be computed. Local; idempotent until `after`."""

    def before(self, step: int) -> None:
        """Step number `step` of this rank, from 1, is about to be made."""

    def after(self) -> None:
        """It has been made."""

    def join(self, process: Process) -> None:
        """Empty steps of the `process`, if they are needed, until all ranks have joined. If not,
        the exact average that follows waits for them."""

    def complete(self) -> None:
        """End what `begin` has started, without a step. Collective."""


class PeriodicJoin(JoinHook):
    """Of `ranks` that all meet, in a sum of `total`, in each step whose number is a multiple of
    `every`."""

    def __init__(self, total: GlobalSum, every: int, ranks: int) -> None:
        self._total, self._every, self._ranks = total, every, ranks

    def before(self, step: int) -> None:
        """Count those who have joined, at a boundary."""
        if step % self._every == 0:
            self._joined(0)

    def _joined(self, own: int) -> int:
        return int(self._total.sum(np.array([float(own)]))[0])

    def join(self, process: Process) -> None:
        """To the first boundary with all. It counts as made, but nothing happens there: with
        momentum, an outer step would move a model that has been averaged already."""
        while True:
            step = process.stats.steps + 1
            if step % self._every == 0 and self._joined(1) == self._ranks:
                process.begin_at(step)
                return
            _empty_step(process)


class NeighborJoin(JoinHook):
    """Of `ranks` that meet their neighbors in each step; `flags` exchanges one number."""

    def __init__(self, flags: NeighborExchange, ranks: int) -> None:
        self._flags, self._ranks = flags, ranks
        self._joined, self._known = False, 0
        self._begun = False

    def begin(self) -> None:
        """Tell the neighbors what is known here: early, so that nobody waits for it."""
        if not self._begun:
            self._flags.send_buffer[0] = self._known
            self._flags.Start()
            self._begun = True

    def after(self) -> None:
        """Hear what they knew."""
        self._flags.Wait()
        self._begun = False
        heard = [int(flag[0]) for flag in self._flags.received.values()]
        self._known = 1 + min([self._known, *heard]) if self._joined else 0

    def join(self, process: Process) -> None:
        """Until all ranks are known to have joined; no two are further apart than `ranks`."""
        self._joined = True
        while self._known <= self._ranks:
            self.begin()
            _empty_step(process)
            self.after()
        self._joined, self._known = False, 0

    def complete(self) -> None:
        """Who has not told begins, so that all have."""
        self.begin()
        self.after()


def _empty_step(process: Process) -> None:
    """One that changes nothing of this rank's own."""
    process.begin()
    process.apply_in_place()
