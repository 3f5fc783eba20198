# SPDX-License-Identifier: Apache-2.0
"""Local SGD: every rank by itself, and the mean of all models every H steps.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Algorithm 1.
"""

from __future__ import annotations

import numpy as np

from ._exchange import Array, Reduction, Steps
from ._process import LearningRate, Process, check_count
from ._total import Total
from .allreducesgd import check_reduction


class LocalSGD(Process):
    """One rank of local SGD.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied. The same on all ranks.
    handle : Reduction
        ``Allreduce_init(comm, None, None, like=x, quorum="full")``.
    local_steps : int
        H. Step number H, 2 H, ... waits for all ranks; the others wait for nobody.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    total : Total or None
        For what is collective: `averaged_model`, `synchronise`, `consensus_distance`.
    """

    def __init__(
        self,
        x: Array,
        handle: Reduction,
        *,
        local_steps: int = 4,
        learning_rate: LearningRate = 0.1,
        total: Total | None = None,
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        self._handle = check_reduction(handle, self._x)
        self._local_steps = check_count("local_steps", local_steps)

    def _advancing(self) -> Steps[None]:
        """Waits for all ranks' models if this is such a step."""
        self._counts.steps += 1
        if self._counts.steps % self._local_steps:
            return
        with self._exposed():
            np.copyto(self._handle.send_buffer, self._x)
            self._handle.Start()
            yield self._handle
            np.divide(self._handle.result, self._handle.last_round.active, out=self._x)
        self._counts.communications += 1
