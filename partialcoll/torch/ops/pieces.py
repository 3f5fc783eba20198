# SPDX-License-Identifier: Apache-2.0
"""Bytes for several ranks, and operations that move no more of them than MPI's counts and places
allow, which are ints of 32 bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._core.mpi import MPI

LARGEST = 1 << 30  # bytes of one operation on one rank
_MANY = 1 << 20


def cuts(largest: int, blocks: int = 1) -> Iterator[slice]:
    """Parts of so many blocks, the same of each, which are moved one after the other; one, if the
    blocks are small. All ranks take the same ones.

    Parameters
    ----------
    largest : int
        Bytes of the largest block on any rank.
    blocks : int
        That a rank sends or gets at a time.
    """
    each = max(1, LARGEST // blocks)
    for begin in range(0, max(1, largest), each):
        yield slice(begin, begin + each)


@contextlib.contextmanager
def message(memory: Any) -> Iterator[list[Any]]:
    """What MPI sends from this memory, or receives there, as one message, which is to begin within
    the block: as one element of a datatype, where bytes are too many."""
    if memory.size <= LARGEST:
        yield [memory, MPI.BYTE]
        return
    whole, rest = divmod(memory.size, _MANY)
    many = MPI.BYTE.Create_contiguous(_MANY)
    all_of_them = MPI.Datatype.Create_struct([whole, rest], [0, whole * _MANY], [many, MPI.BYTE])
    try:
        yield [memory, 1, all_of_them.Commit()]
    finally:  # what MPI still needs of them it keeps
        all_of_them.Free()
        many.Free()


class Blocks:
    """A block of bytes for each rank, or from each, one after the other.

    Parameters
    ----------
    memory : numpy.ndarray
        uint8, of one dimension.
    sizes : list of int
        Bytes of each block.
    """

    def __init__(self, memory: Any, sizes: list[int]) -> None:
        self.memory, self.sizes = memory, sizes
        self._largest = max(sizes)

    def filled(self, cut: slice) -> list[Any]:
        """What MPI sends: this part of every block, and the sizes."""
        parts = self._parts(cut)
        memory = self.memory if self._is_all(cut) else np.concatenate(parts)
        return [memory, [part.size for part in parts]]

    def room(self, cut: slice) -> list[Any]:
        """Where MPI puts this part of every block, and the sizes; `land` follows."""
        sizes = [part.size for part in self._parts(cut)]
        return [self.memory if self._is_all(cut) else np.empty(sum(sizes), np.uint8), sizes]

    def land(self, cut: slice, room: list[Any]) -> None:
        """What has come there is where it belongs afterwards."""
        memory, sizes = room
        if memory is self.memory:
            return
        for part, come in zip(self._parts(cut), np.split(memory, np.cumsum(sizes)[:-1])):
            part[:] = come

    def _is_all(self, cut: slice) -> bool:
        return bool(cut.start == 0 and cut.stop >= self._largest)

    def _parts(self, cut: slice) -> list[Any]:
        ends = np.cumsum(self.sizes).tolist()
        return [self.memory[end - size : end][cut] for end, size in zip(ends, self.sizes)]
