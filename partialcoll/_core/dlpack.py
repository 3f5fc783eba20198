# SPDX-License-Identifier: Apache-2.0
"""Arrays of a device that offer themselves by DLPack alone: where they are, and of what.

The capsule is looked at and given back: the array itself is kept, and what is to be waited for is
said by streams.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

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


def _dtype(argument: str, tensor: _Tensor) -> np.dtype[Any] | None:
    if tensor.lanes == 1 and tensor.kind == _BFLOAT and tensor.bits == 16:
        return None
    if tensor.lanes == 1 and tensor.kind == _BOOL:
        return np.dtype(bool)
    if tensor.lanes != 1 or tensor.kind not in _KINDS:
        raise TypeError(f"{argument}: expected a dtype of the library, got DLPack's {tensor.kind}")
    return np.dtype(f"{_KINDS[tensor.kind]}{tensor.bits}")


def facts(
    argument: str, array: Any
) -> tuple[int, np.dtype[Any] | None, tuple[int, ...], tuple[int, ...] | None]:
    """Address, dtype (None: bfloat16), shape, strides in bytes (None: C-contiguous)."""
    capsule = array.__dlpack__(stream=-1)  # nothing is to be waited for
    tensor = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    dtype, shape = _dtype(argument, tensor), tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple(tensor.bits // 8 * step for step in tensor.strides[: tensor.ndim])
    return int(tensor.data or 0) + int(tensor.byte_offset), dtype, shape, strides
