# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls: allreduce, broadcast, allgather, alltoall and reducescatter of tensors; what one
rank has, objects, parameters or an optimizer's state, on all of them; `poll` and `synchronize`,
`barrier`, `join`, the timeline.

All verbs of tensors are made in the same way (`_begin`): a `_Verb` says what the ranks compare of
each tensor, how its data moves, and how the gradients of results become gradients of the arguments.
Gradients are Horovod's: as if each rank's loss were a part of the mean over the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from .._core import checks, timeline
from ..collectives import state_exchange
from ..collectives.agreement import OPEN, first_difference, ranks_by_text, together
from ..errors import MismatchError
from ..policy import Policy
from . import checkpoint
from .arguments import Adasum, Average, Compression, Options, Reduction, Sum, check_compression
from .calls import Calls
from .loop import Loop
from .ops import transfer, wire
from .ops.call import Call, result_of
from .ops.transfer import Found, Handles, Rows, Steps
from .ops.transfer import Reduction as Reducing
from .optimizer import check_kind
from .world import OptionalSet, calls_of, check_root, forget_dropped, rank, world

__all__ = ["allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_"]
__all__ += ["allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object"]
__all__ += ["broadcast_optimizer_state", "broadcast_parameters", "grouped_allgather"]
__all__ += ["grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_"]
__all__ += ["grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter"]
__all__ += ["grouped_reducescatter_async", "join", "poll", "reducescatter", "reducescatter_async"]
__all__ += ["sparse_allreduce_async", "start_timeline", "stop_timeline", "synchronize"]

Tensors = Sequence[Tensor]
Entries = list[tuple[str, Any]]
# Gives the steps in which data moves, on handles; makes room for rows; appends what arrives.
_Move = Callable[[Handles, Rows, Found], Steps]


class _Part(NamedTuple):
    """One tensor of a call. text: what the ranks compare. found: the result, then what else has
    arrived; empty at first if only the ranks together know its size. finish: called once with
    `found`, by the thread that takes the result."""

    text: str
    move: Reducing | _Move
    found: Found
    finish: Callable[[Found], None] | None = None


class _Verb(NamedTuple):
    """part: of a tensor, the options, the set and the number of ranks. back: the gradients of the
    arguments, of those of the results, of what was found, the options and the set. result: what
    `synchronize` returns, of what was found."""

    what: str
    part: Callable[[Any, Options, OptionalSet, int], _Part]
    back: Callable[[Tensors, Sequence[Found], Options, OptionalSet], Tensors]
    result: Callable[[Found], Any] = lambda found: found[0]


class _Differentiable(torch.autograd.Function):
    """The results of a call, as a function of its tensors."""

    @staticmethod
    def forward(ctx: Any, results: Any, back: Any, *tensors: Any) -> Any:
        ctx.back = back
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.back(gradients))


def _named(text: str, name: Any) -> str:
    """Return the text that the ranks compare, with the name; TypeError for one that is no text."""
    if name is None:
        return text
    return f"{text}, name={checks.instance('name', name, str, 'a text or None')!r}"


