# SPDX-License-Identifier: Apache-2.0
"""Has this process stood still (SIGSTOP, a suspended machine, memory swapped out) while the other
ranks went on?

Its communication thread looks around some times a second, whatever training does. If it has not for
as long as many steps take, the process has stood still, and its model is from before what the
others have learned since.

An event of that thread may take long, too: then what counts is whether training makes steps.

`_looked` and `_busy` are the communication thread's, `_stepped` the training thread's; each reads
the others', since after a standstill either may be the first to run. `noticed` is set by either,
cleared by the training thread.
"""

from __future__ import annotations

import time

from .step_time import StepTime

# Steps, seconds: shorter ones do little harm, and a busy machine has them.
_STEPS, _LEAST = 20, 3.0
_WARM_UP = 3  # steps that take longer than the others


class Standstill:
    """Of one process with a communication thread."""

    def __init__(self) -> None:
        self.noticed = False
        self._step_time = StepTime()
        self._steps = 0
        self._stepped = 0.0  # when, the last time
        self._looked: float | None = None  # when, the last time; None: not yet
        self._busy = False  # in an event

    def begin(self) -> None:
        """The communication thread is about to be started."""
        self._looked, self._busy = None, False

    def stepped(self) -> None:
        """Training thread: a gradient step has been made."""
        self._stepped = time.monotonic()
        self._steps += 1
        if self._steps > _WARM_UP:
            self._step_time.stepped(self._stepped)

    def look(self) -> bool:
        """Communication thread, before an event: is there a standstill that training has not made
        up for?"""
        self.check()
        self._looked = time.monotonic()
        return self.noticed

    def event(self, begins: bool) -> None:
        """Communication thread: begins, or has ended."""
        self.check()
        self._busy, self._looked = begins, time.monotonic()

    def check(self) -> bool:
        """Either thread: as `look`, of the time until now."""
        alive, usual = self._looked, self._step_time.mean
        if alive is not None and usual:
            if self._busy:
                alive = max(alive, self._stepped)
            self.noticed |= time.monotonic() - alive > max(_LEAST, _STEPS * usual)
        return self.noticed

    @property
    def patience(self) -> float:
        """Seconds in which a peer that goes on comes to the end of a step."""
        return 1.0 + 10 * self._step_time.mean

    def over(self) -> None:
        """Training thread: it is made up for."""
        self._looked, self.noticed = time.monotonic(), False
