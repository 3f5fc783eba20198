# SPDX-License-Identifier: Apache-2.0
"""Data transfer of calls: the allreduce handles of a queue, and the tensors that they reduce; also
bytes that are not reduced, or are reduced by one rank alone.

A handle serves all sizes that round up to its size, so there are few handles; the ones used last
are kept. A long tensor may be reduced in chunks, which bounds the memory. All ranks wait for each
other at each chunk. This costs most where ranks share cores with each other and with backward, so
chunks are few, and larger than the private cache of a core.

All ranks of a communicator call a function here together, in the same order, with arguments that
they have compared. It yields MPI's own non-blocking operations, or rounds of handles, which the
caller completes in turn. MPI's counts and places are ints of 32 bits, so a large block is one
element of a datatype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._core.buffers import Array, wrap
from ..._core.device import as_device_buffer
from ..._core.mpi import MPI
from ...collectives.adasum import adasum
from ...collectives.agreement import Agreement, Intent
from ...collectives.allreduce import Allreduce_init
from ...collectives.handle import AllreduceHandle
from ...errors import MismatchError, RankFailedError, StateError
from ...policy import Policy
from . import wire

Steps = Iterator[Any]  # yields the handles and MPI requests to wait for, one after the other
Tensors = Sequence[Tensor]

LARGEST = 1 << 30  # bytes that MPI counts one by one
_MANY = 1 << 20

# The key of a handle: dtype, number of elements, MPI's name of the op.
Key = tuple[str, int, str]

CHUNK = 1 << 21  # bytes that are reduced at once
_KEPT = 32  # handles
_SMALLEST = 64  # elements of the smallest handle

# By torch's name of an op: numpy's function (torch has none of these for unsigned integers), MPI's
# op, and MPI's op for bool. "avg" is a sum with a division.
_OPS: dict[str, tuple[np.ufunc, str, str]] = {
    **{"sum": (np.add, "SUM", "LOR"), "product": (np.multiply, "PROD", "LAND")},
    **{"min": (np.minimum, "MIN", "LAND"), "max": (np.maximum, "MAX", "LOR")},
    **{"band": (np.bitwise_and, "BAND", "LAND"), "bor": (np.bitwise_or, "BOR", "LOR")},
    "bxor": (np.bitwise_xor, "BXOR", "LXOR"),
}


def rounded_up(count: int, most: int) -> int:
    """Round up to one of four sizes in each octave. A count beyond `most` is not changed."""
    if count > most:
        return count
    if count <= _SMALLEST:
        return min(_SMALLEST, most)
    step = 1 << ((count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)


class NeedsAll(StateError):
    """Raised on all live ranks for a collective that they cannot make without the dead ones."""


def deposit(handle: AllreduceHandle, device: Any, part: Tensor | None, factor: Any) -> Any:
    """Start a handle with a part; what is behind it in the slot does not matter. None: with zeros.
    device: the handle copies tensors of this device in the background, and what is returned must
    be kept until the round is complete; for tensors elsewhere the caller waits for the copy."""
    there = part is not None and part.device == device and device.type != "cpu"
    if there:
        like = handle._recv[0]
        slot = torch.empty(like.size, dtype=getattr(torch, str(like.dtype)), device=device)
    else:
        slot = torch.from_numpy(handle.send_buffer)
    if part is None:
        slot.zero_()
    else:
        room = slot[: part.numel()]
        room.copy_(part)
        if factor is not None:
            scale(room, factor)
    if there:
        handle._start_from([as_device_buffer("tensor", slot, writable=False)])
    else:
        handle.Start()
    return slot


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
        self._of: dict[Key, tuple[AllreduceHandle, torch.device]] = {}

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

    def make(self, key: Key, device: torch.device) -> tuple[AllreduceHandle, torch.device]:
        """Return the handle for such data, and the device whose tensors it copies. If there is
        none, create it for tensors of this rank on `device`; that is collective."""
        found = self._of.pop(key, None)
        if found is None:
            while len(self._of) >= _KEPT:
                self._of.pop(next(iter(self._of)))[0].Free()
            dtype, count, op = key
            like: Any = np.zeros(count, np.dtype(dtype))
            if device.type != "cpu":
                like = torch.empty(count, dtype=getattr(torch, dtype), device=device)
            op = getattr(MPI, op)
            handle = Allreduce_init(self.comm, None, None, op, like=like, **self._options)
            handle._while_waiting = lambda: self._meanwhile(handle._missing)
            found = handle, device
        self._of[key] = found
        return found

    def join(self) -> None:
        """Contribute nothing to any handle until all ranks have joined. Collective."""
        for handle, _ in self._of.values():
            handle.join()

    def free(self) -> None:
        """Free all handles. Collective."""
        for handle, _ in self._of.values():
            handle.Free()
        self._of.clear()


class Form(NamedTuple):
    """A reduction by torch's name, with a factor before it, and a divisor and a factor after it.
    Quotients of integers are truncated."""

    op: str
    before: Any = None  # None: 1
    divisor: int = 1
    after: float = 1.0


def divide(values: Array, divisor: int) -> None:
    """Divide in place. Quotients of integers are truncated; complex numbers, by their parts."""
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


def scale(values: Tensor, factor: Any) -> None:
    """Multiply in place. Integers are multiplied in float64, and the product is truncated."""
    if values.is_floating_point() or values.is_complex():
        values.mul_(factor)
    else:
        values.copy_(values.double().mul_(factor))


class Reduction:
    """A tensor's values reduced over all ranks. source: None: this rank contributes nothing.
    out: receives the result; it may be the source. wanted: this rank takes the result. chunk:
    bytes that are reduced at once; 0: all of them."""

    def __init__(
        self, form: Form, source: Tensor | None, out: Tensor, *, wanted: bool = True, chunk: int = 0
    ) -> None:
        self.form, self._wanted = form, wanted
        self.source, self.output = source, out.detach()
        self._wide = wire.WIDE[out.dtype]
        self._wire = wire.name(self._wide)
        _, usual, of_bool = _OPS[form.op]
        self._op = of_bool if self._wire == "bool" else usual
        self._count, self._chunk_bytes = out.numel(), chunk
        self._most = chunk // self._wide.itemsize or max(1, self._count)  # reduced at once

    def blank(self) -> tuple[Form, torch.dtype, int, int]:
        """Return what a rank needs that takes part with nothing."""
        return self.form, self.output.dtype, self._count, self._chunk_bytes

    def prepare(self, handles: Handles) -> None:
        """Create the handle for the first chunk. Collective."""
        if self._count:
            handles.make(self._key(min(self._count, self._most)), self.output.device)

    def _key(self, count: int) -> Key:
        return (self._wire, rounded_up(count, CHUNK // self._wide.itemsize), self._op)

    def fits(self, agreement: Agreement) -> bool:
        """Return whether the data can go with the comparison of the call."""
        output = self.output
        if self.source is None or not (self.source.is_cpu and output.is_cpu):
            return False
        if output.is_conj() or output.is_neg():
            return False
        return 0 < self._count * self._wide.itemsize <= agreement.capacity

    def begin_with(self, agreement: Agreement, intent: Intent) -> None:
        """Start the comparison of the call, with the data."""
        assert self.source is not None
        room, source = agreement.room(self._wire)[: self._count], _flat(self.source)
        # The source is read only now, since calls before this one may change it.
        if source.dtype == self._wide and source.numel() == self._count:
            np.copyto(room, source.numpy())  # faster than torch for a few elements
        else:  # the program may have resized it: then torch raises
            torch.from_numpy(room).copy_(source)
        if self.form.before is not None:
            scale(torch.from_numpy(room), self.form.before)
        agreement.start(intent, (self._wire, self._count, self._op))

    def finish_with(self, agreement: Agreement, go_on: bool) -> None:
        """Take the result of data that went with the comparison, which is complete. go_on: dead
        ranks do not count."""
        if self._wanted:
            result = agreement.result(self._wire)[: self._count].reshape(self.output.shape)
            self._take(result, self.output, agreement.failed() if go_on else 0)

    def steps(self, handles: Handles) -> Steps:
        """Yield each handle for which the caller has to wait."""
        output, flat, most = self.output, _flat(self.output), self._most
        direct = flat.data_ptr() == output.data_ptr()
        if self._wanted and not direct:
            flat = torch.empty_like(flat)
        source = None if self.source is None else _flat(self.source)
        for first in range(0, self._count, most):
            end = first + most
            part = flat[first:end]
            handle, device = handles.make(self._key(part.numel()), output.device)
            sent = None if source is None else source[first:end]
            kept = deposit(handle, device, sent, self.form.before)
            yield handle
            del kept
            if self._wanted:
                last = handle.last_round
                gone = int(np.count_nonzero(last.failed)) if handles.go_on and last else 0
                self._take(handle.result[: part.numel()], part, gone)
        if self._wanted and not direct:
            output.copy_(flat.view(output.shape))

    def _take(self, result: Array, into: Tensor, gone: int) -> None:
        """Copy the result out, and round it once. The result is in memory of the library, which is
        read-only. gone: number of dead ranks, which do not count in an average."""
        wide = into
        if into.dtype != self._wide:
            wide = torch.empty_like(into, dtype=self._wide)
        if into.is_cpu:
            np.copyto(wide.numpy(), result)
        else:
            wide.copy_(torch.from_numpy(wrap(result.ctypes.data, result)))
        if self.form.divisor > 1 or self.form.after != 1:
            _finish(wide, self.form, gone)
        if wide is not into:
            into.copy_(wide)


def _finish(total: Tensor, form: Form, gone: int = 0) -> None:
    """Divide and scale what was reduced, in place. gone: ranks that do not count in an average."""
    divisor = form.divisor - gone
    if divisor > 1 and total.is_cpu:
        divide(total.numpy(), divisor)
    elif divisor > 1 and (total.is_floating_point() or total.is_complex()):
        total.div_(divisor)
    elif divisor > 1:  # devices cannot divide all integers
        values = total.cpu()
        divide(values.numpy(), divisor)
        total.copy_(values)
    if form.after != 1:
        scale(total, form.after)


def _flat(tensor: Tensor) -> Tensor:
    """Return the tensor with one dimension; a view if possible."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)


