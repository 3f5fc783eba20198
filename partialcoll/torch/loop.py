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
import gc
import math
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
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
from .flat import Gradients, Named, ParameterVector, by_falling_stride, by_rows, dense_strides
from .metrics import Metrics
from .ops import wire
from .strategies import Allreduce

if TYPE_CHECKING:
    from ._local_loop import LocalLoop
    from .rounds import RoundLoop


def check_model(model: torch.nn.Module, sparse_refusal: str | None) -> None:
    """Raise TypeError for torch's layers that wait for all ranks in every forward pass, and for
    those with sparse gradients if there is a reason against these."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise TypeError(
                f"model: {name or 'it'} is a SyncBatchNorm, which waits for all ranks in every "
                "forward pass; use BatchNorm (its buffers are averaged in join()), or "
                "partialcoll.torch.SyncBatchNorm, which waits as well"
            )
        if sparse_refusal is not None and is_sparse(module):
            kind = type(module).__name__
            raise TypeError(
                f"model: {name or 'it'} ({kind}) has sparse gradients; {sparse_refusal}"
            )


def is_sparse(layer: torch.nn.Module) -> bool:
    """Return whether autograd makes sparse gradients of its parameters."""
    # Other layers, as attention, also have a `sparse`.
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return isinstance(layer, embeddings) and bool(layer.sparse)


def describe(parameters: Named) -> list[tuple[str, str]]:
    """Return what must be the same on all ranks, as (name, text)."""
    said = []
    for name, parameter in parameters:
        strides = "" if parameter.is_contiguous() else f", strides {dense_strides(parameter)}"
        shape, dtype = tuple(parameter.shape), wire.name(parameter.dtype)
        said.append((name, f"shape {shape} of {dtype}{strides}"))
    return said


def warn_if_wrapped(parameters: Named) -> None:
    """Warn if a DistributedDataParallel, which averages gradients, has some of these."""
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
    non_finite: Any  # a text; None: that of the strategy
    check_every: int
    on_round: Any  # a list of callables, as on_step
    on_step: Any
    model: torch.nn.Module | None
    compression: Any
    sparse_as_dense: bool
    unused_as_zeros: bool

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum, Adasum):
            raise ValueError(f"op: expected Average, Sum or Adasum, got {self.op!r}")
        checks.number("gradient_predivide_factor", self.gradient_predivide_factor, above=0)
        # The factor of gradients before the sum.
        self.before = 1.0 / self.gradient_predivide_factor
        if self.non_finite is not None:
            checks.one_of("non_finite", self.non_finite, ("propagate", "skip", "raise"))
        check_clip_norm(self.clip_norm)
        checks.count("backward_passes_per_step", self.backward_passes_per_step)
        checks.count("check_every", self.check_every)
        self.on_round = _calls("on_round", self.on_round)
        self.on_step = _calls("on_step", self.on_step)
        if self.model is not None:
            checks.instance("model", self.model, torch.nn.Module, "a torch.nn.Module")
        self.compression = check_compression(self.compression or Compression.none)
        self.compresses = self.compression is not Compression.none
        checks.flag("sparse_as_dense", self.sparse_as_dense)
        checks.flag("unused_as_zeros", self.unused_as_zeros)

    def describe(self) -> list[tuple[str, str]]:
        """Return what must be the same on all ranks, as (name, text)."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        for own in ("non_finite", "on_round", "on_step"):
            del said[own]
        rounding = "None"
        if self.compresses:
            rounding = getattr(self.compression, "__name__", type(self.compression).__name__)
        said.update(op=self.op.name, compression=rounding.lstrip("_"))
        said.update(model="none" if self.model is None else "given")
        said.update(gradient_predivide_factor=float(self.gradient_predivide_factor))
        return [(name, str(value)) for name, value in said.items()]

    def sparse_refusal(self, strategy: Strategy) -> str | None:
        """Return why a gradient may not be sparse, or None."""
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
        """Round gradients to the compressed dtype. Sums travel as float32 at least."""
        for flat in flats if self.compresses else ():
            flat.copy_(self.compression.decompress(*self.compression.compress(flat)))


