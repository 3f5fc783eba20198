# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: a torch optimizer whose step is a round with the other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NoReturn

import torch

from .._errors import StateError
from .._round import Result
from . import _world
from ._checks import (
    check_agreement,
    check_apart,
    check_model,
    check_optimizer,
    describe,
    name_parameters,
    together,
)
from ._compression import Compression
from ._flat import Flat
from ._local_loop import LocalLoop
from ._loop import NON_FINITE, Loop, Settings
from ._reductions import Average, Sum
from ._round_loop import RoundLoop
from .decentralised import LocalStrategy
from .metrics import Metrics
from .strategies import Allreduce, RoundStrategy, Strategy, check_clip_norm


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
    _loop: Loop
    param_groups: list[dict[str, Any]]

    def _step(self, closure: None = None) -> None:
        """Deposit the gradient of this rank, wait for the round, apply what was delivered.

        Raises StateError without a backward pass before it, MismatchError if the ranks would
        apply different updates, FloatingPointError with ``non_finite="raise"``.
        """
        if closure is not None:
            raise TypeError("step: a closure is not supported, its gradients would be local")
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

    def _get_step(self) -> Callable[..., None]:
        patched: Callable[..., None] | None = self.__dict__.get("_patched_step")
        return self._step if patched is None else patched

    def _set_step(self, patched: Callable[..., None]) -> None:
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

    def add_param_group(self, param_group: Any) -> NoReturn:
        """Refused: the other ranks' rounds have no place for it."""
        raise StateError("add_param_group: a wrapped optimizer takes no more; wrap it anew")

    def synchronize(self) -> None:
        """Wait for the average of all ranks' gradients, so that they can be changed before
        `step`, which then only updates. Only with the strategy `Allreduce`."""
        if not isinstance(self._loop.strategy, Allreduce):
            raise StateError(
                f"synchronize: not with {type(self._loop.strategy).__name__}, where a step may "
                "apply any number of rounds; to clip, give clip_norm= to DistributedOptimizer"
            )
        self._loop.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around the `step` that follows `synchronize`. Only with the strategy `Allreduce`."""
        if not isinstance(self._loop.strategy, Allreduce):
            raise StateError(
                f"skip_synchronize: not with {type(self._loop.strategy).__name__}; to clip, give "
                "clip_norm= to DistributedOptimizer"
            )
        yield

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
        if isinstance(every, bool) or not isinstance(every, int):
            raise TypeError(f"every: expected a number of rounds, got {type(every).__name__}")
        if every < 1:
            raise ValueError(f"every: expected at least 1 round, got {every}")
        self._loop.schedulers.append((scheduler, every))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer is bound to its process and its model, and cannot be copied or "
            "pickled; save state_dict()"
        )

    @property
    def round(self) -> int:
        """Rounds that this rank has seen: the version of its parameters, the same parameters on
        every rank of the same round. With a decentralised strategy: its own steps."""
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
        `model`'s batch normalisation are averaged then; their counts of batches become the
        largest of all ranks.

        With a decentralised strategy every rank's parameters become the exact average of all.
        """
        Loop.join([self._loop])

    def consensus_distance(self) -> float:
        """How far the ranks' parameters are apart: the square root of mean_i |x_i - mean|². 0 if
        they are the same. Collective."""
        return self._loop.consensus_distance()

    def averaged_model(self) -> torch.nn.Module:
        """A copy of `model` with the exact averages over the ranks of the parameters and of the
        running statistics of batch normalisation, the same on all: for evaluation. The own model
        stays as it is, and training goes on from it. Collective; StateError without ``model=``.
        """
        return self._loop.averaged_model()

    def leave(self) -> None:
        """From now on this rank takes no part and delays nobody; its steps are its own. Local.
        With `Moshpit` only, else StateError."""
        self._loop.leave()

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the parameters and the optimizer's state of a rank that did
        meanwhile; the own ones are dropped. Local. With `Moshpit` only, else StateError.

        timeout: seconds without any answer, then TimeoutError; it is still away then.
        """
        self._loop.rejoin(timeout)

    def state_dict(self) -> dict[str, Any]:
        """What this rank has to save, to go on from here; each rank saves its own. Local.

        That of the optimizer that was wrapped, which can load it as well, and under
        "partialcoll": size, rank, version (the number of the round), strategy; the deposit that
        no applied round has brought yet; the state of the schedulers attached. The parameters are
        the model's to save. Between `step` and the next backward pass, on all ranks after the
        same step; with ``deliver="all"`` right after `join`. StateError otherwise.

        A decentralised strategy adds what its process keeps, the model included. `ADPSGD`,
        `A2CiD2`, `Swarm`, `SGP`, and `SlowMo` around them, right after `join` only.
        """
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called. Every rank loads what it has saved. Local.

        Attach the same schedulers before; load before the first step or right after `join`. The
        deposit that was pending is added to the next one. Also takes the state of an optimizer
        that was not wrapped, which leaves `round` as it is.

        With a decentralised strategy this is collective, and the parameters become those of the
        checkpoint.

        Raises ValueError for a state of another rank or number of ranks (names both), of another
        model, or of other schedulers; StateError between rounds.
        """
        self._loop.load_state_dict(state_dict)

    def metrics(self) -> Metrics:
        """Counts of this rank so far."""
        return self._loop.metrics

    @property
    def strategy(self) -> Strategy:
        """As given."""
        return self._loop.strategy

    def close(self) -> None:
        """Free what the library holds; the parameters' gradients become None. Collective."""
        if _world.is_initialized():
            here = _world.world()
            here.optimizers = [other for other in here.optimizers if other is not self]
        self._loop.free()


