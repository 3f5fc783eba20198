# SPDX-License-Identifier: Apache-2.0
"""A rank without others: plain descent, what every process is on one rank."""

from __future__ import annotations

from ._exchange import Steps
from ._process import Process


class Alone(Process):
    """Steps by itself, and averages with nobody; the parameters are those of `Process`."""

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        yield from ()
