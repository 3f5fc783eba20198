# SPDX-License-Identifier: Apache-2.0
"""A full allreduce whose buffers may go one by one, each as soon as it is filled.

One handle for each buffer but the last, and one for the last, which goes with `Start` and stands
for the round: what a round is, who has joined, is what that one says. All of them are full, so each
makes one round for each of its rounds, but for the round that ends a join, in which nobody
deposits. A rank that has joined starts the other handles, with zeros, when a round of the last one
has passed: whoever takes part in that has started them, and waits for it there.

Whatever is interrupted can be taken up again: which handles have started, and which have had their
round, is asked of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from .._core.buffers import Array
from .._core.mpi import MPI
from ..round import Round
from .allreduce import Allreduce_init
from .handle import AllreduceHandle


class Partitioned:
    """As much of a handle as `Replicated` needs. Collective.

    send : sequence of arrays or tensors
        What the buffers look like; with `recv` the send buffers themselves. Sums.
    recv : sequence of arrays or tensors, or None
        Where the sums go; None: they stay in the library's memory, and so are deposits there.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        send: Sequence[Any],
        recv: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        self._parts: list[AllreduceHandle] = []  # and, in the end, the last handle
        # While joining: the round of the last handle in which the other handles still have to take
        # part, and the last round of each of them before.
        self._passing: tuple[Round, list[Round | None]] | None = None
        self.last_round: Round | None = None
        try:
            for i, one in enumerate(send):
                if recv is None:
                    self._parts.append(Allreduce_init(comm, None, None, like=one, **options))
                else:
                    self._parts.append(Allreduce_init(comm, one, recv[i], **options))
        except BaseException:  # on all ranks
            self.Free()
            raise
        self._last = self._parts[-1]

    @property
    def send_buffer(self) -> list[Array]:
        """Where to put the next deposit. A buffer's place changes when it goes."""
        return [part.send_buffer for part in self._parts]

    def _send_place(self) -> tuple[int, ...]:
        return tuple(part._send_place() for part in self._parts)

    def send(self, buffer: int) -> None:
        """This buffer is filled, and goes. Local."""
        self._parts[buffer].Start()

    def Start(self) -> None:
        """All that have not gone yet. Local."""
        for part in self._parts:
            if not part._started:
                part.Start()

    def Wait(self) -> Round:
        """Until all of the round is there."""
        for part in self._parts:
            if part._started:
                part.Wait()
        assert self._last.last_round is not None
        return self._whole(self._last.last_round)

    def _whole(self, rnd: Round) -> Round:
        """With the results of all buffers, which say themselves how long they are good."""
        (last,) = rnd.results
        rounds = [part.last_round for part in self._parts[:-1]]

        def look(_: int) -> list[Array]:
            if rnd.joined:  # nobody has deposited anything
                sums = [np.zeros_like(part._recv[0]) for part in self._parts[:-1]]
            else:
                sums = [one.results[0].buffers[0] for one in rounds if one is not None]
            return [*sums, *last.buffers]

        self.last_round = Round(last.with_buffers(look))
        return self.last_round

    def join(self, on_round: Callable[[Round], None]) -> Round:
        """Contribute nothing until all ranks have joined. Collective."""

        def passed(rnd: Round) -> None:
            self._passing = rnd, [part.last_round for part in self._parts[:-1]]
            self._pass(on_round)

        self._pass(on_round)
        self._last.join(passed)
        assert self.last_round is not None
        return self.last_round

    def _pass(self, on_round: Callable[[Round], None]) -> None:
        """The other handles' part in a round of the last one, as far as it is still to be done."""
        if self._passing is None:
            return
        rnd, before = self._passing
        if not rnd.joined:
            waiting = [p for p, last in zip(self._parts, before) if p.last_round is last]
            for part in waiting:
                if not part._started:
                    part.send_buffer[...] = 0
                    part.Start()
            for part in waiting:
                part.Wait()
        whole = self._whole(rnd)
        self._passing = None
        on_round(whole)

    @property
    def _started(self) -> bool:
        return self._last._started

    def Free(self) -> None:
        """Collective; idempotent."""
        for part in self._parts:
            part.Free()
