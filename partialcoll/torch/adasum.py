# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer(op=Adasum)`: each rank's optimizer steps by itself, and the ranks' changes
are combined, those of each parameter by themselves.

Source: Maleki et al., MLSys 2021, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .._core.buffers import Array
from .._core.mpi import MPI
from ..collectives.adasum import Bounds, adasum
from ..decentralized import Alone, LocalStrategy, PeriodicJoin, Process, Setup, Strategy
from ..decentralized.process import Steps
from .flat import Named, ParameterVector
from .strategies import Allreduce


class AdasumProcess(Process):
    """One rank: a model that all ranks have, to the bit, and its own change of it in a step."""

    def __init__(self, x: Array, comm: MPI.Intracomm, bounds: Bounds, **common: Any) -> None:
        super().__init__(x, **common)
        self._comm, self._bounds, self._before = comm, bounds, self._x.copy()

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        change = self._x - self._before
        with self._exposed():
            for request in adasum(self._comm, change, self._bounds):
                request.Wait()  # of ranks that are all here: they have met
        yield from ()
        self._before += change
        np.copyto(self._x, self._before)
        self._counts.communications += 1

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        np.copyto(self._before, model)


@dataclass(frozen=True)
class AdasumStrategy(LocalStrategy):
    """What ``op=Adasum`` stands for. bounds: of the parameters in the model's vector."""

    bounds: Bounds = field(repr=False)
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    @classmethod
    def in_place_of(cls, given: Strategy, parameters: Named) -> AdasumStrategy:
        """For these. ValueError unless what was given is what it stands for."""
        if not isinstance(given, Allreduce):
            name = type(given).__name__
            raise ValueError(f"op: Adasum is a strategy of its own, expected none, got {name}")
        if given.on_failure != "raise":
            raise ValueError(
                f"op: Adasum needs all ranks, expected on_failure='raise', got {given.on_failure!r}"
            )
        return cls(ParameterVector(parameters).bounds, given.clip_norm)

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        """Collective. In each step all ranks meet, who has joined with no change."""
        if comm.size == 1:
            return Setup(Alone(x, **common))
        process = AdasumProcess(x, comm, self.bounds, **common)
        return Setup(process, PeriodicJoin(common["total"], 1, comm.size))
