# SPDX-License-Identifier: Apache-2.0
"""One step of a wrapped optimizer is one round (design of eager-SGD, PPoPP 2020, section 5):

deposit the local gradient; wait; for each delivered round in order: gradient = sum / ranks, clip,
the inner optimizer's step, schedulers, callbacks. The local gradient is used nowhere else, and
what changes the update is a function of the round, so every replica applies the same updates.

With `overlap=True` (`Early`), a bucket of gradients is sent as soon as it is full, while backward
still computes others. From then to the end of the round the bucket belongs to the library. So
gradients may be changed before that, in hooks of the backward pass, or after the sum (`clip_norm`).
A gradient that is changed in between is refused. It is found by the version that torch counts of
its memory. Torch does not count changes by way of `grad.data`, of a numpy array on it, or by some
of its kernels, so in the first round, and then every so many, the bits are compared as well.

Gradients of embeddings may stay sparse (`SparseRows`). Each rank sends the rows that it has right
after the round, on all ranks that apply the round. A rank that has joined takes part without rows.
Which parameters are sparse is fixed when the optimizer is wrapped, since all ranks must know.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable

import torch

from .._core import communicator, timeline
from .._core.mpi import MPI
from ..collectives.fingerprints import Fingerprints
from ..collectives.resync import Replica
from ..errors import StateError
from ..round import Result, Round
from . import checkpoint
from ._checks import is_sparse, wants_sparse
from ._loop import Loop, clip
from .calls import Calls
from .checkpoint import checksum_tensors, hash_tensors, hyperparameters
from .flat import Gradients, Named, Slot
from .metrics import RoundMetrics
from .ops import transfer
from .ops.call import Call
from .replicated import Replicated
from .strategies import RoundStrategy


def sparse_parameters(
    parameters: Named, model: torch.nn.Module | None, inner: torch.optim.Optimizer
) -> Named:
    """Of these the ones whose gradients are sparse: those of a model's layers made with
    ``sparse=True``, and all of an optimizer for such gradients."""
    if wants_sparse(inner):
        return parameters
    layers = [] if model is None else [m for m in model.modules() if is_sparse(m)]
    known = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    return [(name, parameter) for name, parameter in parameters if parameter in known]


def _of_rows(places: torch.Tensor, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(places, rows, like.shape, check_invariants=False)


class SparseRows:
    """The sparse gradients of some parameters. Collective to make and to free.

    divisor: of the sum over the ranks.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Named, divisor: float) -> None:
        self._calls, self._parameters, self._divisor = Calls(comm), parameters, divisor
        self._own: list[torch.Tensor | None] = [None] * len(parameters)

    def take(self) -> None:
        """The gradients that the parameters have are what this rank contributes next."""
        self._own = [parameter.grad for _, parameter in self._parameters]

    def exchange(self) -> None:
        """Each parameter's gradient becomes the ranks' sum, divided; the same bits on all ranks.
        Collective."""
        own, self._own = self._own, [None] * len(self._own)
        for (name, parameter), gradient in zip(self._parameters, own):
            parameter.grad = self._sum(name, parameter, gradient)

    def _sum(
        self, name: str, parameter: torch.Tensor, gradient: torch.Tensor | None
    ) -> torch.Tensor:
        if gradient is None:
            none = parameter.new_empty((0, *parameter.shape[1:]))
            places = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
            gradient = _of_rows(places, none, parameter)
        found: transfer.Found = []
        rows = gradient._indices(), gradient._values()
        move = transfer.sum_sparse(self._calls.comm, *rows, parameter.shape, found)
        self._calls.run(Call(f"the sparse gradient of {name}", move))
        (total,) = found
        mean = (total._values() / self._divisor).to(parameter.dtype)
        return _of_rows(total._indices(), mean, parameter).coalesce()

    def free(self) -> None:
        """Collective."""
        self._calls.free()


_TOO_LATE = (
    "after it had been sent (overlap=True): change gradients in hooks of their parameters, clip "
    "with clip_norm=, or take Allreduce() without overlap"
)


# In these the library's deposit takes other bits; the others it only reads.
_WIDENED = (torch.float16, torch.bfloat16)


class Early:
    """Sends buckets of a step's slot. prepare: what is done to each before that; every: rounds
    after which the bits of what has gone are compared."""

    def __init__(
        self,
        rounds: Replicated,
        names: list[str],
        prepare: Callable[[torch.Tensor], None],
        every: int,
    ) -> None:
        self._rounds = weakref.ref(rounds)  # the parameters' hooks keep this object
        self._prepare, self._names, self._every = prepare, names, every
        self._bucket = [rounds.layout.bucket(i) for i in range(len(names))]
        self._sizes = [self._bucket.count(b) for b in range(len(rounds.layout.counts))]

    def begin(self, slot: Slot, version: int) -> None:
        """The backward passes to come fill this one; so many rounds have been seen."""
        self._slot, self._exact = slot, version % self._every == 0
        self._missing = list(self._sizes)
        self._prepared: set[int] = set()
        self._gone: dict[int, tuple[int, bytes]] = {}  # bucket -> what it was then

    def filled(self, i: int) -> None:
        """Parameter i has its gradient. Called within backward."""
        bucket, rounds = self._bucket[i], self._rounds()
        self._missing[bucket] -= 1
        if self._missing[bucket] or rounds is None:
            return
        rounds.check_waited("backward()")
        self._ready(bucket)
        rounds.add_carried(self._slot, bucket)
        self._gone[bucket] = self._look(bucket)
        rounds.send(bucket)

    def _ready(self, bucket: int) -> None:
        if bucket not in self._prepared:
            self._prepared.add(bucket)
            self._prepare(self._slot.flats[bucket])

    def _look(self, bucket: int) -> tuple[int, bytes]:
        flat = self._slot.flats[bucket]
        exact = self._exact and flat.dtype not in _WIDENED
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


