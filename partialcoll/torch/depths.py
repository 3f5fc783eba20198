# SPDX-License-Identifier: Apache-2.0
"""What a process group has for each depth of callbacks (ops/futures.py says why): a communicator,
the plans on it, a queue. The program's and that of its callbacks are made with the group. Those of
deeper ones, which hardly anybody needs, are made at the first call there, when all ranks have come.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from .._core import waiting
from .._core.attendance import attending
from .._core.mpi import MPI
from ..errors import StateError
from .ops import futures
from .ops.queue import Queue
from .ops.work import GroupTimeout
from .plans import Plans

WINDOW = 3  # operations of the program that are announced ahead


class Depth(NamedTuple):
    """One of them."""

    comm: MPI.Intracomm
    plans: Plans
    queue: Queue


class Depths:
    """Those of one group. Made collectively.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of the group's ranks, whose collectives are for this only.
    name : str
        Of the group, for messages.
    on_failure : str
        Of its queues.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, on_failure: str) -> None:
        self._comm, self._name, self._on_failure = comm, name, on_failure
        self._all: list[Depth] = []
        self._lock = threading.Lock()  # of that list, for who makes one
        self._broken: BaseException | None = None
        self._stopping = False
        self.lines = futures.Lines()
        self._make(name, WINDOW)
        self._make(f"{name}, in a callback", 1)

    def _make(self, name: str, window: int) -> None:
        comm, remedy = self._comm.Dup(), "destroy_process_group() and make it anew"
        how: Any = {"owner": "torch.distributed", "remedy": remedy, "on_failure": self._on_failure}
        plans = Plans(comm, self._on_failure == "continue")
        self._all.append(Depth(comm, plans, Queue(comm, name, window, **how)))

    def here(self, timeout: float) -> Depth:
        """For a call of the calling thread. GroupTimeout if it has to be made and not all ranks
        come to that."""
        depth = futures.depth()
        if depth >= len(self._all):
            with self._lock:
                while depth >= len(self._all):
                    self._open(timeout)
        return self._all[depth]

    def _open(self, timeout: float) -> None:
        name = f"{self._name}, {len(self._all)} callbacks deep"
        if self._broken is not None:
            raise StateError(f"{name} has ended with an error: {self._broken}")
        try:
            with attending(f"a call in {name}", self._comm):
                self._gather(name, timeout)
        except Exception as error:
            self._broken = error
            raise
        self._make(name, 1)

    def _gather(self, name: str, timeout: float) -> None:
        """Until all ranks have come."""
        deadline = time.monotonic() + timeout

        def patient() -> None:
            if self._stopping:
                raise StateError(f"{name} was destroyed before its first call")
            if time.monotonic() >= deadline:
                raise GroupTimeout(
                    f"the first call in {name} was not over after its timeout of {timeout:g} s: "
                    "not all ranks have made one"
                )

        waiting.until(self._comm.Ibarrier().Test, patient)

    def halt(self) -> None:
        """What is under way fails, in callbacks as well."""
        self._stopping = True
        for depth in self._all:
            depth.queue.halt()

    def join(self) -> None:
        """Wait for the threads, which may be in callbacks; after `halt` of all that they may wait
        for."""
        for depth in self._all:
            depth.queue.join()

    @property
    def broken(self) -> bool:
        """Has a call failed on this rank, so that the ranks are no longer together?"""
        return self._broken is not None or any(depth.queue.broken for depth in self._all)

    def free(self) -> None:
        """Collective."""
        for depth in self._all:
            depth.queue.free()
            depth.comm.Free()
