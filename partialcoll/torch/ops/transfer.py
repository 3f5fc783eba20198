# SPDX-License-Identifier: Apache-2.0
"""How bytes of tensors move that are not reduced, or are reduced by one rank alone.

All ranks of a communicator call a function here together, in the same order, with arguments that
they have compared. It yields MPI's own non-blocking operations, or rounds of handles, which the
caller completes in turn. MPI's counts and places are ints of 32 bits, so a large block goes in
several operations, the same ones on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..._core.mpi import MPI
from ...collectives.adasum import adasum
from ...errors import MismatchError, RankFailedError
from . import wire
from .handles import CHUNK, Form, Handles, Reduction, divide, scale

Steps = Iterator[Any]
Tensors = Sequence[torch.Tensor]

LARGEST = 1 << 30  # bytes of one operation on one rank
_MANY = 1 << 20

_COMBINE: dict[str, np.ufunc] = {  # numpy's: torch has none of these for unsigned integers
    **{"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum},
    **{"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor},
}


# Bytes for several ranks


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


class Memory:
    """A tensor's bytes in one piece: its own memory if possible, else a copy. written: bytes are
    received there."""

    def __init__(self, tensor: torch.Tensor, written: bool) -> None:
        self._target, self._written, self._copy = tensor, written, tensor
        own = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        if not own or tensor.device.type != "cpu":
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._copy.copy_(tensor.detach())
        self.bytes = wire.bits(self._copy)

    def land(self) -> None:
        """Put what was received into the tensor."""
        if self._copy is not self._target and self._written:
            self._target.detach().copy_(self._copy)


class Blocks:
    """A block of bytes for each rank, or from each, one after the other. memory: None: new."""

    def __init__(self, sizes: list[int], memory: Any = None) -> None:
        self.sizes = sizes
        self.memory = np.empty(sum(sizes), np.uint8) if memory is None else memory

    @classmethod
    def of(cls, tensors: Tensors) -> Blocks:
        return cls(_bytes_of(tensors), np.concatenate([wire.bits(tensor) for tensor in tensors]))

    def into(self, outputs: Tensors) -> None:
        for output, part in zip(outputs, self.parts(slice(None))):
            if part.size:
                come = torch.from_numpy(part).view(output.dtype)
                output.detach().copy_(come.view(output.shape))

    def cut(self, cut: slice) -> list[Any]:
        """Return this part of every block, and the sizes: the memory itself if that is all."""
        parts = self.parts(cut)
        all_of_them = cut.start == 0 and cut.stop >= max(self.sizes)
        memory = self.memory if all_of_them else np.concatenate(parts)
        return [memory, [part.size for part in parts]]

    def land(self, cut: slice, come: list[Any]) -> None:
        """Put what was received in a part into the blocks."""
        memory, sizes = come
        if memory is not self.memory:
            for part, one in zip(self.parts(cut), np.split(memory, np.cumsum(sizes)[:-1])):
                part[:] = one

    def parts(self, cut: slice) -> list[Any]:
        """Return views of this part of every block."""
        ends = np.cumsum(self.sizes).tolist()
        return [self.memory[end - size : end][cut] for end, size in zip(ends, self.sizes)]


def _bytes_of(tensors: Tensors) -> list[int]:
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def _in_cuts(
    begin: Callable[[slice, Any], Any], largest: int, blocks: int, come: Blocks | None = None
) -> Steps:
    """Begin an operation for each part of the blocks, and put what it receives into `come`.
    largest: bytes of the largest block on any rank; blocks: that a rank sends or gets at a time."""
    each = max(1, LARGEST // blocks)
    for first in range(0, max(1, largest), each):
        cut = slice(first, first + each)
        room: Any = None if come is None else come.cut(cut)
        yield begin(cut, room)
        if come is not None:
            come.land(cut, room)


def _to_all(comm: MPI.Intracomm, own: Any, come: Blocks) -> Steps:
    """The bytes of every rank, whose sizes all ranks know, to all."""
    begin = lambda cut, room: comm.Iallgatherv(own[cut], room)  # noqa: E731
    return _in_cuts(begin, max(come.sizes), comm.size, come)


def _to_each(comm: MPI.Intracomm, sent: Blocks, come: Blocks, largest: int) -> Steps:
    """A block to each rank, and one from each; largest: bytes of a block on any rank."""
    begin = lambda cut, room: comm.Ialltoallv(sent.cut(cut), room)  # noqa: E731
    return _in_cuts(begin, largest, comm.size, come)


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
        here &= handle.last_round.mask  # type: ignore[union-attr]
    return here


def spread(to: Handles, memory: Any, root: int) -> Steps:
    """One rank's bytes to all, in place."""
    if not to.go_on:
        yield from _in_cuts(lambda cut, _: to.comm.Ibcast(memory[cut], root), memory.size, 1)
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
    """The ranks' bytes, one after the other, so many of each, into memory. Returns whose are there:
    bool, shape (ranks,)."""
    if np.may_share_memory(own, memory):  # torch lets the input be its part of the output
        own = own.copy()
    if not to.go_on:
        yield from _to_all(to.comm, own, Blocks(sizes, memory))
        return np.ones(to.comm.size, bool)
    begin = sum(sizes[: to.comm.rank])
    memory[:] = 0
    memory[begin : begin + own.size] = own
    return (yield from overlay(to, memory, memory))