# Memory


@contextlib.contextmanager
def one_message(memory: Any) -> Iterator[list[Any]]:
    """Give what MPI sends from this memory, or receives there, as one message that begins within
    the block: as one element of a datatype, where there are too many bytes."""
    if memory.size <= LARGEST:
        yield [memory, MPI.BYTE]
        return
    whole, rest = divmod(memory.size, _MANY)
    many = MPI.BYTE.Create_contiguous(_MANY)
    all_of_them = MPI.Datatype.Create_struct([whole, rest], [0, whole * _MANY], [many, MPI.BYTE])
    try:
        yield [memory, 1, all_of_them.Commit()]
    finally:  # what MPI still needs of them it keeps
        all_of_them.Free()
        many.Free()


def _from_root(comm: MPI.Intracomm, memory: Any, root: int) -> Steps:
    with one_message(memory) as room:
        yield comm.Ibcast(room, root)


def _to_all(comm: MPI.Intracomm, own: Any, memory: Any, sizes: list[int]) -> Steps:
    if memory.size <= LARGEST:
        yield comm.Iallgatherv(own, [memory, sizes])
        return
    parts = _parts(memory, sizes)
    parts[comm.rank][:] = own
    for root, part in enumerate(parts):
        yield from _from_root(comm, part, root)


