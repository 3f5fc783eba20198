# SPDX-License-Identifier: Apache-2.0
"""The rounds of one optimizer: deposits go out, applied gradients come back.

One handle carries all gradients and, as its last buffer, the fingerprints; or one whose other
buffers may go early, `Partitioned`. Who owns which memory: between two starts the handle's send
buffers belong to this rank: backward writes into them, through views. At the start, or when they
are sent, they go to the library, and others take their place. What a round brought is read from the
library's memory, divided, and written to `applied`, which is this object's own: what the inner
optimizer reads, and may change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import torch
from mpi4py import MPI

from .._buffers import Array
from .._errors import StateError
from .._handle import AllreduceHandle
from .._round import Result, Round
from .._settings import logger
from ..allreduce import Allreduce_init
from ._fingerprints import Fingerprints
from ._layout import Layout
from ._partitioned import Partitioned
from ._resync import Resync
from .metrics import Metrics


class Slot:
    """Send buffers of the handle as tensors, as views for the parameters, and the fingerprints."""

    def __init__(self, layout: Layout, flats: list[torch.Tensor], rows: Array) -> None:
        self.flats, self.rows = flats, rows
        self.views = layout.views(flats)


class Rounds:
    """Deposits the gradients of this rank and delivers what is to be applied.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    parameters : list of (str, torch.nn.Parameter)
    options : dict
        Of the handle.
    divisor : float
        Of a round's sum.
    fingerprints : Fingerprints
    update : callable
        Called with each delivered round, in order, when its gradient is in `applied`.
    keep_pending : bool
        Keep a copy of each deposit until it has reached a round, for checkpoints.
    bucket_bytes : int or None
        Of the buffers, which may be sent one by one then (`send`).

    Its state:

    ============================  ===========================================================
    version, updates              rounds this replica has seen, and those that changed it
    _first                        the version at which the handle's round 0 begins
    _outstanding, _carried        own deposits in no delivered round; what a checkpoint had of
                                  them, as in `plain`
    _joining, _behind             in `join`, which has lost rounds
    _updating                     within an update; still, if that was interrupted
    _gradients                    in the round whose average is in `applied`
    ============================  ===========================================================
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        parameters: list[tuple[str, torch.nn.Parameter]],
        options: dict[str, Any],
        divisor: float,
        fingerprints: Fingerprints,
        update: Callable[[Result], None],
        keep_pending: bool,
        bucket_bytes: int | None = None,
    ) -> None:
        self.rank, self.ranks = comm.rank, comm.size
        self.version = 0  # rounds seen, since training began
        self.updates = 0  # of them, those with a gradient of somebody
        self._first = 0  # the version at which round 0 of the handle begins
        self.resync: Resync | None = None  # where rounds may be lost
        self._joining = self._behind = self._updating = False
        self._gradients = 0  # in the round whose average is in `applied`
        self.metrics = Metrics()
        tensors = [p for _, p in parameters]
        self.plain = Layout(tensors)  # of what is saved
        self.layout = self.plain if bucket_bytes is None else Layout(tensors, bucket_bytes)
        self.applied = self.layout.new()
        self.applied_views = self.layout.views(self.applied)
        self._divisor, self._fingerprints, self._update = divisor, fingerprints, update
        like = [*self.layout.outline(), fingerprints.outline()]
        self.handle: AllreduceHandle | Partitioned
        if bucket_bytes is None:
            self.handle = Allreduce_init(comm, None, None, like=like, late="carry", **options)
        else:
            self.handle = Partitioned(comm, like, late="carry", **options)
        self._slots: dict[Any, Slot] = {}
        self._flats: dict[tuple[int, int], torch.Tensor] = {}  # of the slots, by buffer and address
        self._begin = 0.0
        self._kept = Kept(self.layout) if keep_pending else None
        self._outstanding = 0  # own deposits that have reached no delivered round yet
        self._carried: list[torch.Tensor] | None = None  # pending in the checkpoint loaded

    def resync_by(self, resync: Resync) -> None:
        """Rounds may be lost; whoever waits for one serves others meanwhile."""
        self.resync = resync
        assert isinstance(self.handle, AllreduceHandle)
        self.handle._while_waiting = resync.serve

    def slot(self) -> Slot:
        """The send buffers of the deposit to come."""
        place = self.handle._send_place()
        slot = self._slots.get(place)
        if slot is None:  # there are only a few places, which take turns
            *arrays, rows = self.handle.send_buffer
            flats = [
                self._flats.setdefault((i, tensor.data_ptr()), tensor)
                for i, tensor in enumerate(self.layout.tensors(arrays))
            ]
            slot = self._slots[place] = Slot(self.layout, flats, rows)
        return slot

    @property
    def empty(self) -> bool:
        """Had nobody a gradient in the round whose sums were looked at last?"""
        return not self._gradients

    def start_again(self) -> None:
        """Ask for another round, for the gradient that was deposited last: it is still pending."""
        slot = self.slot()
        for flat in slot.flats:
            flat.zero_()
        self.start(slot, False)
        self.metrics.steps -= 1
        self.metrics.included -= 1  # of the zeros, ahead of time

    def send(self, bucket: int) -> None:
        """Deposit one bucket of the slot ahead of the others."""
        self.check_whole("backward()")
        assert isinstance(self.handle, Partitioned)
        self.handle.send(bucket)

    def _is_gone(self, bucket: int) -> bool:
        return isinstance(self.handle, Partitioned) and self.handle.is_gone(bucket)

    @torch.no_grad()
    def add_carried(self, slot: Slot, bucket: int) -> None:
        """What a checkpoint had, before the bucket goes."""
        if self._carried is None:
            return
        for i in range(len(self.layout)):
            if self.layout.bucket(i) == bucket:
                self.layout.part(slot.flats, i).add_(self.plain.part(self._carried, i))

    def start(self, slot: Slot, gradient: bool) -> None:
        """Deposit what is in the slot: a gradient, or zeros in place of one."""
        self.check_whole("step()")
        if self.resync is not None:
            self.resync.serve()
        if self._carried is not None:
            for bucket in range(len(slot.flats)):
                if not self._is_gone(bucket):
                    self.add_carried(slot, bucket)
            self._carried, gradient = None, True
        self._fingerprints.write(slot.rows, self._first, self.version, gradient)
        if self._kept is not None:
            self._kept.deposit(slot.flats, self._outstanding)
        self._outstanding += 1
        self.metrics.steps += 1
        self._begin = time.perf_counter()
        self.handle.Start()

    def wait(self) -> Round:
        """Until the round of this step is there; `deliver` its results then."""
        rnd = self.handle.Wait()
        self.metrics.wait_s += time.perf_counter() - self._begin
        self.metrics.lag = rnd.lag
        return rnd

    def deliver(self, rnd: Round) -> None:
        """Apply every result of a round that is new to this replica, oldest first."""
        self.note(rnd)
        for i, result in enumerate(rnd.results):
            version = self._first + result.index
            if version > self.version and not self._behind:
                self.metrics.lost += version - self.version
                self._catch_up(version, rnd.results[i:])
            if version == self.version:
                self.apply(result)
        if self._joining and self.resync is not None:
            self.resync.serve()

    def _catch_up(self, version: int, results: list[Result]) -> None:
        """Rounds before this one are gone. In a join, everybody meets at its end."""
        assert self.resync is not None, "a round is missing"
        if self._joining:
            self._behind = True
            return
        begin = time.perf_counter()
        self.resync.ask(version, results)
        self.metrics.resyncs += 1
        self.metrics.wait_s += time.perf_counter() - begin

    def apply(self, result: Result) -> None:
        """One round: its gradient into `applied`, then the update."""
        self.average(result)
        self.finish(result)

    def finish(self, result: Result) -> None:
        """The update, with what is in `applied`. A round without a gradient (the last of a join;
        all overflowed) is none."""
        self._updating = True  # and still if the update is interrupted
        if self._gradients:
            self.updates += 1
            self.metrics.rounds += 1
            self.metrics.active += result.active
            self._update(result)
        self.pass_over()

    def pass_over(self) -> None:
        """A round is over, for this replica."""
        self.version += 1
        self._updating = False

    def check_whole(self, what: str) -> None:
        """Raises StateError within an update, and for ever after one that was interrupted."""
        if self._updating:
            raise StateError(
                f"{what} within an update, or after one that was interrupted (by Ctrl-C, or an "
                "exception in on_round=): the parameters may be those of no round; begin anew "
                "from a checkpoint, on all ranks"
            )

    def check_waited(self, what: str) -> None:
        """Raises StateError after a step that was interrupted while it waited."""
        if self.handle._started:
            raise StateError(
                f"{what} after a step that was interrupted (by Ctrl-C) while it waited for its "
                "round, which this replica has missed: begin anew from a checkpoint, on all ranks"
            )

    def note(self, rnd: Round) -> None:
        """Which of the own deposits have now reached a round: the fingerprints count them."""
        left = self._outstanding
        if rnd.included:
            left = 0
        elif rnd.lost:  # nobody can say how many were in those; one may be pending
            left = min(left, 1)
        else:
            left -= sum(int(result.buffers[-1][self.rank, 0]) for result in rnd.results)
        self.metrics.included += self._outstanding - left
        self._outstanding = left

    def average(self, result: Result) -> None:
        """The round's sum, divided, into `applied`."""
        for flat, total in zip(self.applied, self.sums(result)):
            divide(total, self._divisor, flat)

    def sums(self, result: Result) -> list[Array]:
        """The round's sums, in the library's memory. MismatchError if the ranks differ."""
        *sums, rows = result.buffers
        self._fingerprints.check(rows, result.index)
        self._gradients = self._fingerprints.gradients(rows)
        return sums

    def missed(self) -> Round | None:
        """The round of a call that was interrupted before its update; waits for it."""
        if self.handle._started:
            return self.wait()
        last = self.handle.last_round
        seen = last is None or self._first + last.index < self.version
        return None if seen else last

    @property
    def pending(self) -> list[torch.Tensor] | None:
        """The own deposits that have reached no delivered round yet, added up; None: there are
        none."""
        if not self._outstanding or self._kept is None:
            return self._carried
        return self._kept.pending(self._outstanding)

    def join(self, passed: Callable[[], None] = lambda: None) -> None:
        """Contribute nothing until all ranks have joined, and apply what passes; `passed` is
        called after each of these rounds."""

        def deliver(rnd: Round) -> None:
            self.deliver(rnd)
            passed()

        self._joining = True  # and still if the join is interrupted
        last = self.handle.join(on_round=deliver)
        self._joining = self._behind = False
        self.metrics.included += self._outstanding
        self._outstanding = 0
        if self.resync is not None:
            self._settle(self._first + last.index + 1)

    def _settle(self, version: int) -> None:
        assert self.resync is not None
        behind = self.version < version
        gone = self.resync.settle(version)
        self.metrics.resyncs += behind
        if gone:
            logger.warning("join: rounds before %d were lost on all ranks: %d", version, gone)
            self.version = version

    @property
    def rests(self) -> bool:
        """Between rounds on all ranks: none yet, or the last one was that of a join."""
        last = self.handle.last_round
        return last is None or last.joined

    def resume(self, version: int, updates: int, pending: list[torch.Tensor] | None) -> None:
        """Begin where a checkpoint was written, its pending deposit included."""
        last = self.handle.last_round
        self.version, self.updates = version, updates
        self._fingerprints.forget()
        self._first = version - (0 if last is None else last.index + 1)
        self._carried = pending
        self._updating = False

    def free(self) -> None:
        """Collective. The slots' memory is gone then."""
        self._slots.clear()
        self._flats.clear()
        self.handle.Free()
        if self.resync is not None:
            self.resync.end()
            assert isinstance(self.handle, AllreduceHandle)
            self.handle._while_waiting = None


