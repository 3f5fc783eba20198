# SPDX-License-Identifier: Apache-2.0
"""How bytes of tensors move that are not reduced, or reduced by one rank alone.

Every function here is called on all ranks of a communicator together, in the same order, with
arguments that they have compared, and yields MPI's own non-blocking operations, or rounds of
handles, which the caller completes in turn. What is larger than an operation can be goes in
several (pieces.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..._core.mpi import MPI
from ...errors import MismatchError, RankFailedError
from . import wire
from .handles import CHUNK, Form, Handles, Reduction, divide, scale
from .pieces import Blocks, cuts
from .side_stream import room_for_rows

Steps = Iterator[Any]
Tensors = Sequence[torch.Tensor]

_COMBINE: dict[str, np.ufunc] = {  # numpy's: torch has none of these for unsigned integers
    **{"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum},
    **{"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor},
}


def reduce_pieces(comm: MPI.Intracomm, pieces: Tensors, form: Form, into: torch.Tensor) -> Steps:
    """Piece i of every rank goes to rank i, which reduces them in the order of the ranks."""
    wide = wire.WIDE[into.dtype]
    if form.before is not None:  # scaled as what it is combined in, and so it travels
        pieces = [piece.detach().to(wide, copy=True) for piece in pieces]
        for piece in pieces:
            scale(piece, form.before)
    come = torch.empty(into.numel() * comm.size, dtype=pieces[0].dtype, device="cpu")
    sent = Blocks(_joined(pieces), _bytes_of(pieces))
    landing = Blocks(wire.bits(come), [come.nbytes // comm.size] * comm.size)
    yield from _to_each(comm, sent, landing, max(sent.sizes))
    parts = come.view(comm.size, into.numel())
    total = parts[0].to(wide, copy=True)
    with np.errstate(all="ignore"):  # as torch
        for part in parts[1:]:
            _COMBINE[form.op](total.numpy(), part.to(wide).numpy(), out=total.numpy())
    if form.divisor > 1:
        divide(total.numpy(), form.divisor)
    if form.after != 1:
        scale(total, form.after)
    into.detach().copy_(total.view(into.shape))


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
        for cut in cuts(memory.size):
            yield to.comm.Ibcast(memory[cut], root)
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
        yield from _to_all(to.comm, own, Blocks(memory, sizes))
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
    landing = Landing(outputs)
    come = landing.blocks
    _check_all((yield from share(to, wire.bits(tensor), come.memory, come.sizes)))
    landing.land()


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
    own = wire.bits(tensor)
    landing = None if outputs is None else Landing(outputs)
    if root is None:
        assert landing is not None
        yield from _to_all(comm, own, landing.blocks)
    else:  # the same size from each
        for cut in cuts(own.size, comm.size):
            if landing is None:
                yield comm.Igatherv(own[cut], None, root)
            else:
                room = landing.blocks.room(cut)
                yield comm.Igatherv(own[cut], room, root)
                landing.blocks.land(cut, room)
    if landing is not None:
        landing.land()


def scatter(comm: MPI.Intracomm, tensor: torch.Tensor, inputs: Tensors | None, root: int) -> Steps:
    """The root's inputs, one to each rank."""
    memory = Memory(tensor, written=True)
    sent = None if inputs is None else Blocks(_joined(inputs), _bytes_of(inputs))
    for cut in cuts(memory.bytes.size, comm.size):
        yield comm.Iscatterv(None if sent is None else sent.filled(cut), memory.bytes[cut], root)
    memory.land()


def exchange(comm: MPI.Intracomm, inputs: Tensors, outputs: Tensors) -> Steps:
    """Input i goes to rank i, output i comes from it. The sizes may differ; MismatchError on
    all ranks, and nothing moves, if somebody expects another one than it is sent."""
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
    landing, sent = Landing(outputs), Blocks(_joined(inputs), _bytes_of(inputs))
    yield from _to_each(comm, sent, landing.blocks, int(everyones.max()))
    landing.land()


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
    yield from gather_rows(comm, places.t().contiguous().cpu(), room_for_rows, all_places)
    yield from gather_rows(comm, values.contiguous(), room_for_rows, all_values)
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


def _to_all(comm: MPI.Intracomm, own: Any, come: Blocks) -> Steps:
    """The bytes of every rank, which all ranks know the sizes of, to all."""
    for cut in cuts(max(come.sizes), comm.size):
        room = come.room(cut)
        yield comm.Iallgatherv(own[cut], room)
        come.land(cut, room)


def _to_each(comm: MPI.Intracomm, sent: Blocks, come: Blocks, largest: int) -> Steps:
    """A block to each rank, and one from each; largest: bytes of a block on any rank."""
    for cut in cuts(largest, comm.size):
        room = come.room(cut)
        yield comm.Ialltoallv(sent.filled(cut), room)
        come.land(cut, room)


def _bytes_of(tensors: Tensors) -> list[int]:
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def _joined(tensors: Tensors) -> Any:
    return np.concatenate([wire.bits(tensor) for tensor in tensors])


class Memory:
    """A tensor's bytes in one piece: its own memory if it is in one piece itself.

    Parameters
    ----------
    tensor : torch.Tensor
    written : bool
        Do bytes come?
    """

    def __init__(self, tensor: torch.Tensor, written: bool) -> None:
        self._target = tensor
        self._copy: torch.Tensor | None = None
        own = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        own = own and tensor.device.type == "cpu"
        if not own:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._copy.copy_(tensor.detach())
        self._written = written
        self.bytes = wire.bits(tensor if self._copy is None else self._copy)

    def land(self) -> None:
        """What has come is where it belongs afterwards."""
        if self._copy is not None and self._written:
            self._target.detach().copy_(self._copy)


class Landing:
    """Room for tensors that come together, one from each rank."""

    def __init__(self, outputs: Tensors) -> None:
        self._outputs = outputs
        sizes = _bytes_of(outputs)
        self.blocks = Blocks(np.empty(sum(sizes), np.uint8), sizes)

    def land(self) -> None:
        """Into the tensors."""
        begin = 0
        for output, size in zip(self._outputs, self.blocks.sizes):
            fresh = torch.empty(output.shape, dtype=output.dtype, device="cpu")
            wire.bits(fresh)[:] = self.blocks.memory[begin : begin + size]
            output.detach().copy_(fresh)
            begin += size
