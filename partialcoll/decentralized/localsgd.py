# SPDX-License-Identifier: Apache-2.0
"""Local SGD: local steps, then the average of all models; and Allreduce-SGD, its comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from ..errors import StateError
from .process import Array, GlobalSum, LearningRate, PeriodicJoin, Process, Reduction, Steps, finish
from .strategy import LocalStrategy, Setup

# Allreduce-SGD: all ranks take the same step, the mean of theirs. The yardstick.
#
# Source: what the papers on decentralized training compare with; for instance Lian et al., ICML
# 2018, section 5, AllReduce-SGD.


def check_reduction(handle: Reduction, x: Array) -> Reduction:
    """Does it sum vectors like x?"""
    buffer = handle.send_buffer
    if not isinstance(buffer, np.ndarray) or buffer.shape != x.shape or buffer.dtype != x.dtype:
        kind = (
            f"shape {buffer.shape} of {buffer.dtype}"
            if isinstance(buffer, np.ndarray)
            else f"{len(buffer)} buffers"
        )
        raise ValueError(
            f"handle: expected a buffer of shape {x.shape} of {x.dtype} as the model's, got {kind}"
        )
    return handle


def averaging(handle: Any, vector: Array, mean: Array) -> Steps[None]:
    """The mean of the ranks' vectors. Collective."""
    yield from finish(handle)
    np.copyto(handle.send_buffer, vector)
    handle.Start()
    yield handle
    np.divide(handle.result, handle.last_round.active, out=mean)


class AllreduceSGD(Process):
    """One rank of synchronous SGD.

    Parameters
    ----------
    x, learning_rate, total
        See `Process`; x is the same on all ranks.
    handle : Reduction
        ``Allreduce_init(comm, None, None, like=x, quorum="full")``.

    Models stay identical to the bit. Each step waits for all ranks.
    """

    def __init__(
        self,
        x: Array,
        handle: Reduction,
        *,
        learning_rate: LearningRate = 0.1,
        total: GlobalSum | None = None,
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        self._handle = check_reduction(handle, self._x)
        self._mean = np.empty_like(self._x)
        self._before: Array | None = None  # the model at the last step, once it has been lent

    def lend(self) -> Array:
        """See `Process.lend`. Takes one more vector."""
        if self._before is None:
            self._before = super().lend().copy()
        return self._x

    def advancing_in_place(self) -> Steps[None]:
        """`apply_in_place` as a generator: waits for all ranks' updates."""
        self._check_usable()
        if self._before is None:
            raise StateError("apply_in_place: the model has not been lent")
        update, self._x[:] = self._x - self._before, self._before
        yield from self.advancing(update)

    def advancing(self, update: Array) -> Steps[None]:
        """`apply` as a generator: waits for all ranks' updates."""
        self._check_update("update", update)
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

    Parameters
    ----------
    local_steps : int
        H. Step number H, 2 H, ... waits for all ranks; the others wait for nobody.
    clip_norm : float or None
        As for `ADPSGD`.

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
        process = LocalSGDProcess(
            x, handle, local_steps=steps, learning_rate=learning_rate, total=total
        )
        return Setup(process, PeriodicJoin(total, steps, comm.size), [handle])


class LocalSGDProcess(Process):
    """One rank of local SGD.

    Parameters
    ----------
    x, learning_rate, total
        See `Process`.
    handle : Reduction
        ``Allreduce_init(comm, None, None, like=x, quorum="full")``.
    local_steps
        See `LocalSGD`.
    """

    def __init__(
        self,
        x: Array,
        handle: Reduction,
        *,
        local_steps: int = LocalSGD.local_steps,
        learning_rate: LearningRate = 0.1,
        total: GlobalSum | None = None,
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        LocalSGD(local_steps).check_values()
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