def _parts(memory: Any, sizes: Any) -> list[Any]:
    """Return the bytes of each rank, where those of all ranks are one after the other."""
    return np.split(memory, np.cumsum(sizes)[:-1])


# Bytes over handles, whose rounds all ranks that live have, or none


def overlay(to: Handles, sent: Any, come: Any) -> Generator[Any, None, Any]:
    """The ranks' bytes, each of which is 0 but on one rank. None: this rank has none, or wants
    none. Returns whose are there: bool, shape (ranks,)."""
    here = np.ones(to.comm.size, bool)
    source = None if sent is None else torch.from_numpy(sent)
    wanted = come is not None
    output = torch.from_numpy(come if wanted else sent)
    for handle in Reduction(Form("bor"), source, output, wanted=wanted, chunk=CHUNK).steps(to):
        yield handle
        here &= handle.last_round.mask
    return here


def spread(to: Handles, memory: Any, root: int) -> Steps:
    """One rank's bytes to all, in place."""
    if not to.go_on:
        yield from _from_root(to.comm, memory, root)
        return
    own = to.comm.rank == root
    sent = memory if memory.flags.writeable else memory.copy()  # else torch would warn
    here = yield from overlay(to, sent if own else None, None if own else memory)
    if not here[root]:
        raise RankFailedError([root], "what it was to send has come to nobody")


def spread_buffers(to: Handles, buffers: list[Any], root: int) -> Steps:
    """One rank's buffers, to all; on the others the list is filled."""
    count = np.array([len(buffers)])
    yield from spread(to, count.view(np.uint8), root)
    sizes = np.array([one.size for one in buffers] or [0] * count[0])
    yield from spread(to, sizes.view(np.uint8), root)
    if to.comm.rank != root:
        buffers += [np.empty(size, np.uint8) for size in sizes]
    for one in buffers:
        yield from spread(to, one, root)


