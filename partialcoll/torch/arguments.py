# SPDX-License-Identifier: Apache-2.0
"""The arguments of calls under Horovod's names: reductions, compression, tensors, names, roots; the
gradients of results."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch

from .._core import checks
from ..policy import Full, Policy, as_policy
from .ops import wire
from .ops.handles import Form
from .world import OptionalSet, size


class Reduction(enum.Enum):
    """See `allreduce` and `DistributedOptimizer`."""

    Average = "average"
    Sum = "sum"
    Min = "min"
    Max = "max"
    Product = "product"
    Adasum = "adasum"


Average = Reduction.Average
Sum = Reduction.Sum
Min = Reduction.Min
Max = Reduction.Max
Product = Reduction.Product
Adasum = Reduction.Adasum


class Compressor:
    """Rounds tensors, and gives results their dtype back. Derive from it for one of your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What travels in place of `tensor`, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result, `tensor`, in its own form; `ctx` is what `compress` has returned with what
        traveled."""
        raise NotImplementedError


class _None(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _Float16(Compressor):
    """Rounds float32 and float64 to float16."""

    _to = torch.float16

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        wide = tensor.dtype in (torch.float32, torch.float64)
        return (tensor.to(cls._to) if wide else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class _BFloat16(_Float16):
    """Rounds float32 and float64 to bfloat16."""

    _to = torch.bfloat16


class Compression:
    """How values are rounded on their way: `none`, `fp16`, `bf16` (float32 and float64 tensors;
    others are left as they are).

    What the ranks contribute is rounded, and so is the result, as with Horovod. Sums are computed
    in float32, as which 16-bit values travel: unlike Horovod's this saves no bytes.
    """

    none = _None
    fp16 = _Float16
    bf16 = _BFloat16


def check_compression(given: Any) -> type[Compressor] | Compressor:
    """Something with compress and decompress."""
    methods = getattr(given, "compress", None), getattr(given, "decompress", None)
    if not (callable(methods[0]) and callable(methods[1])):
        raise TypeError(
            f"compression: expected Compression.none, .fp16, .bf16 or a Compressor, got {given!r}"
        )
    compressor: type[Compressor] | Compressor = given
    return compressor


def check_root(root_rank: Any, process_set: OptionalSet) -> int:
    """The number, within the set, of a rank given by its number in the world."""
    root = checks.rank("root_rank", root_rank, size())
    return root if process_set is None else process_set.root(root)


def check_name(name: Any) -> None:
    """None or a text."""
    if name is not None:
        checks.instance("name", name, str, "a text or None")


def named(text: str, name: str | None) -> str:
    """What the ranks compare, with the name."""
    return text if name is None else f"{text}, name={name!r}"


class Several(tuple):  # type: ignore[type-arg]
    """The tensors of a grouped call, which is made as that of a single one.

    What is wrong with the argument is kept: `all_of` raises it where the other ranks are told.
    """

    error: Exception | None

    def __new__(cls, given: Any) -> Several:
        error = None
        try:
            found = tuple(given)
        except Exception as caught:
            found, error = (), caught
        several = super().__new__(cls, found)
        several.error = error
        return several


def all_of(given: Any) -> Sequence[Any]:
    """Return the tensors of a call; raise what is wrong with them."""
    if not isinstance(given, Several):
        return [given]
    if given.error is not None:
        raise given.error
    if not given:
        raise ValueError("tensors: expected at least one, got none")
    return given


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, results: Any, back: Any, *tensors: Any) -> Any:
        ctx.back = back
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.back(gradients))


def with_gradient(
    results: Sequence[torch.Tensor], back: Callable[[Any], Any], tensors: Sequence[Any]
) -> list[torch.Tensor]:
    """What has been made of tensors; back: makes gradients of these of its gradients."""
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        differentiable: Any = _WithGradient.apply
        results = differentiable(results, back, *tensors)
    return list(results)


def check_linear(what: str, op: Reduction) -> None:
    """Has a reduction a gradient?"""
    if op not in (Average, Sum):
        raise RuntimeError(f"{what}: {op.name} has no gradient; use Average or Sum")


class AllreduceOptions(NamedTuple):
    """Of an allreduce, as they are given."""

    average: Any = None
    op: Any = None
    prescale_factor: Any = 1.0
    postscale_factor: Any = 1.0
    process_set: OptionalSet = None
    quorum: Any = "full"
    compression: Any = Compression.none

    def reduction(self) -> Reduction:
        if self.average is not None and self.op is not None:
            raise ValueError(
                "average: expected it without op, got both; op=Average or op=Sum will do"
            )
        if self.average is not None:
            return Average if self.average else Sum
        if self.op is None:
            return Average
        if not isinstance(self.op, Reduction):
            known = "Average, Sum, Min, Max, Product or Adasum"
            raise TypeError(f"op: expected {known}, got {self.op!r}")
        return self.op

    @property
    def partial(self) -> bool:
        """Is it to be a call with a quorum, if it is right?"""
        if isinstance(self.quorum, (str, Policy)):
            return self.quorum not in ("full", Full())
        return True  # and it is refused

    def policy(self, name: str | None) -> Policy | None:
        """None: all ranks take part."""
        if self.quorum == "full":
            return None
        policy = as_policy(self.quorum)
        if policy == Full():
            return None
        if self.op is Adasum:
            raise ValueError(f"quorum: expected 'full' with op=Adasum, got {str(policy)!r}")
        if name is None:
            raise ValueError(
                f"name: expected one with quorum={str(policy)!r}: ranks that do not wait for each "
                "other do not make their calls in the same order"
            )
        return policy

    def factors(self, dtype: torch.dtype) -> tuple[float, float]:
        before = checks.real("prescale_factor", self.prescale_factor)
        after = checks.real("postscale_factor", self.postscale_factor)
        if dtype == torch.bool and (before, after) != (1, 1):
            raise TypeError(
                "prescale_factor and postscale_factor: expected 1 for a tensor of "
                f"{wire.name(dtype)}, got {before} and {after}"
            )
        return before, after

    def form(self, dtype: torch.dtype, ranks: int) -> tuple[Form, str]:
        """What becomes of the values, and how it is called. Raises TypeError or ValueError if the
        dtype does not go with the rest."""
        op = self.reduction()
        truth = dtype == torch.bool
        if (truth and op in (Average, Sum)) or (dtype.is_complex and op in (Min, Max)):
            more = "; convert it, for instance with tensor.int()" if truth else ""
            raise TypeError(f"op: {op.name} is not defined for {wire.name(dtype)}{more}")
        if op is Adasum and not dtype.is_floating_point:
            raise TypeError(f"op: Adasum is for floating point, got {wire.name(dtype)}")
        before, after = self.factors(dtype)
        text = op.name
        if (before, after) != (1, 1):
            text += f", prescale_factor={before}, postscale_factor={after}"
        name, divisor = ("sum", ranks) if op is Average else (op.value, 1)  # by torch's name
        return Form(name, None if before == 1 else before, divisor, after), text
