# SPDX-License-Identifier: Apache-2.0
"""The allreduce handles of a queue, and tensors that go through them.

A handle serves all sizes that round up to its own, so there are few; the latest used are kept. A
long tensor may go in chunks: then the memory has a bound, whatever the size. At each chunk all
ranks meet, which costs most where they share cores with each other and with backward: so chunks are
few, and larger than a core's own cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch

from ..._core.buffers import Array, wrap
from ..._core.device import as_device_buffer
from ..._core.mpi import MPI
from ...collectives.agreement import Key
from ...collectives.allreduce import Allreduce_init
from ...collectives.handle import AllreduceHandle
from ...errors import StateError
from ...policy import Policy
from . import wire

CHUNK = 1 << 21  # bytes of a message that is reduced at once
_KEPT = 32  # handles
_SMALLEST = 64  # elements of the smallest handle

# The names that MPI's ops have in torch. "avg" is a sum that is divided.
_OPS = {
    **{"sum": "SUM", "product": "PROD", "min": "MIN", "max": "MAX"},
    **{"band": "BAND", "bor": "BOR", "bxor": "BXOR"},
}
_OPS_OF_BOOL = {
    **{"sum": "LOR", "product": "LAND", "min": "LAND", "max": "LOR"},
    **{"band": "LAND", "bor": "LOR", "bxor": "LXOR"},
}


def rounded_up(count: int, most: int) -> int:
    """To one of four sizes in each octave; beyond `most`, which is a size, none is saved."""
    if count > most:
        return count
    if count <= _SMALLEST:
        return min(_SMALLEST, most)
    step = 1 << ((count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)


class NeedsAll(StateError):
    """A collective that the ranks that live cannot make, on all of them."""


def whole(comm: MPI.Intracomm, go_on: bool) -> MPI.Intracomm:
    """A communicator for MPI's own collectives. NeedsAll where the ranks go on when one dies: such
    a collective would be over on some of them and not on others."""
    if go_on:
        raise NeedsAll(
            "with on_failure='continue' there are reductions, broadcasts, all_gather of tensors of "
            "known sizes, and barriers: other collectives cannot go on when a rank dies; make them "
            "in a group without it"
        )
    return comm


class Handle:
    """One of them, and the memory of its deposits. device: tensors there are copied by the handle
    itself, while this rank goes on; from others it waits for the copy."""

    def __init__(self, core: AllreduceHandle, device: torch.device) -> None:
        self.core, self.device = core, device
        self._rooms: dict[int, torch.Tensor] = {}  # by address; there are few, which take turns
        self._room: torch.Tensor | None = None  # that is being copied

    def begin(self, part: torch.Tensor | None, factor: Any) -> None:
        """Deposit this, with zeros or anything behind it. None: zeros."""
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
        """The round is over, and so is the copy."""
        self._room = None

    def room(self) -> torch.Tensor:
        """For the next deposit."""
        place = self.core._send_place()
        if place not in self._rooms:
            with torch.inference_mode(False):  # whatever the call that comes first is in
                self._rooms[place] = torch.from_numpy(self.core.send_buffer)
        return self._rooms[place]


class Handles:
    """Handles for data of different kinds, the latest used; the same on all ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    name : str
        For messages.
    meanwhile : callable
        Called while this rank waits; given who tells what is missing. What it raises ends the wait.
    quorum : policy or str
        Of the handles.
    on_failure : str
        Of the handles.
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
        self._owed: list[AllreduceHandle] = []  # started, for a call that failed

    @property
    def everybody(self) -> MPI.Intracomm:
        """The communicator, for what MPI moves itself; or NeedsAll."""
        return whole(self.comm, self.go_on)

    def get(self, key: Key) -> Handle | None:
        """The one for such data, if there is one; nothing of earlier calls is on it. Local."""
        self._collect()
        return self._of.get(key)

    def make(self, key: Key, device: torch.device) -> Handle:
        """The one for such data, new, for tensors of this rank's there, if there is none.
        Collective if so."""
        self._collect()
        handle = self._of.pop(key, None)
        if handle is None:
            if len(self._of) >= _KEPT:
                self._of.pop(next(iter(self._of))).core.Free()
            handle = Handle(self._new(device, *key), device)
        self._of[key] = handle
        return handle

    def _new(self, device: torch.device, dtype: str, count: int, op: str) -> AllreduceHandle:
        like: Any = np.zeros(count, np.dtype(dtype))
        if device.type != "cpu":
            like = torch.empty(count, dtype=getattr(torch, dtype), device=device)
        reduction = getattr(MPI, (_OPS_OF_BOOL if dtype == "bool" else _OPS)[op])
        handle = Allreduce_init(self.comm, None, None, reduction, like=like, **self._options)
        handle._while_waiting = lambda: self._meanwhile(handle._missing)
        return handle

    def level(self, keys: Iterable[Key], begun: Handle | None) -> None:
        """Ranks have started different handles: start those that others have. begun: the one that
        this rank has started."""
        self._collect()
        for key in sorted(set(keys)):
            handle = self._of.get(key)
            if handle is None:
                continue
            if handle is not begun:
                handle.room().zero_()
                handle.core.Start()
            self._owed.append(handle.core)

    def _collect(self) -> None:
        """Rounds of calls that failed end before anything else begins."""
        while self._owed:
            self._owed[-1].Wait()
            self._owed.pop()

    def join(self) -> None:
        """Contribute nothing to any until all ranks have joined. Collective."""
        for handle in self._of.values():
            handle.core.join()

    def free(self) -> None:
        """Collective."""
        self._owed.clear()
        for handle in self._of.values():
            handle.core.Free()
        self._of.clear()