class Kept:
    """Copies of own deposits, which would be lost with the handle if they are pending.

    One for each: a rank that lags has several under way, in rounds of their own, and when one of
    them has arrived the others have not.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._copies: list[list[torch.Tensor]] = []  # oldest first
        self._spare: list[list[torch.Tensor]] = []

    def deposit(self, flats: Sequence[torch.Tensor], outstanding: int) -> None:
        """Another one, while so many are outstanding."""
        arrived = len(self._copies) - outstanding
        self._spare = [*self._copies[:arrived], *self._spare][:2]
        del self._copies[:arrived]
        copy = self._spare.pop() if self._spare else self._layout.new()
        for kept, flat in zip(copy, flats):
            kept.copy_(flat)
        self._copies.append(copy)

    def pending(self, outstanding: int) -> list[torch.Tensor]:
        """The sum of the last ones, which are outstanding; in the order in which they are added
        to each other while they wait."""
        first, *others = self._copies[-outstanding:]
        total = [flat.clone() for flat in first]
        for copy in others:
            for flat, kept in zip(total, copy):
                flat.add_(kept)
        return total


def divide(total: Array, divisor: float, out: torch.Tensor) -> None:
    """out = total / divisor, in the dtype of out."""
    if out.dtype == torch.bfloat16:
        out.copy_(torch.from_numpy(total.view(np.uint16).copy()).view(torch.bfloat16))
        out.div_(divisor)
    else:
        np.divide(total, total.dtype.type(divisor), out=out.numpy())
