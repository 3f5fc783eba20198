# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: a torch optimizer whose step is a round with the other ranks."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NoReturn, TypeVar

import torch

from .._core import checks
from .._core.failures import all_have
from .._core.mpi import MPI
from ..collectives.agreement import check_agreement, together
from ..decentralized import LocalStrategy, MoshpitProcess, Strategy
from ..errors import RankFailedError, StateError
from ..round import Result
from . import world
from ._checks import (
    check_apart,
    check_dense,
    check_memory,
    check_optimizer,
    describe,
    name_parameters,
)
from ._local_loop import LocalLoop
from ._loop import Loop, Settings
from ._round_loop import RoundLoop
from .adasum import AdasumStrategy
from .arguments import Adasum, Average, Sum
from .ddp import warn_if_wrapped
from .flat import Named
from .metrics import Metrics
from .strategies import Allreduce, Eager, RoundStrategy
from .world import OptionalSet, ProcessSet, global_process_set

Made = TypeVar("Made", bound=Loop)


def check_replaced(strategy: Strategy, process_set: Any) -> None:
    """Can newcomers take part, where the dead are replaced? ValueError if not."""
    if world.world().replacing is None:
        return
    if process_set not in (None, global_process_set):
        raise ValueError("process_set: expected None after init(respawn=True)")
    if not isinstance(strategy, (Allreduce, Eager)) or strategy.on_failure != "continue":
        raise ValueError(
            "strategy: expected Allreduce or Eager with on_failure='continue' after "
            f"init(respawn=True), whose ranks have the same parameters; got {strategy!r}"
        )


def check_alike(
    ranks: Any, size: int, strategy: Strategy, settings: Settings, parameters: Named
) -> None:
    """Are options and model the same on all of these ranks (`agreement.Gathers`)? Collective."""
    said = [("strategy", strategy.describe(size)), *settings.describe()]
    check_agreement(ranks, [*said, *describe(parameters)])


def made(make: Callable[[], Made]) -> Made:
    """What all ranks make; where the dead are replaced anew, in a world of those who live, if
    somebody dies meanwhile. Collective."""
    while True:
        here = world.world()
        loop: Made | None = None
        failure: Exception | None = None
        try:
            loop = make()
            if here.replacing is None:
                return loop
        except RankFailedError as error:
            if here.replacing is None:
                raise
            failure = error
        try:
            all_have(here.comm, failure)
        except RankFailedError as error:
            failure = error
        if loop is not None and failure is None:
            return loop
        if loop is not None:
            loop.abandon()
        world.form_anew()


def made_anew(before: RoundLoop) -> RoundLoop:
    """The loop of a survivor, in a world with newcomers. Collective."""
    before.free()

    def make() -> RoundLoop:
        calls = world.world().calls
        together(calls, lambda: None)  # newcomers' arguments may be wrong
        check_alike(calls, calls.comm.size, before.strategy, before.settings, before.parameters)
        return before.over(calls.comm)

    return made(make)


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

    def _with_groups(self, what: str) -> tuple[LocalLoop, MoshpitProcess]:
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


def _combine(strategy: Strategy, settings: Settings) -> None:
    """What only makes sense with some strategies; the settings get the strategy's clip_norm."""
    if isinstance(strategy, LocalStrategy):  # gradients are not added, rounds are not of all
        name = type(strategy).__name__
        if settings.op is Sum or settings.predivide != 1:
            raise ValueError(
                f"op, gradient_predivide_factor: {name} adds no gradients; leave them as they are"
            )
        if settings.compresses:
            raise ValueError(f"compression: {name} sends no gradients; leave it as it is")
        if settings.on_round:
            raise ValueError(f"on_round: {name} has no rounds of all ranks; give on_step")
    refusal = settings.sparse_refusal(strategy)
    if refusal is not None and settings.model is not None:
        check_dense(settings.model, refusal)
    early = isinstance(strategy, RoundStrategy) and strategy.early_bytes
    if early and settings.non_finite != "propagate":
        raise ValueError(
            f"non_finite: expected 'propagate' with overlap=True, got {settings.non_finite!r}: "
            "gradients are sent before all of them can be looked at"
        )
    if settings.clip_norm is None:
        settings.clip_norm = strategy.clip_norm
    elif strategy.clip_norm not in (None, settings.clip_norm):
        raise ValueError(
            f"clip_norm: {settings.clip_norm} here, {strategy.clip_norm} in the strategy; give one "
            "of them"
        )