_UNSKIPPED = (
    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
    "it applies the average that is there; Horovod would average once more"
)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


class RoundLoop(Loop):
    """The loop of the strategies whose ranks apply the same updates."""

    strategy: RoundStrategy

    def _set_up(self) -> None:
        self._shown = False  # the parameters' gradients are the applied ones, untouched
        self._averaged: Result | None = None  # synchronize() has brought it, step() will use it
        self._plain: list[torch.Tensor] | None = None  # it as it was, where ranks have joined
        self.skipping = False  # within skip_synchronize()
        self._factor = self.settings.before
        self._takes_fewer_passes = self.strategy.synchronous
        dense, sparse = self._by_density()
        self._rows = (
            SparseRows(self.comm, sparse, self.settings.divisor(self.comm.size)) if sparse else None
        )
        self._completes = bool(sparse) or self.settings.compresses  # there is more to an average
        every = self.settings.check_every
        self.rounds = Replicated(
            self.comm,
            dense,
            self.strategy,
            self.settings.divisor,
            self._fingerprints(every, len(dense)),
            self._update,
            Replica(self._capture, self._restore),
        )
        slot = self.rounds.slot()
        self._early: Early | None = None
        if self.strategy.early_bytes is not None:
            names = [name for name, _ in dense]
            self._early = Early(self.rounds, names, self.settings.before_sending, every)
            self._early.begin(slot, 0)
        metrics = self.rounds.metrics
        self.gradients = Gradients(
            dense,
            self.settings.passes,
            slot,
            metrics,
            self._early,
            sparse=sparse,
            refusal=self.settings.sparse_refusal(self.strategy),
        )

    def _by_density(self) -> tuple[Named, Named]:
        """The parameters with dense gradients, and those whose gradients stay sparse."""
        sparse: Named = []
        if self.strategy.takes_sparse and not self.settings.sparse_as_dense:
            sparse = sparse_parameters(self.parameters, self.settings.model, self._inner)
        apart = {parameter for _, parameter in sparse}
        return [pair for pair in self.parameters if pair[1] not in apart], sparse

    def _fingerprints(self, every: int, counted: int) -> Fingerprints:
        inner, tensors = self._inner, [parameter for _, parameter in self.parameters]
        return Fingerprints(
            self.comm,
            lambda: hyperparameters(inner.param_groups),
            lambda: checksum_tensors(tensors),
            every,
            counted,
        )

    # One step

    def step(self, scale: float | None, overflown: bool) -> None:
        """See the module. `scale`: the gradients are too large by it; `overflown`: they are not
        finite, as a GradScaler has found."""
        self._check_open()
        if self._averaged is not None:
            if not self.skipping:
                warnings.warn(_UNSKIPPED, stacklevel=4)
            self._finish(self._averaged, scale, overflown)
            return
        self._raise_if_wanted(self._exchange(scale, overflown, self.rounds.deliver), overflown)

    def _finish(self, result: Result, scale: float | None, overflown: bool) -> None:
        """The update after `synchronize`. What a GradScaler has found is of the average then, the
        same on all ranks."""
        self._check_joined(scale, overflown)
        if overflown:
            self.rounds.metrics.skipped += 1
            self._pass_over()
            return
        self.gradients.give_average()
        if scale not in (None, 1):
            with torch.no_grad():
                for _, parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        self.rounds.finish(result)
        self._averaged = self._plain = None

    def _pass_over(self) -> None:
        """No update of the average that `synchronize` has brought."""
        self.gradients.give_average()
        self.rounds.pass_over()
        self._averaged = self._plain = None

    def _check_joined(self, scale: float | None, overflown: bool) -> None:
        """StateError where ranks that have joined have applied something else."""
        if self._plain is None:
            return
        same = all(map(_same, self.rounds.applied, self._plain))
        if overflown or scale not in (None, 1) or not same:
            raise StateError(
                "step() after synchronize(): ranks have joined, which apply the average as it is, "
                "and here it was changed (clipped, or divided by the scale of a GradScaler); with "
                "uneven data let the optimizer do that: clip_norm=, or step() without synchronize()"
            )

    def synchronize(self) -> None:
        """The round, but not the update, which `step` makes then."""
        self._check_open()
        if self._averaged is not None:
            raise StateError("synchronize() comes twice before step()")
        self._exchange(None, False, self._average)
        self.gradients.hold_average()

    def _average(self, rnd: Round) -> None:
        self._averaged = rnd.results[0]
        self.rounds.note(rnd)
        self.rounds.average(self._averaged)
        if self._completes:
            self._complete_average()
        self._hide_unused(self.rounds.used)
        living = self.comm.size - len(self.rounds.metrics.failed)
        if self.strategy.synchronous and self._averaged.active < living:
            self._plain = [flat.clone() for flat in self.rounds.applied]

    def _exchange(
        self, scale: float | None, overflown: bool, deliver: Callable[[Round], None]
    ) -> bool:
        """A round; False if the local gradient was not finite."""
        self.rounds.check_whole("step()")
        self.rounds.check_waited("step()")
        self._gather()
        finite = self._prepare(scale, overflown)
        if self._rows is not None:
            self._rows.take()
        used = self.gradients.used if finite else [False] * len(self.gradients.used)
        self.rounds.start(self.gradients.slot, finite, used)
        self._next_slot()
        self._show_applied()
        deliver(self.rounds.wait())
        if timeline.recorder is not None:
            self._record(("NEGOTIATE_ALLREDUCE", self.rounds.began), ("UPDATE", self.rounds.waited))
        return finite

    def _prepare(self, scale: float | None, overflown: bool) -> bool:
        """The gradient in the slot becomes what this rank deposits. Is it still a gradient?"""
        if self._early is not None:
            if scale is not None or overflown:
                raise StateError(
                    "step() of a GradScaler with Allreduce(overlap=True): the scaled gradients "
                    "have been sent; take Allreduce() without overlap"
                )
            self._early.finish()
            return True
        finite = not overflown
        if finite and scale not in (None, 1):  # before it is rounded: 16 bits may not hold it
            for flat in self.gradients.flats:
                flat.mul_(1 / scale)
        if finite and self._completes:
            self.settings.compress(self.gradients.flats)
        finite = finite and self._scale(self._factor)
        if not finite:
            for flat in self.gradients.flats:
                flat.zero_()
            self.rounds.metrics.skipped += 1
        return finite

    def _next_slot(self) -> None:
        slot = self.rounds.slot()
        if self._early is not None:
            self._early.begin(slot, self.rounds.version)
        self.gradients.restart(slot)

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
            self._hide_unused(self.rounds.used)
        self._shown = False
        if self.settings.clip_norm is not None:
            clip([*self.rounds.applied, *self.gradients.sparse_values()], self.settings.clip_norm)
        self._inner_step()
        self._step_schedulers(self.rounds.updates)
        for call in self.settings.on_round:
            call(result)

    @property
    def version(self) -> int:
        """Rounds that this replica has seen."""
        return self.rounds.version

    @property
    def updates(self) -> int:
        """Of these, those with a gradient of somebody."""
        return self.rounds.updates

    @property
    def metrics(self) -> RoundMetrics:
        """Counts of this rank so far."""
        return self.rounds.metrics

    # Around it

    def _check_averaged(self, what: str, why: str = "") -> None:
        if self._averaged is not None:
            raise StateError(f"{what} between synchronize() and step(){why}; call step() first")

    def _check_between(self, what: str) -> None:
        self._check_open()
        self.rounds.check_whole(what)
        self._check_averaged(what)
        super()._check_between(what)

    def zero_grad(self) -> None:
        """Gradients gather from zero. Instead of `step` after `synchronize`: without an update."""
        self._check_open()
        if self._plain is not None:
            self._check_averaged("zero_grad()", ": ranks have joined, which apply it")
        if self._averaged is not None:
            self._pass_over()
        super().zero_grad()

    def _join(self) -> None:
        """Apply what passes until all have joined."""
        self._show_applied()
        self.rounds.join()
        self._next_slot()

    def discard(self) -> None:
        """As the loop's; what has been sent ahead cannot be taken back."""
        if self._early is None:
            self._averaged = self._plain = None
            super().discard()

    # The replica, for a peer that needs it and for checkpoints

    def _capture(self) -> dict[str, Any]:
        state = checkpoint.capture(self.parameters, self._inner, self._attached())
        return {**state, "version": self.rounds.version, "updates": self.rounds.updates}

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
        """That of the inner optimizer, and what belongs to the rounds; see `checkpoint`."""
        communicator.check_running("state_dict()")
        self._check_averaged("state_dict()")
        entry = {**self.rounds.entry(), **self.position()}
        return {**self._inner.state_dict(), checkpoint.KEY: entry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave, or that of an optimizer that was not wrapped."""
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
        """The same on other ranks, where this one, which has been freed, is. Collective."""
        found = RoundLoop(
            *(comm, self.parameters, self.strategy, self.settings, self._inner, self._update_by)
        )
        found.schedulers, found.stepped = self.schedulers, self.stepped
        found.gradients.set_passes(self.gradients.passes)
        found.rounds.go_on_from(self.rounds)
        return found

    def _free(self) -> None:
        self.rounds.free()
        if self._rows is not None:
            self._rows.free()