@dataclass(frozen=True)
class Form:
    """What becomes of values: the reduction, by torch's name, and what they are multiplied and
    divided by before and after it. Quotients of integers lose what is behind the point."""

    op: str
    before: Any = None  # None: 1
    divisor: int = 1
    after: float = 1.0


def divide(values: Array, divisor: int) -> None:
    """In place; integers lose what is behind the point. Of complex numbers each part is divided."""
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
    """In place; integers in float64, and what is behind the point is dropped."""
    if values.is_floating_point() or values.is_complex():
        values.mul_(factor)
    else:
        values.copy_(values.double().mul_(factor))


class Reduction:
    """A tensor's values reduced over all ranks.

    Parameters
    ----------
    form : Form
    source : torch.Tensor or None
        What this rank puts in; None: nothing.
    output : torch.Tensor
        Where the result goes; it may be the source.
    wanted : bool
        Does this rank take the result?
    chunk : int or None
        Bytes that are reduced at once; None: all of them.
    """

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
        self._wire, itemsize = wire.wire_dtype(output.dtype), wire.wide_dtype(output.dtype).itemsize
        self._count, self._room = output.numel(), CHUNK // itemsize
        self._most = max(1, self._count) if chunk is None else chunk // itemsize
        self.begun: Handle | None = None  # that has the first chunk, if it was started early

    def blank(self) -> tuple[Form, torch.dtype, int, int]:
        """What another rank needs to take part with nothing: see `without_values`."""
        return self.form, self.output.dtype, self._count, self._most

    @classmethod
    def without_values(cls, form: Form, dtype: torch.dtype, count: int, most: int) -> Reduction:
        """The part of a rank that puts nothing in and takes nothing."""
        found = cls(form, None, torch.empty(count, dtype=dtype, device="cpu"), wanted=False)
        found._most = most
        return found

    @property
    def key(self) -> Key | None:
        """Of the handle for the first chunk; None: there is nothing to reduce."""
        return self._key(min(self._count, self._most)) if self._count else None

    def _key(self, count: int) -> Key:
        return (self._wire, rounded_up(count, self._room), self.form.op)

    def _chunk(self, flat: torch.Tensor, first: int) -> torch.Tensor:
        return flat if self._count <= self._most else flat[first : first + self._most]

    def begin(self, handle: Handle, first: int = 0) -> None:
        """Put a chunk in and start."""
        part = None
        if self.source is not None:
            if first == 0:  # not before: earlier calls may have changed it
                self.source = _flat(self.source)
            part = self._chunk(self.source, first)
        handle.begin(part, self.form.before)
        self.begun = handle

    def steps(self, handles: Handles) -> Iterator[AllreduceHandle]:
        """Yields each handle that is to be waited for."""
        output, flat = self.output, _flat(self.output)
        direct = flat is output or flat.data_ptr() == output.data_ptr()
        if self._wanted and not direct:
            flat = torch.empty_like(flat)
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
        """Rounded once. The library's memory, which the result is in, is for reading only. gone:
        ranks that had died, and do not count in an average."""
        divisor = self.form.divisor - gone if self.form.divisor > 1 else 1
        dtype = wire.wide_dtype(into.dtype)
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
    """With one dimension; a view if that can be."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)
