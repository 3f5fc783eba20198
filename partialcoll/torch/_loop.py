# SPDX-License-Identifier: Apache-2.0
"""The training loop's side of one wrapped optimizer: what all strategies have in common.

What a step does beyond the inner optimizer's is the subclass's: `RoundLoop` exchanges gradients
and applies the same updates on every rank, `LocalLoop` updates this rank's own parameters, which
the ranks then average.
"""

from __future__ import annotations

import copy
import functools
import math
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch
from torch.nn.modules import batchnorm

from .._core import checks, communicator, finalize, timeline
from .._core.buffers import Array
from .._core.failures import duplicate
from .._core.mpi import MPI
from ..collectives import side_by_side
from ..collectives.agreement import check_agreement
from ..decentralized import GlobalSum, Strategy
from ..decentralized.strategy import check_clip_norm
from ..errors import StateError
from ._checks import check_model, wants_sparse
from .arguments import Adasum, Average, Compression, Reduction, Sum, check_compression
from .flat import OF_ANOTHER, Gradients, Named, ParameterVector, by_falling_stride, by_rows
from .ops.side_stream import in_stream


@torch.no_grad()
def average_tensors(total: GlobalSum, tensors: Sequence[torch.Tensor]) -> None:
    """Make each of them the ranks' mean, in place. The same shapes in the same order on all ranks,
    over which `total` is. Collective."""
    there = [_flat(tensor.detach()) for tensor in tensors]
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


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view of it with one dimension of real numbers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.permute(by_falling_stride(tensor)).view(-1)


def with_parameters(model: torch.nn.Module, parameters: Named, vector: Array) -> torch.nn.Module:
    """A copy of the model with these values of the parameters."""
    copied = copy.deepcopy(model)
    twin: dict[Any, torch.Tensor] = dict(zip(model.parameters(), copied.parameters()))
    values = ParameterVector(parameters).views(torch.from_numpy(np.asarray(vector)))
    with torch.no_grad():
        for (_, parameter), value in zip(parameters, values):
            if parameter in twin:
                twin[parameter].copy_(value)
    return copied