def gather_buffers(to: Handles, own: Any, come: list[Any]) -> Steps:
    """The buffer of every rank (that lives), appended to a list on all of them."""
    ranks = to.comm.size
    sizes = np.empty(ranks, np.int64)
    yield from share(to, np.array([own.size]).view(np.uint8), sizes.view(np.uint8), [8] * ranks)
    memory = np.empty(sizes.sum(), np.uint8)
    here = yield from share(to, own, memory, sizes.tolist())
    parts = np.split(memory, np.cumsum(sizes)[:-1])
    come += [part for part, size, there in zip(parts, sizes, here) if there and size]


# Tensors


def broadcast(to: Handles, tensor: torch.Tensor, root: int) -> Steps:
    """One rank's bits to all, in place."""
    memory = Memory(tensor, written=to.comm.rank != root)
    yield from spread(to, memory.bytes, root)
    memory.land()


def gather_all(to: Handles, tensor: torch.Tensor, outputs: Tensors) -> Steps:
    """Every rank's tensor into the outputs, on all ranks."""
    come = Blocks(_bytes_of(outputs))
    _check_all((yield from share(to, wire.bits(tensor), come.memory, come.sizes)))
    come.into(outputs)


def gather_flat(to: Handles, tensor: torch.Tensor, output: torch.Tensor) -> Steps:
    """Every rank's tensor, one after the other, into one."""
    memory, own = Memory(output, written=True), wire.bits(tensor)
    _check_all((yield from share(to, own, memory.bytes, [own.size] * to.comm.size)))
    memory.land()


def _check_all(here: Any) -> None:
    """RankFailedError, on all ranks, if one has died."""
    if not here.all():
        lost = np.flatnonzero(~here).tolist()
        raise RankFailedError(lost, "all_gather is of all ranks: make a group of those who live")


def gather(
    comm: MPI.Intracomm, tensor: torch.Tensor, outputs: Tensors | None, root: int | None
) -> Steps:
    """Every rank's tensor into the outputs, on all ranks (root None), or on one."""
    own, come = wire.bits(tensor), None if outputs is None else Blocks(_bytes_of(outputs))
    if root is None:
        assert come is not None
        yield from _to_all(comm, own, come)
    else:  # the same size from each
        begin = lambda cut, room: comm.Igatherv(own[cut], room, root)  # noqa: E731
        yield from _in_cuts(begin, own.size, comm.size, come)
    if come is not None and outputs is not None:
        come.into(outputs)


def scatter(comm: MPI.Intracomm, tensor: torch.Tensor, inputs: Tensors | None, root: int) -> Steps:
    """The root's inputs, one to each rank."""
    memory = Memory(tensor, written=True)
    sent = None if inputs is None else Blocks.of(inputs)

    def begin(cut: slice, _: Any) -> Any:
        return comm.Iscatterv(None if sent is None else sent.cut(cut), memory.bytes[cut], root)

    yield from _in_cuts(begin, memory.bytes.size, comm.size)
    memory.land()


def exchange(comm: MPI.Intracomm, inputs: Tensors, outputs: Tensors) -> Steps:
    """Input i goes to rank i, output i comes from it. The sizes may differ; MismatchError on
    all ranks, and nothing moves, if a rank expects another size than it is sent."""
    ranks = comm.size
    everyones = np.empty((ranks, 2, ranks), np.int64)
    own = np.array([_bytes_of(inputs), _bytes_of(outputs)], np.int64)
    yield comm.Iallgather(own, everyones)
    wrong = np.argwhere(everyones[:, 0, :] != everyones[:, 1, :].T)
    if len(wrong):
        sender, receiver = map(int, wrong[0])
        raise MismatchError(
            f"the ranks differ in their splits: rank {sender} sends "
            f"{everyones[sender, 0, receiver]} bytes to rank {receiver}, which expects "
            f"{everyones[receiver, 1, sender]}"
        )
    come = Blocks(_bytes_of(outputs))
    yield from _to_each(comm, Blocks.of(inputs), come, int(everyones.max()))
    come.into(outputs)


