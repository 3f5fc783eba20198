# SPDX-License-Identifier: Apache-2.0
"""Collectives that share tensors out along their first dimension, by Horovod's names: `allgather`,
`alltoall`, `reducescatter`, for one tensor or several.

They are carried out in the order in which they are made, on all ranks alike, whatever their names,
by whoever waits for one or by a thread. Gradients are Horovod's: as if each rank's loss were a part
of the ranks' mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Callable

import torch

from .._core import checks
from .._core.mpi import MPI
from .allreduce import grouped_allreduce
from .arguments import (
    AllreduceOptions,
    Several,
    all_of,
    check_linear,
    check_name,
    named,
    with_gradient,
)
from .compression import Compression, check_compression
from .ops import transfer, wire
from .ops.call import Call, Steps, result_of
from .process_sets import OptionalSet
from .reductions import Adasum, Average, Reduction, Sum
from .world import calls_of

Tensors = Sequence[torch.Tensor]
# What the ranks compare of a tensor, and how its data moves on a communicator: gets room for rows,
# and puts what has come into a list.
_Move = Callable[["MPI.Intracomm", transfer.Rows, transfer.Found], Steps]
_Plan = Callable[[torch.Tensor, int], "tuple[str, _Move]"]


def _rows(tensor: torch.Tensor) -> str:
    return f"rows of {wire.name(tensor.dtype)} {tuple(tensor.shape[1:])}"


def _check_rows(tensor: Any, reduced: bool) -> None:
    wire.check_tensor(tensor, written=False, reduced=reduced)
    if tensor.dim() == 0:
        raise ValueError("tensor: expected a first dimension, got a scalar; use reshape(1)")


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _begin(
    what: str,
    tensors: Any,
    name: Any,
    process_set: OptionalSet,
    plan: _Plan,
    reduced: bool = False,
    later: bool = True,
    send: Callable[[torch.Tensor], torch.Tensor] = _as_it_is,
) -> Call:
    """Begin a call; a synchronous one is over when this returns. `send` returns what travels in
    place of a tensor. The other ranks are told of whatever is raised for this rank's arguments."""
    calls = calls_of(process_set, name if later else None)
    several = isinstance(tensors, Several)

    def prepare() -> Call:
        check_name(name)
        for one in all_of(tensors):
            _check_rows(one, reduced)
        sent = [send(one) for one in all_of(tensors)]
        for one in sent:
            _check_rows(one, reduced)
        plans = [plan(one, calls.comm.size) for one in sent]
        found: list[transfer.Found] = [[] for _ in plans]

        def move(handles: Any) -> Steps:
            parts = zip(plans, found)
            return chain.from_iterable(
                m(handles.everybody, call.side.rows, f) for (_, m), f in parts
            )

        text = f"{'grouped ' * several}{what} of {'; '.join(text for text, _ in plans)}"
        call = Call(named(text, name), move, read=sent)
        call.shown = lambda _: [parts[0] for parts in found] if several else found[0][0]
        call.found = found
        return call

    return calls.make(prepare, name, later)


# Allgather


def _gather(one: torch.Tensor, ranks: int) -> tuple[str, _Move]:
    return _rows(one), lambda comm, *to: transfer.gather_rows(comm, one.detach(), *to)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather` that goes on in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin("allgather", tensor, name, process_set, _gather)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather` of several `tensors`, as one call, that goes on in the background; see
    `allgather_async`. Collective."""
    return _begin("allgather", Several(tensors), name, process_set, _gather)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> list[torch.Tensor]:
    """`allgather` of several `tensors`, as one call. Collective."""
    several = Several(tensors)
    call = _begin("allgather", several, name, process_set, _gather, later=False)

    def back(gradients: Any) -> Any:
        means = grouped_allreduce(gradients, process_set=process_set)
        own = calls_of(process_set).comm.rank
        return [mean.split(rows.tolist())[own] for mean, (_, rows) in zip(means, call.found)]

    return with_gradient(result_of(call), back, several)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> torch.Tensor:
    """All ranks' tensors, one after the other along the first dimension, on all ranks. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Its first dimension may differ between ranks, dtype and the others must not
        (MismatchError). ValueError of a scalar. If it requires a gradient, so does the result.
    name, process_set
        See `allreduce`.
    """
    return grouped_allgather([tensor], name, process_set)[0]


# Alltoall


def _splits(tensor: torch.Tensor, splits: Any, ranks: int) -> list[int]:
    if splits is None:
        if len(tensor) % ranks:
            raise ValueError(
                f"splits: expected them for {len(tensor)} rows on {ranks} ranks, got none"
            )
        return [len(tensor) // ranks] * ranks
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
            raise ValueError(f"splits: expected integers, got {wire.name(splits.dtype)}")
        splits = splits.tolist()
    rows = [int(count) for count in splits]
    if len(rows) != ranks or min(rows) < 0 or sum(rows) != len(tensor):
        raise ValueError(
            f"splits: expected {ranks} numbers of rows with the sum {len(tensor)}, got {rows}"
        )
    return rows


def _alltoall(
    tensor: torch.Tensor, splits: Any, name: Any, process_set: OptionalSet, later: bool
) -> Call:
    def plan(one: torch.Tensor, ranks: int) -> tuple[str, _Move]:
        rows = _splits(one, splits, ranks)
        return _rows(one), lambda comm, *to: transfer.exchange_rows(comm, one.detach(), rows, *to)

    call = _begin("alltoall", tensor, name, process_set, plan, later=later)
    like = (
        splits
        if isinstance(splits, torch.Tensor)
        else torch.empty(0, dtype=torch.int32, device="cpu")
    )

    def both(_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, rows = call.found[0]
        return output, rows.to(like.device, like.dtype)

    call.shown = both
    return call


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`alltoall` of `tensor` that goes on in the background; `synchronize` returns both tensors.
    Collective."""
    return _alltoall(tensor, splits, name, process_set, later=True)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Any:
    """Rows to each rank, and the rows that come from each, in the ranks' order. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        All but its first dimension the same on all ranks (MismatchError).
    splits : torch.Tensor or sequence of int, or None
        How many rows go to which rank, in their order; None: as many to each.
    name, process_set
        See `allreduce`.

    Returns what has come; with `splits` also how many rows came from which rank, like `splits`.
    ValueError if they do not go up (the others get MismatchError).
    """
    output, rows = result_of(_alltoall(tensor, splits, name, process_set, later=False))

    def back(gradients: Any) -> Any:
        return [alltoall(gradients[0], rows, None, process_set)[0]]

    (output,) = with_gradient([output], back, [tensor])
    return output if splits is None else (output, rows)


