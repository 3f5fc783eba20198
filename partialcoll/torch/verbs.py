# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls on tensors: allreduce, broadcast, allgather, alltoall, reducescatter; `poll` and
`synchronize`, `barrier`, `join`, the timeline.

All verbs are made in the same way (`_begin`): a `_Verb` says what the ranks compare of each tensor,
how its data moves, and how the gradients of results become gradients of the arguments. Gradients
are Horovod's: as if each rank's loss were a part of the mean over the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Callable, NamedTuple

import torch

from .._core import checks, timeline
from ..collectives.agreement import OPEN
from ..policy import Policy
from .arguments import (
    Adasum,
    Average,
    Compression,
    Options,
    Reduction,
    Sum,
    check_compression,
    check_root,
    named,
)
from .loop import Loop
from .ops import transfer, wire
from .ops.adasum import adasum_tensor
from .ops.call import Call, Steps, result_of
from .ops.handles import Handles
from .ops.handles import Reduction as Reducing
from .world import OptionalSet, calls_of, forget_dropped, rank, world

Tensors = Sequence[torch.Tensor]
Found = transfer.Found
# Gives the steps in which data moves, on handles; makes room for rows; appends what arrives.
_Move = Callable[[Handles, transfer.Rows, Found], Steps]


class _Part(NamedTuple):
    """One tensor of a call.

    text: what the ranks compare. read: what is sent. found: the result, then what else has
    arrived; empty at first if only the ranks together know its size. finish: called once with
    `found`, by the thread that takes the result.
    """

    text: str
    move: Reducing | _Move
    read: Tensors
    found: Found
    finish: Callable[[Found], None] | None = None


class _Verb(NamedTuple):
    """part: of a tensor, the options, the set and the number of ranks. back: the gradients of the
    arguments, of those of the results, of what was found, the options and the set."""

    what: str
    part: Callable[[Any, Options, OptionalSet, int], _Part]
    back: Callable[[Tensors, Sequence[Found], Options, OptionalSet], Tensors]


def _begin(
    verb: _Verb, arguments: dict[str, Any], **how: bool
) -> tuple[Call, Tensors, Options, OptionalSet]:
    """Begin a call with the arguments of a verb, by name; return it, its tensors, options and set.
    A synchronous call is complete when this returns. The other ranks are notified of every error in
    this rank's arguments."""
    name, process_set = arguments.pop("name", None), arguments.pop("process_set", None)
    tensors = arguments.pop("tensors" if "tensors" in arguments else "tensor")
    options, given = Options(**arguments, **how), (tensors,)
    by_name = options.later and not options.partial
    calls = calls_of(process_set, name if by_name else None)
    try:
        policy, what = options.policy(name), verb.what
        if options.several:
            given, what = tuple(tensors), f"grouped {what}"
            if not given:
                raise ValueError("tensors: expected at least one, got none")
        parts = [verb.part(one, options, process_set, calls.comm.size) for one in given]
        text = named(f"{what} of {'; '.join(part.text for part in parts)}", name)
        if policy is not None:
            text += f", quorum={policy}"
        found = [part.found for part in parts]
        outputs = [part.found[0] for part in parts if part.found]
        read = [one for part in parts for one in part.read]
        move: Any = [part.move for part in parts]
        apart, role = options.later and name is None, ""
        if not isinstance(move[0], Reducing):
            apart, steps = False, list(zip(move, found))

            def move(to: Handles) -> Steps:
                return chain.from_iterable(one(to, call.side.rows, into) for one, into in steps)

        if verb is _REDUCE:
            if options.later and policy is None:
                text = f"asynchronous {text}"
            if policy is None and options.reduction() in (Average, Sum):
                role = OPEN
        call = Call(text, move, outputs, apart=apart, role=role, read=read)
    except Exception as error:
        calls.refuse(error, name, by_name)
    call.quorum, call.found = policy, found
    call.lands = [partial(one.finish, one.found) for one in parts if one.finish is not None]
    call.shown = partial(_shown, found, options.several)
    calls.start(call, name, options.later)
    return call, given, options, process_set


def _shown(found: list[Found], several: bool, _: Any) -> Any:
    return _firsts(found) if several else found[0][0]


class _Differentiable(torch.autograd.Function):
    """The results of a call, as a function of its tensors."""

    @staticmethod
    def forward(ctx: Any, results: Any, back: Any, *tensors: Any) -> Any:
        ctx.back = back
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.back(gradients))