def reduce_pieces(comm: MPI.Intracomm, pieces: Tensors, form: Form, into: torch.Tensor) -> Steps:
    """Piece i of every rank goes to rank i, which reduces them in the order of the ranks."""
    wide = wire.WIDE[into.dtype]
    if form.before is not None:  # scaled as what it is combined in, and so it travels
        pieces = [piece.detach().to(wide, copy=True) for piece in pieces]
        for piece in pieces:
            scale(piece, form.before)
    come = torch.empty(into.numel() * comm.size, dtype=pieces[0].dtype, device="cpu")
    landing = Blocks([come.nbytes // comm.size] * comm.size, wire.bits(come))
    yield from _to_each(comm, Blocks.of(pieces), landing, max(_bytes_of(pieces)))
    parts = come.view(comm.size, into.numel())
    total = parts[0].to(wide, copy=True)
    with np.errstate(all="ignore"):  # as torch
        for part in parts[1:]:
            _COMBINE[form.op](total.numpy(), part.to(wide).numpy(), out=total.numpy())
    _land_sum(total, form)
    into.detach().copy_(total.view(into.shape))


def _land_sum(total: torch.Tensor, form: Form) -> None:
    if form.divisor > 1:
        divide(total.numpy(), form.divisor)
    if form.after != 1:
        scale(total, form.after)


def adasum_tensor(
    comm: MPI.Intracomm, form: Form, source: torch.Tensor, output: torch.Tensor
) -> Steps:
    """The output becomes the combination of the ranks' sources. 16-bit floats are combined in
    float32 and rounded once."""
    wide = torch.empty(source.shape, dtype=wire.WIDE[source.dtype], device="cpu").copy_(source)
    if form.before is not None:
        scale(wide, form.before)
    yield from adasum(comm, wide.view(-1).numpy(), [(0, wide.numel())])
    _land_sum(wide, form)
    output.detach().copy_(wide)


# Shared out along the first dimension. They fill a list, since only the ranks together know sizes;
# rows: gives room for so many rows like those of a tensor.

Rows = Callable[[torch.Tensor, int], torch.Tensor]
Found = list[torch.Tensor]


def gather_rows(comm: MPI.Intracomm, tensor: torch.Tensor, rows: Rows, found: Found) -> Steps:
    """All ranks' rows, in the ranks' order, and how many of each."""
    counts = np.empty(comm.size, np.int64)
    yield comm.Iallgather(np.array([len(tensor)]), counts)
    output = rows(tensor, int(counts.sum()))
    yield from gather(comm, tensor, output.split(counts.tolist()), None)
    found += [output, torch.from_numpy(counts)]


def exchange_rows(
    comm: MPI.Intracomm, tensor: torch.Tensor, splits: Sequence[int], rows: Rows, found: Found
) -> Steps:
    """So many rows to each rank; what comes, and how many rows from which."""
    come = np.empty(comm.size, np.int64)
    yield comm.Ialltoall(np.array(splits, np.int64), come)
    output = rows(tensor, int(come.sum()))
    yield from exchange(comm, tensor.split(list(splits)), output.split(come.tolist()))
    found += [output, torch.from_numpy(come)]


def reduce_rows(
    comm: MPI.Intracomm, tensor: torch.Tensor, form: Form, rows: Rows, found: Found
) -> Steps:
    """Each rank gets a part of the reduced rows; the first ones one more, if they do not go up."""
    pieces = tensor.detach().tensor_split(comm.size)
    output = rows(tensor, len(pieces[comm.rank]))
    yield from reduce_pieces(comm, pieces, form, output)
    found.append(output)


def sum_sparse(
    comm: MPI.Intracomm, places: torch.Tensor, values: torch.Tensor, shape: Any, found: Found
) -> Steps:
    """The ranks' sparse tensors added up, in the order of the ranks; coalesced and not rounded."""
    all_places: Found = []
    all_values: Found = []
    yield from gather_rows(comm, places.t().contiguous().cpu(), wire.room_for_rows, all_places)
    yield from gather_rows(comm, values.contiguous(), wire.room_for_rows, all_values)
    wide = all_values[0].to(wire.WIDE[values.dtype])
    there = all_places[0].t().to(wide.device)
    found.append(torch.sparse_coo_tensor(there, wide, shape, check_invariants=False).coalesce())


def reduce_sparse(comm: MPI.Intracomm, tensor: torch.Tensor, form: Form) -> Steps:
    """A sparse tensor becomes the ranks' sum, in place."""
    own, found = tensor.detach().coalesce(), Found()
    values = own.values()
    if form.before is not None:
        values = values.to(wire.WIDE[values.dtype], copy=True)
        scale(values, form.before)
    yield from sum_sparse(comm, own.indices(), values, tensor.shape, found)
    (total,) = found
    if form.divisor > 1:
        divide(total.values().numpy(), form.divisor)
    with torch.no_grad():  # what detach() gives has indices of its own
        tensor.copy_(total.to(tensor.dtype))
