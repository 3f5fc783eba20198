# SPDX-License-Identifier: Apache-2.0
"""Arrays on a CUDA device: recognized by what they say of themselves, never imported for."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import checks
from .buffers import Buffer, as_buffer, as_buffers, bfloat16, dtype_code, is_device, is_list
from .ffi import answer, lib

# DLPack's capsule is read and given back: the array itself is kept, and streams order the work.

_KINDS = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_BFLOAT, _BOOL = 4, 6


class _Tensor(ctypes.Structure):
    """DLTensor, with which an unversioned DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def dlpack_facts(
    argument: str, array: Any
) -> tuple[int, np.dtype[Any] | None, tuple[int, ...], tuple[int, ...] | None]:
    """Return address, dtype (None: bfloat16), shape, strides in bytes (None: C-contiguous)."""
    capsule = array.__dlpack__(stream=-1)  # nothing is to be waited for
    tensor = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    kind, bits, shape = tensor.kind, tensor.bits, tuple(tensor.shape[: tensor.ndim])
    bfloat = kind == _BFLOAT and bits == 16
    if tensor.lanes != 1 or not (bfloat or kind == _BOOL or kind in _KINDS):
        raise TypeError(f"{argument}: expected a dtype of the library, got DLPack's {kind}")
    name = "bool" if kind == _BOOL else f"{_KINDS.get(kind)}{bits}"
    dtype, strides = None if bfloat else np.dtype(name), None
    if tensor.strides:
        strides = tuple(bits // 8 * step for step in tensor.strides[: tensor.ndim])
    return int(tensor.data or 0) + int(tensor.byte_offset), dtype, shape, strides


@dataclass
class DeviceBuffer(Buffer):
    """A buffer on a device. Its array has shape and dtype, but no memory."""

    address: int = 0
    device: int = 0
    stream: int | None = None  # on which its owner says that it is written

    @property
    def begin(self) -> int:
        return self.address

    @property
    def key(self) -> tuple[Any, ...]:
        return (*super().key, self.device)


def _facts(
    argument: str, array: Any
) -> tuple[int, np.dtype[Any] | None, tuple[int, ...], Any, bool, int | None]:
    """Return address, dtype (None: bfloat16), shape, strides in bytes, read-only, stream."""
    if hasattr(array, "data_ptr"):  # a tensor: for bfloat16 it has no interface
        for lazy in ("conj", "neg"):  # of which its memory knows nothing
            if getattr(array, f"is_{lazy}", bool)():
                raise TypeError(
                    f"{argument}: expected a tensor that is what its memory holds, got one whose "
                    f"{lazy} bit is set; resolve_{lazy}() it first"
                )
        name = str(array.dtype).replace("torch.", "")
        try:
            dtype = None if name == "bfloat16" else np.dtype(name)
        except TypeError as error:
            raise TypeError(f"{argument}: expected a dtype of the library, got {name}") from error
        strides = tuple(array.element_size() * step for step in array.stride())
        return int(array.data_ptr()), dtype, tuple(array.shape), strides, False, None
    if not hasattr(array, "__cuda_array_interface__"):
        return (*dlpack_facts(argument, array), False, None)
    said = array.__cuda_array_interface__
    if said.get("mask") is not None:
        raise TypeError(f"{argument}: expected an array without a mask")
    address, read_only = said["data"]
    facts = np.dtype(said["typestr"]), tuple(said["shape"]), said.get("strides")
    return int(address or 0), *facts, bool(read_only), said.get("stream")


def as_device_buffer(argument: str, array: Any, writable: bool) -> DeviceBuffer:
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{argument}: expected a tensor that requires no grad; detach() it first")
    address, dtype, shape, strides, read_only, stream = _facts(argument, array)
    code = lib.PCOLL_BFLOAT16 if dtype is None else dtype_code(argument, dtype)
    outline = np.broadcast_to(np.zeros((), bfloat16() if dtype is None else dtype), shape)
    if strides and not as_strided(outline, shape, strides).flags.c_contiguous:
        raise ValueError(
            f"{argument}: expected a C-contiguous array, got strides {tuple(strides)} for shape "
            f"{shape}; copy it first"
        )
    if writable and read_only:
        raise ValueError(f"{argument}: expected a writable array, got a read-only one")
    device = answer("int32_t", lib.pcoll_device_of, address)
    if device < 0 and outline.size:
        said = f"an array on {array.device}" if hasattr(array, "device") else "an array"
        raise ValueError(
            f"{argument}: expected memory of the host or of a CUDA device, got {said} at "
            f"{address:#x}, which the CUDA driver does not know; it has been freed, or was none"
        )
    return DeviceBuffer(outline, code, outline.size, None, array, address, max(device, 0), stream)


def one_device(buffers: list[Buffer]) -> int | None:
    """Return the device of those that are on one; None: all are the host's."""
    devices = sorted({buffer.device for buffer in on_device(buffers)})
    if len(devices) > 1:
        said = ", ".join(map(str, devices))
        raise ValueError(f"sendbuf, recvbuf: expected buffers on one device, got devices {said}")
    foreign = next((b for b in buffers if b.datatype is not None), None)
    if devices and foreign is not None:
        raise TypeError(
            "sendbuf, recvbuf: expected elements that the library knows beside buffers on a "
            f"device, got the datatype {foreign.name}"
        )
    return devices[0] if devices else None


def _current(device: int) -> int | None:
    """Return the stream on which torch or cupy works now, where one of them is loaded."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(device).cuda_stream)
    if cupy is not None:
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)
    return None


def as_any_buffer(argument: str, given: Any, writable: bool) -> Buffer:
    make = as_device_buffer if is_device(given) else as_buffer
    return make(argument, given, writable)


def as_any_buffers(argument: str, given: Any, writable: bool, used: bool = True) -> list[Buffer]:
    several = is_list(given)
    if not any(map(is_device, given if several else [given])):
        return as_buffers(argument, given, writable, used)
    if not several:
        return [as_device_buffer(argument, given, writable)]
    return [as_any_buffer(f"{argument}[{i}]", one, writable) for i, one in enumerate(given)]


def on_device(buffers: list[Buffer]) -> list[DeviceBuffer]:
    return [buffer for buffer in buffers if isinstance(buffer, DeviceBuffer)]


def refuse_stream(stream: Any) -> None:
    if stream is not None:
        raise ValueError(
            f"stream: expected None with buffers of the host, got {checks.shown(stream)}"
        )


def stream_number(stream: Any, buffers: list[DeviceBuffer]) -> int:
    """Return a CUstream as a number. None: the current one of torch or cupy, else the one that the
    array names, else the default one. 0 without buffers."""
    if not buffers:
        return 0
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