def running_statistics(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those of batch and instance normalization, by name, each once."""
    found: dict[torch.Tensor, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.track_running_stats:
            for key, buffer in module.named_buffers(name, recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    found.setdefault(buffer, key)
    return [(name, buffer) for buffer, name in found.items()]


@torch.no_grad()
def average_statistics(
    comm: MPI.Intracomm, total: GlobalSum, model: torch.nn.Module, on_failure: str = "raise"
) -> None:
    """The mean over ranks of what is floating point, the largest of what counts batches. The
    same bits on all ranks. Collective; MismatchError if the ranks have different ones."""
    named = running_statistics(model)
    said = [(name, f"buffer of shape {tuple(b.shape)}") for name, b in named]
    check_agreement(comm, said, on_failure)
    tensors = [buffer for _, buffer in named]
    average_tensors(total, [tensor for tensor in tensors if tensor.is_floating_point()])
    counts = [tensor for tensor in tensors if not tensor.is_floating_point()]
    rows = np.zeros((comm.size, len(counts)))  # the ranks'
    rows[comm.rank] = [int(count) for count in counts]
    rows = total.sum(rows.ravel()).reshape(rows.shape)
    for count, most in zip(counts, rows.max(axis=0)):
        count.fill_(int(most))


@dataclass
class Settings:
    """What does not depend on the strategy, see `DistributedOptimizer`. Raises TypeError or
    ValueError for what is wrong with it."""

    passes: int
    op: Reduction
    predivide: float
    clip_norm: float | None
    non_finite: str
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
        checks.number("gradient_predivide_factor", self.predivide, above=0)
        checks.one_of("non_finite", self.non_finite, ("propagate", "skip", "raise"))
        check_clip_norm(self.clip_norm)
        checks.count("backward_passes_per_step", self.passes)
        checks.count("check_every", self.check_every)
        self.on_round = _calls("on_round", self.on_round)
        self.on_step = _calls("on_step", self.on_step)
        check_model(self.model)
        self.compression = check_compression(self.compression or Compression.none)
        checks.flag("sparse_as_dense", self.sparse_as_dense)
        checks.flag("unused_as_zeros", self.unused_as_zeros)

    def describe(self) -> list[tuple[str, str]]:
        """What must be the same on all ranks, as (name, text)."""
        rounding = getattr(self.compression, "__name__", type(self.compression).__name__)
        said = {
            "backward_passes_per_step": self.passes,
            "op": self.op.name,
            "gradient_predivide_factor": float(self.predivide),
            "clip_norm": self.clip_norm,
            "check_every": self.check_every,
            "sparse_as_dense": self.sparse_as_dense,
            "unused_as_zeros": self.unused_as_zeros,
            "compression": rounding.lstrip("_"),
            "model": "none" if self.model is None else "given",
        }
        return [(name, str(value)) for name, value in said.items()]

    @property
    def average(self) -> bool:
        """Is a round's sum divided by the number of ranks?"""
        return self.op is Average

    def sparse_refusal(self, strategy: Strategy) -> str | None:
        """Why a gradient may not be sparse: most strategies take dense ones."""
        if self.sparse_as_dense or strategy.takes_sparse:
            return None
        return (
            f"{type(strategy).__name__} takes dense ones: give sparse_as_dense=True to "
            "DistributedOptimizer, or make its layer with sparse=False"
        )

    @property
    def before(self) -> float:
        """What gradients are multiplied by before the sum."""
        return 1.0 / self.predivide

    def divisor(self, ranks: int) -> float:
        """Of a round's sum."""
        return (ranks if self.average else 1.0) / self.predivide

    @property
    def compresses(self) -> bool:
        """Are gradients rounded?"""
        return self.compression is not Compression.none

    @torch.no_grad()
    def before_sending(self, flat: torch.Tensor) -> None:
        """What is done to gradients that go before the step."""
        self.compress([flat])
        if self.before != 1.0:
            flat.mul_(self.before)

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


class Loop:
    """`inner` is the optimizer that was wrapped, `inner_step` its step."""

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
        inner_step: Callable[[], Any],
    ) -> None:
        self.comm = duplicate(comm)  # shutdown() may come before the end
        self.strategy, self.settings, self.parameters = strategy, settings, parameters
        self._inner, self._update_by = inner, inner_step
        self._inner_step = self._sparse_step if wants_sparse(inner) else inner_step
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

    # What a step is, and what subclasses have: step, metrics, begin_at, state_dict, load_state_dict

    def _set_up(self) -> None:
        """What only this kind of loop has. Collective."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """`DistributedOptimizer.round`."""
        raise NotImplementedError

    @property
    def updates(self) -> int:
        """Of these, how many have changed the parameters."""
        raise NotImplementedError

    def evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """This step's gradients, which a closure computes; what it returns."""
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
        """The local gradient is where it belongs, whole; else StateError."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise StateError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient, but did not "
                    "require one when the optimizer was wrapped; wrap it anew"
                )
        self.gradients.check_complete(self._takes_fewer_passes)
        self.gradients.gather()

    def _hide_unused(self, used: Sequence[bool]) -> None:
        """Let the optimizer pass over the parameters of which nobody had a gradient: weight decay
        and momentum do not move them then."""
        if not self.settings.unused_as_zeros:
            self.gradients.hide(used)

    def _scale(self, factor: float) -> bool:
        """Scale the local gradient; is it finite (as far as anybody wants to know)?"""
        if factor != 1.0:
            for flat in self.gradients.flats:
                flat.mul_(factor)
        return self.settings.non_finite == "propagate" or are_finite(self.gradients.flats)

    def _raise_if_wanted(self, finite: bool, overflown: bool) -> None:
        if not finite and self.settings.non_finite == "raise" and not overflown:
            raise FloatingPointError(
                "the gradient of this rank is not finite; nothing of it was used"
            )

    def _sparse_step(self) -> None:
        """Of what takes nothing else: also gradients that were added up as dense ones."""
        for _, parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = by_rows(parameter.grad)
        self._update_by()

    def _record(self, *phases: tuple[str, float]) -> None:
        """A step is over: what the timeline, which is there, has of it, and when each began."""
        assert timeline.recorder is not None
        text = f"{type(self.strategy).__name__}, round {self.version}"
        timeline.recorder.phases("optimizer.step", list(phases), time.monotonic(), text)

    def _step_schedulers(self, updates: int) -> None:
        for scheduler, every in self.schedulers:
            if updates % every == 0:
                scheduler.step()

    def _attached(self) -> list[Any]:
        return [scheduler for scheduler, _ in self.schedulers]

    def _check_open(self) -> None:
        """The memory where gradients were is gone after the end."""
        communicator.check_running("the DistributedOptimizer")
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
        joins = [in_stream(loop.parameters[0][1].device, loop._join) for loop in loops]
        side_by_side.run([*(grad(join) for join in joins), *others])
        for loop in loops:  # in turn: they may have the same model
            if loop.settings.model is not None:
                loop._average_statistics(loop.settings.model)

    def _join(self) -> None:
        raise NotImplementedError

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
        """The square root of mean_i |x_i - mean|^2 over the ranks' parameters. Collective."""
        self._check_open()
        return self._total().distance(ParameterVector(self.parameters).vector())

    def averaged_model(self) -> torch.nn.Module:
        """A copy of the model with the averages over all ranks. Collective."""
        self._check_open()
        if self.settings.model is None:
            raise StateError("averaged_model: give model= to DistributedOptimizer")
        mean = self._mean_vector()
        averaged = with_parameters(self.settings.model, self.parameters, mean)
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

    def parameters_replaced(self) -> None:
        """All ranks have given the parameters other values, the same ones. Collective."""

    def parameters_to_be_replaced(self) -> None:
        """Some rank's parameters are about to become everybody's."""

    def abandon(self) -> None:
        """Not all ranks have made it. Local."""
        self.closed = True
        self.gradients.close()
        finalize.not_at_end(self._at_end)

    def drop(self) -> None:
        """Leave the parameters alone: the program has dropped the optimizer. Local."""
        self.gradients.drop()
        finalize.not_at_end(self._at_end)

    def free(self) -> None:
        """Collective; idempotent."""
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

    def _free(self) -> None:
        raise NotImplementedError


def _close(gradients: weakref.ref[Gradients]) -> None:
    there = gradients()
    if there is not None:
        there.close()


def are_finite(flats: Iterable[torch.Tensor]) -> bool:
    """One pass over the data; a second one only where the sum alone overflows."""
    for flat in flats:
        dot = flat.dtype in (torch.float32, torch.float64)  # as fast as memory is
        total = (torch.dot(flat, flat) if dot else flat.sum()).item()
        sound = math.isfinite(abs(total))
        if not sound and not bool(torch.isfinite(flat).all()):
            return False
    return True


def clip(flats: list[torch.Tensor], most: float) -> None:
    """Scale all of it so that its 2-norm is at most `most`.

    The norm is computed in float64 and rounded to float32: ranks whose processors add in other
    orders come to the same factor.
    """
    squares = sum(float(torch.linalg.vector_norm(flat, dtype=_wide(flat))) ** 2 for flat in flats)
    norm = float(torch.tensor(math.sqrt(squares), dtype=torch.float32))
    if norm > most:
        for flat in flats:
            flat.mul_(most / norm)


def _wide(flat: torch.Tensor) -> torch.dtype:
    return torch.complex128 if flat.is_complex() else torch.float64
