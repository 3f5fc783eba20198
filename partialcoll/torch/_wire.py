# SPDX-License-Identifier: Apache-2.0
"""How a tensor's values get into the library's memory and out of it, and by what they are
multiplied on the way. Local; knows nothing of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from .._buffers import Array
from ._agreement import Key
from ._reductions import Average, Max, Min, Product, Reduction, Sum

# What a dtype travels as: 16-bit floats in float32, so that results are rounded once.
_WIRE = {
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
_OPS = {Average: "sum", Sum: "sum", Min: "min", Max: "max", Product: "product"}
_OF_BOOL = {Min: "and", Max: "or", Product: "and"}


def check_tensor(tensor: Any, written: bool, reduced: bool = True) -> None:
    """A dense CPU tensor; of a dtype that the library reduces, if it has to."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"tensor: expected a dense tensor, got {tensor.layout}; use to_dense()")
    if tensor.is_quantized:
        raise TypeError("tensor: expected plain numbers, got a quantized tensor; use dequantize()")
    if tensor.device.type != "cpu":
        raise TypeError(f"tensor: expected a CPU tensor, got one on {tensor.device}")
    if reduced and tensor.dtype not in _WIRE:
        expected = ", ".join(name(dtype) for dtype in _WIRE)
        raise TypeError(f"tensor: expected one of {expected}, got {name(tensor.dtype)}")
    if written and any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            "tensor: expected memory for each element, got an expanded tensor (stride 0); use "
            "clone()"
        )


def name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def wire_dtype(dtype: torch.dtype) -> str:
    """What it travels as when it is reduced, by numpy's name."""
    return _WIRE[dtype]


def describe(tensor: torch.Tensor) -> str:
    """For messages, and equal on ranks whose tensors match."""
    return f"{name(tensor.dtype)} {tuple(tensor.shape)}"


# Reducing


@dataclass(frozen=True)
class Reducing:
    """What becomes of the values of tensors of a dtype and shape."""

    key: Key
    text: str
    before: float
    divisor: int
    after: float

    def deposit(self, tensor: torch.Tensor, array: Array) -> None:
        """Into the send buffer."""
        torch.from_numpy(array).copy_(tensor.detach().reshape(-1))
        if self.before != 1:
            array *= self.before

    def take(self, result: Array, output: torch.Tensor) -> torch.Tensor:
        """Out of the result, into a tensor of the program's."""
        values = result.copy()
        if self.divisor > 1 and values.dtype.kind in "iu":
            values //= self.divisor
        elif self.divisor > 1:
            values /= self.divisor
        if self.after != 1:
            values *= self.after
        output.detach().copy_(torch.from_numpy(values).view(output.shape))
        return output


def plan_reducing(
    tensor: torch.Tensor, op: Reduction, before: Any, after: Any, ranks: int
) -> Reducing:
    """Raises TypeError or ValueError if the tensor's dtype does not go with the rest."""
    dtype = _WIRE[tensor.dtype]
    kind = np.dtype(dtype).kind
    ops = _OF_BOOL if kind == "b" else _OPS
    if op not in ops or (kind == "c" and op in (Min, Max)):
        more = "; convert it, for instance with tensor.int()" if kind == "b" else ""
        raise TypeError(f"op: {op.name} is not defined for {name(tensor.dtype)}{more}")
    before, after = _factor("prescale_factor", before), _factor("postscale_factor", after)
    if kind in "biu" and (before, after) != (1, 1):
        raise TypeError(
            "prescale_factor and postscale_factor: expected 1 for a tensor of "
            f"{name(tensor.dtype)}, got {before} and {after}"
        )
    text = f"allreduce of {describe(tensor)}, {op.name}"
    if (before, after) != (1, 1):
        text += f", prescale_factor={before}, postscale_factor={after}"
    divisor = ranks if op is Average else 1
    return Reducing((dtype, tensor.numel(), ops[op]), text, before, divisor, after)


def _factor(argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument}: expected a number, got {type(value).__name__}")
    return float(value)


# Bits as they are


def bits_key(tensor: torch.Tensor) -> Key:
    """A tensor's bytes, in whole words."""
    return ("int64", -(-tensor.numel() * tensor.element_size() // 8), "bits")


def bits(tensor: torch.Tensor) -> Array:
    """Its bytes: a view if it is contiguous, else a copy."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    array: Array = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return array


def deposit_bits(tensor: torch.Tensor | None, array: Array) -> None:
    """Into the send buffer; None: another rank's will be the result."""
    array[:] = 0
    if tensor is not None:
        own = bits(tensor)
        array.view(np.uint8)[: own.size] = own


def take_bits(result: Array, output: torch.Tensor) -> torch.Tensor:
    """Into a tensor of the program's."""
    fresh = torch.empty(output.shape, dtype=output.dtype)
    size = fresh.numel() * fresh.element_size()
    bits(fresh)[:] = result.reshape(-1).view(np.uint8)[:size]
    output.detach().copy_(fresh)
    return output


def send_bits(
    comm: MPI.Intracomm, tensor: torch.Tensor, output: torch.Tensor | None, root: int
) -> torch.Tensor:
    """One rank's bits to all, into an output, or in place. Collective, blocks."""
    memory = bits(tensor)
    direct = output is None and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if not direct:
        memory = memory.copy()
    comm.Bcast(memory, root)
    return tensor if direct else take_bits(memory, tensor if output is None else output)