@world.attended
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
    non_finite: str | None = None,
    on_round: Callable[[Result], None] | Sequence[Callable[[Result], None]] | None = None,
    on_step: Callable[[Any], None] | Sequence[Callable[[Any], None]] | None = None,
    model: torch.nn.Module | None = None,
    check_every: int = 1000,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    unused_as_zeros: bool = False,
    process_set: OptionalSet = None,
) -> Any:
    """An optimizer whose step takes the gradients of all ranks. Collective.

    `close()` frees what it holds. One that the program drops without it leaves the parameters
    alone and is joined no more; its handles warn, and are freed at the end of MPI.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any that makes one update of one gradient (not LBFGS). Use what is returned in its place.
    named_parameters : iterable of (str, parameter)
        ``model.named_parameters()``; names are for messages. All of the optimizer's parameters
        that require a gradient must be among them.
    compression : Compressor or None
        Of `Compression`: gradients are rounded before the ranks add them, and so is the sum, as
        with Horovod. It saves no bytes here.
    backward_passes_per_step : int
        Gradients of so many backward passes are added up in each step.
    op : Average, Sum or Adasum
        What a round's sum is: divided by the number of ranks, also where fewer are in it, since
        what is late comes in the next round, or not divided. Adasum: each rank steps on its own
        gradient, and the changes are combined, see `allreduce`.
    gradient_predivide_factor : float
        Gradients are divided by so much before the sum, and the sum multiplied by it.
    strategy : Strategy or None
        `Allreduce()` (the default) or `Eager`, whose ranks stay identical; or a decentralized one,
        with parameters of its own on each rank, made the same to begin with: `ADPSGD`, `A2CiD2`,
        `Swarm`, `SGP`, `DPSGD`, `LocalSGD`, `Moshpit`, `SlowMo`.
    clip_norm : float or None
        The applied gradient is scaled so that its 2-norm over all parameters is at most this.
    non_finite : "propagate", "skip", "raise" or None
        What becomes of a local gradient with NaN or infinities: it is deposited; nothing is,
        and it is counted; nothing is, and FloatingPointError follows the round. What a
        GradScaler finds is always skipped. No rank ever skips a round. None: "propagate", but
        "skip", with a warning, where ranks have models of their own: averages would spread it.
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
    num_groups, groups
        For Horovod's scripts: all gradients are one group here.
    sparse_as_dense : bool
        Sparse gradients are added up as dense ones. Else with `Allreduce` they stay sparse, of
        layers that `model` has made with ``sparse=True``, and of a SparseAdam (dense of others
        that turn out to be sparse); other strategies refuse them.
    unused_as_zeros : bool
        A parameter of which no rank has a gradient in a round has a gradient of zeros in the
        update, as with Horovod: weight decay and momentum move it. By default its gradient is
        None, and the optimizer passes over it, as with DistributedDataParallel.
    process_set : ProcessSet or None
        The ranks that train together; None: all. On others the optimizer is their own alone.

    Raises
    ------
    MismatchError
        On every rank: the models, options or hyperparameters differ; says where.
    TypeError, ValueError
        This rank's arguments (the others get MismatchError).

    Source: Li et al., PPoPP 2020, section 5; Horovod's interface.
    """
    found: list[Named] = []  # at most one: of an iterator, which can be asked once

    def check(comm: MPI.Intracomm) -> tuple[Any, Strategy, Settings]:
        check_optimizer(optimizer)
        chosen = _default() if strategy is None else strategy
        checks.instance("strategy", chosen, Strategy, "one such as Allreduce() or Eager()")
        settings = Settings(
            passes=backward_passes_per_step,
            op=op,
            predivide=gradient_predivide_factor,
            clip_norm=clip_norm,
            non_finite=chosen.non_finite if non_finite is None else non_finite,
            check_every=check_every,
            on_round=on_round,
            on_step=on_step,
            model=model,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            unused_as_zeros=unused_as_zeros,
        )
        if not found:
            found.append(name_parameters(optimizer, named_parameters, model))
        parameters = found[0]
        if op is Adasum:
            chosen = AdasumStrategy.in_place_of(chosen, parameters)
        _combine(chosen, settings)
        check_replaced(chosen, process_set)
        _check_fit(comm, parameters, chosen)
        return parameters, chosen, settings

    if isinstance(optimizer, Distributed) and optimizer._loop.closed:
        optimizer = optimizer._loop._inner  # wrap the optimizer in it again

    def make() -> Loop:
        ranks, comm = _among(process_set)
        parameters, chosen, settings = together(ranks, lambda: check(comm))
        check_alike(ranks, comm.size, chosen, settings, parameters)
        kind: Any = LocalLoop if isinstance(chosen, LocalStrategy) else RoundLoop
        # Weak: the loop must not keep alive an optimizer that the program has dropped.
        reference = weakref.ref(wrapped)

        def inner_step() -> Any:
            itself: Any = reference()
            return super(Distributed, itself).step()

        loop: Loop = kind(comm, parameters, chosen, settings, optimizer, inner_step)
        return loop

    wrapped = _wrapped(optimizer)
    wrapped._loop = made(make)
    world.world().wrapped.append(weakref.ref(wrapped))
    dropped = weakref.finalize(wrapped, _drop, weakref.ref(optimizer), weakref.ref(wrapped._loop))
    dropped.atexit = False
    return wrapped