def _calls(argument: str, given: Any) -> list[Callable[[Any], None]]:
    calls = [] if given is None else [given] if callable(given) else list(given)
    if not all(map(callable, calls)):
        raise TypeError(f"{argument}: expected a callable or a list of them")
    return calls


@torch.no_grad()
def average_tensors(total: GlobalSum, tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its mean over the ranks of `total`. All ranks have the same shapes in
    the same order. Collective."""
    real = [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
    there = [one.detach().permute(by_falling_stride(one)).view(-1) for one in real]
    flats = [flat.cpu() for flat in there]  # tensors of the host are not copied
    total.average([flat.numpy() for flat in flats if flat.dtype != torch.bfloat16])
    for parts in total.pieces(flat for flat in flats if flat.dtype == torch.bfloat16):
        wide = [part.double() for part in parts]  # numpy has no bfloat16
        total.average([one.numpy() for one in wide], wide=False)  # few digits suffice
        for part, one in zip(parts, wide):
            part.copy_(one)
    for flat, own in zip(there, flats):
        if flat is not own:
            flat.copy_(own)


@torch.no_grad()
def average_statistics(
    comm: MPI.Intracomm, total: GlobalSum, model: torch.nn.Module, on_failure: str = "raise"
) -> None:
    """Average the running statistics of batch and instance normalization; take the maximum of their
    counts of batches. Collective; MismatchError if the ranks have different ones."""
    tensors: dict[torch.Tensor, str] = {}  # each buffer once
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.track_running_stats:
            for key, buffer in module.named_buffers(name, recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    tensors.setdefault(buffer, key)
    said = [(name, f"buffer of shape {tuple(b.shape)}") for b, name in tensors.items()]
    check_agreement(comm, said, on_failure)
    average_tensors(total, [tensor for tensor in tensors if tensor.is_floating_point()])
    counts = [tensor for tensor in tensors if not tensor.is_floating_point()]
    rows = np.zeros((comm.size, len(counts)))  # by rank
    rows[comm.rank] = [int(count) for count in counts]
    rows = total.sum(rows.ravel()).reshape(rows.shape)
    for count, most in zip(counts, rows.max(axis=0)):
        count.fill_(int(most))


class Loop:
    """The state of a wrapped optimizer. inner: the optimizer that was wrapped. wrapped: weak
    reference to the object that `DistributedOptimizer` has returned."""

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
        everything = (p for group in inner.param_groups for p in group["params"])
        self._frozen = [p for p in everything if p not in mine]
        self.schedulers: list[tuple[Any, int]] = []
        self.closed = False
        self._sums: GlobalSum | None = None
        self._set_up()
        gradients = weakref.ref(self.gradients)  # their memory may be unmapped at the end of MPI
        self._at_end = lambda: there.close() if (there := gradients()) else None
        finalize.at_end(self._at_end)

    # Subclasses define these, and step, metrics, begin_at, state_dict and load_state_dict.
    _set_up: Callable[[], None]
    _join: Callable[[], None]
    _free: Callable[[], None]
    version: Any  # `DistributedOptimizer.round`
    updates: Any  # rounds that have changed the parameters

    def _take_changes(self) -> None:
        """Tell the process what the program has changed in the parameters since the last step."""

    def parameters_replaced(self) -> None:
        """Begin again from the parameters, which are now the same on all ranks. Collective."""

    def parameters_to_be_replaced(self) -> None:
        """Prepare for a broadcast of the parameters of one rank."""

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
        """Collect the local gradient in the slot; StateError if it is incomplete."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise StateError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient, but did not "
                    "require one when the optimizer was wrapped; wrap it anew"
                )
        self.gradients.gather(self._takes_fewer_passes)

    def _scale(self, factor: float) -> bool:
        """Scale the local gradient. Return whether it is finite, or need not be."""
        if factor != 1.0:
            for flat in self.gradients.flats:
                flat.mul_(factor)
        if self.settings.non_finite == "propagate":
            return True
        for flat in self.gradients.flats:  # a second pass only if the sum overflows
            dot = flat.dtype in (torch.float32, torch.float64)  # at memory speed
            total = (torch.dot(flat, flat) if dot else flat.sum()).item()
            if not math.isfinite(abs(total)) and not bool(torch.isfinite(flat).all()):
                return False
        return True

    def _raise_if_wanted(self) -> None:
        """Raise FloatingPointError, if wanted, for a gradient that is not finite."""
        if self.settings.non_finite == "raise":
            raise FloatingPointError("the gradient of this rank is not finite and was not used")

    def _inner_step(self) -> None:
        for _, parameter in self.parameters if self._rows_only else ():
            if parameter.grad is not None:  # it may be dense
                parameter.grad = by_rows(parameter.grad)
        type(self._inner).step(self._wrapped())  # as super() in the wrapped optimizer

    def _record(self, *phases: tuple[str, float]) -> None:
        """Write the phases of a step, with the times of their beginnings, to the timeline."""
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
        """Raise StateError after the end of MPI or of this loop."""
        if MPI.Is_finalized():
            communicator.check_running("the DistributedOptimizer")  # raises
        if self.closed:
            raise StateError("the DistributedOptimizer is closed; use the optimizer in it")

    # Between steps

    def zero_grad(self) -> None:
        self._check_open()
        self.gradients.check_none("zero_grad()")
        self.gradients.collect()

    @staticmethod
    def join(loops: Sequence[Loop], *others: Callable[[], None]) -> None:
        """Join all loops, and call `others`, at the same time: ranks that have not joined step all
        loops. If one fails, or after Ctrl-C, all are interrupted. Collective."""
        for loop in loops:
            loop._check_between("join()")
        grad = torch.set_grad_enabled(torch.is_grad_enabled())  # a setting of each thread
        joins = [wire.in_stream(loop.parameters[0][1].device, loop._join) for loop in loops]
        side_by_side([*(grad(join) for join in joins), *others])
        for loop in loops:  # they may have the same model
            if loop.settings.model is not None:
                loop._average_statistics(loop.settings.model)

    def discard(self) -> None:
        """Forget a gradient that no step has taken."""
        self.gradients.averaged = False
        self.gradients.restart(self.gradients.slot)
        self.gradients.collect()

    def _check_between(self, what: str) -> None:
        """Raise StateError unless it is open and between a step and the next backward pass."""
        self._check_open()
        self.gradients.check_none(what)

    # Averages over all ranks

    def _total(self) -> GlobalSum:
        """Return the sum over all ranks. Collective at the first call."""
        if self._sums is None:
            self._sums = GlobalSum.over(self.comm, self.strategy.on_failure)
        return self._sums

    def consensus_distance(self) -> float:
        self._check_open()
        self._take_changes()
        return self._total().distance(ParameterVector(self.parameters).vector())

    def averaged_model(self) -> torch.nn.Module:
        self._check_open()
        if self.settings.model is None:
            raise StateError("averaged_model: give model= to DistributedOptimizer")
        self._take_changes()
        averaged = copy.deepcopy(self.settings.model)
        copies: dict[Any, Any] = dict(zip(self.settings.model.parameters(), averaged.parameters()))
        named = [(name, copies.get(one, torch.empty_like(one))) for name, one in self.parameters]
        ParameterVector(named).assign(np.asarray(self._mean_vector()))
        self._average_statistics(averaged)
        return averaged

    def _average_statistics(self, model: torch.nn.Module) -> None:
        average_statistics(self.comm, self._total(), model, self.strategy.on_failure)

    def _mean_vector(self) -> Any:
        """Return the mean over all ranks of `ParameterVector.vector`."""
        mean = ParameterVector(self.parameters).vector().astype(np.float64)
        self._total().average([mean])
        return mean

    # Checkpoints, the end

    def position(self) -> dict[str, Any]:
        """Return the position in the training: rounds, updates, schedulers."""
        return {
            "version": self.version,
            "updates": self.updates,
            "schedulers": [scheduler.state_dict() for scheduler in self._attached()],
        }

    def _load_schedulers(self, states: list[Any]) -> None:
        for scheduler, state in zip(self._attached(), states):
            scheduler.load_state_dict(copy.deepcopy(state))

    def abandon(self, own: bool = False) -> None:
        """Close the loop without freeing it; own: see `Gradients.close`. Local."""
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