def _now(verb: _Verb, arguments: dict[str, Any], **how: bool) -> list[Found]:
    """Make a synchronous call; return what each of its tensors has found. The results have
    gradients if the tensors have."""
    call, given, options, process_set = _begin(verb, arguments, **how)
    result_of(call)
    found: list[Found] = call.found
    if options.in_place or not torch.is_grad_enabled():
        return found
    if not any(one.requires_grad for one in given):
        return found
    differentiable: Any = _Differentiable.apply
    back = partial(_back, verb, found, options, process_set)
    results = differentiable([one[0] for one in found], back, *given)
    return [[result, *one[1:]] for result, one in zip(results, found)]


def _firsts(found: list[Found]) -> list[torch.Tensor]:
    return [one[0] for one in found]


def _again(verb: _Verb, tensors: Any, options: Options, process_set: Any) -> Tensors:
    """Make a grouped call for gradients."""
    given = {"tensors": tensors, "process_set": process_set, **options._asdict()}
    return _firsts(_now(verb, given))


def _back(verb: _Verb, found: Any, options: Options, process_set: Any, gradients: Any) -> Tensors:
    again = options._replace(quorum="full", several=True)
    return verb.back(gradients, found, again, process_set)


def _compressed(
    tensor: torch.Tensor, options: Options
) -> tuple[torch.Tensor, Callable[[Found], None] | None]:
    """Return what travels in place of a tensor, and what makes the result of what has arrived."""
    compressor, plain = options.compression, tensor.detach()
    if compressor is Compression.none:
        return plain, None
    compressor = check_compression(compressor)
    sent, ctx = compressor.compress(plain)

    def finish(found: Found) -> None:
        result = compressor.decompress(found[0], ctx)
        if options.in_place:
            tensor.detach().copy_(result)
            result = tensor
        found[0] = result

    return sent, finish


def _check_linear(what: str, options: Options) -> None:
    op = options.reduction()
    if op not in (Average, Sum):
        raise RuntimeError(f"{what}: {op.name} has no gradient; use Average or Sum")


# Allreduce


