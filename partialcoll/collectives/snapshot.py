# SPDX-License-Identifier: Apache-2.0
"""A state as memory that can be sent, and its way from one rank to another.

Small parts are pickled, large arrays stay as they are: protocol 5 of pickle (PEP 574) takes them
out. The first buffer is the pickle, the others are the arrays in its order. They travel one after
the other in pieces, whose size both sides work out from the total; no piece is more than an int
can count.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.mpi import MPI

Bytes = NDArray[np.uint8]
# Bytes. Less goes into the pickle: a message of its own would cost more than the copy.
_LARGE = 4096
_LEAST_PIECE, _MOST_PIECES = 4 << 20, 1024
_POSTED = 8  # pieces that are received at a time


def take(state: Any) -> list[Bytes]:
    """A copy of it, to be sent: the state may change at once. Raises what pickle raises."""
    arrays: list[Bytes] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _LARGE:
            return True
        arrays.append(np.frombuffer(memory, np.uint8).copy())
        return False

    pickled = pickle.dumps(state, protocol=5, buffer_callback=is_small)
    return [np.frombuffer(pickled, np.uint8), *arrays]


def restore(buffers: Sequence[Bytes]) -> Any:
    """The state. Its large arrays lie in these very buffers: nothing is copied."""
    pickled, *arrays = buffers
    return pickle.loads(pickled.data, buffers=arrays)


def _piece(sizes: Sequence[int]) -> int:
    return max(_LEAST_PIECE, -(-sum(sizes) // _MOST_PIECES))


def _cuts(sizes: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """The pieces in order: of which buffer, and where."""
    piece = _piece(sizes)
    for i, size in enumerate(sizes):
        for begin in range(0, size, piece):
            yield i, slice(begin, min(begin + piece, size))


class Outgoing:
    """Sends under way; they keep the memory that they need."""

    def __init__(self, requests: list[MPI.Request], memory: Any) -> None:
        self._requests, self._memory = deque(requests), memory

    @classmethod
    def answer(
        cls, comm: MPI.Intracomm, peer: int, tag: int, header: list[int], buffers: Any = ()
    ) -> Outgoing:
        """A header of int64, and the buffers (`Bytes`). Nothing is waited for."""
        words = np.array(header, np.int64)
        requests = [comm.Isend(words, peer, tag)]
        for i, part in _cuts([buffer.size for buffer in buffers]):
            requests.append(comm.Isend([buffers[i][part], MPI.BYTE], peer, tag))
        return cls(requests, (words, buffers))

    @classmethod
    def control(cls, comm: MPI.Intracomm, peer: int, tag: int, words: Sequence[int]) -> Outgoing:
        """One message, which is over when the peer has received it."""
        memory = np.array(words, np.int64)
        return cls([comm.Issend(memory, peer, tag)], memory)

    def is_over(self) -> bool:
        """Return whether MPI no longer needs the memory. Raises if the peer has died."""
        while self._requests and self._requests[0].Test():
            self._requests.popleft()
        return not self._requests


class Incoming:
    """Buffers on their way here, behind a header that has told their sizes.

    While wanted they are received into memory of their own, then thrown away.
    """

    def __init__(
        self, comm: MPI.Intracomm, peer: int, tag: int, sizes: Sequence[int], wanted: bool
    ) -> None:
        self.peer, self.wanted = peer, wanted
        self.nbytes = sum(sizes)
        self.buffers = [np.empty(size, np.uint8) for size in sizes] if wanted else []
        self._comm, self._tag = comm, tag
        self._piece = _piece(sizes)
        self._left = _cuts(sizes)
        self._posted: deque[MPI.Request] = deque()
        self._scratch: Bytes | None = None
        self._post()

    def unwant(self) -> None:
        """Throw it away, what has come and what comes."""
        self.wanted = False
        self.buffers = []  # the requests keep what is being received into

    def _memory(self, i: int, part: slice) -> Bytes:
        if self.wanted:
            return self.buffers[i][part]
        if self._scratch is None:
            self._scratch = np.empty(self._piece, np.uint8)
        return self._scratch[: part.stop - part.start]

    def _post(self) -> None:
        """Unwanted ones all go to one place, so one at a time."""
        while len(self._posted) < (_POSTED if self.wanted else 1):
            cut = next(self._left, None)
            if cut is None:
                return
            memory = self._memory(*cut)
            self._posted.append(self._comm.Irecv([memory, MPI.BYTE], self.peer, self._tag))

    def advance(self) -> bool:
        """Has a piece come?"""
        came = False
        while self._posted and self._posted[0].Test():
            self._posted.popleft()
            self._post()
            came = True
        return came

    def is_over(self) -> bool:
        """Has all of it come?"""
        return not self._posted