# Reducescatter


def _reducescatter(
    tensors: Any,
    name: Any,
    op: Any,
    process_set: OptionalSet,
    before: Any,
    after: Any,
    later: bool = True,
    send: Callable[[torch.Tensor], torch.Tensor] = _as_it_is,
) -> Call:
    options = AllreduceOptions(op=op, prescale_factor=before, postscale_factor=after)

    def plan(one: torch.Tensor, ranks: int) -> tuple[str, _Move]:
        if op is Adasum:
            raise NotImplementedError("op: Adasum is of whole tensors; use Average or Sum")
        form, words = options.form(one.dtype, ranks)
        text = f"{wire.describe(one)}, {words}"
        return text, lambda comm, *to: transfer.reduce_rows(comm, one, form, *to)

    how: dict[str, Any] = {"reduced": True, "later": later, "send": send}
    return _begin("reducescatter", tensors, name, process_set, plan, **how)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """`reducescatter` that goes on in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(tensor, name, op, process_set, *factors)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """`reducescatter` of several `tensors`, as one call, that goes on in the background; see
    `reducescatter_async`. Collective."""
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(Several(tensors), name, op, process_set, *factors)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several `tensors`, as one call. Collective."""
    sent, contexts = [], []

    def send(one: torch.Tensor) -> torch.Tensor:
        rounded, context = check_compression(compression).compress(one)
        sent.append(rounded)
        contexts.append(context)
        return rounded

    factors = (prescale_factor, postscale_factor)
    several = Several(tensors)
    call = _reducescatter(several, name, op, process_set, *factors, later=False, send=send)

    def back(gradients: Any) -> Any:
        check_linear("reducescatter", op)
        ranks = calls_of(process_set).comm.size if op is Sum else 1
        scaled = [one * (prescale_factor * postscale_factor * ranks) for one in gradients]
        return grouped_allgather(scaled, None, process_set)

    reduced = with_gradient(result_of(call), back, sent)
    return [compression.decompress(one, context) for one, context in zip(reduced, contexts)]


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """The tensors of all ranks combined, of which each rank gets a part of the rows. Collective.

    The first ranks get one row more if they do not go up.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks (MismatchError); ValueError of a scalar.
    name, compression, process_set, prescale_factor, postscale_factor
        See `allreduce`.
    op : Average, Sum, Min, Max or Product
        See `allreduce`; NotImplementedError of Adasum.
    """
    factors = (prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], name, compression, op, process_set, *factors)[0]


# Sparse tensors


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
) -> Callable[[], torch.Tensor]:
    """The ranks' sparse tensors added up, with an entry for each of a rank's; call what is returned
    for it. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Sparse (COO), of the same shape and dtype on all ranks. TypeError of others.
    op : Average or Sum
        ValueError of others.
    name, process_set
        See `allreduce`.
    """
    calls = calls_of(process_set, name)

    def prepare() -> Call:
        check_name(name)
        if not any(op is one for one in (Average, Sum)):
            raise ValueError(f"op: expected Average or Sum, got {op!r}")
        checks.instance("tensor", tensor, torch.Tensor, "a sparse torch.Tensor")
        if tensor.layout != torch.sparse_coo:
            raise TypeError(f"tensor: expected a sparse COO tensor, got {tensor.layout}")
        parts = [tensor._indices().t().contiguous(), tensor._values()]
        found: list[transfer.Found] = [[] for _ in parts]

        def move(handles: Any) -> Steps:
            gathered = (
                transfer.gather_rows(handles.everybody, part.detach(), call.side.rows, rows)
                for part, rows in zip(parts, found)
            )
            return chain.from_iterable(gathered)

        text = f"sparse allreduce of {wire.name(tensor.dtype)} {tuple(tensor.shape)}"
        text += f", {tensor.sparse_dim()} of them sparse, {op.name}"
        call = Call(named(text, name), move, read=parts)
        call.found = found
        return call

    call = calls.make(prepare, name, later=True)

    def wait() -> torch.Tensor:
        call.wait()
        (places, _), (values, _) = call.found
        if op is Average:
            values = values / calls.comm.size
        return torch.sparse_coo_tensor(places.t(), values, tensor.shape)

    return wait
