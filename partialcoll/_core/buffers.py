# SPDX-License-Identifier: Apache-2.0
"""Buffers as mpi4py takes them, turned into contiguous numpy arrays and addresses; which op goes
with which elements, and adding results up in Python."""

from __future__ import annotations

import functools
import importlib
import itertools
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from . import checks
from .ffi import core
from .mpi import MPI
from .pure import ffi, lib

_NAMES = (
    "float16 bfloat16 float32 float64 complex64 complex128 int8 int16 int32 int64 uint8 uint16 "
    "uint32 uint64 bool"
)
DTYPES: dict[str, int] = {n: getattr(lib, f"PCOLL_{n.upper()}") for n in _NAMES.split()}
_FLOATS = {lib.PCOLL_FLOAT16, lib.PCOLL_BFLOAT16, lib.PCOLL_FLOAT32, lib.PCOLL_FLOAT64}
Array = np.ndarray[Any, Any]


@dataclass
class Buffer:
    """One buffer of a handle: an array that shares its memory, and what the core has to know.
    ``owner`` is what was given: it keeps the memory alive. ``datatype`` is set where only MPI knows
    the elements; ``count`` counts these."""

    array: Array
    dtype: int
    count: int
    datatype: MPI.Datatype | None = None
    owner: Any = None

    def like(self, memory: bool) -> Buffer:
        """Return one of the same kind, in C order; without `memory` its array takes none."""
        shape, dtype = self.array.shape, self.array.dtype
        array = np.zeros(shape, dtype) if memory else np.broadcast_to(np.zeros((), dtype), shape)
        return Buffer(array, self.dtype, self.count, self.datatype)

    @property
    def begin(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for buffers that one handle can serve."""
        datatype = None if self.datatype is None else self.datatype.handle
        return (self.dtype, self.count, self.array.dtype.str, datatype)

    @property
    def name(self) -> str:
        if self.datatype is not None:
            return self.datatype.Get_name() or f"a derived one of {self.datatype.size} bytes"
        return dtype_name(self.dtype)


def dtype_name(dtype: int) -> str:
    return next(name for name, code in DTYPES.items() if code == dtype)


def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes' bfloat16 where that package is installed, else uint16 for the bits."""
    try:
        return cast("np.dtype[Any]", np.dtype(importlib.import_module("ml_dtypes").bfloat16))
    except ImportError:
        return np.dtype(np.uint16)


def _is_spec(buffer: Any) -> bool:
    """Return whether it is mpi4py's [array, count], [array, type] or [array, count, type]."""
    return (
        isinstance(buffer, (list, tuple))
        and 2 <= len(buffer) <= 3
        and all(isinstance(item, (int, np.integer, str, MPI.Datatype)) for item in buffer[1:])
    )


def _is_bfloat16_tensor(buffer: Any) -> bool:
    """A torch tensor that has no way to numpy, recognized without torch."""
    return str(getattr(buffer, "dtype", "")) == "torch.bfloat16" and hasattr(buffer, "data_ptr")


def _view_bfloat16_tensor(argument: str, tensor: Any) -> Array:
    if tensor.device.type != "cpu":
        raise TypeError(f"{argument}: expected a CPU tensor, got one on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{argument}: expected a C-contiguous tensor, got strides {tuple(tensor.stride())} "
            f"for shape {tuple(tensor.shape)}; pass tensor.contiguous()"
        )
    like = np.empty(tuple(tensor.shape), bfloat16())
    pointer = ffi.gc(ffi.cast("char *", tensor.data_ptr()), lambda _: tensor)  # which it keeps
    return wrap(pointer, like) if like.size else like


def _to_array(argument: str, buffer: Any) -> Array:
    if isinstance(buffer, np.ndarray):
        return buffer
    if getattr(buffer, "requires_grad", False):
        raise TypeError(f"{argument}: expected a tensor that requires no grad; detach() it first")
    if _is_bfloat16_tensor(buffer):
        return _view_bfloat16_tensor(argument, buffer)
    try:  # a torch CPU tensor shares its memory by __array__
        return np.asarray(buffer if hasattr(buffer, "__array__") else memoryview(buffer))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{argument}: expected a numpy array or a buffer that mpi4py takes, "
            f"got {type(buffer).__name__} ({error})"
        ) from error


