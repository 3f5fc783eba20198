# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls on tensors: allreduce, broadcast, allgather, alltoall, reducescatter; `poll` and
`synchronize`, `barrier`, `join`, the timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, Callable

import torch

from .._core import checks, timeline
from .._core.mpi import MPI
from ..collectives.agreement import OPEN
from ..policy import Policy
from ._loop import Loop
from .arguments import (
    Adasum,
    AllreduceOptions,
    Average,
    Compression,
    Reduction,
    Several,
    Sum,
    all_of,
    check_compression,
    check_linear,
    check_name,
    check_root,
    named,
    with_gradient,
)
from .ops import transfer, wire
from .ops.adasum import adasum_tensor
from .ops.call import Call, Steps, result_of
from .ops.handles import Handles
from .ops.handles import Reduction as Reducing
from .world import OptionalSet, calls_of, forget_dropped, rank, world


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Part:
    """One tensor of a call: its reduction, what the ranks compare of it, where it goes, and what is
    to be done for that when it is over."""

    def __init__(
        self, tensor: Any, options: AllreduceOptions, ranks: int, in_place: bool, later: bool
    ) -> None:
        wire.check_tensor(tensor, written=in_place)
        compressor = check_compression(options.compression)
        plain = tensor.detach()
        sent, ctx = compressor.compress(plain)
        if sent is not plain:
            wire.check_tensor(sent, written=False)
        form, words = options.form(sent.dtype, ranks)
        self.text = f"{wire.describe(sent)}, {words}"
        if later and not in_place and _memory(sent) == _memory(plain):
            sent = sent.clone()  # the caller may change it at once
        self.output, self.land = tensor, None
        as_it_is = compressor is Compression.none
        if not in_place:
            again = as_it_is and later
            self.output = sent if again else torch.empty_like(tensor, requires_grad=False)
        if as_it_is:
            self.move = Reducing(form, sent, self.output)
            return
        output, come = self.output.detach(), torch.empty_like(sent)
        self.move = Reducing(form, sent, come)
        self.land = lambda: output.copy_(compressor.decompress(come, ctx))


def _adasum(moves: list[Reducing]) -> Callable[[Handles], Steps]:
    """Combined in pairs of ranks, not reduced over a handle."""

    def steps(handles: Handles) -> Steps:
        for move in moves:
            yield from adasum_tensor(handles.everybody, move.form, move.source, move.output)

    return steps


def _prepare(
    tensors: Any, name: Any, options: AllreduceOptions, ranks: int, in_place: bool, later: bool
) -> Call:
    """The call that these arguments make: of one tensor, or of a list of them."""
    check_name(name)
    policy, several = options.policy(name), isinstance(tensors, Several)
    parts = [_Part(one, options, ranks, in_place, later) for one in all_of(tensors)]
    what = "grouped allreduce" if several else "allreduce"
    text = named(f"{what} of {'; '.join(part.text for part in parts)}", name)
    if policy is not None:
        text += f", quorum={policy}"
    elif later:
        text = f"asynchronous {text}"
    role = OPEN if policy is None and options.reduction() in (Average, Sum) else ""
    moves: Any = [part.move for part in parts]
    outputs, apart = [part.output for part in parts], later and name is None
    if options.op is Adasum:
        moves, apart = _adasum(moves), False
    call = Call(text, moves, outputs, apart=apart, role=role)
    call.quorum = policy
    call.lands = [part.land for part in parts if part.land is not None]
    if several:
        call.shown = list
    return call


def _begin(
    tensors: Any, name: Any, options: AllreduceOptions, in_place: bool = False, later: bool = True
) -> Call:
    """A synchronous call is over when this returns."""
    calls = calls_of(options.process_set, name if later and not options.partial else None)

    def prepare() -> Call:
        return _prepare(tensors, name, options, calls.comm.size, in_place, later)

    return calls.make(prepare, name, later, options.partial)


