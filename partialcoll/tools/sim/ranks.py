# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks: the training thread and the communication thread of a process, in virtual time.

The unit of time is the mean gradient step of an ordinary rank.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from ...decentralized.base import Process
from ...decentralized.exchange import Steps
from .events import Events
from .tasks import Task

# The communication thread looks again after this time when there was nothing to do, or somebody
# else has something for it.
NAP = 0.01


class SimulatedRank:
    """One rank that takes gradient steps without end.

    Parameters
    ----------
    process : Process
        Not started: its communication events are called for here.
    step_time : callable
        Draws how long the next gradient takes.
    transfer : callable
        Draws how long a communication event takes.
    """

    def __init__(
        self,
        rank: int,
        process: Process,
        task: Task,
        events: Events,
        step_time: Callable[[], float],
        transfer: Callable[[], float],
        random: np.random.Generator,
    ) -> None:
        self.process = process
        self._rank, self._task, self._events = rank, task, events
        self._step_time, self._transfer, self._random = step_time, transfer, random
        self._looks = False  # the communication thread is going to look,
        self._look_at = 0.0  # then
        self._still = (0.0, 0.0)

    def start(self, delay: float) -> None:
        """Begin after so much time."""
        self._events.after(delay, self._begin)

    def stand_still(self, begin: float, end: float) -> None:
        """Neither thread does anything in this time."""
        self._still = (begin, end)

    def _put_off(self, action: Callable[[], None]) -> bool:
        """Does this rank stand still? Then it does this afterwards."""
        begin, end = self._still
        still = begin <= self._events.now < end
        if still:
            self._events.after(end - self._events.now, action)
        return still

    def _begin(self) -> None:
        self._events.after(self._step_time(), self._finish)

    def _finish(self) -> None:
        if self._put_off(self._finish):
            return
        gradient = self._task.gradient(self._rank, self.process.model, self._random)
        update = (-self.process.learning_rate * gradient).astype(self.process.model.dtype)
        self._advance(self.process.advancing(update))

    def _advance(self, steps: Steps[None]) -> None:
        """Up to where it waits; from there on when what it waits for is complete."""
        try:
            awaited = next(steps)
        except StopIteration:
            self.look()
            self._begin()
            return
        awaited.then(lambda: self._advance(steps))  # type: ignore[attr-defined]

    def look(self) -> None:
        """There may be something for the communication thread."""
        self._look_after(NAP)

    def _look_after(self, delay: float) -> None:
        at = self._events.now + delay
        if not self._looks or at < self._look_at:
            self._looks, self._look_at = True, at
            self._events.after(delay, self._communicate)

    def _communicate(self) -> None:
        if not self._looks or self._events.now < self._look_at:
            return  # somebody has looked meanwhile
        if self._put_off(self._communicate):
            return
        self._looks = False
        did = self.process.communicate()
        due = self.process.next_event()
        if due is not None:
            self._look_after(due + (self._transfer() if did else 0) or NAP)
