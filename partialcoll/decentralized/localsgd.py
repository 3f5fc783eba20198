# SPDX-License-Identifier: Apache-2.0
"""Local SGD: every rank by itself, and the mean of all models every H steps.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._core import checks
from .._core.mpi import MPI
from .allreducesgd import averaging, check_reduction
from .base import LearningRate, Process
from .exchange import Array, Reduction, Steps
from .global_sum import GlobalSum
from .join import PeriodicJoin
from .options import Options, Setup


@dataclass(frozen=True)
class LocalSGDOptions(Options):
    """Local SGD: every rank by itself, and the mean of all models every H steps.

    Parameters
    ----------
    local_steps : int
        H. Step number H, 2 H, ... waits for all ranks; the others wait for nobody.
    clip_norm : float or None
        As for `ADPSGDOptions`.

    Source: Stich, ICLR 2019, Algorithm 1.
    """

    local_steps: int = 4
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    def check_values(self) -> None:
        """Of the algorithm."""
        checks.count("local_steps", self.local_steps)

    def build(
        self, x: Array, comm: MPI.Intracomm, *, learning_rate: LearningRate, total: GlobalSum
    ) -> Setup:
        """Collective."""
        from ..collectives.allreduce import Allreduce_init  # loads MPI

        handle = Allreduce_init(comm, None, None, like=x, quorum="full", history=1)
        steps = self.local_steps
        process = LocalSGD(x, handle, local_steps=steps, learning_rate=learning_rate, total=total)
        return Setup(process, PeriodicJoin(total, steps, comm.size), [handle])


class LocalSGD(Process):
    """One rank of local SGD.

    Parameters
    ----------
    x, learning_rate, total
        See `Process`.
    handle : Reduction
        ``Allreduce_init(comm, None, None, like=x, quorum="full")``.
    local_steps
        See `LocalSGDOptions`.
    """

    def __init__(
        self,
        x: Array,
        handle: Reduction,
        *,
        local_steps: int = LocalSGDOptions.local_steps,
        learning_rate: LearningRate = 0.1,
        total: GlobalSum | None = None,
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        LocalSGDOptions(local_steps).check_values()
        self._handle = check_reduction(handle, self._x)
        self._local_steps = int(local_steps)

    def _advancing(self) -> Steps[None]:
        """Waits for all ranks' models if this is such a step."""
        self._counts.steps += 1
        if self._counts.steps % self._local_steps:
            return
        with self._exposed():
            yield from averaging(self._handle, self._x, self._x)
        self._counts.communications += 1
