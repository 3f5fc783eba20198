# SPDX-License-Identifier: Apache-2.0
"""What is refused when an optimizer is wrapped: models and options that cannot work, by name."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist

from .._core import checks
from ..decentralized import Strategy
from ..decentralized.strategy import check_clip_norm
from .arguments import Adasum, Average, Compression, Reduction, Sum, check_compression
from .flat import DTYPES, Named, dense_strides
from .ops import wire


def check_kind(optimizer: Any) -> None:
    """A torch optimizer that computes one update from one gradient."""
    checks.instance("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer: LBFGS calls its closure several times in a step, for gradients of this "
            "rank alone, and is not supported; take one that steps once on a gradient"
        )


def check_optimizer(optimizer: Any) -> None:
    """One that can be wrapped."""
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


def check_model(model: Any) -> None:
    """No layers of torch's that communicate on their own in every forward pass."""
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


def is_sparse(layer: torch.nn.Module) -> bool:
    """Does autograd give its parameters sparse gradients? The word alone says nothing: attention
    may be sparse as well."""
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return isinstance(layer, embeddings) and bool(layer.sparse)


def wants_sparse(inner: torch.optim.Optimizer) -> bool:
    """Does it take nothing else?"""
    return isinstance(inner, torch.optim.SparseAdam)


def check_dense(model: Any, remedy: str) -> None:
    """No layers with sparse gradients."""
    for name, module in model.named_modules():
        if is_sparse(module):
            raise TypeError(
                f"model: {name or 'it'} ({type(module).__name__}) has sparse gradients; {remedy}"
            )


def name_parameters(optimizer: torch.optim.Optimizer, named: Any, model: Any) -> Named:
    """The optimizer's parameters that require a gradient, in its order, with their names.

    Raises ValueError for names that come twice and for parameters without a name.
    """
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
            if not parameter.requires_grad:
                continue
            if named is not None and parameter not in known:
                raise ValueError(
                    f"named_parameters: parameter {j} of group {i} (shape "
                    f"{tuple(parameter.shape)}) of the optimizer has no name there"
                )
            name = known.get(parameter, f"group{i}.{j}")
            check_parameter(name, parameter)
            found.append((name, parameter))
    if not found:
        raise ValueError("optimizer: expected parameters that require a gradient, got none")
    check_one_device(found)
    return found


def check_one_device(parameters: Named) -> None:
    """All of them, of this rank. Raises ValueError."""
    for name, parameter in parameters:
        first, one = parameters[0]
        if parameter.device != one.device:
            raise ValueError(
                f"parameters {first!r} and {name!r}: expected all on one device, got {one.device} "
                f"and {parameter.device}"
            )


def check_memory(parameters: Named) -> None:
    """Raises ValueError if two of them share memory: each would get a place of its own."""
    seen: dict[int, str] = {}
    for name, parameter in parameters:
        if not parameter.numel():
            continue
        other = seen.setdefault(parameter.data_ptr(), name)
        if other != name:
            raise ValueError(
                f"parameters {other!r} and {name!r} share memory; make them one parameter, or "
                "give each its own"
            )


def check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    """A dense one, of a dtype that can be added up."""
    if parameter.is_meta:
        raise TypeError(f"parameter {name!r}: expected one with memory, got one on meta")
    if parameter.dtype not in DTYPES or parameter.layout != torch.strided:
        expected = ", ".join(wire.name(dtype) for dtype in DTYPES)
        raise TypeError(
            f"parameter {name!r}: expected a dense one of {expected}, got "
            f"{parameter.dtype}, {parameter.layout}"
        )


def describe(parameters: Named) -> list[tuple[str, str]]:
    """What must be the same on all ranks of the parameters, as (name, text)."""
    said = []
    for name, parameter in parameters:
        text = f"shape {tuple(parameter.shape)} of {wire.name(parameter.dtype)}"
        if not parameter.is_contiguous():
            text += f", strides {dense_strides(parameter)}"
        said.append((name, text))
    return said


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
        self.before = 1.0 / self.predivide  # what gradients are multiplied by before the sum
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

    def sparse_refusal(self, strategy: Strategy) -> str | None:
        """Why a gradient may not be sparse: most strategies take dense ones."""
        if self.sparse_as_dense or strategy.takes_sparse:
            return None
        return (
            f"{type(strategy).__name__} takes dense ones: give sparse_as_dense=True to "
            "DistributedOptimizer, or make its layer with sparse=False"
        )

    def divisor(self, ranks: int) -> float:
        """Of a round's sum."""
        return (ranks if self.op is Average else 1.0) / self.predivide

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