def share(to: Handles, own: Any, memory: Any, sizes: list[int]) -> Generator[Any, None, Any]:
    """The ranks' bytes, one after the other, into memory. Returns whose are there, as `overlay`."""
    if np.may_share_memory(own, memory):  # torch lets the input be its part of the output
        own = own.copy()
    if not to.go_on:
        yield from _to_all(to.comm, own, memory, sizes)
        return np.ones(to.comm.size, bool)
    memory[:] = 0
    _parts(memory, sizes)[to.comm.rank][:] = own
    return (yield from overlay(to, memory, memory))


def gather_buffers(to: Handles, own: Any, come: list[Any]) -> Steps:
    """The buffer of every rank (that lives), appended to a list on all of them."""
    ranks = to.comm.size
    sizes = np.empty(ranks, np.int64)
    yield from share(to, np.array([own.size]).view(np.uint8), sizes.view(np.uint8), [8] * ranks)
    memory = np.empty(sizes.sum(), np.uint8)
    here = yield from share(to, own, memory, sizes.tolist())
    come += [part for part, there in zip(_parts(memory, sizes), here) if there and part.size]


# Tensors


def broadcast(to: Handles, tensor: Tensor, root: int) -> Steps:
    """One rank's bits to all, in place."""
    memory = wire.bits(tensor)
    yield from spread(to, memory, root)
    if to.comm.rank != root:
        wire.land(tensor, memory)


def gather_all(to: Handles, tensor: Tensor, outputs: Tensors) -> Steps:
    """Every rank's tensor into an output of its own, or all of them into one, on all ranks."""
    own, sizes = wire.bits(tensor), [output.nbytes for output in outputs]
    memory = np.empty(sum(sizes), np.uint8)
    if len(outputs) == 1:
        memory, sizes = wire.bits(outputs[0]), [own.size] * to.comm.size
    here = yield from share(to, own, memory, sizes)
    if not here.all():
        lost = np.flatnonzero(~here).tolist()
        raise RankFailedError(lost, "all_gather is of all ranks: make a group of those who live")
    for output, part in zip(outputs, _parts(memory, sizes) if len(outputs) > 1 else [memory]):
        wire.land(output, part)


Pairs = Sequence[tuple[int, Tensor]]  # ranks and tensors
unfinished: list[MPI.Request] = []  # whose memory MPI still reads or writes


def messages(to: Handles, sent: Pairs, come: Pairs) -> Steps:
    """Send tensors to ranks, and receive tensors of the same sizes from ranks."""
    comm, requests = to.everybody, []
    memories = [wire.bits(tensor) for _, tensor in come]
    for (rank, _), memory in zip(come, memories):
        with one_message(memory) as room:
            requests.append(comm.Irecv(room, rank))
    for rank, tensor in sent:
        with one_message(wire.bits(tensor)) as room:
            requests.append(comm.Isend(room, rank))
    try:
        yield from requests
    finally:  # of a call that ends before its messages
        unfinished.extend(request for request in requests if request)
    for (_, tensor), memory in zip(come, memories):
        wire.land(tensor, memory)


def exchange(to: Handles, inputs: Tensors, outputs: Tensors) -> Steps:
    """Input i goes to rank i, output i comes from it. The sizes may differ; MismatchError on
    all ranks, and nothing moves, if a rank expects another size than it is sent."""
    ranks = to.comm.size
    everyones = np.empty((ranks, 2, ranks), np.int64)
    own = np.array([[one.nbytes for one in some] for some in (inputs, outputs)], np.int64)
    yield to.everybody.Iallgather(own, everyones)
    wrong = np.argwhere(everyones[:, 0, :] != everyones[:, 1, :].T)
    if len(wrong):
        sender, receiver = map(int, wrong[0])
        raise MismatchError(
            f"the ranks differ in their splits: rank {sender} sends "
            f"{everyones[sender, 0, receiver]} bytes to rank {receiver}, which expects "
            f"{everyones[receiver, 1, sender]}"
        )
    yield from messages(to, list(enumerate(inputs)), list(enumerate(outputs)))


