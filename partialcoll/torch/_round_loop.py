# SPDX-License-Identifier: Apache-2.0
"""One step of a wrapped optimizer is one round (design of eager-SGD, PPoPP 2020, section 5):

deposit the local gradient; wait; for each delivered round in order: gradient = sum / ranks, clip,
the inner optimizer's step, schedulers, callbacks. The local gradient is used nowhere else, and
what changes the update is a function of the round, so every replica applies the same updates.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from mpi4py import MPI

from .._errors import StateError
from .._round import Result, Round
from . import _checkpoint, _state
from ._checks import Named
from ._early import Early
from ._fingerprints import Fingerprints
from ._gradients import Gradients
from ._loop import Loop, Settings, clip
from ._resync import Resync, room_for_joins
from ._rounds import Rounds
from .metrics import Metrics
from .strategies import RoundStrategy


class RoundLoop(Loop):
    """The loop of the strategies whose ranks apply the same updates."""

    strategy: RoundStrategy

    def __init__(
        self,
        comm: MPI.Intracomm,
        parameters: Named,
        strategy: RoundStrategy,
        settings: Settings,
        inner: torch.optim.Optimizer,
        inner_step: Callable[[], Any],
    ) -> None:
        super().__init__(comm, parameters, strategy, settings, inner, inner_step)
        self._shown = False  # the parameters' gradients are the applied ones, untouched
        self._averaged: Result | None = None  # synchronize() has brought it, step() will use it
        tensors: list[torch.Tensor] = [parameter for _, parameter in parameters]
        prints = Fingerprints(
            comm.rank, comm.size, lambda: inner.param_groups, tensors, settings.check_every
        )
        options = room_for_joins(strategy.options(), comm.size)
        self.rounds = Rounds(
            comm,
            parameters,
            options,
            divisor=comm.size / settings.predivide if settings.average else 1.0,
            fingerprints=prints,
            update=self._update,
            keep_pending=not strategy.synchronous,
            bucket_bytes=strategy.early_bytes,
        )
        if options.get("deliver") == "all" and comm.size > 1:
            self.rounds.resync_by(
                Resync(comm, lambda: self.rounds.version, self._capture, self._restore)
            )
        self._slot = self.rounds.slot()
        self._factor = 1.0 / settings.predivide if settings.average else 1.0
        self._early: Early | None = None
        if strategy.early_bytes is not None:
            names = [name for name, _ in parameters]
            self._early = Early(self.rounds, names, self._factor, settings.check_every)
            self._early.begin(self._slot, self.rounds.version)
        self.gradients = Gradients(
            parameters, settings.passes, self._slot, self.rounds.metrics, self._early
        )

    # One step

    def step(self, scale: float | None, overflown: bool) -> None:
        """See the module. `scale`: the gradients are too large by it; `overflown`: they are not
        finite, as a GradScaler has found."""
        self._check_open()
        if self._averaged is not None:
            self._finish(scale, overflown)
            return
        self._raise_if_wanted(self._exchange(scale, overflown, self.rounds.deliver), overflown)

    def _finish(self, scale: float | None, overflown: bool) -> None:
        """The update after `synchronize`. What a GradScaler has found is of the average then, the
        same on all ranks."""
        result = self._averaged
        assert result is not None
        self.gradients.give_average()
        if overflown:
            self.rounds.metrics.skipped += 1
            self.rounds.pass_over()
        else:
            if scale is not None:
                self._unscale(scale)
            self.rounds.finish(result)
        self._averaged = None

    @torch.no_grad()
    def _unscale(self, scale: float) -> None:
        if scale == 1:
            return
        for _, parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(scale)

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

    def _exchange(
        self, scale: float | None, overflown: bool, deliver: Callable[[Round], None]
    ) -> bool:
        """A round; False if the local gradient was not finite."""
        self.rounds.check_whole("step()")
        self.rounds.check_waited("step()")
        self._gather()
        finite = self._prepare(scale, overflown)
        self.rounds.start(self._slot, finite)
        self._next_slot()
        self._show_applied()
        deliver(self.rounds.wait())
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
        factor = self._factor if scale is None else self._factor / scale
        finite = not overflown and self._scale(factor)
        if not finite:
            for flat in self.gradients.flats:
                flat.zero_()
            self.rounds.metrics.skipped += 1
        return finite

    def _next_slot(self) -> None:
        self._slot = self.rounds.slot()
        if self._early is not None:
            self._early.begin(self._slot, self.rounds.version)
        self.gradients.restart(self._slot)

    def _show_applied(self) -> None:
        self.gradients.show(self.rounds.applied_views)
        self._shown = True

    def _update(self, result: Result) -> None:
        """The gradient of a round is in `applied`: everything that follows from it."""
        if self._averaged is None and not self._shown:  # on_round may have changed gradients
            self._show_applied()
        self._shown = False
        if self.settings.clip_norm is not None:
            clip(self.rounds.applied, self.settings.clip_norm)
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
    def metrics(self) -> Metrics:
        """Counts of this rank so far."""
        return self.rounds.metrics

    # Around it

    def _check_between(self, what: str) -> None:
        self._check_open()
        self.rounds.check_whole(what)
        if self._averaged is not None:
            raise StateError(f"{what} between synchronize() and step(); call step() first")
        super()._check_between(what)

    def zero_grad(self) -> None:
        """Gradients gather from zero."""
        self._check_open()
        if self._averaged is not None:
            raise StateError(
                "zero_grad() between synchronize() and step(): the gradient would be lost; call "
                "step() first"
            )
        super().zero_grad()

    def _join(self) -> None:
        """Apply what passes until all have joined."""
        self._show_applied()
        self.rounds.join()
        self._next_slot()

    # The replica, for a peer that needs it and for checkpoints

    def _capture(self) -> dict[str, Any]:
        state = _state.capture(self.parameters, self._inner, self._attached())
        return {**state, "version": self.rounds.version, "updates": self.rounds.updates}

    def _restore(self, state: dict[str, Any]) -> None:
        _state.restore(state, self.parameters, self._inner, self._attached())
        self.rounds.version, self.rounds.updates = state["version"], state["updates"]

    def begin_at(self, position: dict[str, Any]) -> None:
        """Begin where another rank is. Own pending deposits are kept."""
        if position["version"] != self.rounds.version:
            if not self.rounds.rests:
                raise StateError("this rank is at another round, and its deposits are under way")
            self.rounds.resume(position["version"], position["updates"], self.rounds.pending)
        self._load_schedulers(position["schedulers"])

    def state_dict(self) -> dict[str, Any]:
        """That of the inner optimizer, and what belongs to the rounds; see `_checkpoint`."""
        if self._averaged is not None:
            raise StateError("state_dict() between synchronize() and step(); call step() first")
        rounds = self.rounds
        rounds.check_whole("state_dict()")
        if rounds.resync is not None and not rounds.rests:
            raise StateError(
                'state_dict() between rounds: with deliver="all" the ranks are at different '
                "rounds; save right after join()"
            )
        entry = {
            "size": rounds.ranks,
            "rank": rounds.rank,
            "strategy": repr(self.strategy),
            "pending": _checkpoint.by_dtype(rounds.pending),
            "layout": rounds.plain.digest(),
            **self.position(),
        }
        return {**self._inner.state_dict(), _checkpoint.KEY: entry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave, or that of an optimizer that was not wrapped."""
        if self._averaged is not None or self.gradients.came:
            raise StateError("load_state_dict() between backward() and step(); call step() first")
        rounds, saved = self.rounds, state.get(_checkpoint.KEY)
        if saved is None:
            _state.load_optimizer(self._inner, state)
            return
        if not (rounds.rests or self.strategy.synchronous):
            raise StateError(
                "load_state_dict() between rounds: late deposits of the ranks are under way; load "
                "before the first step or right after join()"
            )
        attached, like = self._attached(), rounds.plain.outline()
        _checkpoint.check(saved, rounds.rank, rounds.ranks, rounds.plain, attached)
        own = {key: value for key, value in state.items() if key != _checkpoint.KEY}
        _state.load_optimizer(self._inner, own)
        self._load_schedulers(saved["schedulers"])
        rounds.resume(saved["version"], saved["updates"], _checkpoint.pending(saved, like))

    def _free(self) -> None:
        self.rounds.free()
