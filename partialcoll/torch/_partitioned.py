# SPDX-License-Identifier: Apache-2.0
"""A full allreduce whose buffers may go one by one, each as soon as it is filled.

One handle for each buffer but the last, and one for the last, which goes with `Start` and stands
for the round: what a round is, who has joined, is what that one says. All of them are full, so each
makes one round for each of its rounds, but for the round that ends a join, in which nobody
deposits. A rank that has joined starts the other handles, with zeros, when a round of the last one
has passed: whoever takes part in that has started them, and waits for it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from .._buffers import Array
from .._round import Round
from ..allreduce import Allreduce_init


class Partitioned:
    """As much of a handle as `Rounds` needs. Collective.

    like : sequence of arrays or tensors
        What the buffers look like. Sums.
    """

    def __init__(self, comm: MPI.Intracomm, like: Sequence[Any], **options: Any) -> None:
        self._parts = [Allreduce_init(comm, None, None, like=one, **options) for one in like[:-1]]
        self._last = Allreduce_init(comm, None, None, like=like[-1], **options)
        self._gone: set[int] = set()  # buffers that this call has sent
        self.last_round: Round | None = None

    @property
    def send_buffer(self) -> list[Array]:
        """Where to put the next deposit. A buffer's place changes when it goes."""
        return [handle.send_buffer for handle in (*self._parts, self._last)]

    def _send_place(self) -> tuple[int, ...]:
        return tuple(handle._send_place() for handle in (*self._parts, self._last))

    @property
    def memory(self) -> int:
        """Bytes that the library holds for it on this rank."""
        return sum(int(handle.memory) for handle in (*self._parts, self._last))

    def Pready(self, buffer: int) -> None:
        """This buffer is filled, and goes. Local."""
        self._parts[buffer].Start()
        self._gone.add(buffer)

    def is_gone(self, buffer: int) -> bool:
        """Has it gone, for the call to come?"""
        return buffer in self._gone

    def Start(self) -> None:
        """All that have not gone yet. Local."""
        for i in range(len(self._parts)):
            if i not in self._gone:
                self.Pready(i)
        self._last.Start()
        self._gone.clear()

    def Wait(self) -> Round:
        """Until all of the round is there. May be called again if it was interrupted."""
        for part in self._parts:
            if part._started:
                part.Wait()
        return self._whole(self._last.Wait())

    def _whole(self, rnd: Round) -> Round:
        """With the results of all buffers."""
        if rnd.joined:  # nobody has deposited anything
            sums = [np.zeros_like(part.send_buffer) for part in self._parts]
        else:
            sums = [part.result for part in self._parts]
        (last,) = rnd.results
        self.last_round = Round(last.with_buffers([*sums, *last.buffers]))
        return self.last_round

    def join(self, on_round: Callable[[Round], None]) -> Round:
        """Contribute nothing until all ranks have joined. Collective."""

        def passed(rnd: Round) -> None:
            if not rnd.joined:
                for part in self._parts:
                    part.send_buffer[...] = 0
                    part.Start()
                for part in self._parts:
                    part.Wait()
            on_round(self._whole(rnd))

        self._last.join(passed)
        assert self.last_round is not None
        return self.last_round

    @property
    def _started(self) -> bool:
        return bool(self._last._started)

    def Free(self) -> None:
        """Collective; idempotent."""
        for handle in (*self._parts, self._last):
            handle.Free()