def _reduced(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    wire.check_tensor(tensor, written=options.in_place)
    sent, finish = _compressed(tensor, options)
    if finish is not None:
        wire.check_tensor(sent, written=False)
    form, words = options.form(sent.dtype, ranks)
    text, copied = f"{wire.describe(sent)}, {words}", options.later and not options.in_place
    if copied and sent.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        sent = sent.clone()  # the caller may change the tensor at once
    output = sent if copied and finish is None else torch.empty_like(sent)
    if options.in_place and finish is None:
        output = tensor
    move: Reducing | _Move
    if options.op is Adasum:  # combined in pairs of ranks, not reduced over a handle
        move = lambda to, *_: adasum_tensor(to.everybody, form, sent, output)  # noqa: E731
    else:
        move = Reducing(form, sent, output)
    return _Part(text, move, (), [output], finish)


def _reduced_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    _check_linear("allreduce", options)
    return _again(_REDUCE, gradients, options, process_set)


_REDUCE = _Verb("allreduce", _reduced, _reduced_back)


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
    """Return the tensor combined over all ranks, in a new tensor. Collective.

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
        Default: Average (truncated toward zero for integers). Of bool: Min, Max, Product. Adasum,
        of floating point: what the ranks' tensors have in common counts once
        (`collectives/adasum.py`).
    prescale_factor, postscale_factor : float
        Multiply the contribution and the result; integers are multiplied in float64 and truncated.
    process_set : ProcessSet or None
        The ranks that make the call; None: all of them.
    quorum : policy or str
        "full": all ranks. Others as in `partialcoll.Allreduce_init` ("solo", "majority", …): a
        late value is in the next call of this name. Needs a name. Average still divides by `size`.

    Raises
    ------
    MismatchError
        On all ranks, if they make different calls; says which rank makes which.
    TypeError, ValueError
        This rank's arguments are wrong (the others get MismatchError).
    StateError
        Before `init`.
    """
    return _now(_REDUCE, locals())[0][0]


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
    """`allreduce` in place; return `tensor`. Collective."""
    return _now(_REDUCE, locals(), in_place=True)[0][0]


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
    """Start an `allreduce` in the background; `synchronize` returns the result. Collective.

    The tensor may be changed when this returns. Calls without a name are matched by their order,
    calls with one by their name, whatever the order of names is on each rank: `poll` and
    `synchronize` tell when all ranks have made it. A name of which a call is under way on this rank
    is a ValueError. All ranks make a call asynchronous, or none does. With a quorum the first call
    of a name waits for all ranks, and one that finds the one before it under way waits for that.
    """
    return _begin(_REDUCE, locals(), later=True)[0]


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
    """Start an `allreduce` in place, in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin(_REDUCE, locals(), in_place=True, later=True)[0]


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[torch.Tensor]:
    """`allreduce` of several `tensors`, as one call. Collective."""
    return _firsts(_now(_REDUCE, locals(), several=True))


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[torch.Tensor]:
    """`allreduce` of several `tensors`, as one call, in place; return them. Collective."""
    return _firsts(_now(_REDUCE, locals(), several=True, in_place=True))


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """Start an `allreduce` of several `tensors`, as one call, in the background; see
    `allreduce_async`. Collective."""
    return _begin(_REDUCE, locals(), several=True, later=True)[0]


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """Start an `allreduce` of several `tensors`, as one call, in place and in the background: leave
    them alone until `synchronize`. Collective."""
    return _begin(_REDUCE, locals(), several=True, in_place=True, later=True)[0]


# Broadcast


def _sent_by_root(tensor: Any, options: Options, process_set: OptionalSet, _: int) -> _Part:
    root = check_root(options.root_rank, process_set)
    wire.check_tensor(tensor, written=options.in_place, reduced=False)
    output = tensor if options.in_place else tensor.detach().clone()
    text = f"{wire.describe(tensor)} from rank {root}"
    return _Part(text, lambda to, *_: transfer.broadcast(to, output, root), (), [output])


def _sent_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    mean = allreduce(gradients[0], process_set=process_set)
    return [mean if rank() == options.root_rank else torch.zeros_like(mean)]


_BROADCAST = _Verb("broadcast", _sent_by_root, _sent_back)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """Return the root's tensor, bit for bit, in a new tensor on every rank. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks (MismatchError). If it requires a gradient, so does
        the result: the root gets the mean of all ranks' gradients, as with Horovod.
    root_rank : int
        The root's number in the world; ValueError if there is no such rank.
    name, process_set
        See `allreduce`.
    """
    return _now(_BROADCAST, locals())[0][0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """`broadcast` in place; return `tensor`. Collective."""
    return _now(_BROADCAST, locals(), in_place=True)[0][0]


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """Start a `broadcast` of `tensor` in the background; see `allreduce_async`. Collective."""
    return _begin(_BROADCAST, locals(), later=True)[0]


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """Start a `broadcast` in place, in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin(_BROADCAST, locals(), in_place=True, later=True)[0]


# Collectives that divide tensors along their first dimension. They are carried out in the order in
# which they are made, on all ranks alike.


def _rows_of(tensor: Any, options: Options, reduced: bool = False) -> Any:
    """Return what travels of a tensor that has rows, as `_compressed`."""
    wire.check_tensor(tensor, written=False, reduced=reduced)
    if tensor.dim() == 0:
        raise ValueError("tensor: expected a first dimension, got a scalar; use reshape(1)")
    sent, finish = _compressed(tensor, options)
    if finish is not None:
        wire.check_tensor(sent, written=False, reduced=reduced)
        if sent.dim() == 0:
            raise ValueError("compression: expected a tensor with a first dimension, got a scalar")
    return sent, finish


def _name_rows(tensor: torch.Tensor) -> str:
    return f"rows of {wire.name(tensor.dtype)} {tuple(tensor.shape[1:])}"


def _gathered(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    sent, finish = _rows_of(tensor, options)

    def move(to: Handles, *room: Any) -> Steps:
        return transfer.gather_rows(to.everybody, sent, *room)

    return _Part(_name_rows(sent), move, (sent,), [], finish)


def _gathered_back(gradients: Any, found: Any, _: Options, process_set: Any) -> Tensors:
    means = grouped_allreduce(gradients, process_set=process_set)
    own = calls_of(process_set).comm.rank
    return [mean.split(rows.tolist())[own] for mean, (_, rows) in zip(means, found)]


_GATHER = _Verb("allgather", _gathered, _gathered_back)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> torch.Tensor:
    """Return all ranks' tensors, concatenated along the first dimension, on all ranks. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Its first dimension may differ between ranks, dtype and the others must not
        (MismatchError). ValueError for a scalar. If it requires a gradient, so does the result.
    name, process_set
        See `allreduce`.
    """
    return _now(_GATHER, locals())[0][0]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start an `allgather` in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin(_GATHER, locals(), later=True)[0]


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> list[torch.Tensor]:
    """`allgather` of several `tensors`, as one call. Collective."""
    return _firsts(_now(_GATHER, locals(), several=True))


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start an `allgather` of several `tensors`, as one call, in the background; see
    `allgather_async`. Collective."""
    return _begin(_GATHER, locals(), several=True, later=True)[0]


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


def _exchanged(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    sent, _finish = _rows_of(tensor, options)
    splits = options.splits
    rows = _splits(sent, splits, ranks)

    def move(to: Handles, *room: Any) -> Steps:
        return transfer.exchange_rows(to.everybody, sent, rows, *room)

    def finish(found: Found) -> None:
        if isinstance(splits, torch.Tensor):
            found[1] = found[1].to(splits.device, splits.dtype)
        else:
            found[1] = found[1].to(torch.int32)

    return _Part(_name_rows(sent), move, (sent,), [], finish)


def _exchanged_back(gradients: Any, found: Any, _: Options, process_set: Any) -> Tensors:
    return [alltoall(gradients[0], found[0][1], None, process_set)[0]]


_EXCHANGE = _Verb("alltoall", _exchanged, _exchanged_back)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Any:
    """Send rows to each rank; return the rows from each, in the ranks' order. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        All but its first dimension the same on all ranks (MismatchError).
    splits : torch.Tensor or sequence of int, or None
        The number of rows to each rank, in their order; None: the same number to each.
    name, process_set
        See `allreduce`.

    Returns the rows; with `splits` also the number of rows from each rank, like `splits`.
    ValueError if the length is not the sum of the splits, or not divisible by the number of ranks
    (the others get MismatchError).
    """
    output, rows = _now(_EXCHANGE, locals())[0]
    return output if splits is None else (output, rows)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """Start an `alltoall` of `tensor` in the background; `synchronize` returns both tensors.
    Collective."""
    call = _begin(_EXCHANGE, locals(), later=True)[0]
    call.shown = lambda _: tuple(call.found[0])
    return call


def _scattered(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    if options.op is Adasum:
        raise NotImplementedError("op: Adasum is of whole tensors; use Average or Sum")
    sent, finish = _rows_of(tensor, options, reduced=True)
    form, words = options.form(sent.dtype, ranks)

    def move(to: Handles, *room: Any) -> Steps:
        return transfer.reduce_rows(to.everybody, sent, form, *room)

    return _Part(f"{wire.describe(sent)}, {words}", move, (sent,), [], finish)


def _scattered_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    _check_linear("reducescatter", options)
    factor = options.prescale_factor * options.postscale_factor
    if options.op is Sum:
        factor *= calls_of(process_set).comm.size
    return _again(_GATHER, [one * factor for one in gradients], options, process_set)


_SCATTER = _Verb("reducescatter", _scattered, _scattered_back)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine the tensors of all ranks; return this rank's part of the rows. Collective.

    The first ranks get one row more if the rows cannot be divided evenly.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks (MismatchError); ValueError for a scalar.
    name, compression, process_set, prescale_factor, postscale_factor
        See `allreduce`.
    op : Average, Sum, Min, Max or Product
        See `allreduce`; NotImplementedError for Adasum.
    """
    return _now(_SCATTER, locals())[0][0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """Start a `reducescatter` in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _begin(_SCATTER, locals(), later=True)[0]


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
    return _firsts(_now(_SCATTER, locals(), several=True))


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """Start a `reducescatter` of several `tensors`, as one call, in the background; see
    `reducescatter_async`. Collective."""
    return _begin(_SCATTER, locals(), several=True, later=True)[0]


# Sparse tensors


def _added_up(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    op = options.op
    if not any(op is one for one in (Average, Sum)):
        raise ValueError(f"op: expected Average or Sum, got {op!r}")
    checks.instance("tensor", tensor, torch.Tensor, "a sparse torch.Tensor")
    if tensor.layout != torch.sparse_coo:
        raise TypeError(f"tensor: expected a sparse COO tensor, got {tensor.layout}")
    sent = [tensor._indices().t().contiguous().detach(), tensor._values().detach()]

    def move(to: Handles, *room: Any) -> Iterator[Any]:
        return chain.from_iterable(transfer.gather_rows(to.everybody, one, *room) for one in sent)

    def finish(found: Found) -> None:
        places, _, values, _ = found
        if op is Average:
            values = values / ranks
        found[:] = [torch.sparse_coo_tensor(places.t(), values, tensor.shape)]

    text = f"{wire.name(tensor.dtype)} {tuple(tensor.shape)}, {tensor.sparse_dim()} of them sparse"
    return _Part(f"{text}, {op.name}", move, sent, [], finish)


_SPARSE = _Verb("sparse allreduce", _added_up, _reduced_back)  # has no gradient: it is asynchronous


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
) -> Callable[[], torch.Tensor]:
    """Start to add up the ranks' sparse tensors; return a function that waits for the sum, which
    has the entries of all ranks. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Sparse (COO), of the same shape and dtype on all ranks. TypeError for others.
    op : Average or Sum
        ValueError for others.
    name, process_set
        See `allreduce`.
    """
    return partial(result_of, _begin(_SPARSE, locals(), later=True)[0])


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
