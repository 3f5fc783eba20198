# SPDX-License-Identifier: Apache-2.0
"""Which tensors can be sent, what they travel as, and what they are called in messages."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from ..._core import checks
from ..._core.buffers import Array

# What a dtype travels as when it is reduced: 16-bit floats as float32, so that results are rounded
# once. By numpy's name, and by torch's dtype.
WIRE = {
    torch.float16: "float32",
    torch.bfloat16: "float32",
    **{
        getattr(torch, name): name
        for name in (
            *("float32", "float64", "complex64", "complex128", "bool"),
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        )
        if hasattr(torch, name)  # unsigned ones are young
    },
}
WIDE = {dtype: getattr(torch, wire) for dtype, wire in WIRE.items()}


def check_tensor(tensor: Any, written: bool, reduced: bool = True) -> None:
    """A dense tensor; of a dtype that the library reduces, if it has to."""
    if not isinstance(tensor, torch.Tensor):
        checks.instance("tensor", tensor, torch.Tensor, "a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"tensor: expected a dense tensor, got {tensor.layout}; use to_dense()")
    if tensor.is_quantized:
        raise TypeError("tensor: expected plain numbers, got a quantized tensor; use dequantize()")
    if tensor.is_meta:
        raise TypeError("tensor: expected one with memory, got one on meta")
    if reduced and tensor.dtype not in WIRE:
        expected = ", ".join(name(dtype) for dtype in WIRE)
        raise TypeError(f"tensor: expected one of {expected}, got {name(tensor.dtype)}")
    expanded = 0 in tensor.stride() and tensor.numel() > 1
    if written and expanded and any(not s and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            "tensor: expected memory for each element, got an expanded tensor (stride 0); use "
            "clone()"
        )


@functools.cache
def name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def describe(tensor: torch.Tensor) -> str:
    """For messages, and equal on ranks whose tensors match."""
    return f"{name(tensor.dtype)} {tuple(tensor.shape)}"


def bits(tensor: torch.Tensor) -> Array:
    """Its bytes: a view if it is contiguous, and the host's, else a copy."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).cpu()
    array: Array = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return array
