# SPDX-License-Identifier: Apache-2.0
"""`Distributed`, which users see of a wrapped optimizer, and `Loop`, which has its state and what
all strategies have in common.

What a step does beyond the inner optimizer's is the loop's subclass's: `RoundLoop` exchanges
gradients and applies the same updates on every rank, `LocalLoop` updates this rank's own
parameters, which the ranks then average. The loop is an object of its own: private names of
`Distributed` would hide those of the user's optimizer class, and with ``deliver="all"`` other ranks
may need the state of an optimizer that the program has dropped.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, NoReturn, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.modules import batchnorm

from .._core import checks, communicator, finalize, timeline
from .._core.failures import all_have, duplicate
from .._core.mpi import MPI
from .._core.worker import side_by_side
from ..collectives.agreement import check_agreement, together
from ..decentralized import GlobalSum, Strategy
from ..decentralized.strategy import check_clip_norm
from ..errors import RankFailedError, StateError
from . import world
from .arguments import Adasum, Average, Compression, Reduction, Sum, check_compression
from .flat import (
    OF_ANOTHER,
    Gradients,
    Named,
    ParameterVector,
    by_falling_stride,
    by_rows,
    dense_strides,
)
from .metrics import Metrics
from .ops import wire
from .strategies import Allreduce

if TYPE_CHECKING:
    from ._local_loop import LocalLoop
    from .rounds import RoundLoop


def check_model(model: Any) -> None:
    """Raise TypeError for layers of torch's that wait for all ranks in every forward pass."""
    if model is None:
        return
    checks.instance("model", model, torch.nn.Module, "a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise TypeError(
                f"model: {name or 'it'} is a SyncBatchNorm, which waits for all ranks in every "
                "forward pass; use BatchNorm (its buffers are averaged in join()), or "
                "partialcoll.torch.SyncBatchNorm, which waits as well"
            )


def is_sparse(layer: torch.nn.Module) -> bool:
    """Does autograd give its parameters sparse gradients? The word alone says nothing: attention
    may be sparse as well."""
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return isinstance(layer, embeddings) and bool(layer.sparse)


def describe(parameters: Named) -> list[tuple[str, str]]:
    """Return what must be the same on all ranks, as (name, text)."""
    said = []
    for name, parameter in parameters:
        text = f"shape {tuple(parameter.shape)} of {wire.name(parameter.dtype)}"
        if not parameter.is_contiguous():
            text += f", strides {dense_strides(parameter)}"
        said.append((name, text))
    return said