def _begin(verb: _Verb, arguments: dict[str, Any], **how: bool) -> Call:
    """Begin a call with the arguments of a verb, by name. A synchronous call is complete when this
    returns, and its results have gradients if the tensors have. The other ranks are notified of
    every error in this rank's arguments."""
    name, process_set = arguments.pop("name", None), arguments.pop("process_set", None)
    several = "tensors" in arguments
    tensors = arguments.pop("tensors" if several else "tensor")
    options, given = Options(**arguments, **how), (tensors,)
    by_name = options.later and not options.partial
    calls = calls_of(process_set, name if by_name else None)
    try:
        policy, what = options.policy(name), verb.what
        if several:
            given, what = tuple(tensors), f"grouped {what}"
            if not given:
                raise ValueError("tensors: expected at least one, got none")
        parts = [verb.part(one, options, process_set, calls.comm.size) for one in given]
        text = _named(f"{what} of {'; '.join(part.text for part in parts)}", name)
        if policy is not None:
            text += f", quorum={policy}"
        found = [part.found for part in parts]
        outputs = [part.found[0] for part in parts if part.found]
        move: Any = [part.move for part in parts]
        apart, role = options.later and name is None, ""
        if not isinstance(move[0], Reducing):
            apart, steps = False, list(zip(move, found))

            def move(to: Handles) -> Steps:
                return chain.from_iterable(one(to, call.side.rows, into) for one, into in steps)

        if verb is _REDUCE and policy is None:
            text = f"asynchronous {text}" if options.later else text
            role = OPEN if options.reduction() in (Average, Sum) else ""
        call = Call(text, move, outputs, apart=apart, role=role, read=given)
    except Exception as error:
        calls.refuse(error, name, by_name, options.partial)

    def land() -> Any:
        for part in parts:
            if part.finish is not None:
                part.finish(part.found)
        results, plain = found, options.later or options.in_place or not torch.is_grad_enabled()
        if not plain and any(one.requires_grad for one in given):
            again = options._replace(quorum="full")
            back = lambda gradients: verb.back(gradients, found, again, process_set)  # noqa: E731
            firsts = _Differentiable.apply([one[0] for one in found], back, *given)
            results = [[first, *one[1:]] for first, one in zip(firsts, found)]
        values = [verb.result(one) for one in results]
        return values if several else values[0]

    call.quorum, call.land = policy, land
    calls.start(call, name, options.later)
    return call


def _again(verb: _Verb, tensors: Any, options: Options, process_set: Any) -> Tensors:
    given = {"tensors": tensors, "process_set": process_set, **options._asdict()}
    return result_of(_begin(verb, given))


def _compressed(
    tensor: Any, options: Options, reduced: bool = True, rows: bool = False
) -> tuple[Tensor, Callable[[Found], None] | None]:
    """Check a tensor; return what travels in its place, and what makes the result of what has
    arrived. rows: it is divided along its first dimension."""
    wire.check_tensor(tensor, written=options.in_place, reduced=reduced)
    if rows and tensor.dim() == 0:
        raise ValueError("tensor: expected a first dimension, got a scalar; use reshape(1)")
    compressor, plain = options.compression, tensor.detach()
    if compressor is Compression.none:
        return plain, None
    compressor = check_compression(compressor)
    sent, ctx = compressor.compress(plain)
    wire.check_tensor(sent, written=False, reduced=reduced)
    if rows and sent.dim() == 0:
        raise ValueError("compression: expected a tensor with a first dimension, got a scalar")

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