def clip(flats: list[torch.Tensor], most: float) -> None:
    """Scale the tensors so that their common 2-norm is at most `most`. It is computed in float64,
    and rounded to float32: ranks whose processors add in other orders get the same factor."""
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
    """Check that all `ranks` (`agreement.Gathers`) have the same options and model. Collective."""
    said = [("strategy", strategy.describe(size)), *settings.describe()]
    check_agreement(ranks, [*said, *describe(parameters)])


def made(make: Callable[[], Made]) -> Made:
    """Return make(). If dead ranks are replaced and one dies meanwhile, call it again in a world of
    the live ranks. Collective."""
    while (here := world.world()).replacing is not None:
        loop: Made | None = None
        failure: RankFailedError | None = None
        with contextlib.suppress(RankFailedError):
            try:
                loop = make()
            except RankFailedError as error:
                failure = error
            all_have(here.comm, failure)
            if loop is not None:
                return loop
        if loop is not None:
            loop.abandon()
        world.form_anew()
    return make()


class _OwnStep(property):
    """`step`, which torch must not wrap: the inner step runs the registered step hooks."""

    hooked = True  # torch takes it for wrapped already


class Distributed:
    """The methods that `DistributedOptimizer` adds to an optimizer.

    The object is of a subclass of the optimizer's own class and shares its `__dict__`, so learning
    rate schedulers, checkpoints and `isinstance` work as before.
    """

    # A GradScaler leaves unscaling and checking for overflows to step().
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
        # Set by a GradScaler: the scale of the local gradient (None: it has unscaled it), and
        # whether it is not finite. The inner optimizer, which has another gradient, must not see
        # them.
        scale, overflown = None, False
        if "found_inf" in self.__dict__:
            given, overflown = self.__dict__["grad_scale"], bool(self.__dict__["found_inf"])
            scale = 1.0 if given is None else float(given)
            self.__dict__.update(grad_scale=None, found_inf=None)
        try:
            self._loop.step(scale, overflown)
        except BaseException:
            for name in ("grad_scale", "found_inf"):  # the scaler does not remove them now
                self.__dict__.pop(name, None)
            raise
        self.__dict__["_opt_called"] = True  # a scheduler of the inner optimizer checks it
        for tell in self._loop.settings.on_step:
            tell(self)
        return found

    def _get_step(self) -> Callable[..., Any]:
        patched: Callable[..., Any] | None = self.__dict__.get("_patched_step")
        return self._step if patched is None else patched

    def _set_step(self, patched: Callable[..., Any]) -> None:
        self.__dict__["_patched_step"] = patched

    # A scheduler replaces its optimizer's step in the `__dict__`, which is shared: a scheduler of
    # the inner optimizer would put the inner step here, which communicates nothing. A property
    # takes precedence over the `__dict__`.
    step = _OwnStep(_get_step, _set_step, doc=_step.__doc__)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Collect gradients from zero, in the library's memory (whatever `set_to_none`). StateError
        between backward and step."""
        self._loop.zero_grad()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up the gradients of this number of backward passes in each step from now on. Local.
        StateError between a backward pass and the step."""
        passes = checks.count("passes", passes)
        self._loop.gradients.check_none("set_backward_passes_per_step()")
        self._loop.gradients.passes = passes

    def add_param_group(self, param_group: Any) -> NoReturn:
        """Raise StateError: the rounds have no place for it."""
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
        """Enter it around the `step` after `synchronize`. Only with the strategy `Allreduce`."""
        loop = self._synchronous("skip_synchronize")
        loop.skipping = True
        try:
            yield
        finally:
            loop.skipping = False

    def attach(self, scheduler: Any, every: int = 1) -> None:
        """Step a learning rate scheduler after each `every` applied rounds. Do not step it
        yourself: ranks apply different rounds at a time."""
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
        """Number of rounds that this rank has seen. Ranks of the same round have the same
        parameters. With a decentralized strategy: number of own steps."""
        return self._loop.version

    def until(self, rounds: int) -> Iterator[int]:
        """Yield `round` until it is `rounds`; step in the body. For loops with ``deliver="all"``,
        where ranks make different numbers of steps."""
        while self.round < rounds:
            yield self.round

    def join(self) -> None:
        """Contribute nothing until all ranks have joined: this rank has no more data. Collective.

        Rounds of the others are applied meanwhile. Then all ranks are at the same round, with the
        same parameters (a decentralized strategy: their exact average), and training can go on. The
        running statistics of the `model`'s batch normalization are averaged; their counts of
        batches become the largest of all ranks.
        """
        Loop.join([self._loop])

    def consensus_distance(self) -> float:
        """Return the distance of the ranks' parameters x_i: the square root of
        mean_i |x_i - mean|². Collective."""
        return self._loop.consensus_distance()

    def averaged_model(self) -> torch.nn.Module:
        """Return a copy of `model` for evaluation, with the exact averages over the ranks of the
        parameters and of the running statistics of batch normalization. Collective; StateError
        without ``model=``."""
        return self._loop.averaged_model()

    def leave(self) -> None:
        """Leave the averaging: this rank delays no other, and its steps are its own. Local. With
        `Moshpit` only, else StateError."""
        self._with_groups("leave").leave()

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the parameters and the optimizer's state of a rank that did
        meanwhile. Local. With `Moshpit` only, else StateError. TimeoutError, and the rank stays
        away, after `timeout` seconds without any answer."""
        self._with_groups("rejoin").rejoin(timeout)

    def _with_groups(self, what: str) -> LocalLoop:
        if getattr(self._loop, "groups", None) is None:
            raise StateError(
                f"{what}: not with {type(self.strategy).__name__}; Moshpit's ranks may"
            )
        return cast("LocalLoop", self._loop)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue from here. Each rank saves its own. Local.

        It is the state of the optimizer that was wrapped. Its entry "partialcoll" adds rank,
        `round`, attached schedulers and the pending deposit; with a decentralized strategy the
        state of its process, the model included. Save the parameters with the model. Call it after
        the same step on all ranks, before the next backward pass; with ``deliver="all"``, or if
        averages are in progress between steps (docs/pytorch.md), only right after `join`.
        StateError otherwise.
        """
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was called. Each rank loads its own state, before the first
        step or right after `join`, with the same schedulers attached. Local; collective if averages
        are in progress between steps.

        The pending deposit is added to the next one. The state of an optimizer that was not wrapped
        leaves `round` unchanged. ValueError for a state of another rank or number of ranks, another
        model or decentralized strategy, or other schedulers; StateError between rounds.
        """
        self._loop.load_state_dict(state_dict)

    def _meet_anew(self) -> None:
        """Continue in a world with new ranks. Collective, with their `DistributedOptimizer`."""
        before = cast("RoundLoop", self._loop)
        before.free()

        def make() -> RoundLoop:
            calls = world.world().calls
            together(calls, lambda: None)  # the arguments of new ranks may be wrong
            check_alike(calls, calls.comm.size, before.strategy, before.settings, before.parameters)
            return before.over(calls.comm)

        self._loop = made(make)

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """The names of the parameters; Horovod's tests read it."""
        return {parameter: name for name, parameter in self._loop.parameters}

    def metrics(self) -> Metrics:
        """Return the counts of this rank so far."""
        return copy.copy(self._loop.metrics)

    @property
    def strategy(self) -> Strategy:
        """The strategy that was given."""
        return self._loop.strategy

    def close(self) -> None:
        """Free the memory of the library; the parameters' gradients become None. Collective."""
        world.forget(self)
        self.__dict__.pop("_patched_step", None)  # of a scheduler, which follows this object
        self._loop.free()