def _drop(optimizer: Any, loop: Any) -> None:
    """The program has dropped a wrapped optimizer, which may have been closed before. Local: its
    handles warn, and are freed at the end of MPI. Both arguments are weak references."""
    if loop() is None:
        return
    loop().drop()
    inner = optimizer()
    if inner is not None and inner.__dict__.get("_loop") is loop():
        for name in ("_loop", "_patched_step"):
            inner.__dict__.pop(name, None)


def _default() -> Strategy:
    """Where the dead are replaced, one that can be."""
    return Allreduce(on_failure="raise" if world.world().replacing is None else "continue")


def _check_fit(comm: MPI.Intracomm, parameters: Named, strategy: Strategy) -> None:
    """A strategy to these ranks, and the parameters to it and to other optimizers."""
    strategy.check(comm)
    if isinstance(strategy, LocalStrategy):
        check_memory(parameters)
    try:
        _check_apart(parameters)
    except ValueError:  # perhaps from an optimizer that the program has dropped
        world.forget_dropped()
        _check_apart(parameters)


def _check_apart(parameters: Named) -> None:
    for other in world.world().optimizers:
        check_apart(parameters, other._loop.parameters)


def _among(process_set: OptionalSet) -> tuple[Any, MPI.Intracomm]:
    """The ranks that train together: what gathers from them, and their communicator."""
    if isinstance(process_set, ProcessSet) and process_set.included() is False:
        return MPI.COMM_SELF, MPI.COMM_SELF
    calls = world.calls_of(process_set)
    return calls, calls.comm


def _wrapped(optimizer: Any) -> Any:
    """It has no loop yet. What is no optimizer, or is wrapped, stays what it is: `check` refuses
    it, with the other ranks."""
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Distributed):
        return optimizer
    wrapped: Any = object.__new__(type(kind.__name__, (Distributed, kind), {}))
    optimizer.__dict__.pop("_patched_step", None)  # that one was not closed
    wrapped.__dict__ = optimizer.__dict__  # one state: whoever holds the one sees the other's
    return wrapped
