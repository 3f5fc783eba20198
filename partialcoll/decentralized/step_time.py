# SPDX-License-Identifier: Apache-2.0
"""How long a gradient step of this rank takes."""

from __future__ import annotations


class StepTime:
    """Running mean of the seconds between steps."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0 as long as there is no measure
        self._last: float | None = None
        self._steps = 0

    def stepped(self, now: float) -> None:
        """A gradient step has been made."""
        if self._last is not None:
            took = now - self._last
            if self._steps >= 10:  # who evaluates in between makes no long step
                took = min(took, 10 * self.mean)
            self._steps += 1
            # A plain mean at first, then one of the last hundred or so.
            self.mean += (took - self.mean) / min(self._steps, 100)
        self._last = now

    def pause(self) -> None:
        """What comes before the next step is none."""
        self._last = None
