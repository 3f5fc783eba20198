# SPDX-License-Identifier: Apache-2.0
"""The allreduce handles of a queue, and tensors that go through them.

A handle serves all sizes that round up to its size, so there are few handles; the ones used last
are kept. A long tensor may be reduced in chunks, which bounds the memory. All ranks wait for each
other at each chunk. This costs most where ranks share cores with each other and with backward, so
chunks are few, and larger than the private cache of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch

from ..._core.buffers import Array, wrap
from ..._core.device import as_device_buffer
from ..._core.mpi import MPI
from ...collectives.agreement import Agreement, Intent
from ...collectives.allreduce import Allreduce_init
from ...collectives.handle import AllreduceHandle
from ...errors import StateError
from ...policy import Policy
from . import wire

# The key of a handle: dtype, number of elements, reduction.
Key = tuple[str, int, str]

CHUNK = 1 << 21  # bytes that are reduced at once
_KEPT = 32  # handles
_SMALLEST = 64  # elements of the smallest handle

# MPI's ops by their names in torch. "avg" is a sum with a division.
_OPS_OF_NUMBERS = {
    **{"sum": "SUM", "product": "PROD", "min": "MIN", "max": "MAX"},
    **{"band": "BAND", "bor": "BOR", "bxor": "BXOR"},
}
_OPS_OF_BOOL = {
    **{"sum": "LOR", "product": "LAND", "min": "LAND", "max": "LOR"},
    **{"band": "LAND", "bor": "LOR", "bxor": "LXOR"},
}
_OPS = (_OPS_OF_NUMBERS, _OPS_OF_BOOL)


def rounded_up(count: int, most: int) -> int:
    """Round up to one of four sizes in each octave. A count beyond `most` stays as it is."""
    if count > most:
        return count
    if count <= _SMALLEST:
        return min(_SMALLEST, most)
    step = 1 << ((count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)


class NeedsAll(StateError):
    """Raised on all live ranks for a collective that they cannot make without the dead ones."""


class Handle:
    """A handle, and the memory of its deposits. device: the handle copies tensors of this device in
    the background; for tensors elsewhere the caller waits for the copy."""

    def __init__(self, core: AllreduceHandle, device: torch.device) -> None:
        self.core, self.device = core, device
        self._rooms: dict[int, torch.Tensor] = {}  # views of the send slots, by address
        self._room: torch.Tensor | None = None  # the tensor that is being copied

    def begin(self, part: torch.Tensor | None, factor: Any) -> None:
        """Deposit a part; what is behind it in the slot does not matter. None: deposit zeros."""
        count = self.core._recv[0].size
        there = part is not None and part.device == self.device and self.device.type != "cpu"
        if there:
            dtype = getattr(torch, str(self.core._recv[0].dtype))
            room = self._room = torch.empty(count, dtype=dtype, device=self.device)
        else:
            room = self.room()
        if part is None:
            room.zero_()
        else:
            room = room[: part.numel()]
            room.copy_(part)
            if factor is not None:
                scale(room, factor)
        if there:
            self.core._start_from([as_device_buffer("tensor", self._room, writable=False)])
        else:
            self.core.Start()

    def end(self) -> None:
        """Release the tensor: the round is complete, and so is the copy."""
        self._room = None

    def room(self) -> torch.Tensor:
        """Return a view of the slot for the next deposit."""
        place = self.core._send_place()
        if place not in self._rooms:
            with torch.inference_mode(False):  # the first call may be in inference mode
                self._rooms[place] = torch.from_numpy(self.core.send_buffer)
        return self._rooms[place]


class Handles:
    """Handles for data of different kinds, the ones used last. They are the same on all ranks.

    name: for messages. meanwhile: called while this rank waits, with a function that names the
    missing ranks; an exception of it ends the wait. quorum, on_failure: of the handles.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        meanwhile: Callable[[Callable[[], str]], bool],
        quorum: Policy | str = "full",
        on_failure: str = "raise",
    ) -> None:
        self.comm, self._meanwhile = comm, meanwhile
        self.go_on = on_failure == "continue"
        self._options: dict[str, Any] = {"quorum": quorum, "name": name, "on_failure": on_failure}
        if quorum == "full":
            self._options["history"] = 1
        self._of: dict[Key, Handle] = {}

    @property
    def everybody(self) -> MPI.Intracomm:
        """The communicator for MPI's own collectives. Raises NeedsAll if the ranks continue after a
        death: such a collective could be complete on some of them and not on others."""
        if self.go_on:
            raise NeedsAll(
                "with on_failure='continue' there are reductions, broadcasts, all_gather of "
                "tensors of known sizes, and barriers: other collectives cannot go on when a rank "
                "dies; make them in a group without it"
            )
        return self.comm

    def get(self, key: Key) -> Handle | None:
        """Return the handle for such data, or None. Local."""
        return self._of.get(key)

    def make(self, key: Key, device: torch.device) -> Handle:
        """Return the handle for such data. If there is none, create it for tensors of this rank on
        `device`; that is collective."""
        handle = self._of.pop(key, None)
        if handle is None:
            while len(self._of) >= _KEPT:
                self._of.pop(next(iter(self._of))).core.Free()
            handle = Handle(self._new(device, *key), device)
        self._of[key] = handle
        return handle

    def _new(self, device: torch.device, dtype: str, count: int, op: str) -> AllreduceHandle:
        like: Any = np.zeros(count, np.dtype(dtype))
        if device.type != "cpu":
            like = torch.empty(count, dtype=getattr(torch, dtype), device=device)
        reduction = getattr(MPI, _OPS[dtype == "bool"][op])
        handle = Allreduce_init(self.comm, None, None, reduction, like=like, **self._options)
        handle._while_waiting = lambda: self._meanwhile(handle._missing)
        return handle

    def join(self) -> None:
        """Contribute nothing to any handle until all ranks have joined. Collective."""
        for handle in self._of.values():
            handle.core.join()

    def free(self) -> None:
        """Free all handles. Collective."""
        for handle in self._of.values():
            handle.core.Free()
        self._of.clear()