def warn_if_wrapped(parameters: Named) -> None:
    """A DDP object with some of these does what their optimizer is to do."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    mine = {id(parameter) for _, parameter in parameters}
    ddp = torch.nn.parallel.DistributedDataParallel
    models = [thing for thing in gc.get_objects() if issubclass(type(thing), ddp)]
    if any(id(parameter) in mine for model in models for parameter in model.parameters()):
        warnings.warn(
            "DistributedOptimizer: its model is in a DistributedDataParallel, which averages the "
            "gradients as well, and waits for all ranks in each backward pass; train with the "
            "module inside, or with a plain optimizer and pct.PartialState",
            stacklevel=4,
        )


@dataclass
class Settings:
    """The arguments of `DistributedOptimizer` that do not depend on the strategy."""

    backward_passes_per_step: int
    op: Reduction
    gradient_predivide_factor: float
    clip_norm: float | None
    non_finite: Any  # a text; None: as the strategy has it
    check_every: int
    on_round: Any  # a list of callables, whatever was given; the same for on_step
    on_step: Any
    model: torch.nn.Module | None
    compression: Any
    sparse_as_dense: bool
    unused_as_zeros: bool

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum, Adasum):
            raise ValueError(f"op: expected Average, Sum or Adasum, got {self.op!r}")
        checks.number("gradient_predivide_factor", self.gradient_predivide_factor, above=0)
        # What gradients are multiplied by before the sum.
        self.before = 1.0 / self.gradient_predivide_factor
        if self.non_finite is not None:
            checks.one_of("non_finite", self.non_finite, ("propagate", "skip", "raise"))
        check_clip_norm(self.clip_norm)
        checks.count("backward_passes_per_step", self.backward_passes_per_step)
        checks.count("check_every", self.check_every)
        self.on_round = _calls("on_round", self.on_round)
        self.on_step = _calls("on_step", self.on_step)
        check_model(self.model)
        self.compression = check_compression(self.compression or Compression.none)
        self.compresses = self.compression is not Compression.none
        checks.flag("sparse_as_dense", self.sparse_as_dense)
        checks.flag("unused_as_zeros", self.unused_as_zeros)

    def describe(self) -> list[tuple[str, str]]:
        """What must be the same on all ranks, as (name, text)."""
        rounding = getattr(self.compression, "__name__", type(self.compression).__name__)
        said = {
            "backward_passes_per_step": self.backward_passes_per_step,
            "op": self.op.name,
            "gradient_predivide_factor": float(self.gradient_predivide_factor),
            "clip_norm": self.clip_norm,
            "check_every": self.check_every,
            "sparse_as_dense": self.sparse_as_dense,
            "unused_as_zeros": self.unused_as_zeros,
            "compression": rounding.lstrip("_"),
            "model": "none" if self.model is None else "given",
        }
        return [(name, str(value)) for name, value in said.items()]

    def sparse_refusal(self, strategy: Strategy) -> str | None:
        """Why a gradient may not be sparse: most strategies take dense ones."""
        if self.sparse_as_dense or strategy.takes_sparse:
            return None
        return (
            f"{type(strategy).__name__} takes dense ones: give sparse_as_dense=True to "
            "DistributedOptimizer, or make its layer with sparse=False"
        )

    def divisor(self, ranks: int) -> float:
        return (ranks if self.op is Average else 1.0) / self.gradient_predivide_factor

    @torch.no_grad()
    def compress(self, flats: Sequence[torch.Tensor]) -> None:
        """Round gradients as they would be on their way. Sums travel as float32 at least."""
        for flat in flats if self.compresses else ():
            flat.copy_(self.compression.decompress(*self.compression.compress(flat)))


def _calls(argument: str, given: Any) -> list[Callable[[Any], None]]:
    calls = [] if given is None else [given] if callable(given) else list(given)
    if not all(map(callable, calls)):
        raise TypeError(f"{argument}: expected a callable or a list of them")
    return calls


@torch.no_grad()
def average_tensors(total: GlobalSum, tensors: Sequence[torch.Tensor]) -> None:
    """Make each of them the ranks' mean, in place. The same shapes in the same order on all ranks,
    over which `total` is. Collective."""
    there = []  # views of one dimension of real numbers
    for tensor in tensors:
        real = tensor.detach()
        real = torch.view_as_real(real) if real.is_complex() else real
        there.append(real.permute(by_falling_stride(real)).view(-1))
    flats = [flat.cpu() for flat in there]  # those of the host as they are
    total.average([flat.numpy() for flat in flats if flat.dtype != torch.bfloat16])
    for parts in total.pieces(flat for flat in flats if flat.dtype == torch.bfloat16):
        wide = [part.double() for part in parts]  # numpy has no such dtype
        total.average([one.numpy() for one in wide], wide=False)  # of few digits
        for part, one in zip(parts, wide):
            part.copy_(one)
    for flat, own in zip(there, flats):
        if flat is not own:
            flat.copy_(own)


@torch.no_grad()
def average_statistics(
    comm: MPI.Intracomm, total: GlobalSum, model: torch.nn.Module, on_failure: str = "raise"
) -> None:
    """Average the running statistics of batch and instance normalization: the mean over ranks of
    what is floating point, the largest of what counts batches. The same bits on all ranks.
    Collective; MismatchError if the ranks have different ones."""
    tensors: dict[torch.Tensor, str] = {}  # each once
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.track_running_stats:
            for key, buffer in module.named_buffers(name, recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    tensors.setdefault(buffer, key)
    said = [(name, f"buffer of shape {tuple(b.shape)}") for b, name in tensors.items()]
    check_agreement(comm, said, on_failure)
    average_tensors(total, [tensor for tensor in tensors if tensor.is_floating_point()])
    counts = [tensor for tensor in tensors if not tensor.is_floating_point()]
    rows = np.zeros((comm.size, len(counts)))  # the ranks'
    rows[comm.rank] = [int(count) for count in counts]
    rows = total.sum(rows.ravel()).reshape(rows.shape)
    for count, most in zip(counts, rows.max(axis=0)):
        count.fill_(int(most))


class Loop:
    """What all strategies have in common. inner: the optimizer that was wrapped. wrapped: refers to
    what `DistributedOptimizer` has returned; weak, since the program may drop that."""

    gradients: Gradients
    evaluating = False  # within the closure of a step
    stepped = False
    _takes_fewer_passes = False  # than backward_passes_per_step

    def __init__(
        self,
        comm: MPI.Intracomm,
        parameters: Named,
        strategy: Strategy,
        settings: Settings,
        inner: torch.optim.Optimizer,
        wrapped: weakref.ref[Any],
    ) -> None:
        self.comm = duplicate(comm)  # shutdown() may come before the end
        self.strategy, self.settings, self.parameters = strategy, settings, parameters
        self._inner, self._wrapped = inner, wrapped
        self._rows_only = isinstance(inner, torch.optim.SparseAdam)
        mine = {parameter for _, parameter in parameters}
        everything = [p for group in inner.param_groups for p in group["params"]]
        self._frozen = [p for p in everything if p not in mine]
        self.schedulers: list[tuple[Any, int]] = []
        self.closed = False
        self._sums: GlobalSum | None = None
        self._set_up()
        # Gradients may lie in memory that goes then.
        self._at_end = functools.partial(_close, weakref.ref(self.gradients))
        finalize.at_end(self._at_end)

    # Subclasses have these, and step, metrics, begin_at, state_dict, load_state_dict
    _set_up: Callable[[], None]
    _join: Callable[[], None]
    _free: Callable[[], None]
    version: Any  # `DistributedOptimizer.round`
    updates: Any  # of these rounds, how many have changed the parameters

    def _take_changes(self) -> None:
        """Let the process hear what the program has done to the parameters since the last step."""

    def parameters_replaced(self) -> None:
        """All ranks have given the parameters other values, the same ones. Collective."""

    def parameters_to_be_replaced(self) -> None:
        """Some rank's parameters are about to become everybody's."""

    # One step

    def evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """Let a closure compute this step's gradients; return what it returns."""
        if self.evaluating:
            raise StateError(
                "step() within the closure of a step: let the closure compute the gradients of one "
                "step (zero_grad, forward, backward); who calls step(closure) makes it"
            )
        if not callable(closure):
            name = type(closure).__name__
            raise TypeError(f"closure: expected a callable or None, got {name}")
        self._check_open()
        self.evaluating = True
        try:
            with torch.enable_grad():
                return closure()
        finally:
            self.evaluating = False

    def _gather(self) -> None:
        """Bring the local gradient where it belongs; StateError if it is not whole."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise StateError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient, but did not "
                    "require one when the optimizer was wrapped; wrap it anew"
                )
        self.gradients.gather(self._takes_fewer_passes)

    def _scale(self, factor: float) -> bool:
        """Scale the local gradient; is it finite (as far as anybody wants to know)?"""
        if factor != 1.0:
            for flat in self.gradients.flats:
                flat.mul_(factor)
        if self.settings.non_finite == "propagate":
            return True
        for flat in self.gradients.flats:  # once over the data, twice only if the sum overflows
            dot = flat.dtype in (torch.float32, torch.float64)  # as fast as memory is
            total = (torch.dot(flat, flat) if dot else flat.sum()).item()
            if not math.isfinite(abs(total)) and not bool(torch.isfinite(flat).all()):
                return False
        return True

    def _raise_if_wanted(self) -> None:
        """The gradient is not finite, and no GradScaler has found it."""
        if self.settings.non_finite == "raise":
            raise FloatingPointError("the gradient of this rank is not finite and was not used")

    def _inner_step(self) -> None:
        for _, parameter in self.parameters if self._rows_only else ():
            if parameter.grad is not None:  # perhaps added up as a dense one
                parameter.grad = by_rows(parameter.grad)
        type(self._inner).step(self._wrapped())  # as super() in the wrapped optimizer

    def _record(self, *phases: tuple[str, float]) -> None:
        """A step is over: what the timeline, which is there, has of it, and when each began."""
        assert timeline.recorder is not None
        text = f"{type(self.strategy).__name__}, round {self.version}"
        timeline.recorder.phases("optimizer.step", list(phases), time.monotonic(), text)

    def _attached(self) -> list[Any]:
        return [scheduler for scheduler, _ in self.schedulers]

    def _step_schedulers(self) -> None:
        for scheduler, every in self.schedulers:
            if self.updates % every == 0:
                scheduler.step()

    def _check_open(self) -> None:
        """The memory where gradients were is gone after the end."""
        if MPI.Is_finalized():
            communicator.check_running("the DistributedOptimizer")  # raises
        if self.closed:
            raise StateError("the DistributedOptimizer is closed; use the optimizer in it")

    # Around it

    def zero_grad(self) -> None:
        """Gradients gather from zero."""
        self._check_open()
        if self.gradients.came:
            raise StateError(
                "zero_grad() between backward() and step(): the gradient would be lost; call "
                f"step() first; {OF_ANOTHER}"
            )
        self.gradients.collect()

    @staticmethod
    def join(loops: Sequence[Loop], *others: Callable[[], None]) -> None:
        """Contribute nothing to any of them until all have joined them all. Collective.

        At the same time, and with what else is to be joined, since ranks that have not joined make
        steps of all of them in turn. If one fails, or Ctrl-C comes, all are interrupted.
        """
        for loop in loops:
            loop._check_between("join()")
        grad = torch.set_grad_enabled(torch.is_grad_enabled())  # which is each thread's own
        joins = [wire.in_stream(loop.parameters[0][1].device, loop._join) for loop in loops]
        side_by_side([*(grad(join) for join in joins), *others])
        for loop in loops:  # in turn: they may have the same model
            if loop.settings.model is not None:
                loop._average_statistics(loop.settings.model)

    def discard(self) -> None:
        """Forget a gradient that no step has taken: training goes back to before it came."""
        self.gradients.forget()

    def _check_between(self, what: str) -> None:
        """Raises StateError unless it is open and between a step and the next backward pass."""
        self._check_open()
        if self.gradients.came:
            raise StateError(
                f"{what} between backward() and step(); call step() first; {OF_ANOTHER}"
            )

    # Averages over all ranks

    def _total(self) -> GlobalSum:
        """Collective when it is new."""
        if self._sums is None:
            self._sums = GlobalSum.over(self.comm, self.strategy.on_failure)
        return self._sums

    def consensus_distance(self) -> float:
        """Of the vectors of parameters, between which a codec leaves its noise. Collective."""
        self._check_open()
        self._take_changes()
        return self._total().distance(ParameterVector(self.parameters).vector())

    def averaged_model(self) -> torch.nn.Module:
        """A copy of the model with the averages over all ranks. Collective."""
        self._check_open()
        if self.settings.model is None:
            raise StateError("averaged_model: give model= to DistributedOptimizer")
        self._take_changes()
        mean = torch.from_numpy(np.asarray(self._mean_vector()))
        averaged = copy.deepcopy(self.settings.model)
        copies = dict(zip(self.settings.model.parameters(), averaged.parameters()))
        with torch.no_grad():
            for pair, value in zip(self.parameters, ParameterVector(self.parameters).views(mean)):
                if pair[1] in copies:
                    copies[pair[1]].copy_(value)
        self._average_statistics(averaged)
        return averaged

    def _average_statistics(self, model: torch.nn.Module) -> None:
        average_statistics(self.comm, self._total(), model, self.strategy.on_failure)

    def _mean_vector(self) -> Any:
        """Of the parameters, as `ParameterVector.vector` has them, over all ranks."""
        mean = ParameterVector(self.parameters).vector().astype(np.float64)
        self._total().average([mean])
        return mean

    # Checkpoints, the end

    def position(self) -> dict[str, Any]:
        """Where in the training this replica is, apart from its tensors."""
        return {
            "version": self.version,
            "updates": self.updates,
            "schedulers": [scheduler.state_dict() for scheduler in self._attached()],
        }

    def _load_schedulers(self, states: list[Any]) -> None:
        for scheduler, state in zip(self._attached(), states):
            scheduler.load_state_dict(copy.deepcopy(state))

    def abandon(self, own: bool = False) -> None:
        """Leave the parameters alone; `own`: but gradients that are not of this loop. Local."""
        self.closed = True
        self.gradients.close(own)
        finalize.not_at_end(self._at_end)

    def free(self) -> None:
        if self.closed:
            return
        self.abandon()
        if MPI.Is_finalized():
            return
        try:
            self._free()
        finally:  # collective, too
            if self._sums is not None:
                self._sums.Free()
            self.comm.Free()


def _close(gradients: weakref.ref[Gradients]) -> None:
    there = gradients()
    if there is not None:
        there.close()


def clip(flats: list[torch.Tensor], most: float) -> None:
    """Scale all of it so that its 2-norm is at most `most`.

    The norm is computed in float64 and rounded to float32: ranks whose processors add in other
    orders come to the same factor.
    """
    squares = 0.0
    for flat in flats:
        wide = torch.complex128 if flat.is_complex() else torch.float64
        squares += float(torch.linalg.vector_norm(flat, dtype=wide)) ** 2
    norm = float(torch.tensor(math.sqrt(squares), dtype=torch.float32))
    if norm > most:
        for flat in flats:
            flat.mul_(most / norm)


Made = TypeVar("Made", bound=Loop)


def check_alike(
    ranks: Any, size: int, strategy: Strategy, settings: Settings, parameters: Named
) -> None:
    """Are options and model the same on all of these ranks (`agreement.Gathers`)? Collective."""
    said = [("strategy", strategy.describe(size)), *settings.describe()]
    check_agreement(ranks, [*said, *describe(parameters)])


def made(make: Callable[[], Made]) -> Made:
    """What all ranks make; where the dead are replaced anew, in a world of those who live, if
    somebody dies meanwhile. Collective."""
    while (here := world.world()).replacing is not None:
        loop: Made | None = None
        with contextlib.suppress(RankFailedError):
            try:
                loop = make()
            except RankFailedError as failure:
                all_have(here.comm, failure)
            else:
                all_have(here.comm, None)
                return loop
        if loop is not None:
            loop.abandon()
        world.form_anew()
    return make()


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
        # What a GradScaler has found out about the local gradient: its scale (1 if it has divided
        # already; None: there is no scaler), and whether it is not finite. The inner optimizer must
        # not see it, its gradient is another one.
        scale, overflown = None, False
        if "found_inf" in self.__dict__:
            given, overflown = self.__dict__["grad_scale"], bool(self.__dict__["found_inf"])
            scale = 1.0 if given is None else float(given)
            self.__dict__.update(grad_scale=None, found_inf=None)
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
        if not isinstance(self.strategy, Allreduce):
            raise StateError(
                f"{what}: not with {type(self.strategy).__name__}, where a step may apply any "
                "number of rounds; to clip, give clip_norm= to DistributedOptimizer"
            )
        return cast("RoundLoop", self._loop)

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
        self._with_groups("leave").leave()

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the parameters and the optimizer's state of a rank that did
        meanwhile; the own ones are dropped. Local. With `Moshpit` only, else StateError.

        timeout: seconds without any answer, then TimeoutError; it is still away then.
        """
        self._with_groups("rejoin").rejoin(timeout)

    def _with_groups(self, what: str) -> LocalLoop:
        if getattr(self._loop, "groups", None) is None:
            raise StateError(
                f"{what}: not with {type(self.strategy).__name__}; Moshpit's ranks may"
            )
        return cast("LocalLoop", self._loop)

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
        before = cast("RoundLoop", self._loop)
        before.free()

        def make() -> RoundLoop:
            calls = world.world().calls
            together(calls, lambda: None)  # newcomers' arguments may be wrong
            check_alike(calls, calls.comm.size, before.strategy, before.settings, before.parameters)
            return before.over(calls.comm)

        self._loop = made(make)

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
