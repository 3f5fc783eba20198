# SPDX-License-Identifier: Apache-2.0
"""Sums over all ranks for what is done now and then: exact averages, consensus distances.

In float64 whatever the model's dtype, and piece by piece, so that a large model needs no shared
memory of many times its size.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from ..allreduce import Allreduce_init
from ._exchange import Array, Reduction, Steps, drive

_PIECE = 1 << 16  # elements


class Total:
    """The sum of a vector over all ranks.

    Parameters
    ----------
    reduction : Reduction
        A full allreduce (SUM) of one float64 vector; its size is that of a piece.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._waiting = False

    @classmethod
    def over(cls, comm: MPI.Intracomm) -> Total:
        """The total over the ranks of a communicator. Collective."""
        like = np.empty(_PIECE)
        return cls(Allreduce_init(comm, None, None, like=like, quorum="full", history=1))

    def summing(self, vector: Array) -> Steps[Array]:
        """The float64 sum of the ranks' vectors. Collective: every rank has one of this size."""
        result = np.empty(vector.size)
        begin = 0
        self._waiting = True
        try:
            while begin < vector.size:
                buffer = self._reduction.send_buffer
                part = vector[begin : begin + buffer.size]
                buffer[: part.size] = part
                buffer[part.size :] = 0
                self._reduction.Start()
                yield self._reduction
                result[begin : begin + part.size] = self._reduction.result[: part.size]
                begin += part.size
        finally:
            self._waiting = False
        return result

    def meeting(self) -> Steps[None]:
        """Wait until all ranks are here. Collective."""
        yield from self.summing(np.zeros(1))

    @property
    def waiting(self) -> bool:
        """Is this rank in a sum, where it waits for the others and makes no steps? Any thread may
        ask; the answer may be old."""
        return self._waiting

    def sum(self, vector: Array) -> Array:
        """`summing`, waited for here. Collective."""
        return drive(self.summing(vector))

    def meet(self) -> None:
        """`meeting`, waited for here. Collective."""
        drive(self.meeting())

    def meanwhile(self, look: Callable[[], Any] | None) -> None:
        """Have this called now and then by whoever waits for the other ranks."""
        handle: Any = self._reduction
        handle._while_waiting = look

    def Free(self) -> None:
        """Free the allreduce below. Collective; idempotent."""
        self._reduction.Free()
