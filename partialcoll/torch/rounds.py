# SPDX-License-Identifier: Apache-2.0
"""Strategies whose ranks apply the same updates: one step of a wrapped optimizer is one round
(design of eager-SGD, PPoPP 2020, section 5).

`RoundLoop.step` deposits the local gradient, waits, and for each delivered round in order: gradient
= sum / ranks, clip, the inner optimizer's step, schedulers, callbacks. The local gradient is used
nowhere else, and what changes the update is a function of the round, so every replica applies the
same updates. `Replicated` has the rounds, for `RoundLoop` and for the hook of
DistributedDataParallel. One handle carries all gradients and, as its last buffer, the fingerprints.

Between two starts the handle's send buffers belong to this rank: backward writes into them, through
views. From the start on they belong to the library, and others take their place. The sums are read
from the library's memory, and divided into `applied`. With a model on a device the send buffers
stay this rank's own, and belong to the library from the start to the end of the wait.

With `overlap=True` (`Early`, `Partitioned`) a bucket of gradients is sent as soon as it is full,
and belongs to the library until the end of the round. So gradients may be changed before that, in
hooks of the backward pass, or after the sum (`clip_norm`). A gradient that is changed in between is
refused. It is found by the version that torch counts of its memory. Torch does not count changes by
way of `grad.data`, of a numpy array on it, or by some of its kernels, so in the first round, and
every `check_every` rounds, the bits are compared, too.

Gradients of embeddings may stay sparse (`SparseRows`). All ranks that apply a round send the rows
that they have right after it; a rank that has joined has none. Which parameters are sparse is fixed
when the optimizer is wrapped, since all ranks must know.
"""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import torch

from .._core import communicator, timeline, waiting
from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.settings import logger
from ..collectives.allreduce import Allreduce_init, Partitioned
from ..collectives.fingerprints import Fingerprints, Groups
from ..collectives.handle import AllreduceHandle
from ..collectives.resync import Replica, Resync, room_for_joins
from ..errors import MismatchError, StateError
from ..round import Result, Round
from . import checkpoint
from .calls import Calls
from .flat import Gradients, Layout, Named, Views, divide
from .loop import Loop, Settings, clip, is_sparse
from .metrics import RoundMetrics
from .ops import transfer, wire
from .ops.call import Call
from .strategies import RoundStrategy


