# SPDX-License-Identifier: Apache-2.0
"""Horovod's compression: values are rounded before the ranks combine them."""

from __future__ import annotations

from typing import Any

import torch


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
