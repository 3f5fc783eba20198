# SPDX-License-Identifier: Apache-2.0
"""The arguments of calls under Horovod's names: reductions, compression, factors, names, roots."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch

from .._core import checks
from ..policy import Full, Policy, as_policy
from .ops import wire
from .ops.transfer import Form

__all__ = ["Adasum", "Average", "Compression", "Compressor", "Max", "Min", "Product", "Sum"]


class Reduction(enum.Enum):
    """See `allreduce` and `DistributedOptimizer`."""

    Average = "average"
    Sum = "sum"
    Min = "min"
    Max = "max"
    Product = "product"
    Adasum = "adasum"


Average, Sum, Min, Max, Product, Adasum = Reduction


class Compressor:
    """Round tensors before they travel. Derive your own compressor from this class, which rounds
    nothing."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what travels in place of `tensor`, and the `ctx` that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the result `tensor` as the tensor was for which `compress` returned `ctx`."""
        return tensor


class _Float16(Compressor):
    _to = torch.float16

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        wide = tensor.dtype in (torch.float32, torch.float64)
        return (tensor.to(cls._to) if wide else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class _BFloat16(_Float16):
    _to = torch.bfloat16


class Compression:
    """Rounding of values before they travel: `none`, `fp16`, `bf16` (for float32 and float64
    tensors; others are unchanged).

    The contributions of the ranks are rounded, and so is the result, as with Horovod. Sums are
    computed in float32, and 16-bit values travel as float32: unlike Horovod's this saves no bytes.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16


def check_compression(given: Any) -> type[Compressor] | Compressor:
    """Return a compressor; raise TypeError for an object without compress and decompress."""
    if not all(callable(getattr(given, name, None)) for name in ("compress", "decompress")):
        raise TypeError(
            f"compression: expected Compression.none, .fp16, .bf16 or a Compressor, got {given!r}"
        )
    return given


class Options(NamedTuple):
    """The options of a verb, as the caller gives them. Methods raise TypeError or ValueError."""

    average: Any = None
    op: Any = None
    prescale_factor: Any = 1.0
    postscale_factor: Any = 1.0
    compression: Any = Compression.none
    quorum: Any = "full"
    root_rank: Any = None
    splits: Any = None
    in_place: bool = False
    later: bool = False  # asynchronous

    @property
    def partial(self) -> bool:
        """Whether this call has a quorum (or an invalid one)."""
        return not (self.quorum == "full" or self.quorum == Full())

    def policy(self, name: str | None) -> Policy | None:
        """Return the policy; None: all ranks take part."""
        if not self.partial:
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

    def reduction(self) -> Reduction:
        if self.average is not None:
            if self.op is not None:
                raise ValueError("average: expected no op with it, got both; use op=Average or Sum")
            return Average if self.average else Sum
        if self.op is None:
            return Average
        if not isinstance(self.op, Reduction):
            known = "Average, Sum, Min, Max, Product or Adasum"
            raise TypeError(f"op: expected {known}, got {self.op!r}")
        return self.op

    def form(self, dtype: torch.dtype, ranks: int) -> tuple[Form, str]:
        """Return the reduction of values of this dtype, and its name for the comparison."""
        op = self.reduction()
        if op in (Average, Sum) and dtype == torch.bool:
            how = "convert it, for instance with tensor.int()"
            raise TypeError(f"op: {op.name} is not defined for {wire.name(dtype)}; {how}")
        if op in (Min, Max) and dtype.is_complex:
            raise TypeError(f"op: {op.name} is not defined for {wire.name(dtype)}")
        if op is Adasum and not dtype.is_floating_point:
            raise TypeError(f"op: {op.name} is for floating point, got {wire.name(dtype)}")
        before, after, text = self.prescale_factor, self.postscale_factor, op.name
        if not (type(before) is type(after) is float and before == after == 1):
            before = checks.real("prescale_factor", before)
            after = checks.real("postscale_factor", after)
        if (before, after) != (1, 1):
            if dtype == torch.bool:
                raise TypeError(
                    "prescale_factor and postscale_factor: expected 1 for a tensor of "
                    f"{wire.name(dtype)}, got {before} and {after}"
                )
            text += f", prescale_factor={before}, postscale_factor={after}"
        name, divisor = ("sum", ranks) if op is Average else (op.value, 1)  # by torch's name
        return Form(name, None if before == 1 else before, divisor, after), text