@dataclass(frozen=True)
class Form:
    """A reduction by torch's name, with a factor before it, and a divisor and a factor after it.
    Quotients of integers are truncated."""

    op: str
    before: Any = None  # None: 1
    divisor: int = 1
    after: float = 1.0


def divide(values: Array, divisor: int) -> None:
    """Divide in place. Quotients of integers are truncated; both parts of complex numbers are
    divided."""
    kind = values.dtype.kind
    if kind in "iu":
        exact = np.uint64(divisor) if kind == "u" else np.int64(divisor)
        upwards = (values < 0) & (np.remainder(values, exact) != 0)  # floor_divide rounds down
        np.floor_divide(values, exact, out=values, casting="unsafe")
        values += upwards
    elif kind == "c":
        values.real /= divisor
        values.imag /= divisor
    else:
        values /= divisor


def scale(values: torch.Tensor, factor: Any) -> None:
    """Multiply in place. Integers are multiplied in float64, and the product is truncated."""
    if values.is_floating_point() or values.is_complex():
        values.mul_(factor)
    else:
        values.copy_(values.double().mul_(factor))


class Reduction:
    """A tensor's values reduced over all ranks. source: None: this rank contributes nothing.
    output: receives the result; it may be the source. wanted: this rank takes the result. chunk:
    bytes that are reduced at once; None: all of them."""

    def __init__(
        self,
        form: Form,
        source: torch.Tensor | None,
        output: torch.Tensor,
        *,
        wanted: bool = True,
        chunk: int | None = None,
    ) -> None:
        self.form, self._wanted = form, wanted
        self.source, self.output = source, output.detach()
        self._wire, itemsize = wire.WIRE[output.dtype], wire.WIDE[output.dtype].itemsize
        self._count, self._room = output.numel(), CHUNK // itemsize
        self._bytes = self._count * itemsize
        self._most = max(1, self._count) if chunk is None else chunk // itemsize
        self.begun: Handle | Agreement | None = None  # with the first chunk, if it began early

    def blank(self) -> tuple[Form, torch.dtype, int, int]:
        """Return the arguments of `without_values`, for a rank that takes part with nothing."""
        return self.form, self.output.dtype, self._count, self._most

    @classmethod
    def without_values(cls, form: Form, dtype: torch.dtype, count: int, most: int) -> Reduction:
        """Return the reduction of a rank that contributes nothing and takes nothing."""
        found = cls(form, None, torch.empty(count, dtype=dtype, device="cpu"), wanted=False)
        found._most = most
        return found

    @property
    def key(self) -> Key | None:
        """The key of the handle for the first chunk; None: there is nothing to reduce."""
        return self._key(min(self._count, self._most)) if self._count else None

    def _key(self, count: int) -> Key:
        return (self._wire, rounded_up(count, self._room), self.form.op)

    def _chunk(self, flat: torch.Tensor, first: int) -> torch.Tensor:
        return flat if self._count <= self._most else flat[first : first + self._most]

    def begin(self, handle: Handle, first: int = 0) -> None:
        """Deposit a chunk and start the handle."""
        part = None
        if self.source is not None:
            if first == 0:  # not earlier: calls before this one may change it
                self.source = _flat(self.source)
            part = self._chunk(self.source, first)
        handle.begin(part, self.form.before)
        self.begun = handle

    def fits(self, agreement: Agreement) -> bool:
        """Return whether the data can go with the comparison of the call."""
        source = self.source
        if source is None or source.device.type != "cpu" or self.output.device.type != "cpu":
            return False
        return 0 < self._bytes <= agreement.capacity

    def begin_with(self, agreement: Agreement, intent: Intent) -> None:
        """Start the comparison of the call, with the data."""
        assert self.source is not None
        self.source = _flat(self.source)  # not earlier: calls before this one may change it
        room = torch.from_numpy(agreement.room(self._wire))[: self._count]
        room.copy_(self.source)
        if self.form.before is not None:
            scale(room, self.form.before)
        op = _OPS[self._wire == "bool"][self.form.op]
        agreement.start(intent, (self._wire, self._count, op))
        self.begun = agreement

    def steps(self, handles: Handles) -> Iterator[AllreduceHandle]:
        """Yield each handle for which the caller has to wait: none if the data went with the
        comparison, which is complete."""
        output, flat = self.output, _flat(self.output)
        direct = flat is output or flat.data_ptr() == output.data_ptr()
        if self._wanted and not direct:
            flat = torch.empty_like(flat)
        if isinstance(self.begun, Agreement):
            if self._wanted:
                gone = self.begun.failed() if handles.go_on else 0
                self._take(self.begun.result(self._wire)[: self._count], flat, gone)
        else:
            for first in range(0, self._count, self._most):
                part = self._chunk(flat, first)
                handle = handles.make(self._key(part.numel()), output.device)
                if first or handle is not self.begun:
                    self.begin(handle, first)
                yield handle.core
                handle.end()
                if self._wanted:
                    last = handle.core.last_round
                    gone = int(np.count_nonzero(last.failed)) if handles.go_on and last else 0
                    self._take(handle.core.result[: part.numel()], part, gone)
        if self._wanted and not direct:
            output.copy_(flat.view(output.shape))

    def _take(self, result: Array, into: torch.Tensor, gone: int) -> None:
        """Copy the result out, and round it once. The result is in memory of the library, which is
        read-only. gone: number of dead ranks, which do not count in an average."""
        divisor = self.form.divisor - gone if self.form.divisor > 1 else 1
        dtype = wire.WIDE[into.dtype]
        same = into.dtype == dtype
        wide = into if same else torch.empty_like(into, dtype=dtype)
        if into.device.type == "cpu":
            values = wide.numpy()
            np.copyto(values, result)
            if divisor > 1:
                divide(values, divisor)
        elif divisor == 1 or dtype.is_floating_point or dtype.is_complex:
            wide.copy_(torch.from_numpy(wrap(result.ctypes.data, result)))
            if divisor > 1:
                wide.div_(divisor)
        else:  # devices cannot divide all integers
            values = result.copy()
            divide(values, divisor)
            wide.copy_(torch.from_numpy(values))
        if self.form.after != 1:
            scale(wide, self.form.after)
        if not same:
            into.copy_(wide)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one dimension; a view if possible."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)