def _reduced(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    sent, finish = _compressed(tensor, options)
    form, words = options.form(sent.dtype, ranks)
    text, copied = f"{wire.describe(sent)}, {words}", options.later and not options.in_place
    if copied and sent.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        sent = sent.clone()  # the caller may change the tensor at once
    output = sent if copied and finish is None else torch.empty_like(sent)
    if options.in_place and finish is None:
        output = tensor
    move: Reducing | _Move
    if options.op is Adasum:  # combined in pairs of ranks, not reduced over a handle
        move = lambda to, *_: transfer.adasum_tensor(to.everybody, form, sent, output)  # noqa: E731
    else:
        move = Reducing(form, sent, output)
    return _Part(text, move, [output], finish)


def _reduced_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    _check_linear("allreduce", options)
    return _again(_REDUCE, gradients, options, process_set)


def _sent_by_root(tensor: Any, options: Options, process_set: OptionalSet, _: int) -> _Part:
    root = check_root(options.root_rank, process_set)
    wire.check_tensor(tensor, written=options.in_place, reduced=False)
    output = tensor if options.in_place else tensor.detach().clone()
    text = f"{wire.describe(tensor)} from rank {root}"
    return _Part(text, lambda to, *_: transfer.broadcast(to, output, root), [output])


def _sent_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    mean = allreduce(gradients[0], process_set=process_set)
    return [mean if rank() == options.root_rank else torch.zeros_like(mean)]


# Collectives that divide tensors along their first dimension. They are carried out in the order in
# which they are made, on all ranks alike.


def _name_rows(tensor: Tensor) -> str:
    return f"rows of {wire.name(tensor.dtype)} {tuple(tensor.shape[1:])}"


def _gathered(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    sent, finish = _compressed(tensor, options, reduced=False, rows=True)
    move = lambda to, *room: transfer.gather_rows(to.everybody, sent, *room)  # noqa: E731
    return _Part(_name_rows(sent), move, [], finish)


def _gathered_back(gradients: Any, found: Any, _: Options, process_set: Any) -> Tensors:
    means = grouped_allreduce(gradients, process_set=process_set)
    own = calls_of(process_set).comm.rank
    return [mean.split(rows.tolist())[own] for mean, (_, rows) in zip(means, found)]


def _exchanged(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    sent, _finish = _compressed(tensor, options, reduced=False, rows=True)
    splits = given = options.splits
    if isinstance(splits, Tensor):
        if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
            raise ValueError(f"splits: expected integers, got {wire.name(splits.dtype)}")
        given = splits.tolist()
    rows = wire.splits("splits", given, len(sent), ranks)
    move = lambda to, *room: transfer.exchange_rows(to, sent, rows, *room)  # noqa: E731

    def finish(found: Found) -> None:
        like = (splits.device, splits.dtype) if isinstance(splits, Tensor) else (torch.int32,)
        found[1] = found[1].to(*like)

    return _Part(_name_rows(sent), move, [], finish)


def _exchanged_back(gradients: Any, found: Any, _: Options, process_set: Any) -> Tensors:
    return [alltoall(gradients[0], found[0][1], None, process_set)[0]]


def _scattered(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    if options.op is Adasum:
        raise NotImplementedError("op: Adasum is of whole tensors; use Average or Sum")
    sent, finish = _compressed(tensor, options, rows=True)
    form, words = options.form(sent.dtype, ranks)
    move = lambda to, *room: transfer.reduce_rows(to, sent, form, *room)  # noqa: E731
    return _Part(f"{wire.describe(sent)}, {words}", move, [], finish)


def _scattered_back(gradients: Any, _: Any, options: Options, process_set: Any) -> Tensors:
    _check_linear("reducescatter", options)
    factor = options.prescale_factor * options.postscale_factor
    if options.op is Sum:
        factor *= calls_of(process_set).comm.size
    return _again(_GATHER, [one * factor for one in gradients], options, process_set)


def _added_up(tensor: Any, options: Options, _: Any, ranks: int) -> _Part:
    op = options.op
    if not any(op is one for one in (Average, Sum)):
        raise ValueError(f"op: expected Average or Sum, got {op!r}")
    checks.instance("tensor", tensor, Tensor, "a sparse torch.Tensor")
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
    return _Part(f"{text}, {op.name}", move, [], finish)


_REDUCE = _Verb("allreduce", _reduced, _reduced_back)
_BROADCAST = _Verb("broadcast", _sent_by_root, _sent_back)
_GATHER = _Verb("allgather", _gathered, _gathered_back)
_EXCHANGE = _Verb("alltoall", _exchanged, _exchanged_back, tuple)
_SCATTER = _Verb("reducescatter", _scattered, _scattered_back)
_SPARSE = _Verb("sparse allreduce", _added_up, _reduced_back)  # asynchronous, without a gradient


# Allreduce


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> Tensor:
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

    MismatchError, on all ranks, if they make different calls; says which rank makes which.
    TypeError or ValueError if this rank's arguments are wrong (the others get MismatchError).
    StateError before `init`.
    """
    return result_of(_begin(_REDUCE, locals()))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> Tensor:
    """`allreduce` in place; return `tensor`. Collective."""
    return result_of(_begin(_REDUCE, locals(), in_place=True))


def allreduce_async(
    tensor: Tensor,
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
    return _begin(_REDUCE, locals(), later=True)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
    *,
    quorum: Policy | str = "full",
) -> Call:
    """Start an `allreduce` in place: leave `tensor` alone until `synchronize`. Collective."""
    return _begin(_REDUCE, locals(), in_place=True, later=True)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[Tensor]:
    """`allreduce` of several `tensors`, as one call. Collective."""
    return result_of(_begin(_REDUCE, locals()))


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[Tensor]:
    """`allreduce` of several `tensors`, as one call, in place; return them. Collective."""
    return result_of(_begin(_REDUCE, locals(), in_place=True))


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """Start an `allreduce` of several `tensors`, as one call; see `allreduce_async`. Collective."""
    return _begin(_REDUCE, locals(), later=True)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """Start an `allreduce` in place of several `tensors`; see `allreduce_async_`. Collective."""
    return _begin(_REDUCE, locals(), in_place=True, later=True)


# Broadcast


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: OptionalSet = None
) -> Tensor:
    """Return the root's tensor, bit for bit, in a new tensor on every rank. Collective.

    `tensor`: of the same shape and dtype on all ranks (MismatchError). If it requires a gradient,
    so does the result: the root gets the mean of all ranks' gradients, as with Horovod.
    `root_rank`: the root's number in the world; ValueError if there is no such rank. `name` and
    `process_set`: see `allreduce`.
    """
    return result_of(_begin(_BROADCAST, locals()))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: OptionalSet = None
) -> Tensor:
    """`broadcast` in place; return `tensor`. Collective."""
    return result_of(_begin(_BROADCAST, locals(), in_place=True))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start a `broadcast` of `tensor` in the background; see `allreduce_async`. Collective."""
    return _begin(_BROADCAST, locals(), later=True)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start a `broadcast` in place: leave `tensor` alone until `synchronize`. Collective."""
    return _begin(_BROADCAST, locals(), in_place=True, later=True)


def allgather(tensor: Tensor, name: str | None = None, process_set: OptionalSet = None) -> Tensor:
    """Return all ranks' tensors, concatenated along the first dimension, on all ranks. Collective.

    `tensor`: its first dimension may differ between ranks, dtype and the others must not
    (MismatchError). ValueError for a scalar. If it requires a gradient, so does the result. `name`
    and `process_set`: see `allreduce`.
    """
    return result_of(_begin(_GATHER, locals()))


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start an `allgather`: leave `tensor` alone until `synchronize`. Collective."""
    return _begin(_GATHER, locals(), later=True)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> list[Tensor]:
    """`allgather` of several `tensors`, as one call. Collective."""
    return result_of(_begin(_GATHER, locals()))


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start an `allgather` of several `tensors`, as one call; see `allgather_async`. Collective."""
    return _begin(_GATHER, locals(), later=True)


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: OptionalSet = None
) -> Any:
    """Send rows to each rank; return the rows from each, in the ranks' order. Collective.

    `tensor`: all but its first dimension the same on all ranks (MismatchError). `splits`: the
    number of rows to each rank, in their order; None: the same number to each. With `splits`, the
    number of rows from each rank is returned, too, like `splits`. `name` and `process_set`: see
    `allreduce`. ValueError if the length is not the sum of the splits, or not divisible by the
    number of ranks (the others get MismatchError).
    """
    output, rows = result_of(_begin(_EXCHANGE, locals()))
    return output if splits is None else (output, rows)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """Start an `alltoall` of `tensor`; `synchronize` returns both tensors. Collective."""
    return _begin(_EXCHANGE, locals(), later=True)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combine the tensors of all ranks; return this rank's part of the rows. Collective.

    The first ranks get one row more if the rows cannot be divided evenly. `tensor`: of the same
    shape and dtype on all ranks (MismatchError); ValueError for a scalar. `op`: not Adasum
    (NotImplementedError). `name`, `compression`, `process_set`, `prescale_factor` and
    `postscale_factor`: see `allreduce`.
    """
    return result_of(_begin(_SCATTER, locals()))


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """Start a `reducescatter`: leave `tensor` alone until `synchronize`. Collective."""
    return _begin(_SCATTER, locals(), later=True)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """`reducescatter` of several `tensors`, as one call. Collective."""
    return result_of(_begin(_SCATTER, locals()))


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """Start a `reducescatter` of several `tensors`; see `reducescatter_async`. Collective."""
    return _begin(_SCATTER, locals(), later=True)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
) -> Callable[[], Tensor]:
    """Start to add up the ranks' sparse tensors; return a function that waits for the sum, which
    has the entries of all ranks. Collective.

    `tensor`: sparse (COO), of the same shape and dtype on all ranks; TypeError for others. `op`:
    Average or Sum; ValueError for others. `name` and `process_set`: see `allreduce`.
    """
    return partial(result_of, _begin(_SPARSE, locals(), later=True))


# Objects


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: OptionalSet = None
) -> Any:
    """The root's object, on every rank; it is pickled. Collective.

    `obj`: the root's is sent, and returned there. If it cannot be pickled, the root raises what
    pickle does, the others MismatchError. `root_rank`: whose it is, by its number in the world;
    ValueError if it is not there. `name` and `process_set`: see `allreduce`.
    """
    calls = calls_of(process_set)
    comm = calls.comm
    buffers: list[state_exchange.Bytes] = []
    with calls.checking():
        root = check_root(root_rank, process_set)
        text = _named(f"broadcast_object from rank {root}", name)
        if comm.rank == root:
            buffers = state_exchange.pack(obj)
    calls.run(Call(text, lambda to: transfer.spread_buffers(to, buffers, root)))
    return obj if comm.rank == root else state_exchange.unpack(buffers)


def allgather_object(
    obj: Any, name: str | None = None, process_set: OptionalSet = None
) -> list[Any]:
    """The objects `obj` of all ranks, in their order, on every rank; they are pickled. Collective.

    `name` and `process_set` as of `allreduce`; what cannot be pickled, as in `broadcast_object`.
    """
    calls = calls_of(process_set)
    with calls.checking():
        text = _named("allgather_object", name)
    return calls.allgather(obj, text)


# Parameters, and the optimizer's state


def _entries(params: Any) -> tuple[Entries, list[str]]:
    """Return names and values, and a text of each that all ranks must agree on. The entries of a
    dictionary are in the order of their names, which may differ by rank; those of parameters() have
    their places for names. Raises what is wrong with one."""
    replaceable = isinstance(params, dict)
    if isinstance(params, Mapping):
        params = sorted(params.items(), key=lambda item: str(item[0]))
    several = isinstance(params, Iterable) and not isinstance(params, Tensor)
    found, said = [], []
    for i, pair in enumerate(params if several else [params]):
        if several and isinstance(pair, Tensor):
            pair = str(i), pair
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                "params: expected a state_dict, named_parameters(), parameters() or pairs of name "
                f"and tensor, got {type(pair).__name__}"
            )
        name, value = pair
        what = "an object"
        if isinstance(value, Tensor):
            wire.check_tensor(value, written=True, reduced=False, what=f"params[{name!r}]")
            what = wire.describe(value)
        elif not replaceable:
            raise TypeError(
                f"params[{name!r}]: expected a tensor, got {type(value).__name__}; other objects "
                "only in a dictionary, where they can be replaced"
            )
        found.append((name, value))
        said.append(f"{name}: {what}")
    return found, said


def _compare(calls: Calls, what: str, root: int, said: list[str]) -> None:
    """Raises MismatchError, on all ranks, if they describe different things; names the first."""
    everybody = calls.allgather(said, f"{what} from rank {root}")
    differing = first_difference(everybody, "nothing more")
    if differing:
        raise MismatchError(f"{what}: the ranks differ: {ranks_by_text(differing)}")


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Everybody's parameters become the root's, bit for bit, in place. Collective.

    `params`: ``model.state_dict()`` or ``model.named_parameters()``; what is no tensor is replaced
    in the dictionary. `root_rank`: whose they become. MismatchError, on all ranks, if they have
    different entries; names the first, its shapes and the ranks. TypeError or ValueError if this
    rank's arguments are wrong (the others get MismatchError).
    """
    calls = world().calls
    with calls.checking():
        root = check_root(root_rank, None)
        entries, said = _entries(params)
    _compare(calls, "broadcast_parameters", root, said)
    tensors = [value for _, value in entries if isinstance(value, Tensor)]
    objects = {name: value for name, value in entries if not isinstance(value, Tensor)}
    places = {tensor.data_ptr() for tensor in tensors}
    loops = [optimizer._loop for optimizer in world().optimizers]
    concerned = [loop for loop in loops if any(p.data_ptr() in places for _, p in loop.parameters)]
    for loop in concerned:
        loop.parameters_to_be_replaced()
    move = lambda to: chain.from_iterable(transfer.broadcast(to, one, root) for one in tensors)  # noqa: E731
    calls.run(Call(f"{len(tensors)} tensors from rank {root}", move, tensors))
    if objects:
        params.update(broadcast_object(objects, root))
    for loop in concerned:
        loop.parameters_replaced()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Everybody's optimizer becomes the root's: state, and options of the groups (learning rate,
    momentum, …). Collective.

    It does not matter which ranks have state already: a rank that has loaded a checkpoint serves
    those that have not, and one whose optimizer is new empties the others'. A
    `DistributedOptimizer` takes the number of the round and its schedulers from there, too.

    `optimizer`: with the same parameters, in the same groups, on all ranks. `root_rank`: whose it
    becomes. `model` is Horovod's; not needed. MismatchError, on all ranks, if the optimizers differ
    in class, groups or shapes, or a rank cannot load what came. TypeError or ValueError if this
    rank's arguments are wrong (the others get MismatchError).
    """
    calls = world().calls
    loop = getattr(optimizer, "_loop", None)  # of a DistributedOptimizer
    inner = optimizer if loop is None else loop._inner
    state: Any = None
    with calls.checking():
        root = check_root(root_rank, None)
        check_kind(optimizer)
        own = calls.comm.rank == root
        if own:
            position = None if loop is None else loop.position()
            state = {"optimizer": checkpoint.pack(inner.state_dict()), "rounds": position}
    said = [f"optimizer: {type(inner).__qualname__}"]
    for i, group in enumerate(inner.param_groups):
        for j, parameter in enumerate(group["params"]):
            said.append(f"group {i}, parameter {j}: {wire.describe(parameter)}")
    _compare(calls, "broadcast_optimizer_state", root, said)
    state = broadcast_object(state, root)

    def load() -> None:
        if not own:
            checkpoint.load_optimizer(inner, state["optimizer"])
            if loop is not None and state["rounds"] is not None:
                loop.begin_at(state["rounds"])

    together(calls, load)


# Calls under way, barriers, the end of an epoch, the timeline


def poll(handle: Call) -> bool:
    """Return whether the call that has returned `handle` is complete, so that `synchronize` returns
    at once. Local; drives communication."""
    checks.instance("handle", handle, Call, "what an asynchronous call has returned")
    return handle.poll()


def synchronize(handle: Call) -> Any:
    """Wait for the asynchronous call that has returned `handle`; its result, grouped ones' a list.

    Raises what the call itself would: MismatchError, if the ranks have made different ones.
    """
    checks.instance("handle", handle, Call, "what an asynchronous call has returned")
    return result_of(handle)


def barrier(process_set: OptionalSet = None) -> None:
    """Wait for all ranks, or for those of `process_set`. Collective; burns no core, and says who is
    missing if it takes long."""
    calls_of(process_set).agree("barrier")


def join(device: int = -1) -> int:
    """Wait until all ranks have called this: this rank has no more data. Collective.

    Every `DistributedOptimizer` that is open and in use joins: this rank contributes nothing to the
    others' steps and applies their updates. When it returns, all ranks have the same parameters and
    training can go on. In the others' `allreduce` and its like, if they average or sum, it takes
    part with zeros, which they divide by `size` all the same; so it does with a quorum, but for the
    first call of a name. Of other calls they are told by MismatchError, and this rank waits on.

    Several optimizers join at the same time, each in a thread, since the others go on with steps
    of all of them: their schedulers and ``on_round=`` may run side by side here. (Where MPI gives
    less than THREAD_MULTIPLE they join in the order they were made, and with uneven data only
    strategies whose steps wait for no other rank do, such as `ADPSGD`.)

    `device` is Horovod's, and ignored. Returns the rank that came last, by the machines' clocks.
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


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """From now on write down when calls and optimizers' rounds wait and move, in Chrome's trace
    format, until `stop_timeline` or the next `start_timeline`. Local; only rank 0 writes.

    `file_path`: written anew; OSError if that cannot be. `mark_cycles`: marks as well where data
    begins to move; Horovod's cycles are not there.
    """
    checks.flag("mark_cycles", mark_cycles)
    if world().comm.rank == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if there is one. Local."""
    timeline.stop()
