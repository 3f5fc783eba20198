# SPDX-License-Identifier: Apache-2.0
"""Buffers as mpi4py takes them, turned into contiguous numpy arrays and addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ._ffi import ffi, lib

_DTYPES: dict[str, int] = {
    "float32": lib.PCOLL_FLOAT32,
    "float64": lib.PCOLL_FLOAT64,
    "int32": lib.PCOLL_INT32,
    "int64": lib.PCOLL_INT64,
}
_OPS: list[tuple[MPI.Op, int]] = [
    (MPI.SUM, lib.PCOLL_SUM),
    (MPI.PROD, lib.PCOLL_PROD),
    (MPI.MIN, lib.PCOLL_MIN),
    (MPI.MAX, lib.PCOLL_MAX),
]

Array = np.ndarray[Any, Any]


def op_code(op: Any) -> int:
    """The core's number of an MPI.Op."""
    for known, code in _OPS:
        if isinstance(op, MPI.Op) and op == known:
            return code
    got = op.Get_name() if isinstance(op, MPI.Op) and hasattr(op, "Get_name") else repr(op)
    raise TypeError(f"op: expected MPI.SUM, MPI.PROD, MPI.MIN or MPI.MAX, got {got}")


def dtype_code(argument: str, dtype: np.dtype[Any]) -> int:
    """The core's number of a dtype in native byte order."""
    if dtype.name not in _DTYPES or not dtype.isnative:
        raise TypeError(
            f"{argument}: expected elements of {', '.join(_DTYPES)}, got {dtype.str} ({dtype.name})"
        )
    return _DTYPES[dtype.name]


def _is_spec(buffer: Any) -> bool:
    """[array, count], [array, datatype] or [array, count, datatype], as in mpi4py."""
    return (
        isinstance(buffer, (list, tuple))
        and 2 <= len(buffer) <= 3
        and all(isinstance(item, (int, np.integer, str, MPI.Datatype)) for item in buffer[1:])
    )


def _to_array(argument: str, buffer: Any) -> Array:
    if isinstance(buffer, np.ndarray):
        return buffer
    if getattr(buffer, "requires_grad", False):
        raise TypeError(f"{argument}: expected a tensor that requires no grad; detach() it first")
    try:
        if hasattr(buffer, "__array__"):  # a torch CPU tensor shares its memory this way
            array = np.asarray(buffer)
        else:
            array = np.asarray(memoryview(buffer))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{argument}: expected a numpy array or a buffer that mpi4py takes, "
            f"got {type(buffer).__name__} ({error})"
        ) from error
    return array


def _apply_spec(argument: str, spec: Any) -> Array:
    array = _to_array(argument, spec[0])
    count: int | None = None
    for item in spec[1:]:
        if isinstance(item, (int, np.integer)):
            count = int(item)
            continue
        datatype = MPI._typedict[item] if isinstance(item, str) else item
        code = MPI._typecode(datatype) if hasattr(MPI, "_typecode") else datatype.tocode()
        if code is None or np.dtype(code) != array.dtype:
            raise TypeError(
                f"{argument}: the datatype {datatype.Get_name()} is not that of the "
                f"array, {array.dtype.name}"
            )
    if count is None:
        return array
    if not 0 <= count <= array.size:
        raise ValueError(f"{argument}: expected a count of 0 to {array.size}, got {count}")
    return array.reshape(-1)[:count] if array.flags.c_contiguous else array


def as_array(argument: str, buffer: Any, writable: bool) -> Array:
    """One buffer as a C-contiguous array that shares its memory."""
    array = _apply_spec(argument, buffer) if _is_spec(buffer) else _to_array(argument, buffer)
    dtype_code(argument, array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{argument}: expected a C-contiguous buffer, got strides {array.strides} "
            f"for shape {array.shape}; pass np.ascontiguousarray(...)"
        )
    if writable and not array.flags.writeable:
        raise ValueError(f"{argument}: expected a writable buffer, got a read-only one")
    return array


def as_arrays(argument: str, buffers: Any, writable: bool) -> list[Array]:
    """One buffer or a list of buffers."""
    if isinstance(buffers, (list, tuple)) and not _is_spec(buffers):
        if not buffers:
            raise ValueError(f"{argument}: expected at least one buffer, got an empty list")
        return [as_array(f"{argument}[{i}]", b, writable) for i, b in enumerate(buffers)]
    return [as_array(argument, buffers, writable)]


def check_match(send: list[Array], recv: list[Array]) -> None:
    """The send and receive buffers must agree one by one and must not overlap."""
    if len(send) != len(recv):
        raise ValueError(f"recvbuf: expected {len(send)} buffers like sendbuf, got {len(recv)}")
    for i, (s, r) in enumerate(zip(send, recv)):
        which = f"recvbuf[{i}]" if len(recv) > 1 else "recvbuf"
        if s.dtype != r.dtype:
            raise TypeError(
                f"{which}: expected dtype {s.dtype.name} as in sendbuf, got {r.dtype.name}"
            )
        if s.size != r.size:
            raise ValueError(f"{which}: expected {s.size} elements as in sendbuf, got {r.size}")
    check_apart("recvbuf", recv)
    for s in send:
        for r in recv:
            if s.size and r.size and np.may_share_memory(s, r):
                raise ValueError(
                    "recvbuf: expected memory of its own, got memory that overlaps sendbuf; "
                    "use sendbuf=MPI.IN_PLACE to reduce in place"
                )


def check_apart(argument: str, arrays: list[Array]) -> None:
    """Buffers that are written must not overlap each other."""
    bounds = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays if a.nbytes)
    for (_, end), (begin, _) in zip(bounds, bounds[1:]):
        if begin < end:
            raise ValueError(
                f"{argument}: expected buffers apart from each other, got overlapping ones"
            )


def addresses(arrays: list[Array]) -> Any:
    """A C array of the buffers' addresses. Keep the arrays alive as long as it is used."""
    pointers = ffi.new("void *[]", len(arrays))
    for i, array in enumerate(arrays):
        pointers[i] = ffi.cast("void *", array.ctypes.data)
    return pointers


def wrap(address: Any, like: Array) -> Array:
    """An array on memory of the core, shaped like another."""
    memory = ffi.buffer(ffi.cast("char *", address), max(like.nbytes, 1))
    return np.frombuffer(memory, dtype=like.dtype, count=like.size).reshape(like.shape)
