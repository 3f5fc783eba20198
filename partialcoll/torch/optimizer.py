# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: a torch optimizer whose step is a round with the other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Callable

import torch

from .._core import checks
from .._core.attendance import attending
from .._core.mpi import MPI
from ..collectives.agreement import together
from ..decentralized import LocalStrategy, Strategy
from ..round import Result
from . import world
from ._local_loop import AdasumStrategy, LocalLoop
from .arguments import Adasum, Average, Sum
from .flat import Named
from .loop import Distributed, Loop, Settings, check_alike, check_model, made
from .ops import wire
from .rounds import RoundLoop
from .strategies import Allreduce, Eager, RoundStrategy
from .world import OptionalSet, ProcessSet, global_process_set


def check_kind(optimizer: Any) -> None:
    """Raise TypeError unless it is a torch optimizer that computes one update from one gradient."""
    checks.instance("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer: LBFGS calls its closure several times in a step, for gradients of this "
            "rank alone, and is not supported; take one that steps once on a gradient"
        )


def name_parameters(optimizer: torch.optim.Optimizer, named: Any, model: Any) -> Named:
    """Return the optimizer's parameters that require a gradient, in its order, with their names.
    TypeError or ValueError for parameters that cannot be wrapped, and for names that come twice or
    are missing."""
    known: dict[torch.nn.Parameter, str] = {}
    if named is None and model is not None:
        named = model.named_parameters()
    seen: set[str] = set()
    for item in named.items() if isinstance(named, dict) else named or ():
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
            raise TypeError(
                "named_parameters: expected pairs of name and parameter, as "
                f"model.named_parameters() gives them, got {type(item).__name__}"
            )
        if item[0] in seen:
            raise ValueError(f"named_parameters: the name {item[0]!r} comes twice")
        seen.add(item[0])
        known.setdefault(item[1], item[0])
    found = []
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if parameter.requires_grad and named is not None and parameter not in known:
                raise ValueError(
                    f"named_parameters: parameter {j} of group {i} (shape "
                    f"{tuple(parameter.shape)}) of the optimizer has no name there"
                )
            if parameter.requires_grad:
                found.append((known.get(parameter, f"group{i}.{j}"), parameter))
    if not found:
        raise ValueError("optimizer: expected parameters that require a gradient, got none")
    check_parameters(found)
    return found


def check_parameters(parameters: Named) -> None:
    """Raise TypeError or ValueError unless all are dense, of dtypes that can be added up, and on
    one device."""
    for name, parameter in parameters:
        wire.check_tensor(parameter, written=False, what=f"parameter {name!r}")
        first, one = parameters[0]
        if parameter.device != one.device:
            raise ValueError(
                f"parameters {first!r} and {name!r}: expected all on one device, got {one.device} "
                f"and {parameter.device}"
            )