def _number(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument}: expected a whole number, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{argument}: expected at least {least}, got {value}")
    return value


def _calls(argument: str, given: Any) -> list[Callable[[Any], None]]:
    calls = [] if given is None else [given] if callable(given) else list(given)
    if not all(map(callable, calls)):
        raise TypeError(f"{argument}: expected a callable or a list of them")
    return calls


def _check_local(strategy: LocalStrategy, op: Any, predivide: Any, on_round: Any) -> None:
    """What only makes sense where gradients are added."""
    name = type(strategy).__name__
    if op is not Average or predivide != 1:
        raise ValueError(
            f"op, gradient_predivide_factor: {name} adds no gradients; leave them as they are"
        )
    if on_round is not None:
        raise ValueError(f"on_round: {name} has no rounds of all ranks; give on_step")


def _settings(
    strategy: Strategy,
    passes: Any,
    op: Any,
    predivide: Any,
    clip_norm: float | None,
    non_finite: Any,
    check_every: Any,
    on_round: Any,
    on_step: Any,
) -> Settings:
    if op not in (Average, Sum):
        raise ValueError(f"op: expected Average or Sum, got {op!r}")
    if not isinstance(predivide, (int, float)) or not 0 < predivide < float("inf"):
        raise ValueError(f"gradient_predivide_factor: expected above 0, got {predivide!r}")
    if predivide != 1 and op is not Average:
        raise ValueError("gradient_predivide_factor: only with op=Average")
    if non_finite not in NON_FINITE:
        raise ValueError(f"non_finite: expected one of {NON_FINITE}, got {non_finite!r}")
    check_clip_norm(clip_norm)
    if isinstance(strategy, LocalStrategy):
        _check_local(strategy, op, predivide, on_round)
    if isinstance(strategy, RoundStrategy) and strategy.early_bytes and non_finite != "propagate":
        raise ValueError(
            f"non_finite: expected 'propagate' with overlap=True, got {non_finite!r}: gradients "
            "are sent before all of them can be looked at"
        )
    if None not in (clip_norm, strategy.clip_norm) and clip_norm != strategy.clip_norm:
        raise ValueError(
            f"clip_norm: {clip_norm} here, {strategy.clip_norm} in the strategy; give one of them"
        )
    return Settings(
        passes=_number("backward_passes_per_step", passes, 1),
        average=op is Average,
        predivide=float(predivide),
        clip_norm=strategy.clip_norm if clip_norm is None else clip_norm,
        non_finite=non_finite,
        check_every=_number("check_every", check_every, 1),
        on_round=_calls("on_round", on_round),
        on_step=_calls("on_step", on_step),
    )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    *,
    strategy: Strategy | None = None,
    clip_norm: float | None = None,
    non_finite: str = "propagate",
    on_round: Callable[[Result], None] | Sequence[Callable[[Result], None]] | None = None,
    on_step: Callable[[Any], None] | Sequence[Callable[[Any], None]] | None = None,
    model: torch.nn.Module | None = None,
    check_every: int = 1000,
) -> Any:
    """An optimizer whose step takes the gradients of all ranks. Collective.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any that steps without a closure. Use what is returned in its place.
    named_parameters : iterable of (str, parameter)
        ``model.named_parameters()``; names are for messages. All of the optimizer's parameters
        that require a gradient must be among them.
    compression
        For Horovod's scripts; only ``Compression.none``.
    backward_passes_per_step : int
        Gradients of so many backward passes are added up in each step.
    op : Average or Sum
        What a round's sum is: divided by the number of ranks, also where fewer are in it, since
        what is late comes in the next round, or not divided.
    gradient_predivide_factor : float
        Of the division, so much is done before the sum.
    strategy : Strategy or None
        `Allreduce()` (the default) or `Eager`, whose ranks stay identical; or a decentralised one,
        with parameters of its own on each rank, made the same to begin with: `ADPSGD`, `A2CiD2`,
        `Swarm`, `SGP`, `DPSGD`, `LocalSGD`, `Moshpit`, `SlowMo`.
    clip_norm : float or None
        The applied gradient is scaled so that its 2-norm over all parameters is at most this.
    non_finite : "propagate", "skip" or "raise"
        What becomes of a local gradient with NaN or infinities: it is deposited; nothing is,
        and it is counted; nothing is, and FloatingPointError follows the round. What a
        GradScaler finds is always skipped. No rank ever skips a round.
    on_round : callable or list of them
        Called after each applied update with its `partialcoll.Result`: averages of the
        parameters and the like, which must follow the rounds.
    on_step : callable or list of them
        Called at the end of each step with the optimizer: progress bars, logs.
    model : torch.nn.Module or None
        Lets BatchNorm's buffers be averaged in `join`, and layers that cannot work be refused.
    check_every : int
        Rounds after which the ranks compare a hash of their parameters; that of the
        hyperparameters is compared in every round.

    Raises
    ------
    MismatchError
        On every rank: the models, options or hyperparameters differ; says where.
    TypeError, ValueError
        This rank's arguments (the others get MismatchError).

    Source: Li et al., PPoPP 2020, section 5; Horovod's interface.
    """
    comm = _world.comm()
    strategy = Allreduce() if strategy is None else strategy

    def check() -> tuple[Any, Settings]:
        check_optimizer(optimizer)
        check_model(model)
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"strategy: expected one such as Allreduce() or Eager(), got "
                f"{type(strategy).__name__}"
            )
        if compression not in (None, Compression.none):
            raise ValueError(
                "compression: expected Compression.none; sums of float16 travel as float32, so "
                "rounding them would cost accuracy and save nothing"
            )
        settings = _settings(
            strategy,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            clip_norm,
            non_finite,
            check_every,
            on_round,
            on_step,
        )
        strategy.check(comm)
        settings.model = model
        parameters = name_parameters(optimizer, named_parameters, model)
        if isinstance(strategy, LocalStrategy):
            Flat(parameters).check_apart()
        for other in _world.world().optimizers:
            check_apart(parameters, other._loop.parameters)
        return parameters, settings

    parameters, settings = together(comm, check)
    options = (settings.passes, settings.average, settings.predivide, settings.clip_norm)
    said = [
        ("strategy", strategy.describe(comm.size)),
        ("options", f"{options}, {settings.check_every}"),
    ]
    said.append(("model", "none" if model is None else "given"))
    check_agreement(comm, [*said, *describe(parameters)])
    return _wrap(optimizer, parameters, strategy, settings)


def _wrap(
    optimizer: torch.optim.Optimizer, parameters: Any, strategy: Strategy, settings: Settings
) -> Any:
    kind = type(optimizer)
    wrapped: Any = object.__new__(type(kind.__name__, (Distributed, kind), {}))
    wrapped.__dict__ = optimizer.__dict__  # one state: whoever holds the one sees the other's
    inner_step = super(Distributed, wrapped).step
    kind_of_loop: Any = LocalLoop if isinstance(strategy, LocalStrategy) else RoundLoop
    comm = _world.comm()
    wrapped._loop = kind_of_loop(comm, parameters, strategy, settings, optimizer, inner_step)
    _world.world().optimizers.append(wrapped)
    return wrapped
