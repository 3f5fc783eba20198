# SPDX-License-Identifier: Apache-2.0
"""A rank without others: plain descent, what every process is on one rank."""

from __future__ import annotations

from .base import Process
from .exchange import Steps


class Alone(Process):
    """Steps by itself, and averages with nobody; the parameters are those of `Process`."""

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        yield from ()
