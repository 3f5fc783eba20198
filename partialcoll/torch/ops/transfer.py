# SPDX-License-Identifier: Apache-2.0
"""How bytes of tensors move that are not reduced, or reduced by one rank alone.

Every function here is called on all ranks of a communicator together, in the same order, with
arguments that they have compared, and yields MPI's own non-blocking operations, or rounds of
handles, which the caller completes in turn.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Callable

import numpy as np
import torch
from mpi4py import MPI

from ...errors import MismatchError, RankFailedError
from . import wire
from .handles import CHUNK, Form, Handles, Reduction, divide, scale
from .side_stream import room_for_rows

Steps = Iterator[Any]
Tensors = Sequence[torch.Tensor]

_COMBINE: dict[str, Callable[..., torch.Tensor]] = {
    **{"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum},
    **{"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor},
}
_AND, _OR, _XOR = torch.logical_and, torch.logical_or, torch.logical_xor
_COMBINE_BOOL: dict[str, Callable[..., torch.Tensor]] = {
    **{"sum": _OR, "product": _AND, "min": _AND, "max": _OR},
    **{"band": _AND, "bor": _OR, "bxor": _XOR},
}


def reduce_pieces(comm: MPI.Intracomm, pieces: Tensors, form: Form, into: torch.Tensor) -> Steps:
    """Piece i of every rank goes to rank i, which reduces them in the order of the ranks."""
    size = into.numel()
    sent = torch.cat([piece.detach().reshape(-1) for piece in pieces])
    if form.before is not None:
        scale(sent, form.before)
    come = torch.empty(size * comm.size, dtype=into.dtype)
    mine = [size * into.element_size()] * comm.size
    yield comm.Ialltoallv([wire.bits(sent), _bytes_of(pieces)], [wire.bits(come), mine])
    wide = wire.wide_dtype(into.dtype)
    parts = come.view(comm.size, size)
    total = parts[0].to(wide, copy=True)
    combine = (_COMBINE_BOOL if wide == torch.bool else _COMBINE)[form.op]
    for part in parts[1:]:
        total = combine(total, part.to(wide))
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
        yield to.comm.Ibcast(memory, root)
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
        yield to.comm.Iallgatherv(own, [memory, sizes])
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
    _check_all((yield from share(to, wire.bits(tensor), *landing.room)))
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
    come = None if landing is None else landing.room
    yield comm.Iallgatherv(own, come) if root is None else comm.Igatherv(own, come, root)
    if landing is not None:
        landing.land()


def scatter(comm: MPI.Intracomm, tensor: torch.Tensor, inputs: Tensors | None, root: int) -> Steps:
    """The root's inputs, one to each rank."""
    memory = Memory(tensor, written=True)
    sent = None if inputs is None else [_joined(inputs), _bytes_of(inputs)]
    yield comm.Iscatterv(sent, memory.bytes, root)
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
    landing = Landing(outputs)
    yield comm.Ialltoallv([_joined(inputs), _bytes_of(inputs)], landing.room)
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
    wide = all_values[0].to(wire.wide_dtype(values.dtype))
    there = all_places[0].t().to(wide.device)
    found.append(torch.sparse_coo_tensor(there, wide, shape, check_invariants=False).coalesce())


def reduce_sparse(comm: MPI.Intracomm, tensor: torch.Tensor, form: Form) -> Steps:
    """A sparse tensor becomes the ranks' sum, in place."""
    own, found = tensor.detach().coalesce(), Found()
    scaled = own.values() if form.before is None else own.values() * form.before
    yield from sum_sparse(comm, own.indices(), scaled, tensor.shape, found)
    (total,) = found
    if form.divisor > 1:
        divide(total.values().numpy(), form.divisor)
    with torch.no_grad():  # what detach() gives has indices of its own
        tensor.copy_(total.to(tensor.dtype))


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
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype)
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
        self._sizes = _bytes_of(outputs)
        self._memory = np.empty(sum(self._sizes), np.uint8)
        self.room: tuple[Any, list[int]] = (self._memory, self._sizes)

    def land(self) -> None:
        """Into the tensors."""
        begin = 0
        for output, size in zip(self._outputs, self._sizes):
            fresh = torch.empty(output.shape, dtype=output.dtype)
            wire.bits(fresh)[:] = self._memory[begin : begin + size]
            output.detach().copy_(fresh)
            begin += size
