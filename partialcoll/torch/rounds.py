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
stay this rank's own, and belong to the library from the start to the end of the wait. With
`overlap=True` (`EarlyGradients`) a bucket belongs to the library as soon as it is full.

Gradients of embeddings may stay sparse (`RoundLoop._exchange_rows`). All ranks that apply a round
send their rows right after it; a rank that has joined has none. Which parameters are sparse is
fixed when the optimizer is wrapped, since all ranks must know.
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
    """Deposits the gradients of this rank and delivers the rounds in order. Collective.

    divisor: returns the divisor of a round's sum, given the number of live ranks. update: called
    with each delivered round that has a gradient, after its average was written to `applied`.
    replica: the state that a rank which has lost rounds takes from another; needed with
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
        self._joining = self._behind = False  # within `join`; within a join that has lost rounds
        self._updating = False  # within an update, or after one that was interrupted
        self._difference: MismatchError | None = None  # why no rank has applied the last round
        # For the last round whose sums were read: whether any rank has a gradient, and which
        # parameters have one.
        self.has_gradient, self.used = False, list[bool]()
        self.began = self.waited = 0.0  # times of the last start and of the end of its wait
        self.metrics = RoundMetrics()
        tensors, bucket_bytes = [p for _, p in parameters], strategy.early_bytes
        self.plain = Layout(tensors)  # of checkpoints
        self.layout = self.plain if bucket_bytes is None else Layout(tensors, bucket_bytes)
        self.applied = self.layout.new()
        self.applied_views = Views(self.layout, self.applied)
        self._divisor, self._fingerprints, self._update = divisor, fingerprints, update
        self.divisor = divisor(comm.size)
        self._loses_ranks = strategy.on_failure == "continue"
        self._slots: dict[Any, Views] = {}  # by place
        self._last_pending: Any = False  # what was pending when the handle was freed
        # The pending deposit of a checkpoint (`plain`), which goes with the next one.
        self.carried: list[torch.Tensor] | None = None
        options = {"late": "carry", **room_for_joins(strategy.options(), comm.size)}
        fingerprints.remember(options.get("history", 1))
        send = [*self.layout.outline(), fingerprints.outline()]
        host, all_rounds = self.layout.device.type == "cpu", options.get("deliver") == "all"
        recv = None if host or all_rounds else [*self.applied, fingerprints.outline()]
        self.resync: Resync | None = None  # if rounds may be lost
        self.handle: AllreduceHandle | Partitioned
        if bucket_bytes is not None:
            self.handle = Partitioned(comm, send, recv, **options)
            return
        there = (None, None) if host else (send, recv)
        self.handle = Allreduce_init(comm, *there, like=send if host else None, **options)
        self.handle._pending()  # from now on the handle keeps what is pending
        if replica is not None and all_rounds and comm.size > 1:
            self.resync = Resync(comm, lambda: self.version, replica)
            self.handle._while_waiting = self.resync.serve  # answers others meanwhile

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

    # Deposits

    def slot(self) -> Views:
        """Return the send buffers of the next deposit."""
        if MPI.Is_finalized():
            communicator.check_running("a deposit")  # raises
        place = self.handle._send_place()
        if place not in self._slots:  # there are a few places, used in turn
            *arrays, rows = self.handle.send_buffer
            flats = self.layout.tensors(arrays)
            self.layout.clear_gaps(flats)  # backward writes only the parameters' parts
            self._slots[place] = Views(self.layout, flats, rows)
        return self._slots[place]

    def start(self, slot: Views, gradient: bool, used: Sequence[bool] = ()) -> None:
        """Deposit the slot: a gradient, or zeros. used: which parameters have a gradient."""
        waiting.look()
        if self.resync is not None:
            self.resync.serve()
        if self.carried is not None:  # which of its parameters were used is unknown
            parts = [self.layout.part(slot.flats, i) for i in range(len(self.layout.places))]
            with torch.no_grad():
                for i, part in enumerate(parts):
                    part.add_(self.plain.part(self.carried, i))
            used = [(gradient and one) or bool(part.any()) for one, part in zip(used, parts)]
            self.carried, gradient = None, True
        self._fingerprints.write(slot.rows, self._first, self.version, gradient, used)
        self._outstanding += 1
        self.metrics.steps += 1
        self.began = time.monotonic()
        self.handle.Start()

    def wait(self) -> Round:
        """Wait for the round of this step. Pass it to `deliver`."""
        rnd = self.handle.Wait()
        self.waited = time.monotonic()
        self.metrics.wait_s += self.waited - self.began
        self.metrics.lag = rnd.lag
        return rnd

    # Results

    def deliver(self, rnd: Round) -> None:
        """Apply every result of a round that is new to this replica, oldest first."""
        self.note(rnd)
        for i, result in enumerate(rnd.results):
            version = self._first + result.index
            if version > self.version and not self._behind:  # the rounds before it are lost
                self.metrics.lost += version - self.version
                self._behind = self._joining  # `Resync.settle` ends the join
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
        """Count the own deposits that have now reached a round."""
        left = self._outstanding
        if rnd.included:
            left = 0
        elif rnd.lost:  # they had an unknown number; one may be pending
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
        """Write the round's sum, divided, to `applied`."""
        for flat, total in zip(self.applied, self.sums(result)):
            divide(total, self.divisor, flat)

    def finish(self, result: Result, skip: bool = False) -> None:
        """Make the update, unless no rank has a gradient (the end of a join, or all overflowed).
        skip: count the round, and make no update."""
        self._updating = True  # stays set if the update is interrupted
        if self.has_gradient and not skip:
            self.updates += 1
            self.metrics.rounds += 1
            self.metrics.active += result.active
            self._update(result)
        self.version += 1
        self._updating = False

    # Used by the hook of DistributedDataParallel: one round with a gradient for each deposit

    def exchange(self, slot: Views, use: Callable[[list[Array]], None]) -> None:
        """Deposit the gradient in the slot, and call `use` with the sums of the next round in which
        a rank has a gradient. (No rank has one in a round of ranks that join.)"""
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
            slot = self.slot()  # another round, for the pending gradient
            for flat in slot.flats:
                flat.zero_()
            self.start(slot, False)
            self.metrics.steps -= 1
            self.metrics.included -= 1  # the zeros are no gradient

    def missed(self) -> Round | None:
        """Return the round of an interrupted exchange, or None. Wait for it."""
        if self.handle._started:
            return self.wait()
        last = self.handle.last_round
        return None if last is None or self._first + last.index < self.version else last

    def catch_up(self, before: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the average of the round that an interrupted exchange missed, plus `before`, that
        of earlier ones; None if there was none."""
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

    # Uneven data

    def join(self, passed: Callable[[], None] = lambda: None) -> None:
        """Contribute nothing until all ranks have joined, and apply the rounds meanwhile; call
        `passed` after each of them."""

        def deliver(rnd: Round) -> None:
            self.deliver(rnd)
            passed()

        self._joining = True  # stays set if the join is interrupted
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
        """Whether all ranks are between rounds: before the first one, or after a join."""
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
            return self.carried
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
        # Shared if nothing is pending on any rank. A loaded deposit may be pending on others.
        shared = last is not None and last.index >= self._skipped and pending is None
        shared = shared and (self.strategy.synchronous or self.rests)
        found = {"size": self._comm.size, "rank": self._comm.rank, "strategy": repr(self.strategy)}
        found.update(version=self.version, updates=self.updates, schedulers=[], shared=shared)
        return {**found, "layout": self.plain.digest(), "pending": copies}

    def check_loading(self, saved: Any, schedulers: list[Any]) -> None:
        """Raise ValueError for an entry of another rank or model, StateError between rounds."""
        if not (self.rests or self.strategy.synchronous):
            raise StateError(
                "load_state_dict() between rounds: late deposits of the ranks are under way; load "
                "before the first step or right after join()"
            )
        who = self._comm.rank, self._comm.size
        checkpoint.check_own(saved, *who, schedulers, self.plain, "pending")

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from an entry, including its pending deposit."""
        pending, device = saved["pending"], self.plain.device
        if pending is not None:
            pending = [pending[wire.name(d)].to(device, copy=True) for d in self.plain.dtypes]
        self.begin_at(saved["version"], saved["updates"], pending)

    def begin_at(self, version: int, updates: int, pending: list[torch.Tensor] | None) -> None:
        """Continue after this number of rounds and updates. Add `pending` to the next deposit."""
        last = self.handle.last_round
        self.version, self.updates = version, updates
        self._fingerprints.forget()
        self._skipped = 0 if last is None else last.index + 1
        self._first = version - self._skipped
        self.carried = pending
        self._updating, self._difference = False, None

    def free(self) -> None:
        """Free the handle and the memory of its slots. Collective."""
        self._last_pending = self.pending
        self._slots.clear()
        self.handle.Free()
        if self.resync is not None:
            self.resync.end()
            assert isinstance(self.handle, AllreduceHandle)
            self.handle._while_waiting = None


_TOO_LATE = (
    "after it had been sent (overlap=True): change gradients in hooks of their parameters, clip "
    "with clip_norm=, or take Allreduce() without overlap"
)


class EarlyGradients(Gradients):
    """Sends a bucket of gradients as soon as it is full (`Partitioned`).

    Gradients may be changed before that, in hooks of the backward pass, or after the sum
    (`clip_norm`). A gradient that is changed in between is refused. Such a change is detected by
    torch's version counter of its memory. Torch does not count changes through `grad.data`, through
    a numpy array on it, or by some of its kernels, so in the first round, and every `check_every`
    rounds, the bits are compared, too.
    """

    def __init__(
        self, rounds: Replicated, handle: Partitioned, settings: Settings, *others: Any
    ) -> None:
        self._rounds, self._handle, self._settings = rounds, handle, settings
        self._bucket = [place.buffer for place in rounds.layout.places]
        super().__init__(settings, *others)

    def restart(self, slot: Views) -> None:
        super().restart(slot)
        every = self._settings.check_every  # rounds after which the bits are compared
        self._exact = self._rounds.version % every == 0
        self._missing = [self._bucket.count(b) for b in range(len(slot.flats))]
        self._prepared: set[int] = set()
        self._gone: dict[int, Any] = {}  # bucket that was sent -> `_look` at that time

    def _added(self, i: int, parameter: torch.Tensor) -> None:
        super()._added(i, parameter)
        if self._passes[i] < self.passes or i >= len(self._bucket):
            return
        if self.slot.tensors[i].data_ptr() != self.slot.addresses[i]:
            self._move(i)
        bucket = self._bucket[i]
        self._missing[bucket] -= 1
        if not self._missing[bucket] and self._rounds.carried is None:
            self._rounds.check("backward()")
            self._prepare(bucket)
            self._gone[bucket] = self._look(bucket)
            self._handle.Pready(bucket)

    def _move(self, i: int) -> None:
        if self._bucket[i] in self._gone:
            raise StateError(f"parameter {self._names[i]!r}: its gradient was replaced {_TOO_LATE}")
        super()._move(i)

    @torch.no_grad()
    def _prepare(self, bucket: int) -> None:
        if bucket not in self._prepared:
            self._prepared.add(bucket)
            self._settings.compress([self.slot.flats[bucket]])
            if self._settings.before != 1.0:
                self.slot.flats[bucket].mul_(self._settings.before)

    def _look(self, bucket: int) -> tuple[int, bytes]:
        flat = self.slot.flats[bucket]
        # The library converts a deposit of 16-bit floats in place.
        exact = self._exact and flat.dtype not in (torch.float16, torch.bfloat16)
        return int(flat._version), hash_tensors([flat]) if exact else b""

    def finish(self) -> None:
        """Prepare the buckets that were not sent. StateError if one that was sent has changed."""
        for bucket in range(len(self._missing)):
            if bucket not in self._gone:
                self._prepare(bucket)
            elif self._look(bucket) != self._gone[bucket]:
                name = self._names[self._bucket.index(bucket)]
                raise StateError(f"the gradient of {name!r}, or beside it, was changed {_TOO_LATE}")


class RoundLoop(Loop):
    """The loop of the strategies whose ranks apply the same updates."""

    strategy: RoundStrategy

    def _set_up(self) -> None:
        self._shown = False  # whether the parameters' gradients are the applied ones
        self._averaged: Result | None = None  # from synchronize() to step()
        self._plain: list[torch.Tensor] | None = None  # a copy of its average, if ranks have joined
        self.skipping = False  # within skip_synchronize()
        self._takes_fewer_passes = self.strategy.synchronous
        rows: set[Any] = set()  # parameters whose gradients stay sparse
        if self.strategy.takes_sparse and not self.settings.sparse_as_dense:
            modules = () if self.settings.model is None else self.settings.model.modules()
            rows.update(p for m in modules if is_sparse(m) for p in m.parameters(recurse=False))
            rows.update(p for _, p in self.parameters if self._rows_only)
        sparse = [pair for pair in self.parameters if pair[1] in rows]
        dense = [pair for pair in self.parameters if pair[1] not in rows]
        self._sparse = sparse
        self._calls = Calls(self.comm) if sparse else None  # carries sparse gradients
        self._own_rows: list[Any] = [None] * len(sparse)  # this rank's part of the next exchange
        # Averages have sparse parts, or are rounded.
        self._completes = bool(sparse) or self.settings.compresses
        fingerprints = Fingerprints(
            self.comm,
            functools.partial(hyperparameters, self._inner),
            functools.partial(checksum_tensors, [parameter for _, parameter in self.parameters]),
            self.settings.check_every,
            len(dense),
        )
        replica = Replica(self._capture, self._restore)
        how = self.settings.divisor, fingerprints, self._update, replica
        self.rounds = rounds = Replicated(self.comm, dense, self.strategy, *how)
        self.metrics = rounds.metrics
        refusal = self.settings.sparse_refusal(self.strategy)
        given = self.settings, dense, rounds.slot(), self.metrics, refusal, sparse
        if isinstance(rounds.handle, Partitioned):
            self.gradients = EarlyGradients(rounds, rounds.handle, *given)
        else:
            self.gradients = Gradients(*given)

    # One step

    def step(self, scale: float | None, overflown: bool) -> None:
        """Make a step. From a GradScaler: scale, the factor of the gradients, or None; overflown,
        whether they are not finite."""
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
        # A GradScaler has checked the average, on all ranks.
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
        for _, parameter in self.parameters if scaled and not overflown else ():
            if parameter.grad is not None:
                parameter.grad.div_(scale)
        self.rounds.finish(self._averaged, skip=overflown)
        self._averaged = self._plain = None

    def synchronize(self) -> None:
        """Make the round, and leave the update to `step`."""
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
        if self._sparse:
            self._own_rows = [parameter.grad for _, parameter in self._sparse]
        rounds.start(gradients.slot, finite, gradients.used)
        gradients.restart(self.rounds.slot())
        self._show_applied()
        deliver(rounds.wait())
        if timeline.recorder is not None:
            self._record(("NEGOTIATE_ALLREDUCE", rounds.began), ("UPDATE", rounds.waited))
        return finite

    def _prepare(self, scale: float | None, overflown: bool) -> bool:
        """Turn the gradient in the slot into the deposit. Return whether it is finite."""
        if isinstance(self.gradients, EarlyGradients):
            if scale is not None or overflown:
                raise StateError(
                    "step() of a GradScaler with Allreduce(overlap=True): the scaled gradients "
                    "have been sent; take Allreduce() without overlap"
                )
            self.gradients.finish()
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
        """Round the average in `applied`, and exchange the sparse gradients."""
        self.settings.compress(self.rounds.applied)
        if self._calls is not None and self.rounds.has_gradient:
            self._exchange_rows(self._calls)
            self.settings.compress(self.gradients.sparse_values())

    def _exchange_rows(self, calls: Calls) -> None:
        """Replace each sparse gradient by the ranks' sum, divided: the same bits on all ranks.
        Collective."""
        for (name, parameter), gradient in zip(self._sparse, self._own_rows):
            if gradient is None:
                rows = parameter.new_empty((0, *parameter.shape[1:]))
                places = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
            else:
                places, rows = gradient._indices(), gradient._values()
            found: transfer.Found = []
            move = transfer.sum_sparse(calls.comm, places, rows, parameter.shape, found)
            calls.run(Call(f"the sparse gradient of {name}", move))
            rows = (found[0]._values() / self.settings.divisor(self.comm.size)).to(parameter.dtype)
            parameter.grad = torch.sparse_coo_tensor(
                found[0]._indices(), rows, parameter.shape, check_invariants=False
            ).coalesce()
        self._own_rows = [None] * len(self._sparse)

    def _update(self, result: Result) -> None:
        """Make the update of a round whose average is in `applied`."""
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

    version = property(lambda self: self.rounds.version)
    updates = property(lambda self: self.rounds.updates)

    # Between steps

    def _check_averaged(self, what: str, why: str = "") -> None:
        if self._averaged is not None:
            raise StateError(f"{what} between synchronize() and step(){why}; call step() first")

    def _check_between(self, what: str) -> None:
        self._check_open()
        self.rounds.check(what)
        self._check_averaged(what)
        super()._check_between(what)

    def zero_grad(self) -> None:
        """Collect gradients from zero. After `synchronize`: skip the update."""
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
        """Forget a gradient that no step has taken, unless a part of it may have been sent."""
        if not isinstance(self.gradients, EarlyGradients):
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
        """Continue where another rank is. Keep the own pending deposits."""
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
        self._check_averaged("load_state_dict()")
        self.gradients.check_none("load_state_dict()")
        saved = state.get(checkpoint.KEY)
        if saved is not None:
            self.rounds.check_loading(saved, self._attached())
        checkpoint.load_optimizer(self._inner, state)
        if saved is not None:
            self._load_schedulers(saved["schedulers"])
            self.rounds.load(saved)

    def over(self, comm: MPI.Intracomm) -> RoundLoop:
        """Return a loop that continues this one, which was freed, on another communicator, with its
        counts and its pending deposit. Collective."""
        found = RoundLoop(
            *(comm, self.parameters, self.strategy, self.settings, self._inner, self._wrapped)
        )
        found.schedulers, found.stepped = self.schedulers, self.stepped
        found.gradients.passes = self.gradients.passes
        found.rounds.begin_at(self.version, self.updates, self.rounds.pending)
        vars(found.metrics).update(vars(self.metrics), failed=())
        return found

    def _free(self) -> None:
        self.rounds.free()
        if self._calls is not None:
            self._calls.free()


# Values that the ranks compare.


def hyperparameters(optimizer: torch.optim.Optimizer) -> Groups:
    """Return everything in the optimizer's groups that changes the update."""
    return tuple(
        tuple((name, _plain(value)) for name, value in group.items() if name != "params")
        for group in optimizer.param_groups
    )


def _plain(value: Any) -> Any:
    """Return a value whose repr is the same on all ranks: without addresses or orders of sets."""
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
