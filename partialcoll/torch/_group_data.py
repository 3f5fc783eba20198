# SPDX-License-Identifier: Apache-2.0
"""How the data of a process group's collectives moves. Every function here is called on all ranks
of the group together, in the same order, with arguments that they have compared.

Reductions go through full handles, in chunks: so the memory for them has a bound, whatever the
size, and a chunk stays in the cache. A handle serves all sizes that round up to its own. Bytes that
are only moved go through MPI's own non-blocking collectives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import torch
from mpi4py import MPI

from .._buffers import Array
from .._errors import MismatchError
from .._handle import AllreduceHandle
from ..allreduce import Allreduce_init
from . import _wire

CHUNK = 1 << 19  # bytes of a message that is reduced at once
_KEPT = 32  # handles
_SMALLEST = 64  # elements of the smallest handle
# Seconds. Whoever has to wait is not far behind, since all have come this far.
_LONGEST_NAP = 2e-3

# By torch's name: what a handle does, and what torch does with two tensors.
_OPS: dict[str, tuple[Any, Callable[..., torch.Tensor]]] = {
    "sum": (MPI.SUM, torch.add),
    "avg": (MPI.SUM, torch.add),
    "product": (MPI.PROD, torch.mul),
    "min": (MPI.MIN, torch.minimum),
    "max": (MPI.MAX, torch.maximum),
    "band": (MPI.BAND, torch.bitwise_and),
    "bor": (MPI.BOR, torch.bitwise_or),
    "bxor": (MPI.BXOR, torch.bitwise_xor),
}
_AND, _OR, _XOR = (
    (MPI.LAND, torch.logical_and),
    (MPI.LOR, torch.logical_or),
    (MPI.LXOR, torch.logical_xor),
)
_OPS_OF_BOOL: dict[str, tuple[Any, Callable[..., torch.Tensor]]] = {
    **{"sum": _OR, "product": _AND, "min": _AND, "max": _OR},
    **{"band": _AND, "bor": _OR, "bxor": _XOR},
}
_INTEGER_ONLY = {"band", "bor", "bxor"}
_NOT_COMPLEX = {"min", "max"}


def check_op(op: str, dtype: torch.dtype) -> None:
    """Raises TypeError if the reduction is not defined for the dtype."""
    if op not in _OPS:
        raise TypeError(f"op: expected one of {', '.join(_OPS)}, got {op}")
    floating = dtype.is_floating_point or dtype.is_complex
    if (
        (op in _INTEGER_ONLY and floating)
        or (op in _NOT_COMPLEX and dtype.is_complex)
        or (dtype == torch.bool and op not in _OPS_OF_BOOL)
    ):
        raise TypeError(f"op: {op} is not defined for {_wire.name(dtype)}")


def _divide(values: torch.Tensor, ranks: int) -> torch.Tensor:
    """Integers are rounded down."""
    if values.is_complex():
        torch.view_as_real(values).div_(ranks)
        return values
    if values.dtype.is_floating_point:
        return values.div_(ranks)
    return values.div_(ranks, rounding_mode="floor")


def _rounded_up(count: int, most: int) -> int:
    """To one of four sizes in each octave."""
    if count <= _SMALLEST:
        return min(_SMALLEST, most)
    step = 1 << ((count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)


class Plane:
    """Moves the data of one group.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of the group's ranks, for this only.
    name : str
        For messages.
    patient : callable
        Called while this rank waits; given who tells what is missing. What it raises ends the wait.
    """

    def __init__(
        self, comm: MPI.Intracomm, name: str, patient: Callable[[Callable[[], str]], bool]
    ) -> None:
        self.comm, self._name, self._patient = comm, name, patient
        self._handles: dict[tuple[str, int, str], AllreduceHandle] = {}

    def free(self) -> None:
        """Collective."""
        for handle in self._handles.values():
            handle.Free()
        self._handles.clear()

    # Reductions

    def _handle(self, dtype: np.dtype[Any], count: int, op: str) -> AllreduceHandle:
        """The one for such data, new if there is none: on all ranks alike."""
        key = (dtype.str, count, op)
        handle = self._handles.pop(key, None)
        if handle is None:
            if len(self._handles) >= _KEPT:
                self._handles.pop(next(iter(self._handles))).Free()
            reduction = (_OPS_OF_BOOL if dtype.kind == "b" else _OPS)[op][0]
            like, name = np.zeros(count, dtype), f"torch.distributed: data of group {self._name}"
            handle = Allreduce_init(
                self.comm, None, None, reduction, like=like, quorum="full", history=1, name=name
            )
            made = handle
            handle._while_waiting = lambda: self._patient(made._missing)
        self._handles[key] = handle
        return handle

    def reduce(self, tensor: torch.Tensor, op: str, factor: Any = None, taken: bool = True) -> None:
        """In place. factor: multiplies what this rank puts in. taken: does it want the result?"""
        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)  # a view if that can be
        direct = flat.data_ptr() == tensor.data_ptr()
        output = flat if direct else torch.empty_like(flat)
        dtype = np.dtype(_wire.wire_dtype(tensor.dtype))
        most = CHUNK // dtype.itemsize
        for begin in range(0, flat.numel(), most):
            part = flat[begin : begin + most]
            handle = self._handle(dtype, _rounded_up(part.numel(), most), op)
            room = torch.from_numpy(handle.send_buffer)[: part.numel()]
            room.copy_(part)
            if factor is not None:
                room.mul_(factor)
            handle.Start()
            handle.Wait()
            if taken:
                self._take(handle.result[: part.numel()], op, output[begin : begin + most])
        if taken and not direct:
            tensor.detach().copy_(output.view(tensor.shape))

    def _take(self, result: Array, op: str, into: torch.Tensor) -> None:
        """Rounded once. The library's memory, which the result is in, is for reading only."""
        same = into.dtype == getattr(torch, result.dtype.name)
        wide = into if same else torch.empty(into.shape, dtype=getattr(torch, result.dtype.name))
        np.copyto(wide.numpy(), result)
        if op == "avg":
            _divide(wide, self.comm.size)
        if not same:
            into.copy_(wide)

    def reduce_pieces(
        self, pieces: Sequence[torch.Tensor], op: str, factor: Any, into: torch.Tensor
    ) -> None:
        """Piece i of every rank goes to rank i, which reduces them in the order of the ranks."""
        size = into.numel()
        sent = torch.cat([piece.detach().reshape(-1) for piece in pieces])
        if factor is not None:
            sent.mul_(factor)
        come = torch.empty(size * self.comm.size, dtype=into.dtype)
        counts = [piece.numel() * piece.element_size() for piece in pieces]
        mine = [size * into.element_size()] * self.comm.size
        self._wait(self.comm.Ialltoallv([_wire.bits(sent), counts], [_wire.bits(come), mine]))
        wide = getattr(torch, _wire.wire_dtype(into.dtype))
        parts = come.view(self.comm.size, size)
        total = parts[0].to(wide, copy=True)
        combine = (_OPS_OF_BOOL if wide == torch.bool else _OPS)[op][1]
        for part in parts[1:]:
            total = combine(total, part.to(wide))
        if op == "avg":
            _divide(total, self.comm.size)
        into.detach().copy_(total.view(into.shape))

    # Bytes

    def _wait(self, request: MPI.Request) -> None:
        """Until it is complete; naps, because a core may have more ranks than one."""
        nap, turns = 20e-6, 0
        while not request.Test():
            turns += 1
            time.sleep(0 if turns < 8 else nap)
            if turns >= 8:
                nap = min(1.5 * nap, _LONGEST_NAP)
                self._patient(str)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """In place."""
        memory = Memory(tensor, written=self.comm.rank != root)
        self._wait(self.comm.Ibcast(memory.bytes, root))
        memory.land()

    def gather(
        self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor] | None, root: int | None
    ) -> None:
        """Every rank's tensor into the outputs, on all ranks (root None), or on one."""
        own = _wire.bits(tensor)
        landing = None if outputs is None else Landing(outputs)
        come = None if landing is None else landing.room
        if root is None:
            self._wait(self.comm.Iallgatherv(own, come))
        else:
            self._wait(self.comm.Igatherv(own, come, root))
        if landing is not None:
            landing.land()

    def gather_flat(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Every rank's tensor, one after the other, into one."""
        memory, own = Memory(output, written=True), _wire.bits(tensor)
        if np.may_share_memory(own, memory.bytes):  # torch lets the input be its part of the output
            own = own.copy()
        self._wait(self.comm.Iallgather(own, memory.bytes))
        memory.land()

    def scatter(
        self, tensor: torch.Tensor, inputs: Sequence[torch.Tensor] | None, root: int
    ) -> None:
        """The root's inputs, one to each rank."""
        memory = Memory(tensor, written=True)
        sent = None
        if inputs is not None:
            sent = [np.concatenate([_wire.bits(one) for one in inputs]), _bytes_of(inputs)]
        self._wait(self.comm.Iscatterv(sent, memory.bytes, root))
        memory.land()

    def exchange(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Input i goes to rank i, output i comes from it. The sizes may differ; MismatchError on
        all ranks, and nothing moves, if somebody expects another one than it is sent."""
        self._compare_sizes(_bytes_of(inputs), _bytes_of(outputs))
        sent = np.concatenate([_wire.bits(one) for one in inputs])
        landing = Landing(outputs)
        self._wait(self.comm.Ialltoallv([sent, _bytes_of(inputs)], landing.room))
        landing.land()

    def _compare_sizes(self, sent: list[int], expected: list[int]) -> None:
        ranks = self.comm.size
        everyones = np.empty((ranks, 2, ranks), np.int64)
        self._wait(self.comm.Iallgather(np.array([sent, expected], np.int64), everyones))
        wrong = np.argwhere(everyones[:, 0, :] != everyones[:, 1, :].T)
        if len(wrong):
            sender, receiver = map(int, wrong[0])
            raise MismatchError(
                f"the ranks differ in their splits: rank {sender} sends "
                f"{everyones[sender, 0, receiver]} bytes to rank {receiver}, which expects "
                f"{everyones[receiver, 1, sender]}"
            )


def _bytes_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


class Memory:
    """A tensor's bytes in one piece: its own memory if it is in one piece itself."""

    def __init__(self, tensor: torch.Tensor, written: bool) -> None:
        own = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        self._tensor = tensor
        self._copy: torch.Tensor | None = None
        if not own:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._copy.copy_(tensor.detach())
        self._written = written
        self.bytes = _wire.bits(tensor if self._copy is None else self._copy)

    def land(self) -> None:
        """What has come is in the tensor afterwards."""
        if self._copy is not None and self._written:
            self._tensor.detach().copy_(self._copy)


class Landing:
    """Room for tensors that come together, one from each rank."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._outputs = outputs
        self._sizes = _bytes_of(outputs)
        self._memory = np.empty(sum(self._sizes), np.uint8)
        self.room = [self._memory, self._sizes]

    def land(self) -> None:
        """Into the tensors."""
        begin = 0
        for output, size in zip(self._outputs, self._sizes):
            fresh = torch.empty(output.shape, dtype=output.dtype)
            _wire.bits(fresh)[:] = self._memory[begin : begin + size]
            output.detach().copy_(fresh)
            begin += size
