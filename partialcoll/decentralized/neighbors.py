# SPDX-License-Identifier: Apache-2.0
"""Neighbor exchange over a schedule: what synchronous neighbor averaging runs on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .._core.mpi import MPI
from .exchange import Array


class NeighborExchange:
    """Sends one vector to all neighbors and receives theirs, again and again. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed, so nothing on it meets these messages.
    like : numpy array
        Shape and dtype of the vectors, the same on all ranks.
    neighbors : ranks
        Whom to send to and receive from; who is a neighbor of whom must agree.

    Raises MismatchError on every rank if neighbors or sizes do not agree. It runs on a
    `partialcoll.Schedule`: in the background, without burning a core. Memory: one vector, and
    one for each neighbor.
    """

    def __init__(self, comm: MPI.Intracomm, like: Array, neighbors: Iterable[int]) -> None:
        from ..collectives.schedule import Schedule  # loads MPI

        self._send = np.zeros_like(like)
        self._received = {int(j): np.zeros_like(like) for j in sorted(set(neighbors))}
        if comm.rank in self._received:
            raise ValueError(f"neighbors: expected other ranks, got {comm.rank}, the own one")
        self._schedule = Schedule(comm)
        for j, buffer in self._received.items():
            self._schedule.recv(buffer, j, label=f"of neighbor {j}")
            self._schedule.send(self._send, j, label=f"to neighbor {j}")
        self._schedule.commit()

    @property
    def send_buffer(self) -> Array:
        """What all neighbors get; to be left alone between `Start` and `Wait`."""
        return self._send

    @property
    def received(self) -> Mapping[int, Array]:
        """What came from each neighbor, after `Wait` and until the next `Start`."""
        return MappingProxyType(self._received)

    def Start(self) -> None:
        """Send, and begin to receive. Local."""
        self._schedule.Start()

    def Wait(self, timeout: float | None = None) -> Any:
        """Wait until everything has come and gone. TimeoutError after `timeout` seconds; None:
        never."""
        self._schedule.Wait(timeout)

    def Free(self) -> None:
        """Free it. Collective; idempotent."""
        self._schedule.Free()

    def __enter__(self) -> NeighborExchange:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.Free()
