# SPDX-License-Identifier: Apache-2.0
"""Which op goes with which elements, and adding results up in Python."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from . import checks
from .buffers import Array, Buffer
from .mpi import MPI
from .pure import ffi, lib

_NAMES = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")


@functools.cache
def _ops() -> list[tuple[MPI.Op, int]]:
    return [(getattr(MPI, name), getattr(lib, f"PCOLL_{name}")) for name in _NAMES]


_HALVES = (lib.PCOLL_FLOAT16, lib.PCOLL_BFLOAT16)


def op_code(op: Any) -> int:
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op: expected an MPI.Op, got {checks.shown(op)}")
    if op == MPI.OP_NULL:
        raise ValueError("op: expected an op, got MPI.OP_NULL")
    for known, code in _ops():
        if op == known:
            return code
    return int(lib.PCOLL_MPI_OP)


def check_op(op: Any, code: int, buffer: Buffer) -> None:
    """Is the op defined for the elements? As far as it is not MPI's business."""
    if buffer.datatype is not None:
        return
    if code == lib.PCOLL_MPI_OP:
        if op.is_predefined:
            names = {"MAXLOC": MPI.MAXLOC, "MINLOC": MPI.MINLOC}
            name = next((f"MPI.{n}" for n, o in names.items() if o == op), "this op")
            raise TypeError(
                f"op: {name} is not defined for {buffer.name}; it takes pairs, in a buffer "
                "like [array, count, MPI.DOUBLE_INT]"
            )
        if buffer.dtype in _HALVES:
            raise TypeError(
                f"op: an op of your own needs elements that MPI knows, got {buffer.name}; give "
                "a datatype, as in [array, count, datatype]"
            )
        return
    if lib.pcoll_op_check(code, buffer.dtype):
        raise TypeError(ffi.string(lib.pcoll_last_error()).decode())


def has_identity(op: Any, buffer: Buffer) -> bool:
    """Does a round without contributions have a value? Not where MPI reduces."""
    return buffer.datatype is None and op_code(op) != lib.PCOLL_MPI_OP


def can_add(code: int, buffer: Buffer) -> bool:
    """Can numpy add results up: is it a sum of numbers?"""
    return code == lib.PCOLL_SUM and (
        buffer.dtype == lib.PCOLL_BFLOAT16 or buffer.array.dtype.kind in "iufc"
    )


def _to_float32(array: Array) -> Array:
    if array.dtype == np.uint16:  # the bits of bfloat16
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def narrow(like: Array, values: Array) -> Array:
    """float32 values in the half type of another array."""
    if like.dtype != np.uint16:
        return values.astype(like.dtype)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def is_half(buffer: Buffer) -> bool:
    return buffer.dtype in _HALVES


_IDENTITIES = {lib.PCOLL_PROD: 1, lib.PCOLL_LAND: 1, lib.PCOLL_BAND: -1}  # else 0


def identity(op: Any, buffer: Buffer) -> Array:
    """What a round without contributions holds; zeros where the op has no such value."""
    like, code = buffer.array, op_code(op)
    if not has_identity(op, buffer):
        return np.zeros(like.shape, like.dtype)
    dtype = np.dtype(np.float32) if is_half(buffer) else like.dtype
    value: Any = _IDENTITIES.get(code, 0)
    if code in (lib.PCOLL_MIN, lib.PCOLL_MAX):
        limits: Any = (-np.inf, np.inf)
        if dtype.kind != "f":
            limits = np.iinfo(dtype).min, np.iinfo(dtype).max
        value = limits[code == lib.PCOLL_MIN]
    values = np.full(like.shape, np.asarray(value).astype(dtype), dtype)
    return narrow(like, values) if is_half(buffer) else values


def add_up(buffer: Buffer, results: list[Array]) -> None:
    """The sum of several results into the buffer; half types add up in float32."""
    out = buffer.array
    if buffer.dtype not in _HALVES:
        np.copyto(out, results[0])
        for result in results[1:]:
            np.add(out, result, out=out)
        return
    total = _to_float32(results[0])
    for result in results[1:]:
        total = total + _to_float32(result)
    out[...] = narrow(out, np.asarray(total, np.float32))
