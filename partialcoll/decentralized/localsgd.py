# SPDX-License-Identifier: Apache-2.0
"""Local SGD: local steps, then the average of all models; and Allreduce-SGD, its comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from ..errors import StateError
from .process import Array, PeriodicJoin, Process, Reduction, Steps, check_like, finish
from .strategy import LocalStrategy, Setup, over

# Allreduce-SGD: all ranks take the same step, the mean of theirs. The yardstick.
#
# Source: what the papers on decentralized training compare with; for instance Lian et al., ICML
# 2018, section 5, AllReduce-SGD.


def averaging(handle: Any, vector: Array, mean: Array) -> Steps[None]:
    """The mean of the ranks' vectors. Collective."""
    yield from finish(handle)
    np.copyto(handle.send_buffer, vector)
    handle.Start()
    yield handle
    np.divide(handle.result, handle.last_round.active, out=mean)


class AllreduceSGD(Process):
    """One rank of synchronous SGD. `x` and `common`: see `Process`; x is the same on all ranks.
    `handle`: ``Allreduce_init(comm, None, None, like=x, quorum="full")``.

    Models stay identical to the bit. Each step waits for all ranks.
    """

    def __init__(self, x: Array, handle: Reduction, **common: Any) -> None:
        super().__init__(x, **common)
        check_like("handle: expected a buffer", handle.send_buffer, self._x)
        self._handle, self._mean = handle, np.empty_like(self._x)
        self._before: Array | None = None  # the model at the last step, once it has been lent

    def lend(self) -> Array:
        """See `Process.lend`. Takes one more vector."""
        if self._before is None:
            self._before = super().lend().copy()
        return self._x

    def advancing(self, update: Array | None = None) -> Steps[None]:
        """See `Process.advancing`: waits for all ranks' updates."""
        self._check_step(update)
        if update is None:
            if self._before is None:
                raise StateError("apply_in_place: the model has not been lent")
            update, self._x[:] = self._x - self._before, self._before
        with self._exposed():
            if not self._takes(update):
                update = np.zeros_like(update)
            yield from averaging(self._handle, update, self._mean)
        self._x += self._mean
        self._note_model()
        self._counts.steps += 1
        self._counts.communications += 1

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        self._note_model()

    def _note_model(self) -> None:
        if self._before is not None:
            np.copyto(self._before, self._x)


@dataclass(frozen=True)
class LocalSGD(LocalStrategy):
    """Local SGD: every rank by itself, and the mean of all models every H steps.

    `local_steps` is H, an int from 1 on. Step number H, 2 H, ... waits for all ranks; the others
    wait for nobody. `clip_norm` as for `ADPSGD`.

    Source: Stich, ICLR 2019, Algorithm 1.
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
    """One rank of local SGD. `x`: see `Process`. `handle`: as for `AllreduceSGD`. `common`:
    ``learning_rate`` and ``total``, see `Process`, and the options of `LocalSGD`."""

    options_type = LocalSGD

    def __init__(self, x: Array, handle: Reduction, **common: Any) -> None:
        super().__init__(x, **common)
        check_like("handle: expected a buffer", handle.send_buffer, self._x)
        self._handle = handle

    def _advancing(self) -> Steps[None]:
        """Waits for all ranks' models if this is such a step."""
        self._counts.steps += 1
        if self._counts.steps % self._options.local_steps:
            return
        with self._exposed():
            yield from averaging(self._handle, self._x, self._x)
        self._counts.communications += 1