def reduce_pieces(to: Handles, pieces: Tensors, form: Form, into: Tensor) -> Steps:
    """Piece i of every rank goes to rank i, which reduces them in the order of the ranks."""
    wide = wire.WIDE[into.dtype]
    if form.before is not None:  # scaled as what it is combined in, and so it travels
        pieces = [piece.detach().to(wide, copy=True) for piece in pieces]
        for piece in pieces:
            scale(piece, form.before)
    parts = torch.empty(to.comm.size, into.numel(), dtype=pieces[0].dtype, device="cpu")
    yield from messages(to, list(enumerate(pieces)), list(enumerate(parts)))
    total = parts[0].to(wide, copy=True)
    with np.errstate(all="ignore"):  # as torch
        for part in parts[1:]:
            _OPS[form.op][0](total.numpy(), part.to(wide).numpy(), out=total.numpy())
    _finish(total, form)
    into.detach().copy_(total.view(into.shape))


def adasum_tensor(comm: MPI.Intracomm, form: Form, source: Tensor, output: Tensor) -> Steps:
    """Combine the ranks' sources; 16-bit floats in float32, and rounded once."""
    wide = torch.empty(source.shape, dtype=wire.WIDE[source.dtype], device="cpu").copy_(source)
    if form.before is not None:
        scale(wide, form.before)
    yield from adasum(comm, wide.view(-1).numpy(), [(0, wide.numel())])
    _finish(wide, form)
    output.detach().copy_(wide)


# Distribution along the first dimension. The functions fill a list, since only the ranks together
# know sizes; rows(tensor, count) returns room for `count` rows like those of the tensor.

Rows = Callable[[Tensor, int], Tensor]
Found = list[Tensor]


def gather_rows(comm: MPI.Intracomm, tensor: Tensor, rows: Rows, found: Found) -> Steps:
    """All ranks' rows, in the ranks' order, and how many of each."""
    counts = np.empty(comm.size, np.int64)
    yield comm.Iallgather(np.array([len(tensor)]), counts)
    output = rows(tensor, int(counts.sum()))
    memory, sizes = wire.bits(output), counts * output[:1].nbytes
    yield from _to_all(comm, wire.bits(tensor), memory, sizes.tolist())
    wire.land(output, memory)
    found += [output, torch.from_numpy(counts)]


def exchange_rows(to: Handles, tensor: Tensor, sizes: list[int], rows: Rows, found: Found) -> Steps:
    """Send `sizes[i]` rows to rank i; find the received rows, and their number from each rank."""
    come = np.empty(to.comm.size, np.int64)
    yield to.everybody.Ialltoall(np.array(sizes, np.int64), come)
    output = rows(tensor, int(come.sum()))
    sent = enumerate(tensor.split(sizes))
    yield from messages(to, list(sent), list(enumerate(output.split(come.tolist()))))
    found += [output, torch.from_numpy(come)]


def reduce_rows(to: Handles, tensor: Tensor, form: Form, rows: Rows, found: Found) -> Steps:
    """Each rank gets a part of the reduced rows, the first ones one more if there is a rest."""
    pieces = tensor.detach().tensor_split(to.comm.size)
    output = rows(tensor, len(pieces[to.comm.rank]))
    yield from reduce_pieces(to, pieces, form, output)
    found.append(output)


def sum_sparse(
    comm: MPI.Intracomm, places: Tensor, values: Tensor, shape: Any, found: Found
) -> Steps:
    """The ranks' sparse tensors added up, in the order of the ranks; coalesced and not rounded."""
    all_places: Found = []
    all_values: Found = []
    yield from gather_rows(comm, places.t().contiguous().cpu(), wire.room_for_rows, all_places)
    yield from gather_rows(comm, values.contiguous(), wire.room_for_rows, all_values)
    wide = all_values[0].to(wire.WIDE[values.dtype])
    there = all_places[0].t().to(wide.device)
    found.append(torch.sparse_coo_tensor(there, wide, shape, check_invariants=False).coalesce())


def reduce_sparse(comm: MPI.Intracomm, tensor: Tensor, form: Form) -> Steps:
    """A sparse tensor becomes the ranks' sum, in place."""
    own, found = tensor.detach().coalesce(), Found()
    values = own.values()
    if form.before is not None:
        values = values.to(wire.WIDE[values.dtype], copy=True)
        scale(values, form.before)
    yield from sum_sparse(comm, own.indices(), values, tensor.shape, found)
    (total,) = found
    _finish(total.values(), form)
    with torch.no_grad():  # what detach() gives has indices of its own
        tensor.copy_(total.to(tensor.dtype))
