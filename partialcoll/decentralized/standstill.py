# SPDX-License-Identifier: Apache-2.0
"""Has this process stood still (SIGSTOP, a suspended machine, memory swapped out) while the other
ranks went on?

Its communication thread looks around some times a second, whatever training does. If it has not for
as long as many steps take, the process has stood still, and its model is from before what the
others have learned since.

`_looked` and `_busy` are the communication thread's; the training thread reads them, since after a
standstill it may be the first to run. `noticed` is set by either, cleared by the training thread.
"""

from __future__ import annotations

import time

from .step_time import StepTime

_STEPS, _LEAST = 20, 1.0  # steps, seconds: shorter ones do little harm


class Standstill:
    """Of one process with a communication thread."""

    def __init__(self) -> None:
        self.noticed = False
        self._step_time = StepTime()
        self._looked: float | None = None  # when, the last time; None: not yet
        self._busy = False  # in an event, which may take long

    def begin(self) -> None:
        """The communication thread is about to be started."""
        self._looked = None

    def stepped(self) -> None:
        """Training thread: a gradient step has been made."""
        self._step_time.stepped(time.monotonic())

    def look(self) -> bool:
        """Communication thread, before an event: is there a standstill that training has not made
        up for?"""
        self.check()
        self._looked = time.monotonic()
        return self.noticed

    def event(self, begins: bool) -> None:
        """Communication thread: begins, or has ended."""
        self._busy, self._looked = begins, time.monotonic()

    def check(self) -> bool:
        """Either thread: as `look`, of the time until now."""
        looked, usual = self._looked, self._step_time.mean
        if looked is not None and usual and not self._busy:
            self.noticed |= time.monotonic() - looked > max(_LEAST, _STEPS * usual)
        return self.noticed

    @property
    def patience(self) -> float:
        """Seconds in which a peer that goes on comes to the end of a step."""
        return _LEAST + 10 * self._step_time.mean

    def over(self) -> None:
        """Training thread: it is made up for."""
        self._looked, self.noticed = time.monotonic(), False
