# SPDX-License-Identifier: Apache-2.0
"""What a wrapped optimizer can do beyond what its class can: the methods of what
`DistributedOptimizer` returns."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

import torch

from .._core import checks
from ..decentralized import Moshpit
from ..errors import StateError
from . import world
from ._local_loop import LocalLoop
from ._loop import Loop
from ._meeting import made_anew
from ._round_loop import RoundLoop
from .ddp import warn_if_wrapped
from .metrics import Metrics
from .strategies import Allreduce, Strategy


class _OwnStep(property):
    """`step`, which stays what it is: the inner step runs what register_step_*_hook registers."""

    hooked = True  # what torch would else do to it


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer.

    The object is of a subclass of the optimizer's own class and shares its state with it, so
    learning rate schedulers, checkpoints and `isinstance` see the optimizer that they know.
    """

    # A GradScaler leaves it to step() to unscale and to look for overflows.
    _step_supports_amp_scaling = True
    _loop: RoundLoop | LocalLoop
    param_groups: list[dict[str, Any]]

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Deposit the gradient of this rank, wait for the round, apply what was delivered.

        closure: computes this step's gradients (zero_grad, forward, backward), is called once, and
        what it returns is returned. What it raises ends the step before anything is deposited.

        Raises StateError without a backward pass before it, MismatchError if the ranks would
        apply different updates, FloatingPointError with ``non_finite="raise"``.
        """
        found = None
        if closure is not None or self._loop.evaluating:
            found = self._loop.evaluate(closure)
        if not self._loop.stepped:
            self._loop.stepped = True
            warn_if_wrapped(self._loop.parameters)
        scale, overflown = self._unscaled()
        try:
            self._loop.step(scale, overflown)
        except BaseException:
            for name in ("grad_scale", "found_inf"):  # the scaler will not come to remove them
                self.__dict__.pop(name, None)
            raise
        self.__dict__["_opt_called"] = True  # as a scheduler of the optimizer inside looks for
        for tell in self._loop.settings.on_step:
            tell(self)
        return found

    def _get_step(self) -> Callable[..., Any]:
        patched: Callable[..., Any] | None = self.__dict__.get("_patched_step")
        return self._step if patched is None else patched

    def _set_step(self, patched: Callable[..., Any]) -> None:
        self.__dict__["_patched_step"] = patched

    # A scheduler puts its own function in the place of its optimizer's step. The dict is shared:
    # one made with the optimizer inside would put that one's step here, which communicates
    # nothing. A property goes before what is in the dict.
    step = _OwnStep(_get_step, _set_step, doc=_step.__doc__)

    def _unscaled(self) -> tuple[float | None, bool]:
        """What a GradScaler has found out about the local gradient: its scale (1 if it has
        divided already; None: there is no scaler), and whether it is not finite. The inner
        optimizer must not see it, its gradient is another one."""
        if "found_inf" not in self.__dict__:
            return None, False
        scale, found = self.__dict__["grad_scale"], self.__dict__["found_inf"]
        self.__dict__.update(grad_scale=None, found_inf=None)
        return 1.0 if scale is None else float(scale), bool(found)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients gather from zero, in the library's memory (whatever `set_to_none`).

        Raises StateError between backward and step.
        """
        self._loop.zero_grad()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on gradients of so many backward passes are added up in each step. Local.

        StateError between a backward pass and the step.
        """
        self._loop.gradients.set_passes(checks.count("passes", passes))

    def add_param_group(self, param_group: Any) -> NoReturn:
        """Refused: the other ranks' rounds have no place for it."""
        raise StateError("add_param_group: a wrapped optimizer takes no more; wrap it anew")

    def _synchronous(self, what: str) -> RoundLoop:
        if not isinstance(self._loop, RoundLoop) or not isinstance(self.strategy, Allreduce):
            raise StateError(
                f"{what}: not with {type(self.strategy).__name__}, where a step may apply any "
                "number of rounds; to clip, give clip_norm= to DistributedOptimizer"
            )
        return self._loop

    def synchronize(self) -> None:
        """Wait for the average of all ranks' gradients, so that they can be changed before
        `step`, which then only updates. Only with the strategy `Allreduce`."""
        self._synchronous("synchronize").synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around the `step` that follows `synchronize`. Only with the strategy `Allreduce`."""
        loop = self._synchronous("skip_synchronize")
        loop.skipping = True
        try:
            yield
        finally:
            loop.skipping = False

    def attach(self, scheduler: Any, every: int = 1) -> None:
        """Step a learning rate scheduler after every so many applied rounds.

        Do not step it yourself then. Ranks apply different rounds at a time, so a scheduler must
        follow the rounds, not the calls.
        """
        if not hasattr(scheduler, "step"):
            raise TypeError(f"scheduler: expected one of torch's, got {type(scheduler).__name__}")
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise TypeError(
                "scheduler: ReduceLROnPlateau follows a metric, not rounds; step it yourself, with "
                "the same metric on all ranks, after join()"
            )
        checks.count("every", every, what="a number of rounds")
        self._loop.schedulers.append((scheduler, every))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer is bound to its process and its model, and cannot be copied or "
            "pickled; save state_dict()"
        )

    @property
    def round(self) -> int:
        """Rounds that this rank has seen: the version of its parameters, the same parameters on
        every rank of the same round. With a decentralized strategy: its own steps."""
        return self._loop.version

    def until(self, rounds: int) -> Iterator[int]:
        """Yields `round` until it is so many; step in the body.

        The way to end a loop with ``deliver="all"``, where ranks make different numbers of
        steps.
        """
        while self.round < rounds:
            yield self.round

    def join(self) -> None:
        """No more data on this rank: contribute nothing until all ranks have joined. Collective.

        Rounds of the others are applied meanwhile. When it returns, all ranks are at the same
        round, with the same parameters, and training can go on. The running statistics of the
        `model`'s batch normalization are averaged then; their counts of batches become the
        largest of all ranks.

        With a decentralized strategy every rank's parameters become the exact average of all.
        """
        Loop.join([self._loop])

    def consensus_distance(self) -> float:
        """How far the ranks' parameters are apart: the square root of mean_i |x_i - mean|². 0 if
        they are the same. Collective."""
        return self._loop.consensus_distance()

    def averaged_model(self) -> torch.nn.Module:
        """A copy of `model` with the exact averages over the ranks of the parameters and of the
        running statistics of batch normalization, the same on all: for evaluation. The own model
        stays as it is, and training goes on from it. Collective; StateError without ``model=``.
        """
        return self._loop.averaged_model()

    def leave(self) -> None:
        """From now on this rank takes no part and delays nobody; its steps are its own. Local.
        With `Moshpit` only, else StateError."""
        loop, groups = self._with_groups("leave")
        loop.leave(groups)

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the parameters and the optimizer's state of a rank that did
        meanwhile; the own ones are dropped. Local. With `Moshpit` only, else StateError.

        timeout: seconds without any answer, then TimeoutError; it is still away then.
        """
        loop, groups = self._with_groups("rejoin")
        loop.rejoin(groups, timeout)

    def _with_groups(self, what: str) -> tuple[LocalLoop, Moshpit]:
        loop = self._loop
        if not isinstance(loop, LocalLoop) or loop.groups is None:
            name = type(self.strategy).__name__
            raise StateError(f"{what}: not with {name}; Moshpit's ranks may")
        return loop, loop.groups

    def state_dict(self) -> dict[str, Any]:
        """What this rank has to save, to go on from here; each rank saves its own. Local.

        That of the optimizer that was wrapped, which can load it as well, and under
        "partialcoll": size, rank, version (the number of the round), strategy; the deposit that
        no applied round has brought yet; the state of the schedulers attached. The parameters are
        the model's to save. Between `step` and the next backward pass, on all ranks after the
        same step; with ``deliver="all"`` right after `join`. StateError otherwise.

        A decentralized strategy adds what its process keeps, the model included. `ADPSGD`,
        `A2CiD2`, `Swarm`, `SGP`, ``Moshpit(overlap=True)``, and `SlowMo` around them, right after
        `join` only.
        """
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called. Every rank loads what it has saved. Local.

        Attach the same schedulers before; load before the first step or right after `join`. The
        deposit that was pending is added to the next one. Also takes the state of an optimizer
        that was not wrapped, which leaves `round` as it is.

        With a decentralized strategy the parameters become those of the checkpoint, and where
        averages are under way this is collective.

        Raises ValueError for a state of another rank or number of ranks (names both), of another
        model, or of other schedulers; StateError between rounds.
        """
        self._loop.load_state_dict(state_dict)

    def _meet_anew(self) -> None:
        """In a world with newcomers. Collective, with their `DistributedOptimizer`."""
        assert isinstance(self._loop, RoundLoop)
        self._loop = made_anew(self._loop)

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """By the name that Horovod's tests look at."""
        return {parameter: name for name, parameter in self._loop.parameters}

    def metrics(self) -> Metrics:
        """Return the counts of this rank so far."""
        return copy.copy(self._loop.metrics)

    @property
    def strategy(self) -> Strategy:
        """As given."""
        return self._loop.strategy

    def close(self) -> None:
        """Free what the library holds; the parameters' gradients become None. Collective."""
        world.forget(self)
        self.__dict__.pop("_patched_step", None)  # of a scheduler, which follows this object
        self._loop.free()