def _now(tensors: Any, name: Any, options: AllreduceOptions, in_place: bool = False) -> Any:
    """The result; with a gradient, if it is another tensor."""
    result = result_of(_begin(tensors, name, options, in_place, later=False))

    def back(gradients: Any) -> Any:
        check_linear("allreduce", options.reduction())
        return _now(Several(gradients), None, options._replace(quorum="full"))

    if in_place:
        return result
    if isinstance(tensors, Several):
        return with_gradient(result, back, tensors)
    return with_gradient([result], back, [tensors])[0]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> torch.Tensor:
    """The tensor combined over all ranks, in a new tensor. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks, with any strides, on any device. float16 and
        bfloat16 are combined in float32 and rounded once. If it requires a gradient, so does the
        result (Average and Sum): its gradient is combined over the ranks in backward.
    average : bool
        Horovod's old way to say op=Average or op=Sum.
    name : str
        All ranks make their calls in the same order; a name is compared, which finds mistakes.
        With a quorum it says which calls belong together.
    compression : Compressor
        Of `Compression`.
    op : Average, Sum, Min, Max, Product or Adasum
        Default: Average; of integers without what is behind the point. Of bool: Min, Max,
        Product. Adasum, of floating point: what the ranks' tensors have in common counts once
        (`collectives/adasum.py`).
    prescale_factor, postscale_factor : float
        Multiply what goes in and what comes out; integers in float64, without what is then behind
        the point.
    process_set : ProcessSet or None
        The ranks that make the call; None: all of them.
    quorum : policy or str
        "full": all ranks. Others as in `partialcoll.Allreduce_init` ("solo", "majority", …): who
        is late is in the next call of this name. Needs a name. Average divides by `size` all
        the same.

    Raises
    ------
    MismatchError
        On all ranks, if they make different calls; says which rank makes which.
    TypeError, ValueError
        This rank's arguments are wrong (the others get MismatchError).
    StateError
        Before `init`.
    """
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, op, *factors, process_set, quorum, compression)
    result: torch.Tensor = _now(tensor, name, options)
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> torch.Tensor:
    """`allreduce` in place; returns `tensor`. Collective."""
    options = AllreduceOptions(average, op, prescale_factor, postscale_factor, process_set, quorum)
    result: torch.Tensor = _now(tensor, name, options, in_place=True)
    return result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    compression: Any = Compression.none,
    quorum: Policy | str = "full",
) -> Call:
    """`allreduce` that goes on in the background; `synchronize` returns the result. Collective.

    The tensor may be changed when it returns. Calls without a name are matched by their order,
    calls with one by their name, whatever the order of names is on each rank: `poll` and
    `synchronize` tell when all ranks have made it. A name of which a call is under way on this rank
    is a ValueError. All ranks make a call asynchronous, or none does. With a quorum the first call
    of a name waits for all ranks, and one that finds the one before it under way waits for that.
    """
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, op, *factors, process_set, quorum, compression)
    return _begin(tensor, name, options)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> Call:
    """`allreduce` in place, in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    options = AllreduceOptions(average, op, prescale_factor, postscale_factor, process_set, quorum)
    return _begin(tensor, name, options, in_place=True)


# Several tensors


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[torch.Tensor]:
    """`allreduce` of several `tensors`, as one call. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, op, *factors, process_set, compression=compression)
    results: list[torch.Tensor] = _now(Several(tensors), name, options)
    return results


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[torch.Tensor]:
    """`allreduce` of several `tensors`, as one call, in place; returns them. Collective."""
    options = AllreduceOptions(average, op, prescale_factor, postscale_factor, process_set)
    results: list[torch.Tensor] = _now(Several(tensors), name, options, in_place=True)
    return results


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """`allreduce` of several `tensors`, as one call, that goes on in the background; see
    `allreduce_async`. Collective."""
    options = AllreduceOptions(average, op, prescale_factor, postscale_factor, process_set)
    return _begin(Several(tensors), name, options)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """`allreduce` of several `tensors`, as one call, in place and in the background: leave them
    alone until `synchronize`. Collective."""
    options = AllreduceOptions(average, op, prescale_factor, postscale_factor, process_set)
    return _begin(Several(tensors), name, options, in_place=True)


# Broadcast