def dtype_code(argument: str, dtype: np.dtype[Any]) -> int:
    if dtype.isnative and dtype.name in DTYPES:
        return DTYPES[dtype.name]
    if dtype.newbyteorder("=").name in DTYPES:
        raise TypeError(
            f"{argument}: expected elements in this machine's byte order, got {dtype.str} "
            f'({dtype.name}); array.astype("{dtype.name}") has them so'
        )
    hint = (
        "a structured one needs a datatype and an op that take it, as in [array, count, datatype]"
    )
    raise TypeError(
        f"{argument}: expected elements of {', '.join(DTYPES)}, "
        f"got {dtype.str} ({dtype.name}){f'; {hint}' if dtype.names else ''}"
    )


def _from_array(argument: str, array: Array) -> Buffer:
    """Return a buffer of one of our dtypes, or of a long double, of mpi4py's datatype."""
    if array.dtype.char in "gG" and array.dtype.isnative:
        return Buffer(array, lib.PCOLL_MPI_TYPE, array.size, MPI._typedict[array.dtype.char])
    return Buffer(array, dtype_code(argument, array.dtype), array.size)


def _with_datatype(argument: str, array: Array, datatype: MPI.Datatype) -> Buffer:
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{argument}: expected a datatype, got MPI.DATATYPE_NULL")
    try:
        known: np.dtype[Any] | None = np.dtype(datatype.tocode())
    except (TypeError, ValueError):  # a pair, or derived
        known = None
    if known is not None:
        if known != array.dtype:
            raise TypeError(
                f"{argument}: the datatype {datatype.Get_name()} is not that of the "
                f"array, {array.dtype.name}"
            )
        if known.name in DTYPES:
            return _from_array(argument, array)
    if array.dtype.hasobject or not array.dtype.isnative:
        raise TypeError(
            f"{argument}: expected elements in this machine's own form, got {array.dtype.str}"
        )
    extent = datatype.Get_extent()[1]
    if extent < 1:
        raise ValueError(
            f"{argument}: expected a datatype with elements of 1 byte or more, got extent {extent}"
        )
    if array.nbytes % extent:
        raise ValueError(
            f"{argument}: expected a whole number of elements of {extent} bytes "
            f"({datatype.Get_name() or 'a derived datatype'}), got {array.nbytes} bytes"
        )
    return Buffer(array, lib.PCOLL_MPI_TYPE, array.nbytes // extent, datatype)


def _cut(argument: str, buffer: Buffer, count: int) -> Buffer:
    if not 0 <= count <= buffer.count:
        raise ValueError(f"{argument}: expected a count of 0 to {buffer.count}, got {count}")
    array = buffer.array
    if not array.flags.c_contiguous:  # refused later
        return buffer
    if buffer.datatype is None:
        array = array.reshape(-1)[:count]
    elif count < buffer.count:
        bytes_each = array.nbytes // buffer.count
        if count * bytes_each % array.itemsize:
            raise ValueError(
                f"{argument}: {count} elements of {bytes_each} bytes end inside an element of the "
                f"array, {array.dtype.name}"
            )
        array = array.reshape(-1)[: count * bytes_each // array.itemsize]
    return Buffer(array, buffer.dtype, count, buffer.datatype)


def _apply_spec(argument: str, spec: Any) -> Buffer:
    array = _to_array(argument, spec[0])
    count: int | None = None
    datatype: MPI.Datatype | None = None
    for item in spec[1:]:
        if isinstance(item, (int, np.integer)):
            count = int(item)
        elif isinstance(item, str):
            if item not in MPI._typedict:
                raise TypeError(f"{argument}: expected the code of a datatype, got {item!r}")
            datatype = MPI._typedict[item]
        else:
            datatype = item
    if datatype is None:
        buffer = _from_array(argument, array)
    else:
        buffer = _with_datatype(argument, array, datatype)
    return buffer if count is None else _cut(argument, buffer, count)


def is_device(array: Any) -> bool:
    """Return whether the array is on a device, by attributes of torch, cupy, numba or DLPack."""
    if isinstance(array, np.ndarray):
        return False
    kind = getattr(getattr(array, "device", None), "type", None)  # of a tensor: a text
    if isinstance(kind, str):
        return kind != "cpu"
    said = getattr(array, "__dlpack_device__", None)
    return hasattr(array, "__cuda_array_interface__") or (
        said is not None and said()[0] in (2, 13)  # kDLCUDA, kDLCUDAManaged
    )


def as_buffer(argument: str, given: Any, writable: bool, used: bool = True) -> Buffer:
    """Return one C-contiguous buffer, whose array shares the memory. An array that is not used, but
    looked at for its shape, need not be contiguous."""
    spec = _is_spec(given)
    owner = given[0] if spec else given
    if is_device(owner):
        raise TypeError(
            f"{argument}: expected memory of the host here, got {type(owner).__name__} on a "
            "device; docs/gpu.md says what takes those, as arrays without a count or datatype"
        )
    if writable and not (isinstance(owner, np.ndarray) or hasattr(owner, "data_ptr")):
        once, again = _to_array(argument, owner), _to_array(argument, owner)
        if once.size and not np.may_share_memory(once, again):  # arrays can be made of it, no more
            what = "an array whose memory can be written to"
            raise TypeError(f"{argument}: expected {what}, got {type(owner).__name__}")
    if spec:
        buffer = _apply_spec(argument, given)
    else:
        buffer = _from_array(argument, _to_array(argument, given))
    array = buffer.array
    bits = array.dtype == np.uint16 and _is_bfloat16_tensor(owner)
    dtype = lib.PCOLL_BFLOAT16 if bits else buffer.dtype
    if (used or spec) and not array.flags.c_contiguous:
        raise ValueError(
            f"{argument}: expected a C-contiguous buffer, got strides {array.strides} "
            f"for shape {array.shape}; pass np.ascontiguousarray(...)"
        )
    if writable and not array.flags.writeable:
        raise ValueError(f"{argument}: expected a writable buffer, got a read-only one")
    return Buffer(array, dtype, buffer.count, buffer.datatype, owner)


def check_floats(argument: str, buffer: Buffer) -> Buffer:
    if buffer.dtype not in _FLOATS or buffer.datatype is not None:
        raise TypeError(
            f"{argument}: expected float16, bfloat16, float32 or float64, got {buffer.name}"
        )
    return buffer


def as_floats(argument: str, given: Any, writable: bool) -> Buffer:
    return check_floats(argument, as_buffer(argument, given, writable))


def is_list(buffers: Any) -> bool:
    return isinstance(buffers, (list, tuple)) and not _is_spec(buffers)


def as_buffers(argument: str, buffers: Any, writable: bool, used: bool = True) -> list[Buffer]:
    if not is_list(buffers):
        return [as_buffer(argument, buffers, writable, used)]
    if not buffers:
        raise ValueError(f"{argument}: expected at least one buffer, got an empty list")
    return [as_buffer(f"{argument}[{i}]", b, writable, used) for i, b in enumerate(buffers)]


def _same_datatype(a: MPI.Datatype | None, b: MPI.Datatype | None) -> bool:
    """Derived ones that were made twice are only known by their size."""
    if a is None or b is None:
        return a is b
    return a == b or (not a.is_predefined and not b.is_predefined and a.size == b.size)


def check_same(argument: str, found: Buffer, other: str, like: Buffer) -> None:
    if found.dtype != like.dtype or not _same_datatype(found.datatype, like.datatype):
        kind = "dtype" if like.datatype is None else "datatype"
        raise TypeError(f"{argument}: expected {kind} {like.name} as in {other}, got {found.name}")
    if found.count != like.count:
        count = f"{like.count} elements as in {other}"
        raise ValueError(f"{argument}: expected {count}, got {found.count}")


def check_match(send: list[Buffer], recv: list[Buffer]) -> None:
    if len(send) != len(recv):
        raise ValueError(f"recvbuf: expected {len(send)} buffers like sendbuf, got {len(recv)}")
    for i, (s, r) in enumerate(zip(send, recv)):
        check_same(f"recvbuf[{i}]" if len(recv) > 1 else "recvbuf", r, "sendbuf", s)
    check_apart("recvbuf", recv)
    for s, r in itertools.product(send, recv):
        if s.begin < r.begin + r.array.nbytes and r.begin < s.begin + s.array.nbytes:
            raise ValueError(
                "recvbuf: expected memory of its own, got memory that overlaps sendbuf; use "
                "sendbuf=MPI.IN_PLACE to reduce in place"
            )


def check_apart(argument: str, buffers: list[Buffer]) -> None:
    bounds = sorted((b.begin, b.begin + b.array.nbytes) for b in buffers if b.array.nbytes)
    for (_, end), (begin, _) in zip(bounds, bounds[1:]):
        if begin < end:
            raise ValueError(
                f"{argument}: expected buffers apart from each other, got overlapping ones"
            )


def describe(buffers: list[Buffer], ops: list[Any], codes: list[int]) -> Any:
    """Return the core's array of pcoll_buffer. Keep the ops alive as long as a handle uses it."""
    described = core.ffi.new("pcoll_buffer[]", len(buffers))
    for c, buffer, op, code in zip(described, buffers, ops, codes):
        c.count = buffer.count
        c.dtype = buffer.dtype
        c.op = code
        if buffer.datatype is not None:
            c.mpi_type = ffi.cast("void *", MPI._addressof(buffer.datatype))
        if code == lib.PCOLL_MPI_OP:
            c.mpi_op = ffi.cast("void *", MPI._addressof(op))
    return described


def addresses(arrays: list[Array]) -> Any:
    """Return a C array of the buffers' addresses. Keep `arrays` alive while it is in use."""
    pointers = ffi.new("void *[]", len(arrays))
    for i, array in enumerate(arrays):
        pointers[i] = ffi.cast("void *", array.ctypes.data)
    return pointers


def held(address: Any) -> Any:
    """Return a pointer to memory of the core, which stays as long as the pointer lives."""
    core.check(core.lib.pcoll_memory_hold(address))
    return ffi.gc(ffi.cast("char *", address), core.lib.pcoll_memory_release)


def wrap(address: Any, like: Array, *, dtype: Any = None, writable: bool = True) -> Array:
    """Return an array on memory of others, shaped like another (of its dtype, if none is given).
    address: a number, or a pointer that lives as long as the array and views of it do."""
    dtype = like.dtype if dtype is None else np.dtype(dtype)
    pointer = address if isinstance(address, ffi.CData) else ffi.cast("char *", address)
    memory = ffi.buffer(pointer, max(like.size * dtype.itemsize, 1))
    if not writable:
        memory = memoryview(memory).toreadonly()
    return np.frombuffer(memory, dtype=dtype, count=like.size).reshape(like.shape)


_OPS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
_HALVES = (lib.PCOLL_FLOAT16, lib.PCOLL_BFLOAT16)


def op_code(op: Any) -> int:
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op: expected an MPI.Op, got {checks.shown(op)}")
    if op == MPI.OP_NULL:
        raise ValueError("op: expected an op, got MPI.OP_NULL")
    for known, code in _known_ops():
        if op == known:
            return code
    return int(lib.PCOLL_MPI_OP)


@functools.cache
def _known_ops() -> list[tuple[MPI.Op, int]]:
    return [(getattr(MPI, name), getattr(lib, f"PCOLL_{name}")) for name in _OPS]


def check_op(op: Any, code: int, buffer: Buffer) -> None:
    """Check that the op is defined for the elements. MPI itself checks its own datatypes."""
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
    """Return whether a round without contributions has a value: not if MPI reduces."""
    return buffer.datatype is None and op_code(op) != lib.PCOLL_MPI_OP


def can_add(code: int, buffer: Buffer) -> bool:
    """Return whether numpy can add results up: only for a sum of numbers."""
    return code == lib.PCOLL_SUM and (
        buffer.dtype == lib.PCOLL_BFLOAT16 or buffer.array.dtype.kind in "iufc"
    )


def narrow(like: Array, values: Array) -> Array:
    if like.dtype != np.uint16:
        return values.astype(like.dtype)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def is_half(buffer: Buffer) -> bool:
    return buffer.dtype in _HALVES


_IDENTITIES = {lib.PCOLL_PROD: 1, lib.PCOLL_LAND: 1, lib.PCOLL_BAND: -1}  # else 0


def identity(op: Any, buffer: Buffer) -> Array:
    """Return what a round without contributions holds; zeros where the op has no such value."""
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
    """Sum several results up in the buffer; half types in float32."""
    out = buffer.array
    if is_half(buffer):
        if out.dtype == np.uint16:  # the bits of bfloat16
            results = [(result.astype(np.uint32) << 16).view(np.float32) for result in results]
        total = functools.reduce(np.add, [result.astype(np.float32) for result in results])
        out[...] = narrow(out, total)
        return
    np.copyto(out, results[0])
    for result in results[1:]:
        np.add(out, result, out=out)
