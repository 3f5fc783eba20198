# SPDX-License-Identifier: Apache-2.0
"""Local SGD: local steps, then the average of all models; and Allreduce-SGD, its comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from .process import Array, PeriodicJoin, Process, Reduction, Steps, check_like, finish
from .strategy import LocalStrategy, Setup, over


@dataclass(frozen=True)
class LocalSGD(LocalStrategy):
    """Local SGD: every rank by itself, and the mean of all models every H steps.

    `local_steps` is H, an int from 1 on: step number H, 2 H, ... waits for all ranks. `clip_norm`
    as for `GossipStrategy`. Source: Stich, ICLR 2019, Algorithm 1.
    """

    local_steps: int = 4
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    def check_values(self) -> None:
        checks.count("local_steps", self.local_steps)

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        handle = over(comm).reduction(x)
        process = LocalSGDProcess(x, handle, **common, **vars(self))
        join = PeriodicJoin(common["total"], self.local_steps, comm.size)
        return Setup(process, join, [handle])


class LocalSGDProcess(Process):
    """One rank of local SGD. `x`: see `Process`. `handle`: ``Allreduce_init(comm, None, None,
    like=x, quorum="full")``. `common`: ``learning_rate`` and ``total``, see `Process`, and the
    options of `LocalSGD`."""

    options_type = LocalSGD

    def __init__(self, x: Array, handle: Reduction, **common: Any) -> None:
        super().__init__(x, **common)
        check_like("handle: expected a buffer", handle.send_buffer, self._x)
        self._handle: Any = handle

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        if self._counts.steps % self._options.local_steps:
            return
        with self._exposed():
            yield from finish(self._handle)
            np.copyto(self._handle.send_buffer, self._x)
            self._handle.Start()
            yield self._handle
            np.divide(self._handle.result, self._handle.last_round.active, out=self._x)
        self._counts.communications += 1


class AllreduceSGD(LocalSGDProcess):
    """One rank of synchronous SGD: local SGD with the mean after each step, which all ranks wait
    for. Models stay identical to the bit. What the papers compare with, as Lian et al., ICML 2018,
    section 5. Parameters: see `LocalSGDProcess`; x is the same on all ranks."""

    def __init__(self, x: Array, handle: Reduction, **common: Any) -> None:
        super().__init__(x, handle, local_steps=1, **common)
