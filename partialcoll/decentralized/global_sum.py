# SPDX-License-Identifier: Apache-2.0
"""Sums and averages over all ranks for what is done now and then: exact averages of models,
consensus distances.

In float64 whatever the model's dtype, rounded once, the same bits on all ranks; piece by piece, so
that a large model needs no shared memory of many times its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from ..collectives.allreduce import Allreduce_init
from .exchange import Array, Reduction, Steps, drive

_PIECE = 1 << 16  # elements


class GlobalSum:
    """The sum of vectors over all ranks, and their average.

    Parameters
    ----------
    reduction : Reduction
        A full allreduce (SUM) of one float64 vector; its size is that of a piece.

    What ends in -ing is a generator that yields whatever it has to wait for (`drive`).
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction: Any = reduction
        self._waiting = False

    @classmethod
    def over(cls, comm: MPI.Intracomm) -> GlobalSum:
        """Over the ranks of a communicator. Collective."""
        like = np.empty(_PIECE)
        return cls(Allreduce_init(comm, None, None, like=like, quorum="full", history=1))

    def _reducing(self, vectors: Iterable[Array], average: bool) -> Steps[None]:
        """Each vector becomes the sum or the average of the ranks', in place."""
        self._waiting = True
        try:
            for parts in _pieces(vectors, self._reduction.send_buffer.size):
                buffer, end = self._reduction.send_buffer, sum(part.size for part in parts)
                np.concatenate(parts, out=buffer[:end], casting="unsafe")
                buffer[end:] = 0
                self._reduction.Start()
                yield self._reduction
                found = self._reduction.result[:end]
                if average:
                    found = found / self._reduction.last_round.active
                for part in parts:
                    part[...], found = found[: part.size], found[part.size :]
        finally:
            self._waiting = False

    def summing(self, vector: Array) -> Steps[Array]:
        """The float64 sum of the ranks' vectors. Collective: every rank has one of this size."""
        result = np.array(vector, np.float64)
        yield from self._reducing([result], average=False)
        return result

    def averaging(self, vectors: Iterable[Array]) -> Steps[None]:
        """Each of these flat vectors, of float dtypes, becomes the average of the ranks', in
        place. Collective: the same sizes in the same order on all ranks."""
        yield from self._reducing(vectors, average=True)

    def measuring(self, vector: Array) -> Steps[float]:
        """The square root of mean_i |x_i - mean|^2 over the ranks' vectors. Collective.

        What the rounding of the mean explains is no distance: equal vectors are 0 apart.
        """
        mean = np.array(vector, np.float64)
        yield from self.averaging([mean])
        apart = vector - mean
        apart[np.abs(apart) <= 64 * np.finfo(np.float64).eps * np.abs(mean)] = 0
        square = np.array([apart @ apart])
        yield from self.averaging([square])
        return math.sqrt(square[0])

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

    def average(self, vectors: Iterable[Array]) -> None:
        """`averaging`, waited for here. Collective."""
        drive(self.averaging(vectors))

    def distance(self, vector: Array) -> float:
        """`measuring`, waited for here. Collective."""
        return drive(self.measuring(vector))

    def meet(self) -> None:
        """`meeting`, waited for here. Collective."""
        drive(self.meeting())

    def meanwhile(self, look: Callable[[], Any] | None) -> None:
        """Have this called now and then by whoever waits for the other ranks."""
        self._reduction._while_waiting = look

    def Free(self) -> None:
        """Free the allreduce below. Collective; idempotent."""
        self._reduction.Free()


def _pieces(vectors: Iterable[Array], size: int) -> Iterator[list[Array]]:
    """Parts of the vectors in their order, as many together as fit into a piece."""
    parts: list[Array] = []
    room = size
    for vector in vectors:
        while vector.size:
            parts.append(vector[:room])
            vector = vector[room:]
            room -= parts[-1].size
            if not room:
                yield parts
                parts, room = [], size
    if parts:
        yield parts
