# SPDX-License-Identifier: Apache-2.0
"""Neighbour exchange over a schedule: what synchronous neighbour averaging runs on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from mpi4py import MPI

from ..schedule import Schedule
from ._exchange import Array


class NeighbourExchange:
    """Sends one vector to all neighbours and receives theirs, again and again. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed, so nothing on it meets these messages.
    like : numpy array
        Shape and dtype of the vectors, the same on all ranks.
    neighbours : ranks
        Whom to send to and receive from; who is a neighbour of whom must agree.

    Raises MismatchError on every rank if neighbours or sizes do not agree. It runs on a
    `partialcoll.Schedule`: in the background, without burning a core. Memory: one vector, and
    one for each neighbour.
    """

    def __init__(self, comm: MPI.Intracomm, like: Array, neighbours: Iterable[int]) -> None:
        self._send = np.zeros_like(like)
        self._received = {int(j): np.zeros_like(like) for j in sorted(set(neighbours))}
        if comm.rank in self._received:
            raise ValueError(f"neighbours: expected other ranks, got {comm.rank}, the own one")
        self._schedule = Schedule(comm)
        for j, buffer in self._received.items():
            self._schedule.recv(buffer, j, label=f"of neighbour {j}")
            self._schedule.send(self._send, j, label=f"to neighbour {j}")
        self._schedule.commit()

    @property
    def send_buffer(self) -> Array:
        """What all neighbours get; to be left alone between `Start` and `Wait`."""
        return self._send

    @property
    def received(self) -> Mapping[int, Array]:
        """What came from each neighbour, after `Wait` and until the next `Start`."""
        return MappingProxyType(self._received)

    def Start(self) -> None:
        """Send, and begin to receive. Local."""
        self._schedule.Start()

    def Wait(self, timeout: float | None = None) -> Any:
        """Wait until everything has come and gone. TimeoutError after that many seconds."""
        self._schedule.Wait(timeout)

    def Free(self) -> None:
        """Free it. Collective; idempotent."""
        self._schedule.Free()

    def __enter__(self) -> NeighbourExchange:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.Free()
