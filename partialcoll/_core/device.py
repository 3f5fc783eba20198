# SPDX-License-Identifier: Apache-2.0
"""Arrays on a CUDA device: recognized by what they say of themselves, never imported for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .buffers import Buffer, dtype_code
from .ffi import answer, ffi, lib

_BFLOAT16 = "torch.bfloat16"


@dataclass
class DeviceBuffer(Buffer):
    """A buffer on a device. Its array has shape and dtype, but no memory."""

    address: int = 0
    device: int = 0
    stream: int | None = None  # on which its owner says that it is written

    @property
    def begin(self) -> int:
        """Its first byte's address."""
        return self.address

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for buffers that one handle can serve."""
        return (*super().key, self.device)


def _outline(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _contiguous(shape: tuple[int, ...], strides: Any, itemsize: int) -> bool:
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides or ())):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _facts(argument: str, array: Any) -> tuple[int, Any, tuple[int, ...], Any, bool, int | None]:
    """Address, dtype (None: bfloat16), shape, strides in bytes, read-only, stream."""
    if str(getattr(array, "dtype", "")) == _BFLOAT16:
        strides = tuple(2 * step for step in array.stride())
        return int(array.data_ptr()), None, tuple(array.shape), strides, False, None
    said = array.__cuda_array_interface__
    if said.get("mask") is not None:
        raise TypeError(f"{argument}: expected an array without a mask")
    address, read_only = said["data"]
    facts = np.dtype(said["typestr"]), tuple(said["shape"]), said.get("strides")
    return int(address or 0), *facts, bool(read_only), said.get("stream")


def as_device_buffer(argument: str, array: Any, writable: bool) -> DeviceBuffer:
    """One that a handle can copy from or to."""
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{argument}: expected a tensor that requires no grad; detach() it first")
    address, dtype, shape, strides, read_only, stream = _facts(argument, array)
    code = lib.PCOLL_BFLOAT16 if dtype is None else dtype_code(argument, dtype)
    outline = _outline(shape, np.dtype(np.uint16) if dtype is None else dtype)
    if not _contiguous(shape, strides, outline.itemsize):
        raise ValueError(
            f"{argument}: expected a C-contiguous array, got strides {tuple(strides)} for shape "
            f"{shape}; copy it first"
        )
    if writable and read_only:
        raise ValueError(f"{argument}: expected a writable array, got a read-only one")
    device = answer("int32_t", lib.pcoll_device_of, address)
    if device < 0 and outline.size:
        raise ValueError(
            f"{argument}: expected memory of a CUDA device, got {address:#x}, which the CUDA "
            "driver does not know; it has been freed, or was none"
        )
    return DeviceBuffer(outline, code, outline.size, None, array, address, max(device, 0), stream)


def one_device(buffers: list[Buffer]) -> int | None:
    """The device of all of them; None: they are the host's. Not some here and some there."""
    places = {buffer.device if isinstance(buffer, DeviceBuffer) else None for buffer in buffers}
    if len(places) > 1:
        said = ", ".join(sorted("the host" if p is None else f"device {p}" for p in places))
        raise ValueError(f"sendbuf, recvbuf: expected all buffers in one place, got {said}")
    return places.pop() if places else None


def _current(device: int) -> int | None:
    """The stream on which torch or cupy works now, where one of them is loaded."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(device).cuda_stream)
    if cupy is not None:
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)
    return None


def stream_number(stream: Any, buffers: list[DeviceBuffer]) -> int:
    """A CUstream as a number. None: the current one of torch or cupy, else the one that the array
    names, else the default one."""
    if stream is None:
        current = _current(buffers[0].device)
        named = next((b.stream for b in buffers if b.stream is not None), 0)
        return named if current is None else current
    for name in ("cuda_stream", "ptr", "handle"):  # torch, cupy, numba and cuda-python
        found = getattr(stream, name, None)
        if found is not None:
            stream = getattr(found, "value", found)
            break
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    if isinstance(stream, bool) or not isinstance(stream, (int, np.integer)) or stream < 0:
        raise TypeError(
            "stream: expected a stream of cupy or torch, the number of a CUstream or None, got "
            f"{type(stream).__name__}"
        )
    return int(stream)


class DeviceSide:
    """What a handle does with buffers on a device: they are copied to where deposits lie, and from
    where results do."""

    def __init__(self, send: list[DeviceBuffer], recv: list[DeviceBuffer]) -> None:
        self._send, self._recv = send, recv
        self._from = ffi.new("uint64_t[]", [buffer.address for buffer in self._send])
        self._to = ffi.new("uint64_t[]", [buffer.address for buffer in self._recv])

    def start(self, core: Any, stream: Any) -> int:
        """Begin to copy the send buffers; a result code of the core."""
        number = stream_number(stream, self._send)
        return int(lib.pcoll_handle_start_device(core, self._from, number))

    def fetch(self, core: Any, stream: Any) -> int:
        """Begin to copy the result to the receive buffers."""
        number = stream_number(stream, self._recv)
        return int(lib.pcoll_handle_fetch_device(core, self._to, number))

    @property
    def owners(self) -> list[Any]:
        """The arrays that results come to."""
        return [buffer.owner for buffer in self._recv]

    @property
    def sources(self) -> list[Any]:
        """The arrays that deposits come from."""
        return [buffer.owner for buffer in self._send]


def device_side(send: list[Buffer] | None, recv: list[Buffer]) -> DeviceSide | None:
    """For buffers that `one_device` has looked at; None: they are the host's."""
    on_device = [
        [b for b in buffers if isinstance(b, DeviceBuffer)] for buffers in (send or [], recv)
    ]
    return DeviceSide(*on_device) if on_device[1] else None
