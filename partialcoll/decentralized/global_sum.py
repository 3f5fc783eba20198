# SPDX-License-Identifier: Apache-2.0
"""Sums and averages over all ranks for what is done now and then: exact averages of models,
consensus distances.

In float64 whatever the model's dtype, rounded once, the same bits on all ranks; piece by piece, so
that a large model needs no shared memory of many times its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import numpy as np

from .._core.mpi import MPI
from .exchange import Array, Reduction, Steps, drive, finish

_PIECE = 1 << 16  # elements
_OURS = 2  # of them: the weight, and whether vectors are wide


class GlobalSum:
    """The sum of vectors over all ranks, and their average.

    Parameters
    ----------
    reduction : Reduction
        A full allreduce (SUM) of one float64 vector of three elements or more: a piece.

    What ends in -ing is a generator that yields whatever it has to wait for (`drive`).
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction: Any = reduction
        self._waiting = False

    @classmethod
    def over(cls, comm: MPI.Intracomm, on_failure: str = "raise") -> GlobalSum:
        """Over the ranks of `comm`, which is dup'ed; `on_failure` as of `Allreduce_init`.
        Collective."""
        from ..collectives.allreduce import Allreduce_init  # loads MPI

        like = np.empty(_PIECE)
        options: Any = {"quorum": "full", "history": 1, "on_failure": on_failure}
        return cls(Allreduce_init(comm, None, None, like=like, **options))

    @property
    def failed(self) -> tuple[int, ...]:
        """The ranks that have died, as far as this rank knows. Local."""
        return tuple(np.flatnonzero(self._reduction.failed).tolist())

    def _reducing(self, parts: list[Array], *ours: float) -> Steps[tuple[Array, Array]]:
        """The sums over the ranks of the parts in a row, and of what is ours."""
        yield from finish(self._reduction)
        buffer, end = self._reduction.send_buffer, sum(part.size for part in parts)
        np.concatenate(parts, out=buffer[:end], casting="unsafe")
        buffer[end:] = 0
        buffer[buffer.size - len(ours) :] = ours
        self._waiting = True
        try:
            self._reduction.Start()
            yield self._reduction
        finally:
            self._waiting = False
        found = self._reduction.result
        return found[:end], found[found.size - len(ours) :]

    def pieces(self, vectors: Iterable[Any]) -> Iterator[list[Any]]:
        """Parts of flat `vectors` (arrays or tensors) in their order, as many together as are
        reduced at once."""
        return _pieces(vectors, self._reduction.send_buffer.size - _OURS)

    def summing(self, vector: Array) -> Steps[Array]:
        """The float64 sum of the ranks' vectors. Collective: every rank gives a flat `vector` of
        one size."""
        result = np.array(vector, np.float64)
        for parts in self.pieces([result]):
            (part,) = parts
            part[...], _ = yield from self._reducing(parts)
        return result

    def averaging(
        self, vectors: Iterable[Array], weight: float = 1.0, *, wide: bool | None = None
    ) -> Steps[None]:
        """Each of these flat `vectors`, of float dtypes, becomes the average of the ranks', in
        place: their sum over that of the weights (`weight` is this rank's). Collective: the same
        sizes in the same order on all ranks.

        With weights of 1 what is equal on all ranks stays as it is, bit for bit. The sum of up to
        2^29 equal float32 is exact in float64; where a rank's are `wide` (None: float64 is), what
        they differ by from the mean is averaged too.
        """
        for parts in self.pieces(vectors):
            own = any(part.itemsize > 4 for part in parts) if wide is None else wide
            total, (weights, any_wide) = yield from self._reducing(parts, weight, own)
            mean = total / weights
            if any_wide:
                with np.errstate(invalid="ignore"):  # an infinity's distance from itself
                    apart = [part - weight * whole for part, whole in _beside(parts, mean)]
                total, _ = yield from self._reducing(apart)
                mean += np.where(np.isfinite(mean), total / weights, 0)
            for part, found in _beside(parts, mean):
                part[...] = found

    def measuring(self, vector: Array) -> Steps[float]:
        """The square root of ``mean_i |x_i - mean|^2`` over the ranks' vectors, 0 of equal ones.
        Collective: every rank gives a flat `vector` of one size."""
        mean = np.array(vector, np.float64)
        yield from self.averaging([mean], wide=vector.itemsize > 4)
        apart = vector - mean
        square = np.array([apart @ apart])
        yield from self.averaging([square], wide=False)
        return math.sqrt(square[0])

    def meeting(self) -> Steps[None]:
        """Wait until all ranks are here. Collective."""
        yield from self.summing(np.zeros(1))

    @property
    def waiting(self) -> bool:
        """Is this rank in a sum, where it waits for the others and makes no steps? Any thread may
        ask; the answer may be old."""
        return self._waiting

    # These take arrays on a device as well: each is copied to the host.

    def sum(self, vector: Any) -> Array:
        """`summing` of a `vector`, waited for here. Collective."""
        with _on_host([vector]) as (host,):
            return drive(self.summing(host))

    def average(self, vectors: Iterable[Any], *, wide: bool | None = None) -> None:
        """`averaging` of `vectors`, waited for here. Collective."""
        with _on_host(list(vectors), written=True) as host:
            drive(self.averaging(host, wide=wide))

    def distance(self, vector: Any) -> float:
        """`measuring` of a `vector`, waited for here. Collective."""
        with _on_host([vector]) as (host,):
            return drive(self.measuring(host))

    def meet(self) -> None:
        """`meeting`, waited for here. Collective."""
        drive(self.meeting())

    def meanwhile(self, look: Callable[[], Any] | None) -> None:
        """Have `look` called, without arguments, now and then by whoever waits for the other ranks;
        None: no more."""
        self._reduction._while_waiting = look

    def Free(self) -> None:
        """Free the allreduce below. Collective; idempotent."""
        self._reduction.Free()


def _on_host(vectors: list[Any], written: bool = False) -> AbstractContextManager[list[Array]]:
    if all(isinstance(vector, np.ndarray) for vector in vectors):
        return nullcontext(vectors)
    from .._core.mirror import on_host  # loads MPI

    return on_host(vectors, written)


def _beside(parts: list[Array], row: Array) -> Iterator[tuple[Array, Array]]:
    """Each part and what of the row has its place."""
    begin = 0
    for part in parts:
        yield part, row[begin : begin + part.size]
        begin += part.size


def _pieces(vectors: Iterable[Any], size: int) -> Iterator[list[Any]]:
    parts: list[Any] = []
    room = size
    for vector in vectors:
        while len(vector):
            parts.append(vector[:room])
            vector = vector[room:]
            room -= len(parts[-1])
            if not room:
                yield parts
                parts, room = [], size
    if parts:
        yield parts
