# SPDX-License-Identifier: Apache-2.0
"""Which tensors can be sent, what they travel as, what they are called in messages, and where they
are moved: in the inference mode in which the call was made, whatever thread moves them, and those
of a device on a stream of their own (`Side`).

The current stream's work from before a call comes before the call's data moves. Later work of that
stream does not wait for the data, as it would for a kernel of its own, nor the data for that work.
At the end a thread waits on the host, so that whoever takes the result need not know of any stream.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np
import torch

from ..._core import checks
from ..._core.buffers import DTYPES, Array

# The dtype in which a dtype is reduced: 16-bit floats as float32, so that results are rounded once.
_KNOWN = [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]  # some are young
WIDE = {**dict(zip(_KNOWN, _KNOWN)), torch.float16: torch.float32, torch.bfloat16: torch.float32}


def check_tensor(tensor: Any, written: bool, reduced: bool = True, what: str = "tensor") -> None:
    """A dense tensor; of a dtype that the library reduces, if it has to."""
    if not isinstance(tensor, torch.Tensor):
        checks.instance(what, tensor, torch.Tensor, "a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what}: expected a dense tensor, got {tensor.layout}; use to_dense()")
    if tensor.is_quantized:
        raise TypeError(f"{what}: expected plain numbers, got a quantized tensor; use dequantize()")
    if tensor.is_meta:
        raise TypeError(f"{what}: expected one with memory, got one on meta")
    if reduced and tensor.dtype not in WIDE:
        expected = ", ".join(name(dtype) for dtype in WIDE)
        raise TypeError(f"{what}: expected one of {expected}, got {name(tensor.dtype)}")
    expanded = 0 in tensor.stride() and tensor.numel() > 1
    if written and expanded and any(not s and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            f"{what}: expected memory for each element, got an expanded tensor (stride 0); use "
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


def land(tensor: torch.Tensor, data: Array) -> None:
    """Put bytes into the tensor, unless they are its own memory (`bits`)."""
    if data.size and data.ctypes.data != tensor.data_ptr():
        tensor.detach().copy_(torch.from_numpy(data).view(tensor.dtype).view(tensor.shape))


def splits(what: str, sizes: Sequence[int] | None, rows: int, ranks: int) -> list[int]:
    """Return how many rows go to each rank: the given sizes, or the same number of rows to each."""
    if sizes is None:
        if rows % ranks:
            raise ValueError(f"{what}: expected sizes for {rows} rows on {ranks} ranks, got none")
        return [rows // ranks] * ranks
    own = [int(size) for size in sizes]
    if len(own) != ranks or sum(own) != rows or min(own) < 0:
        raise ValueError(f"{what}: expected {ranks} numbers of rows with the sum {rows}, got {own}")
    return own


def in_stream(device: torch.device, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call in whatever thread, on the stream that is current here and now."""
    if device.type == "cpu":
        return call
    module: Any = getattr(torch, device.type)
    current = module.current_stream(device)

    def there() -> Any:
        with module.stream(current):
            return call()

    return there


def room_for_rows(like: torch.Tensor, count: int) -> torch.Tensor:
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=like.device)


class Side:
    """The context in which a call works on tensors, for a ``with`` statement. For tensors of a
    device it has its own stream, which is the current one within the statement."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._entered: list[Any] = []
        self._stream: Any = None
        if device is not None:
            self._module: Any = getattr(torch, device.type)
            self._callers = self._module.current_stream(device)
            self._stream = self._module.Stream(device)
            self._stream.wait_event(self._callers.record_event())

    def __enter__(self) -> None:
        if torch.is_inference_mode_enabled() != self._inference:
            self._entered.append(torch.inference_mode(self._inference))
            self._entered[-1].__enter__()
        if self._stream is not None:
            self._entered.append(self._module.stream(self._stream))
            self._entered[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        while self._entered:
            self._entered.pop().__exit__(*error)

    def rows(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """Return room for `count` rows like a tensor's, allocated on the caller's stream, which
        uses and frees it. So earlier work of that stream on this memory must complete first."""
        if self._stream is None:
            return room_for_rows(like, count)
        with self._module.stream(self._callers):
            room = room_for_rows(like, count)
        self._stream.wait_event(self._callers.record_event())
        return room

    def settle(self) -> None:
        """Wait for what was begun there."""
        if self._stream is not None:
            self._stream.synchronize()


def side_of(tensors: Iterable[torch.Tensor]) -> Side:
    """Return that of a call that reads or fills these; ValueError if they are on two devices."""
    devices = {str(tensor.device) for tensor in tensors if not tensor.is_cpu}
    if len(devices) > 1:
        got = " and ".join(sorted(devices))
        raise ValueError(f"tensors: expected them on one device, got {got}")
    return Side(torch.device(devices.pop()) if devices else None)
