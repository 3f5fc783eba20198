# SPDX-License-Identifier: Apache-2.0
"""Training over rounds: deposits go out, what is to be applied comes back, the same on all ranks.

The front end of `DistributedOptimizer` and of the hook for DistributedDataParallel. One handle
carries all gradients and, as its last buffer, the fingerprints; or one whose other buffers may go
early, `Partitioned`. Who owns which memory: between two starts the handle's send buffers belong to
this rank: backward writes into them, through views. At the start, or when they are sent, they go to
the library, and others take their place. What a round brought is read from the library's memory,
and divided into this rank's own.

Of a model on a device the send buffers are this rank's own, and the library's from the start to the
end of the wait. What a round brought is copied to `applied`, and divided there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import torch

from .._core import communicator, waiting
from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.settings import logger
from ..collectives.allreduce import Allreduce_init
from ..collectives.fingerprints import Fingerprints
from ..collectives.handle import AllreduceHandle
from ..collectives.partitioned import Partitioned
from ..collectives.resync import Replica, Resync, room_for_joins
from ..errors import MismatchError, StateError
from ..round import Result, Round
from . import checkpoint
from .flat import Layout, Named, Slot, divide
from .metrics import RoundMetrics
from .strategies import RoundStrategy


class Carried:
    """What was pending in the checkpoint that training began with, in the layout of what is saved.
    It is added to the next deposit, one buffer after the other."""

    def __init__(self, layout: Layout, saved: Layout) -> None:
        self._layout, self._saved = layout, saved
        self.flats: list[torch.Tensor] | None = None
        self._owed: set[int] = set()  # buffers to which they are still to be added

    def carry(self, flats: list[torch.Tensor] | None) -> None:
        """Add these to the next deposit."""
        self.flats, self._owed = flats, set(range(len(self._layout.counts)))

    @torch.no_grad()
    def add(self, flats: list[torch.Tensor], buffer: int) -> None:
        """Add what is carried to one buffer of a deposit, once."""
        if self.flats is not None and buffer in self._owed:
            self._owed.discard(buffer)
            for i in range(len(self._layout)):
                if self._layout.bucket(i) == buffer:
                    self._layout.part(flats, i).add_(self._saved.part(self.flats, i))

    def add_rest(self, flats: list[torch.Tensor]) -> bool:
        """Add what is carried to the other buffers. Return whether anything was carried."""
        if self.flats is None:
            return False
        for buffer in tuple(self._owed):
            self.add(flats, buffer)
        self.flats = None
        return True


class Replicated:
    """Deposits the gradients of this rank and delivers what is to be applied. Collective.

    Parameters
    ----------
    divisor : callable
        Of the sum of a round of so many ranks that live.
    update : callable
        Called with each delivered round, in order, when its gradient is in `applied`.
    replica : Replica or None
        What a rank that has lost rounds takes over from another; needed with ``deliver="all"``.

    Its state:

    ============================  ===========================================================
    version, updates              rounds this replica has seen, and those that changed it
    _first                        the version at which the handle's round 0 begins
    _skipped                      rounds of the handle before the one that training began with
    _outstanding                  number of own deposits in no delivered round
    _carried                      deposits that a checkpoint had, for the next deposit
    _joining, _behind             in `join`, which has lost rounds
    _updating                     within an update; still, if that was interrupted
    _difference                   for which a round was not applied, by any rank
    _gradients, divisor, used     of the round whose sums were looked at last; for each parameter
                                  whether a gradient of it is in that round
    ============================  ===========================================================
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        parameters: Named,
        strategy: RoundStrategy,
        divisor: Callable[[int], float],
        fingerprints: Fingerprints,
        update: Callable[[Result], None],
        replica: Replica | None = None,
    ) -> None:
        self._comm, self.strategy = comm, strategy
        self.version = self.updates = self._first = self._skipped = self._gradients = 0
        self._joining = self._behind = self._updating = False
        self._difference: MismatchError | None = None
        self.used: list[bool] = []
        self.began = self.waited = 0.0  # moments of the last round
        self.metrics = RoundMetrics()
        tensors = [p for _, p in parameters]
        early = strategy.early_bytes
        self.plain = Layout(tensors)  # of what is saved
        self.layout = self.plain if early is None else Layout(tensors, early)
        self.applied = self.layout.new()
        self.applied_views = self.layout.views(self.applied)
        self._divisor, self._fingerprints, self._update = divisor, fingerprints, update
        self.divisor = divisor(comm.size)
        self._slot: Slot | None = None  # of the deposit to come, if it has been asked for
        self._slots: dict[Any, Slot] = {}
        self._outstanding = 0
        self._carried = Carried(self.layout, self.plain)
        self._freed = False
        self._last_pending: list[torch.Tensor] | None = None  # when the handle was freed
        options = {"late": "carry", **room_for_joins(strategy.options(), comm.size)}
        fingerprints.remember(options.get("history", 1))
        send = [*self.layout.outline(), fingerprints.outline()]
        recv = None
        if self.layout.device.type != "cpu" and options.get("deliver") != "all":
            recv = [*self.applied, fingerprints.outline()]
        self.resync: Resync | None = None  # where rounds may be lost
        self.handle: AllreduceHandle | Partitioned
        if early is not None:
            self.handle = Partitioned(comm, send, recv, **options)
            return
        if self.layout.device.type == "cpu":
            self.handle = Allreduce_init(comm, None, None, like=send, **options)
        else:
            self.handle = Allreduce_init(comm, send, recv, **options)
        self.handle._pending()  # from now on the handle keeps what is pending
        if replica is not None and options.get("deliver") == "all" and comm.size > 1:
            self.resync = Resync(comm, lambda: self.version, replica)
            self.handle._while_waiting = self.resync.serve  # others, while this rank waits

    # A deposit

    def slot(self) -> Slot:
        """The send buffers of the deposit to come."""
        communicator.check_running("a deposit")
        if self._slot is None:
            place = self.handle._send_place()
            if place not in self._slots:  # there are only a few, which take turns
                *arrays, rows = self.handle.send_buffer
                flats = self.layout.tensors(arrays)
                self.layout.clear_gaps(flats)  # backward writes only to the parameters' parts
                self._slots[place] = Slot(self.layout, flats, rows)
            self._slot = self._slots[place]
        return self._slot

    def send(self, bucket: int) -> None:
        """Deposit one bucket of the slot ahead of the others."""
        self.check_whole("backward()")
        assert isinstance(self.handle, Partitioned)
        self.handle.send(bucket)

    def add_carried(self, slot: Slot, bucket: int) -> None:
        """What a checkpoint had, before the bucket goes."""
        self._carried.add(slot.flats, bucket)

    def start(self, slot: Slot, gradient: bool, used: Sequence[bool] = ()) -> None:
        """Deposit what is in the slot: a gradient, or zeros in place of one. used: which parameters
        it has a gradient of, where that is counted."""
        self.check_whole("step()")
        waiting.look()
        if self.resync is not None:
            self.resync.serve()
        if self._carried.add_rest(slot.flats):  # of these only the values are known
            gradient = True
            parts = [self.layout.part(slot.flats, i) for i in range(len(used))]
            used = [one or bool(part.any()) for one, part in zip(used, parts)]
        self._fingerprints.write(slot.rows, self._first, self.version, gradient)
        if gradient and used:
            self._fingerprints.count(slot.rows, used)
        self._outstanding += 1
        self.metrics.steps += 1
        self.began = time.monotonic()
        self.handle.Start()
        self._slot = None

    def wait(self) -> Round:
        """Until the round of this step is there; `deliver` its results then."""
        rnd = self.handle.Wait()
        self.waited = time.monotonic()
        self.metrics.wait_s += self.waited - self.began
        self.metrics.lag = rnd.lag
        return rnd

    # What comes of it

    def deliver(self, rnd: Round) -> None:
        """Apply every result of a round that is new to this replica, oldest first."""
        self.note(rnd)
        for i, result in enumerate(rnd.results):
            version = self._first + result.index
            if version > self.version and not self._behind:
                self.metrics.lost += version - self.version
                self._take_state(version, rnd.results[i:])
            if version == self.version:
                self.average(result)
                self.finish(result)
        if self._joining and self.resync is not None:
            self.resync.serve()

    def _take_state(self, version: int, results: list[Result]) -> None:
        """Rounds before this one are gone. In a join, everybody meets at its end."""
        assert self.resync is not None, "a round is missing"
        if self._joining:
            self._behind = True
            return
        begin = time.perf_counter()
        self.resync.ask(version, results)
        self.metrics.resyncs += 1
        self.metrics.wait_s += time.perf_counter() - begin

    def note(self, rnd: Round) -> None:
        """Which of the own deposits have now reached a round: the fingerprints count them."""
        left = self._outstanding
        if rnd.included:
            left = 0
        elif rnd.lost:  # nobody can say how many were in those; one may be pending
            left = min(left, 1)
        else:
            left -= sum(self._fingerprints.arrived(r.buffers[-1]) for r in rnd.results)
        self._arrived(left)

    def _arrived(self, left: int) -> None:
        self.metrics.included += self._outstanding - left
        self._outstanding = left
        if not left:
            self._fingerprints.all_arrived()

    def sums(self, result: Result) -> list[Array]:
        """The round's sums, in the library's memory. MismatchError if the ranks differ."""
        *sums, rows = result.buffers
        failed = np.flatnonzero(result.failed).tolist()
        try:
            self._fingerprints.check(rows, result.index, failed)
        except MismatchError as error:
            self._difference = error
            raise
        self._gradients = self._fingerprints.gradients(rows)
        self.used = self._fingerprints.used(rows)
        if len(failed) != len(self.metrics.failed):
            self.metrics.failed = tuple(failed)
            self.divisor = self._divisor(self._comm.size - len(failed))
        return sums

    def average(self, result: Result) -> None:
        """The round's sum, divided, into `applied`."""
        for flat, total in zip(self.applied, self.sums(result)):
            divide(total, self.divisor, flat)

    def finish(self, result: Result) -> None:
        """The update. A round without a gradient (the last of a join; all overflowed) is none."""
        self._updating = True  # and still if the update is interrupted
        if self._gradients:
            self.updates += 1
            self.metrics.rounds += 1
            self.metrics.active += result.active
            self._update(result)
        self.pass_over()

    @property
    def has_gradient(self) -> bool:
        """Was there a gradient of somebody in the round whose sums were looked at last?"""
        return self._gradients > 0

    def pass_over(self) -> None:
        """A round is over, for this replica."""
        self.version += 1
        self._updating = False

    # One round with a gradient for each deposit, read where it lies

    def exchange(self, slot: Slot, use: Callable[[list[Array]], None]) -> None:
        """Deposit the gradient in the slot, and hand over the sums of the next round that has one
        of somebody. (One that has none comes when others join, which is no step for those who do:
        nor is it here.)"""
        self.start(slot, True)
        while True:
            rnd = self.wait()
            self.note(rnd)
            (result,) = rnd.results
            sums = self.sums(result)
            empty = not self._gradients
            if not empty:
                use(sums)
            self.finish(result)
            if not empty:
                return
            self._start_again()

    def _start_again(self) -> None:
        """Ask for another round, for the gradient that was deposited last: it is still pending."""
        slot = self.slot()
        for flat in slot.flats:
            flat.zero_()
        self.start(slot, False)
        self.metrics.steps -= 1
        self.metrics.included -= 1  # of the zeros, ahead of time

    def missed(self) -> Round | None:
        """The round of an exchange that was interrupted before its end; waits for it."""
        if self.handle._started:
            return self.wait()
        last = self.handle.last_round
        seen = last is None or self._first + last.index < self.version
        return None if seen else last

    def catch_up(self, before: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """The average of the round that was missed, if one was, added to what was missed before.
        None: nothing was."""
        self._check_agreed("a call")
        missed = self.missed()
        if missed is None:
            return before
        self.note(missed)
        self.average(missed.results[0])
        found = [flat.clone() for flat in self.applied]
        for flat, other in zip(found, before or ()):
            flat.add_(other)
        self.finish(missed.results[0])
        return found

    # What was interrupted

    def check_whole(self, what: str) -> None:
        """Raises StateError within an update, and for ever after one that was interrupted, or
        whose round was refused."""
        self._check_agreed(what)
        if self._updating:
            raise StateError(
                f"{what} within an update, or after one that was interrupted (by Ctrl-C, or an "
                "exception in on_round=): the parameters may be those of no round; begin anew "
                "from a checkpoint, on all ranks"
            )

    def _check_agreed(self, what: str) -> None:
        if self._difference is not None:
            raise StateError(
                f"{what} after a MismatchError, whose round no rank has applied: close() this and "
                f"begin anew, on all ranks ({self._difference})"
            )

    def check_waited(self, what: str) -> None:
        """Raises StateError after a step that was interrupted while it waited."""
        if self.handle._started:
            raise StateError(
                f"{what} after a step that was interrupted (by Ctrl-C) while it waited for its "
                "round, which this replica has missed: begin anew from a checkpoint, on all ranks"
            )

    # The end of the data

    def join(self, passed: Callable[[], None] = lambda: None) -> None:
        """Contribute nothing until all ranks have joined, and apply what passes; `passed` is
        called after each of these rounds."""

        def deliver(rnd: Round) -> None:
            self.deliver(rnd)
            passed()

        self._joining = True  # and still if the join is interrupted
        self._slot = None
        last = self.handle.join(on_round=deliver)
        self._joining = self._behind = False
        self._arrived(left=0)
        self._fingerprints.joined()
        if self.resync is not None:
            version = self._first + last.index + 1
            self.metrics.resyncs += self.version < version
            gone = self.resync.settle(version)
            if gone:
                logger.warning("join: rounds before %d were lost on all ranks: %d", version, gone)
                self.version = version

    # Checkpoints

    @property
    def rests(self) -> bool:
        """Between rounds on all ranks: none yet, or the last one was that of a join."""
        last = self.handle.last_round
        return last is None or last.joined

    @property
    def pending(self) -> list[torch.Tensor] | None:
        """The sum of this rank's deposits that no delivered round contains, or None. Synchronous
        rounds leave nothing behind."""
        if self.strategy.synchronous:
            return self._carried.flats
        if self._freed:
            return self._last_pending
        assert isinstance(self.handle, AllreduceHandle)
        arrays = self.handle._pending()
        if arrays is None:
            return self._carried.flats
        sums = self.layout.tensors(arrays[:-1])  # without the fingerprints
        return [flat.to(self.layout.device) for flat in sums]

    def entry(self) -> dict[str, Any]:
        """What a checkpoint has of it. StateError where there is none to be made."""
        self.check_whole("state_dict()")
        if self.resync is not None and not self.rests:
            raise StateError(
                'state_dict() between rounds: with deliver="all" the ranks are at different '
                "rounds; save right after join()"
            )
        return {
            **checkpoint.entry(self._comm, repr(self.strategy)),
            "version": self.version,
            "updates": self.updates,
            "pending": checkpoint.by_dtype(self.pending),
            "layout": self.plain.digest(),
            "shared": self._is_shared(),
        }

    def _is_shared(self) -> bool:
        """Is nothing pending on any rank?"""
        last = self.handle.last_round
        if last is None or last.index < self._skipped:  # others may have loaded what was pending
            return False
        return self.pending is None and (self.strategy.synchronous or last.joined)

    def check_loading(self, saved: Any, schedulers: list[Any]) -> None:
        """Raises ValueError unless `saved` is such an entry, of this rank and model; StateError
        between rounds."""
        if not (self.rests or self.strategy.synchronous):
            raise StateError(
                "load_state_dict() between rounds: late deposits of the ranks are under way; load "
                "before the first step or right after join()"
            )
        checkpoint.check_own(saved, self._comm.rank, self._comm.size, schedulers, ("pending",))
        checkpoint.check_pending(saved, self.plain)

    def load(self, saved: dict[str, Any]) -> None:
        """Begin where an entry was written, its pending deposit included."""
        self.begin_at(saved["version"], saved["updates"], checkpoint.pending(saved, self.plain))

    def begin_at(self, version: int, updates: int, pending: list[torch.Tensor] | None) -> None:
        """So many rounds and updates have been, and this is to be added to the next deposit."""
        last = self.handle.last_round
        self.version, self.updates = version, updates
        self._fingerprints.forget()
        self._skipped = 0 if last is None else last.index + 1
        self._first = version - self._skipped
        self._carried.carry(pending)
        self._updating, self._difference = False, None

    def go_on_from(self, other: Replicated) -> None:
        """Begin where the other one is, with its counts and what is pending there; nobody of those
        who are here has died."""
        self.begin_at(other.version, other.updates, other.pending)
        vars(self.metrics).update(vars(other.metrics), failed=())

    def free(self) -> None:
        """Collective. The slots' memory is gone then."""
        self._last_pending, self._freed = self.pending, True
        self._slot = None
        self._slots.clear()
        self.handle.Free()
        if self.resync is not None:
            self.resync.end()
            assert isinstance(self.handle, AllreduceHandle)
            self.handle._while_waiting = None