def _begin_broadcast(
    tensor: Any,
    root_rank: Any,
    name: Any,
    process_set: OptionalSet,
    *,
    in_place: bool = False,
    later: bool = False,
) -> Call:
    """Begin it; a synchronous one is over when this returns."""

    def prepare() -> Call:
        check_name(name)
        root = check_root(root_rank, process_set)
        wire.check_tensor(tensor, written=in_place, reduced=False)
        text = named(f"broadcast of {wire.describe(tensor)} from rank {root}", name)
        output = tensor if in_place else tensor.detach().clone()
        return Call(text, lambda to: transfer.broadcast(to, output, root), [output])

    return calls_of(process_set, name if later else None).make(prepare, name, later)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """The root's tensor, bit for bit, in a new tensor on every rank. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks (MismatchError). If it requires a gradient, so does
        the result: the root gets the mean of all ranks' gradients, as with Horovod.
    root_rank : int
        Whose it is, by its number in the world; ValueError if it is not there.
    name, process_set
        See `allreduce`.
    """
    sent = result_of(_begin_broadcast(tensor, root_rank, name, process_set))

    def back(gradients: Any) -> Any:
        mean = allreduce(gradients[0], process_set=process_set)
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return with_gradient([sent], back, [tensor])[0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """`broadcast` in place; returns `tensor`. Collective."""
    return result_of(_begin_broadcast(tensor, root_rank, name, process_set, in_place=True))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast` of `tensor` that goes on in the background; see `allreduce_async`. Collective."""
    return _begin_broadcast(tensor, root_rank, name, process_set, later=True)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast` in place, in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin_broadcast(tensor, root_rank, name, process_set, in_place=True, later=True)


Tensors = Sequence[torch.Tensor]
# What the ranks compare of a tensor, and how its data moves on a communicator: gets room for rows,
# and puts what has come into a list.
_RowsMove = Callable[["MPI.Intracomm", transfer.Rows, transfer.Found], Steps]
_RowsPlan = Callable[[torch.Tensor, int], "tuple[str, _RowsMove]"]


def _rows(tensor: torch.Tensor) -> str:
    return f"rows of {wire.name(tensor.dtype)} {tuple(tensor.shape[1:])}"


def _check_rows(tensor: Any, reduced: bool) -> None:
    wire.check_tensor(tensor, written=False, reduced=reduced)
    if tensor.dim() == 0:
        raise ValueError("tensor: expected a first dimension, got a scalar; use reshape(1)")


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _begin_rows(
    what: str,
    tensors: Any,
    name: Any,
    process_set: OptionalSet,
    plan: _RowsPlan,
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


def _gather(one: torch.Tensor, ranks: int) -> tuple[str, _RowsMove]:
    return _rows(one), lambda comm, *to: transfer.gather_rows(comm, one.detach(), *to)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather` that goes on in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin_rows("allgather", tensor, name, process_set, _gather)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather` of several `tensors`, as one call, that goes on in the background; see
    `allgather_async`. Collective."""
    return _begin_rows("allgather", Several(tensors), name, process_set, _gather)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> list[torch.Tensor]:
    """`allgather` of several `tensors`, as one call. Collective."""
    several = Several(tensors)
    call = _begin_rows("allgather", several, name, process_set, _gather, later=False)

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
    def plan(one: torch.Tensor, ranks: int) -> tuple[str, _RowsMove]:
        rows = _splits(one, splits, ranks)
        return _rows(one), lambda comm, *to: transfer.exchange_rows(comm, one.detach(), rows, *to)

    call = _begin_rows("alltoall", tensor, name, process_set, plan, later=later)
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

    def plan(one: torch.Tensor, ranks: int) -> tuple[str, _RowsMove]:
        if op is Adasum:
            raise NotImplementedError("op: Adasum is of whole tensors; use Average or Sum")
        form, words = options.form(one.dtype, ranks)
        text = f"{wire.describe(one)}, {words}"
        return text, lambda comm, *to: transfer.reduce_rows(comm, one, form, *to)

    how: dict[str, Any] = {"reduced": True, "later": later, "send": send}
    return _begin_rows("reducescatter", tensors, name, process_set, plan, **how)


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


# Calls under way, barriers, the end of an epoch, the timeline


def _check_call(handle: Any) -> Call:
    return checks.instance("handle", handle, Call, "what an asynchronous call has returned")


def poll(handle: Call) -> bool:
    """Is the call over that has returned `handle`, so that `synchronize` returns at once? Local;
    drives communication."""
    return _check_call(handle).poll()


def synchronize(handle: Call) -> Any:
    """Wait for the asynchronous call that has returned `handle`; its result: a tensor, or a list of
    a grouped one's.

    Raises what the call itself would: MismatchError, if the ranks have made different ones.
    """
    return result_of(_check_call(handle))


def barrier(process_set: OptionalSet = None) -> None:
    """Wait for all ranks, or for those of `process_set`. Collective; burns no core, and says who is
    missing if it takes long."""
    calls_of(process_set).agree("barrier")


# The end of an epoch


def join(device: int = -1) -> int:
    """No more data on this rank: wait until all ranks have come here. Collective.

    Every `DistributedOptimizer` that is open and in use joins: this rank contributes nothing to the
    others' steps and applies their updates. When it returns, all ranks have the same parameters and
    training can go on. In the others' `allreduce` and its like, if they average or sum, it takes
    part with zeros, which they divide by `size` all the same; so it does with a quorum, but for the
    first call of a name. Of other calls they are told by MismatchError, and this rank waits on.

    Several optimizers join at the same time, each in a thread, since the others go on with steps
    of all of them: their schedulers and ``on_round=`` may run side by side here. (Where MPI gives
    less than THREAD_MULTIPLE they join in the order they were made, and with uneven data only
    strategies whose steps wait for nobody do: `ADPSGD` and its like.)

    Parameters
    ----------
    device : int
        Horovod's; nothing has to be made on it.

    Returns the rank that came last, by the machines' clocks.
    """
    here = world()
    if isinstance(device, bool) or not isinstance(device, int) or device < -1:
        here.calls.refuse(ValueError(f"device: expected a number from -1 on, got {device!r}"))
    came, last = time.time(), []
    forget_dropped()  # they are not joined, on any rank
    loops = [optimizer._loop for optimizer in here.optimizers]
    joins = here.calls.join_partial()
    Loop.join(loops, *joins, lambda: last.append(here.calls.join(came)))
    return last[0]


# The timeline


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """From now on write down when calls and optimizers' rounds wait and move, in Chrome's trace
    format, until `stop_timeline` or the next `start_timeline`. Local; ranks other than 0 write
    nothing.

    Parameters
    ----------
    file_path : str
        Written anew. OSError if that cannot be.
    mark_cycles : bool
        Marks as well where data begins to move; Horovod's cycles are not there.
    """
    checks.flag("mark_cycles", mark_cycles)
    if world().comm.rank == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if there is one. Local."""
    timeline.stop()