def _combine(strategy: Strategy, settings: Settings) -> None:
    """Check settings that only work with some strategies; take the strategy's clip_norm."""
    if isinstance(strategy, LocalStrategy):  # gradients are not added
        name = type(strategy).__name__
        if settings.op is Sum or settings.before != 1:
            raise ValueError(
                f"op, gradient_predivide_factor: {name} adds no gradients; leave them as they are"
            )
        if settings.compresses:
            raise ValueError(f"compression: {name} sends no gradients; leave it as it is")
        if settings.on_round:
            raise ValueError(f"on_round: {name} has no rounds of all ranks; give on_step")
    if settings.model is not None:
        check_model(settings.model, settings.sparse_refusal(strategy))
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
        Number of backward passes whose gradients are added up in each step.
    op : Average, Sum or Adasum
        What a round's sum is: divided by the number of ranks, also where fewer are in it, or not
        divided. Adasum: each rank steps on its own gradient, and the changes are combined.
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
        and it is counted; nothing is, and FloatingPointError follows the round. No rank skips a
        round. None: "propagate", but "skip", with a warning, where ranks have models of their own.
    on_round, on_step : callable or list of them
        Called after each applied update with its `partialcoll.Result`, for what must follow the
        rounds; at the end of each step with the optimizer: progress bars, logs.
    model : torch.nn.Module or None
        Lets BatchNorm's buffers be averaged in `join`, and layers that cannot work be refused.
    check_every : int
        Rounds after which the ranks compare a hash of their parameters; that of the
        hyperparameters is compared in every round.
    num_groups, groups
        For Horovod's scripts: all gradients are one group here.
    sparse_as_dense : bool
        Sparse gradients are added up as dense ones. Else with `Allreduce` they stay sparse, of
        layers that `model` has made with ``sparse=True``, and of a SparseAdam; others refuse them.
    unused_as_zeros : bool
        A parameter of which no rank has a gradient in a round has a gradient of zeros in the
        update, as with Horovod. By default it is None, as with DistributedDataParallel.
    process_set : ProcessSet or None
        The ranks that train together; None: all. On others the optimizer is their own alone.

    MismatchError, on every rank, if the models, options or hyperparameters differ; says where.
    TypeError or ValueError for this rank's arguments (the others get MismatchError).

    Source: Li et al., PPoPP 2020, section 5; Horovod's interface.
    """
    given = locals()
    found: list[Named] = []  # at most one; an iterator can be read only once

    def check(comm: MPI.Intracomm) -> tuple[Any, Strategy, Settings]:
        check_kind(optimizer)
        loop = optimizer.__dict__.get("_loop")
        if loop is not None and not loop.closed:
            raise TypeError(
                "optimizer: it is in a DistributedOptimizer already, which is still open; use that "
                "one, or close() it before"
            )
        if "step" in optimizer.__dict__:
            raise TypeError(
                "optimizer: a learning rate scheduler is attached already; make the "
                "DistributedOptimizer first, and the scheduler with what it returns"
            )
        replacing, chosen = world.world().replacing is not None, strategy
        if chosen is None:
            chosen = Allreduce(on_failure="continue" if replacing else "raise")
        checks.instance("strategy", chosen, Strategy, "one such as Allreduce() or Eager()")
        settings = Settings(**{one.name: given[one.name] for one in fields(Settings)})
        if settings.non_finite is None:
            settings.non_finite = chosen.non_finite
        if not found:
            found.append(name_parameters(optimizer, named_parameters, model))
        parameters = found[0]
        if op is Adasum:
            chosen = AdasumStrategy.in_place_of(chosen, parameters)
        _combine(chosen, settings)
        if replacing and process_set not in (None, global_process_set):
            raise ValueError("process_set: expected None after init(respawn=True)")
        if replacing and not (
            isinstance(chosen, (Allreduce, Eager)) and chosen.on_failure == "continue"
        ):
            raise ValueError(
                "strategy: expected Allreduce or Eager with on_failure='continue' after "
                f"init(respawn=True), whose ranks have the same parameters; got {chosen!r}"
            )
        chosen.check(comm)
        if isinstance(chosen, LocalStrategy):
            seen: dict[int, str] = {}
            for name, parameter in parameters:
                other = seen.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
                if other != name:  # each would get its own place in the vector
                    raise ValueError(
                        f"parameters {other!r} and {name!r} share memory; make them one parameter, "
                        "or give each its own"
                    )
        for _ in range(2):
            taken = {p for other in world.world().optimizers for _, p in other._loop.parameters}
            twice = [name for name, parameter in parameters if parameter in taken]
            if twice:  # it may be in an optimizer that the program has dropped
                world.forget_dropped()
        if twice:
            raise ValueError(
                f"parameter {twice[0]!r}: it is in another DistributedOptimizer, which is still "
                "open; close() that one before"
            )
        return parameters, chosen, settings

    if isinstance(optimizer, Distributed) and optimizer._loop.closed:
        optimizer = optimizer._loop._inner  # wrap the inner optimizer again

    def make() -> Loop:
        ranks: Any = MPI.COMM_SELF  # gathers from the ranks that train together
        comm: MPI.Intracomm = MPI.COMM_SELF
        if not isinstance(process_set, ProcessSet) or process_set.included() is not False:
            ranks = world.calls_of(process_set)
            comm = ranks.comm
        parameters, chosen, settings = together(ranks, lambda: check(comm))
        check_alike(ranks, comm.size, chosen, settings, parameters)
        kind: Any = LocalLoop if isinstance(chosen, LocalStrategy) else RoundLoop
        loop: Loop = kind(comm, parameters, chosen, settings, optimizer, weakref.ref(wrapped))
        return loop

    wrapped = _wrapped(optimizer)
    with attending("partialcoll.torch.DistributedOptimizer", world.world().comm):
        wrapped._loop = made(make)
    world.world().wrapped.append(weakref.ref(wrapped))
    dropped = weakref.finalize(wrapped, _drop, weakref.ref(optimizer), weakref.ref(wrapped._loop))
    dropped.atexit = False
    return wrapped


def _drop(optimizer: Any, loop: Any) -> None:
    """Clean up after the program has dropped a wrapped optimizer, open or closed. Its handles warn,
    and are freed at the end of MPI. Both arguments are weak references. Local."""
    if loop() is None:
        return
    loop().abandon(own=True)
    inner = optimizer()
    if inner is not None and inner.__dict__.get("_loop") is loop():
        for name in ("_loop", "_patched_step"):
            inner.__dict__.pop(name, None)


def _wrapped(optimizer: Any) -> Any:
    """Return a wrapped optimizer, without its loop. Return what is no optimizer, or is wrapped
    already, unchanged: `check` refuses it, together with the other ranks."""
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Distributed):
        return optimizer
    wrapped: Any = object.__new__(type(kind.__name__, (Distributed, kind), {}))
    optimizer.__dict__.pop("_patched_step", None)  # of a wrapped optimizer that was not closed
    wrapped.__dict__ = optimizer.__dict__  # both objects have the same state
    return wrapped