class Replicated:
    """Deposits the gradients of this rank and delivers what is to be applied. Collective.

    divisor: returns the divisor of a round's sum, given the number of ranks that live. update:
    called with each delivered round that has a gradient, in order, when the average is in
    `applied`. replica: the state that a rank which has lost rounds takes from another; needed with
    ``deliver="all"``.
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
        self.version = self.updates = 0  # rounds this replica has seen, and those that changed it
        self._first = 0  # the version at which the handle's round 0 begins
        self._skipped = 0  # rounds of the handle before the one that training began with
        self._outstanding = 0  # own deposits in no delivered round
        self._joining = self._behind = False  # in `join`; in a join that has lost rounds
        self._updating = False  # within an update, or after one that was interrupted
        self._difference: MismatchError | None = None  # for which no rank has applied a round
        # Of the last round whose sums were read: has some rank a gradient; of which parameters?
        self.has_gradient, self.used = False, list[bool]()
        self.began = self.waited = 0.0  # moments of the last round
        self.metrics = RoundMetrics()
        tensors = [p for _, p in parameters]
        early = strategy.early_bytes
        self.plain = Layout(tensors)  # of what is saved
        self.layout = self.plain if early is None else Layout(tensors, early)
        self.applied = self.layout.new()
        self.applied_views = Views(self.layout, self.applied)
        self._divisor, self._fingerprints, self._update = divisor, fingerprints, update
        self.divisor = divisor(comm.size)
        self._loses_ranks = strategy.on_failure == "continue"
        self.early: Early | None = None  # sends buckets ahead of the others
        self._slot: Views | None = None  # of the deposit to come, if it has been asked for
        self._slots: dict[Any, Views] = {}
        self._last_pending: Any = False  # what was pending when the handle was freed
        # Pending deposit of a checkpoint (`plain`), and buffers of the next deposit that lack it.
        self._carried: list[torch.Tensor] | None = None
        self._owed: set[int] = set()
        options = {"late": "carry", **room_for_joins(strategy.options(), comm.size)}
        fingerprints.remember(options.get("history", 1))
        send = [*self.layout.outline(), fingerprints.outline()]
        host, all_rounds = self.layout.device.type == "cpu", options.get("deliver") == "all"
        recv = None if host or all_rounds else [*self.applied, fingerprints.outline()]
        self.resync: Resync | None = None  # where rounds may be lost
        self.handle: AllreduceHandle | Partitioned
        if early is not None:
            self.handle = Partitioned(comm, send, recv, **options)
            return
        there = (None, None) if host else (send, recv)
        self.handle = Allreduce_init(comm, *there, like=send if host else None, **options)
        self.handle._pending()  # from now on the handle keeps what is pending
        if replica is not None and all_rounds and comm.size > 1:
            self.resync = Resync(comm, lambda: self.version, replica)
            self.handle._while_waiting = self.resync.serve  # others, while this rank waits

    def check(self, what: str, waited: bool = True) -> None:
        """Raise StateError in an update, and after what left this replica without a round: an
        update or (`waited`) a wait that was interrupted, a round that was refused."""
        if self._difference is not None:
            raise StateError(
                f"{what} after a MismatchError, whose round no rank has applied: close() this and "
                f"begin anew, on all ranks ({self._difference})"
            )
        if self._updating:
            raise StateError(
                f"{what} within an update, or after one that was interrupted (by Ctrl-C, or an "
                "exception in on_round=): the parameters may be those of no round; begin anew "
                "from a checkpoint, on all ranks"
            )
        if waited and self.handle._started:
            raise StateError(
                f"{what} after a step that was interrupted (by Ctrl-C) while it waited for its "
                "round, which this replica has missed: begin anew from a checkpoint, on all ranks"
            )

    # A deposit

    def slot(self) -> Views:
        """The send buffers of the deposit to come."""
        if MPI.Is_finalized():
            communicator.check_running("a deposit")  # raises
        if self._slot is None:
            place = self.handle._send_place()
            if place not in self._slots:  # there are only a few, which take turns
                *arrays, rows = self.handle.send_buffer
                flats = self.layout.tensors(arrays)
                self.layout.clear_gaps(flats)  # backward writes only to the parameters' parts
                self._slots[place] = Views(self.layout, flats, rows)
            self._slot = self._slots[place]
            if self.early is not None:
                self.early.begin(self._slot)
        return self._slot

    @torch.no_grad()
    def add_carried(self, slot: Views, buffer: int) -> None:
        """Add the pending deposit of a checkpoint to one buffer, once."""
        if self._carried is not None and buffer in self._owed:
            self._owed.discard(buffer)
            for i, place in enumerate(self.layout.places):
                if place.buffer == buffer:
                    self.layout.part(slot.flats, i).add_(self.plain.part(self._carried, i))

    def start(self, slot: Views, gradient: bool, used: Sequence[bool] = ()) -> None:
        """Deposit the slot: a gradient, or zeros. used: of which parameters it has a gradient."""
        waiting.look()
        if self.resync is not None:
            self.resync.serve()
        if self._carried is not None:  # of these only the values are known
            for buffer in tuple(self._owed):
                self.add_carried(slot, buffer)
            parts = [self.layout.part(slot.flats, i) for i in range(len(used))]
            used = [(gradient and one) or bool(part.any()) for one, part in zip(used, parts)]
            self._carried, gradient = None, True
        self._fingerprints.write(slot.rows, self._first, self.version, gradient, used)
        self._outstanding += 1
        self.metrics.steps += 1
        self.began = time.monotonic()
        self.handle.Start()
        self._slot = None

    def wait(self) -> Round:
        """Wait for the round of this step; `deliver` its results then."""
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
            if version > self.version and not self._behind:  # the rounds before it are gone
                self.metrics.lost += version - self.version
                self._behind = self._joining  # all ranks meet at the join's end
                if not self._joining:
                    assert self.resync is not None, "a round is missing"
                    begin = time.perf_counter()
                    self.resync.ask(version, rnd.results[i:])
                    self.metrics.resyncs += 1
                    self.metrics.wait_s += time.perf_counter() - begin
            if version == self.version:
                self.average(result)
                self.finish(result)
        if self._joining and self.resync is not None:
            self.resync.serve()

    def note(self, rnd: Round) -> None:
        """Count which of the own deposits have now reached a round."""
        left = self._outstanding
        if rnd.included:
            left = 0
        elif rnd.lost:  # how many were in those is unknown; one may be pending
            left = min(left, 1)
        else:
            left -= sum(self._fingerprints.arrived(r.buffers[-1]) for r in rnd.results)
        self.metrics.included += self._outstanding - left
        self._outstanding = left
        if not left:
            self._fingerprints.under_way = False

    def sums(self, result: Result) -> list[Array]:
        """Return the round's sums, in the library's memory. MismatchError if the ranks differ."""
        *sums, rows = result.buffers
        failed = np.flatnonzero(result.failed).tolist() if self._loses_ranks else []
        try:
            gradients, self.used = self._fingerprints.check(rows, result.index, failed)
        except MismatchError as error:
            self._difference = error
            raise
        self.has_gradient = gradients > 0
        if len(failed) != len(self.metrics.failed):
            self.metrics.failed = tuple(failed)
            self.divisor = self._divisor(self._comm.size - len(failed))
        return sums

    def average(self, result: Result) -> None:
        """Put the round's sum, divided, into `applied`."""
        for flat, total in zip(self.applied, self.sums(result)):
            divide(total, self.divisor, flat)

    def finish(self, result: Result, skip: bool = False) -> None:
        """Make the update, unless it is to be skipped or the round has no gradient (the last round
        of a join; all overflowed)."""
        self._updating = True  # and still if the update is interrupted
        if self.has_gradient and not skip:
            self.updates += 1
            self.metrics.rounds += 1
            self.metrics.active += result.active
            self._update(result)
        self.version += 1
        self._updating = False

    # One round with a gradient for each deposit, whose sums are read in the library's memory

    def exchange(self, slot: Views, use: Callable[[list[Array]], None]) -> None:
        """Deposit the gradient in the slot, and hand over the sums of the next round that has one
        of some rank. (A round without one comes when others join: no step here either.)"""
        self.check("step()")
        self.start(slot, True)
        while True:
            rnd = self.wait()
            self.note(rnd)
            (result,) = rnd.results
            sums = self.sums(result)
            if self.has_gradient:
                use(sums)
            self.finish(result)
            if self.has_gradient:
                return
            slot = self.slot()  # another round, for the gradient that is still pending
            for flat in slot.flats:
                flat.zero_()
            self.start(slot, False)
            self.metrics.steps -= 1
            self.metrics.included -= 1  # of the zeros, ahead of time

    def missed(self) -> Round | None:
        """Wait for the round of an exchange that was interrupted; return it."""
        if self.handle._started:
            return self.wait()
        last = self.handle.last_round
        seen = last is None or self._first + last.index < self.version
        return None if seen else last

    def catch_up(self, before: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the average of the round that was missed, if one was, plus what was missed
        before; None if nothing was."""
        self.check("a call", waited=False)
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

    # The end of the data

    def join(self, passed: Callable[[], None] = lambda: None) -> None:
        """Contribute nothing until all ranks have joined, and apply the rounds meanwhile; call
        `passed` after each of them."""

        def deliver(rnd: Round) -> None:
            self.deliver(rnd)
            passed()

        self._joining = True  # and still if the join is interrupted
        self._slot = None
        last = self.handle.join(on_round=deliver)
        self._joining = self._behind = False
        self.metrics.included += self._outstanding
        self._outstanding = 0
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
        """The sum of this rank's deposits that no delivered round contains, or None."""
        if self._last_pending is not False:
            return self._last_pending
        arrays = None
        if not self.strategy.synchronous:
            assert isinstance(self.handle, AllreduceHandle)
            arrays = self.handle._pending()
        if arrays is None:
            return self._carried
        sums = self.layout.tensors(arrays[:-1])  # without the fingerprints
        return [flat.to(self.layout.device) for flat in sums]

    def entry(self) -> dict[str, Any]:
        self.check("state_dict()")
        if self.resync is not None and not self.rests:
            raise StateError(
                'state_dict() between rounds: with deliver="all" the ranks are at different '
                "rounds; save right after join()"
            )
        pending, last = self.pending, self.handle.last_round
        copies = pending and {wire.name(flat.dtype): flat.clone() for flat in pending}
        # Shared if nothing is pending on any rank; others may have loaded what was pending.
        shared = last is not None and last.index >= self._skipped and pending is None
        return {
            **checkpoint.entry(self._comm, repr(self.strategy)),
            "version": self.version,
            "updates": self.updates,
            "pending": copies,
            "layout": self.plain.digest(),
            "shared": shared and (self.strategy.synchronous or self.rests),
        }

    def check_loading(self, saved: Any, schedulers: list[Any]) -> None:
        """Raise ValueError unless `saved` is such an entry, of this rank and model; StateError
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
        there, pending = self.plain, saved["pending"]
        if pending is not None:
            pending = [pending[wire.name(d)].to(there.device, copy=True) for d in there.dtypes]
        self.begin_at(saved["version"], saved["updates"], pending)

    def begin_at(self, version: int, updates: int, pending: list[torch.Tensor] | None) -> None:
        """Go on after so many rounds and updates; `pending` is added to the next deposit."""
        last = self.handle.last_round
        self.version, self.updates = version, updates
        self._fingerprints.forget()
        self._skipped = 0 if last is None else last.index + 1
        self._first = version - self._skipped
        self._carried = pending
        self._owed = set(range(len(self.layout.counts)))
        self._updating, self._difference = False, None

    def free(self) -> None:
        """Collective. The slots' memory is gone then."""
        self._last_pending = self.pending
        self._slot = None
        self._slots.clear()
        self.handle.Free()
        if self.resync is not None:
            self.resync.end()
            assert isinstance(self.handle, AllreduceHandle)
            self.handle._while_waiting = None


class SparseRows:
    """The sparse gradients of some parameters. Collective to make and to free. divisor: of the sum
    over the ranks."""

    def __init__(self, comm: MPI.Intracomm, parameters: Named, divisor: float) -> None:
        self._calls, self._parameters, self._divisor = Calls(comm), parameters, divisor
        self._own: list[torch.Tensor | None] = [None] * len(parameters)

    def take(self) -> None:
        """The gradients that the parameters have are what this rank contributes next."""
        self._own = [parameter.grad for _, parameter in self._parameters]

    def exchange(self) -> None:
        """Each parameter's gradient becomes the ranks' sum, divided; the same bits on all ranks.
        Collective."""
        for (name, parameter), gradient in zip(self._parameters, self._own):
            if gradient is None:
                rows = parameter.new_empty((0, *parameter.shape[1:]))
                places = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
            else:
                places, rows = gradient._indices(), gradient._values()
            found: transfer.Found = []
            move = transfer.sum_sparse(self._calls.comm, places, rows, parameter.shape, found)
            self._calls.run(Call(f"the sparse gradient of {name}", move))
            places, rows = found[0]._indices(), (found[0]._values() / self._divisor)
            mean = torch.sparse_coo_tensor(
                places, rows.to(parameter.dtype), parameter.shape, check_invariants=False
            )
            parameter.grad = mean.coalesce()
        self._own = [None] * len(self._own)

    def free(self) -> None:
        self._calls.free()


_TOO_LATE = (
    "after it had been sent (overlap=True): change gradients in hooks of their parameters, clip "
    "with clip_norm=, or take Allreduce() without overlap"
)


class Early:
    """Sends buckets of a step's slot."""

    def __init__(self, rounds: Replicated, names: list[str], settings: Settings) -> None:
        self._rounds, self._handle = rounds, rounds.handle
        self._settings, self._names = settings, names
        self._bucket = [place.buffer for place in rounds.layout.places]
        self._sizes = [self._bucket.count(b) for b in range(len(rounds.layout.counts))]

    def begin(self, slot: Views) -> None:
        """The backward passes to come fill this one."""
        every = self._settings.check_every  # rounds after which the bits are compared
        self._slot, self._exact = slot, self._rounds.version % every == 0
        self._missing = list(self._sizes)
        self._prepared: set[int] = set()
        self._gone: dict[int, tuple[int, bytes]] = {}  # bucket -> what it was then

    def filled(self, i: int) -> None:
        """Parameter i has its gradient. Called within backward."""
        bucket = self._bucket[i]
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._rounds.check("backward()")
            self._ready(bucket)
            self._rounds.add_carried(self._slot, bucket)
            self._gone[bucket] = self._look(bucket)
            assert isinstance(self._handle, Partitioned)
            self._handle.send(bucket)

    @torch.no_grad()
    def _ready(self, bucket: int) -> None:
        if bucket not in self._prepared:
            self._prepared.add(bucket)
            flat = self._slot.flats[bucket]
            self._settings.compress([flat])
            if self._settings.before != 1.0:
                flat.mul_(self._settings.before)

    def _look(self, bucket: int) -> tuple[int, bytes]:
        flat = self._slot.flats[bucket]
        # The library's deposit of 16-bit floats has other bits.
        exact = self._exact and flat.dtype not in (torch.float16, torch.bfloat16)
        return int(flat._version), hash_tensors([flat]) if exact else b""

    def check_waits(self, i: int) -> None:
        """StateError if the gradient of parameter i, which is about to be replaced, has gone."""
        if self._bucket[i] in self._gone:
            raise StateError(f"parameter {self._names[i]!r}: its gradient was replaced {_TOO_LATE}")

    def finish(self) -> None:
        """Before the rest goes. StateError if what has gone was changed."""
        for bucket, then in self._gone.items():
            if self._look(bucket) != then:
                name = self._names[self._bucket.index(bucket)]
                raise StateError(f"the gradient of {name!r}, or beside it, was changed {_TOO_LATE}")
        for bucket in range(len(self._sizes)):
            if bucket not in self._gone:
                self._ready(bucket)


class RoundLoop(Loop):
    """The loop of the strategies whose ranks apply the same updates."""

    strategy: RoundStrategy

    def _set_up(self) -> None:
        self._shown = False  # the parameters' gradients are the applied ones, untouched
        self._averaged: Result | None = None  # synchronize() has brought it, step() will use it
        self._plain: list[torch.Tensor] | None = None  # it as it was, where ranks have joined
        self.skipping = False  # within skip_synchronize()
        self._takes_fewer_passes = self.strategy.synchronous
        sparse: Named = []  # parameters whose gradients stay sparse
        if self.strategy.takes_sparse and not self.settings.sparse_as_dense:
            model = self.settings.model
            layers = [] if model is None else [m for m in model.modules() if is_sparse(m)]
            rows = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
            sparse = [pair for pair in self.parameters if self._rows_only or pair[1] in rows]
        apart = {parameter for _, parameter in sparse}
        dense = [pair for pair in self.parameters if pair[1] not in apart]
        divisor = self.settings.divisor
        self._rows = SparseRows(self.comm, sparse, divisor(self.comm.size)) if sparse else None
        self._completes = bool(sparse) or self.settings.compresses  # there is more to an average
        tensors = [parameter for _, parameter in self.parameters]
        every = self.settings.check_every
        fingerprints = Fingerprints(
            self.comm,
            functools.partial(hyperparameters, self._inner),
            functools.partial(checksum_tensors, tensors),
            every,
            len(dense),
        )
        replica = Replica(self._capture, self._restore)
        self.rounds = Replicated(
            self.comm, dense, self.strategy, divisor, fingerprints, self._update, replica
        )
        self.metrics = self.rounds.metrics
        if self.strategy.early_bytes is not None:
            names = [name for name, _ in dense]
            self.rounds.early = Early(self.rounds, names, self.settings)
        self.gradients = Gradients(
            dense,
            self.settings.backward_passes_per_step,
            self.rounds.slot(),
            self.metrics,
            self.rounds.early,
            sparse=sparse,
            refusal=self.settings.sparse_refusal(self.strategy),
            unused_as_zeros=self.settings.unused_as_zeros,
        )

    # One step

    def step(self, scale: float | None, overflown: bool) -> None:
        """scale: the gradients are too large by it; overflown: they are not finite, as a GradScaler
        has found."""
        self._check_open()
        if self._averaged is None:
            finite = self._exchange(scale, overflown, self.rounds.deliver)
            if not finite and not overflown:
                self._raise_if_wanted()
            return
        if not self.skipping:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): it applies the average that is there; Horovod would "
                "average once more",
                stacklevel=4,
            )
        self._finish(scale, overflown)

    def _finish(self, scale: float | None, overflown: bool) -> None:
        """The update after `synchronize`: a GradScaler has looked at the average, on all ranks."""
        scaled = scale not in (None, 1)
        if self._plain is not None:
            pairs = zip(self.rounds.applied, self._plain)
            same = all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
            if overflown or scaled or not same:
                raise StateError(
                    "step() after synchronize(): ranks have joined, which apply the average as it "
                    "is, and here it was changed (clipped, or divided by the scale of a "
                    "GradScaler); with uneven data let the optimizer do that: clip_norm=, or "
                    "step() without synchronize()"
                )
        self.gradients.give_average()
        if overflown:
            self.metrics.skipped += 1
        elif scaled:
            with torch.no_grad():
                for _, parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        assert self._averaged is not None
        self.rounds.finish(self._averaged, skip=overflown)
        self._averaged = self._plain = None

    def synchronize(self) -> None:
        """The round, but not the update, which `step` makes then."""
        self._check_open()
        if self._averaged is not None:
            raise StateError("synchronize() comes twice before step()")
        self._exchange(None, False, self._average)
        self.gradients.averaged = True

    def _average(self, rnd: Round) -> None:
        self._averaged = rnd.results[0]
        self.rounds.note(rnd)
        self.rounds.average(self._averaged)
        if self._completes:
            self._complete_average()
        self.gradients.hide(self.rounds.used)
        living = self.comm.size - len(self.metrics.failed)
        if self.strategy.synchronous and self._averaged.active < living:
            self._plain = [flat.clone() for flat in self.rounds.applied]

    def _exchange(
        self, scale: float | None, overflown: bool, deliver: Callable[[Round], None]
    ) -> bool:
        """Make a round; return whether the local gradient was finite."""
        rounds, gradients = self.rounds, self.gradients
        rounds.check("step()")
        self._gather()
        finite = self._prepare(scale, overflown)
        if self._rows is not None:
            self._rows.take()
        rounds.start(gradients.slot, finite, gradients.used)
        gradients.restart(self.rounds.slot())
        self._show_applied()
        deliver(rounds.wait())
        if timeline.recorder is not None:
            self._record(("NEGOTIATE_ALLREDUCE", rounds.began), ("UPDATE", rounds.waited))
        return finite

    def _prepare(self, scale: float | None, overflown: bool) -> bool:
        """The gradient in the slot becomes what this rank deposits. Is it still a gradient?"""
        if self.rounds.early is not None:
            if scale is not None or overflown:
                raise StateError(
                    "step() of a GradScaler with Allreduce(overlap=True): the scaled gradients "
                    "have been sent; take Allreduce() without overlap"
                )
            self.rounds.early.finish()
            return True
        flats, finite = self.gradients.flats, not overflown
        if finite and scale not in (None, 1):  # before it is rounded: 16 bits may not hold it
            for flat in flats:
                flat.mul_(1 / scale)
        if finite and self._completes:
            self.settings.compress(flats)
        finite = finite and self._scale(self.settings.before)
        if not finite:
            for flat in flats:
                flat.zero_()
            self.metrics.skipped += 1
        return finite

    def _show_applied(self) -> None:
        self.gradients.show(self.rounds.applied_views)
        self._shown = True

    def _complete_average(self) -> None:
        """What is in `applied` becomes what the round's gradient is."""
        self.settings.compress(self.rounds.applied)
        if self._rows is not None and self.rounds.has_gradient:
            self._rows.exchange()
            self.settings.compress(self.gradients.sparse_values())

    def _update(self, result: Result) -> None:
        """The gradient of a round is in `applied`: everything that follows from it."""
        if self._averaged is None:
            if not self._shown:  # on_round may have changed gradients
                self._show_applied()
            if self._completes:
                self._complete_average()
            self.gradients.hide(self.rounds.used)
        self._shown = False
        if self.settings.clip_norm is not None:
            clip([*self.rounds.applied, *self.gradients.sparse_values()], self.settings.clip_norm)
        self._inner_step()
        self._step_schedulers()
        for call in self.settings.on_round:
            call(result)

    @property
    def version(self) -> int:
        return self.rounds.version

    @property
    def updates(self) -> int:
        return self.rounds.updates

    # Around it

    def _check_averaged(self, what: str, why: str = "") -> None:
        if self._averaged is not None:
            raise StateError(f"{what} between synchronize() and step(){why}; call step() first")

    def _check_between(self, what: str) -> None:
        self._check_open()
        self.rounds.check(what)
        self._check_averaged(what)
        super()._check_between(what)

    def zero_grad(self) -> None:
        """Gradients gather from zero. Instead of `step` after `synchronize`: without an update."""
        self._check_open()
        if self._plain is not None:
            self._check_averaged("zero_grad()", ": ranks have joined, which apply it")
        if self._averaged is not None:
            self.gradients.give_average()
            self.rounds.finish(self._averaged, skip=True)
            self._averaged = self._plain = None
        super().zero_grad()

    def _join(self) -> None:
        self._show_applied()
        self.rounds.join()
        self.gradients.restart(self.rounds.slot())

    def discard(self) -> None:
        """As the loop's; what has been sent ahead cannot be taken back."""
        if self.rounds.early is None:
            self._averaged = self._plain = None
            super().discard()

    # The replica, for a peer that needs it and for checkpoints

    def _capture(self) -> dict[str, Any]:
        state = checkpoint.capture(self.parameters, self._inner, self._attached())
        return {**state, "version": self.version, "updates": self.updates}

    def _restore(self, state: dict[str, Any]) -> None:
        checkpoint.restore(state, self.parameters, self._inner, self._attached())
        self.rounds.version, self.rounds.updates = state["version"], state["updates"]

    def begin_at(self, position: dict[str, Any]) -> None:
        """Begin where another rank is. Own pending deposits are kept."""
        rounds = self.rounds
        if position["version"] != rounds.version:
            if not rounds.rests:
                raise StateError("this rank is at another round, and its deposits are under way")
            rounds.begin_at(position["version"], position["updates"], rounds.pending)
        self._load_schedulers(position["schedulers"])

    def state_dict(self) -> dict[str, Any]:
        communicator.check_running("state_dict()")
        self._check_averaged("state_dict()")
        entry = {**self.rounds.entry(), **self.position()}
        return {**self._inner.state_dict(), checkpoint.KEY: entry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        communicator.check_running("load_state_dict()")
        if self._averaged is not None or self.gradients.came:
            raise StateError("load_state_dict() between backward() and step(); call step() first")
        saved = state.get(checkpoint.KEY)
        if saved is not None:
            self.rounds.check_loading(saved, self._attached())
        checkpoint.load_optimizer(self._inner, state)
        if saved is not None:
            self._load_schedulers(saved["schedulers"])
            self.rounds.load(saved)

    def over(self, comm: MPI.Intracomm) -> RoundLoop:
        """The same on other ranks, where this one, which has been freed, is; with its counts and
        what is pending. None of the ranks has died there. Collective."""
        found = RoundLoop(
            *(comm, self.parameters, self.strategy, self.settings, self._inner, self._wrapped)
        )
        found.schedulers, found.stepped = self.schedulers, self.stepped
        found.gradients.set_passes(self.gradients.passes)
        found.rounds.begin_at(self.version, self.updates, self.rounds.pending)
        vars(found.metrics).update(vars(self.metrics), failed=())
        return found

    def _free(self) -> None:
        self.rounds.free()
        if self._rows is not None:
            self._rows.free()


# What the ranks compare


def hyperparameters(optimizer: torch.optim.Optimizer) -> Groups:
    """Everything in the optimizer's groups that changes the update."""
    found = []
    for group in optimizer.param_groups:
        values = []
        for name, value in group.items():
            if name != "params":
                values.append((name, _plain(value)))
        found.append(tuple(values))
    return tuple(found)


def _plain(value: Any) -> Any:
    """The same on ranks where it means the same: no address, and no order of a set."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else hash_tensors([value])
    if isinstance(value, Mapping):
        return sorted(((repr(key), _plain(one)) for key, one in value.items()))
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(one)) for one in value)
    if isinstance(value, functools.partial):
        return "partial", _plain(value.func), _plain(value.args), _plain(value.keywords)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind: Any = type(value)
    shows_address = kind.__repr__ is object.__repr__
    return f"a {kind.__module__}.{kind.__qualname__}" if shows_address else value


def hash_tensors(tensors: Iterable[torch.Tensor]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(wire.bits(tensor).data)
    return digest.digest()


def checksum_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number that is not 0 and depends on the tensors' bits: the CRC-32 of the sums, as
    words, of each tensor's pieces of 4 KiB. That takes as long as reading the memory once. It does
    not tell apart tensors that have the same pieces in another order; other differences go
    unnoticed with a probability of 2^-32."""
    value = 0
    for tensor in tensors:
        raw = wire.bits(tensor)
        whole = raw.size // 4096 * 4096
        pieces = raw[:whole].view(np.uint64).reshape(-1, 512)
        value = zlib.crc32(np.add.reduce(pieces, axis=0).data, value)
        value = zlib.crc32(raw[whole:].data, value)
    return value + 1
