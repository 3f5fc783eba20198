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

from .built import mpi_threads_supported
from .compression import Compression, check_compression
from .horovod import (
    AllreduceOptions,
    Several,
    all_of,
    check_name,
    grouped_allreduce,
    named,
    needs_gradient,
    result_of,
    synchronize,
)
from .ops import transfer, wire
from .ops.call import Call, Steps
from .process_sets import OptionalSet
from .reductions import Adasum, Average, Reduction, Sum
from .world import calls_of

Tensors = Sequence[torch.Tensor]
_Plan = Callable[[Any, Any, list[torch.Tensor]], tuple[str, Steps]]


def _rows(tensor: torch.Tensor) -> str:
    return f"rows of {wire.name(tensor.dtype)} {tuple(tensor.shape[1:])}"


def _check_rows(tensor: Any, reduced: bool) -> None:
    wire.check_tensor(tensor, written=False, reduced=reduced)
    if tensor.dim() == 0:
        raise ValueError("tensor: expected a first dimension, got a scalar; use reshape(1)")


def _begin(
    what: str, tensors: Any, name: Any, process_set: OptionalSet, reduced: bool, plan: _Plan
) -> Call:
    """The next call: plan gives what the ranks compare of one tensor, and the steps of its data
    on a communicator, which put what has come into a list."""
    calls = calls_of(process_set)
    several = isinstance(tensors, Several)
    threads = mpi_threads_supported()  # else who waits for it carries it out
    found: list[list[torch.Tensor]] = []
    steps, texts = [], []
    comm, queue = calls.rows()
    try:
        check_name(name)
        for one in all_of(tensors):
            _check_rows(one, reduced)
            found.append([])
            text, step = plan(comm, one, found[-1])
            texts.append(text)
            steps.append(step)
        title = f"{'grouped ' * several}{what} of {'; '.join(texts)}"
        call = Call(named(title, name), chain.from_iterable(steps), read=all_of(tensors))
    except Exception as error:
        queue.refuse(error, background=threads)
    call.shown = lambda _: [parts[0] for parts in found] if several else found[0][0]
    call.found = found
    queue.submit(call, background=threads)
    return call


# Allgather


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather` that goes on in the background: leave the tensor alone until `synchronize`.
    Collective."""

    def plan(comm: Any, one: torch.Tensor, found: list[torch.Tensor]) -> tuple[str, Steps]:
        return _rows(one), transfer.gather_rows(comm, one.detach(), found)

    return _begin("allgather", tensor, name, process_set, False, plan)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> Call:
    """`allgather_async` of several tensors, as one call. Collective."""
    given: Any = Several(tensors)
    return allgather_async(given, name, process_set)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, *tensors: Any) -> Any:
        call = grouped_allgather_async(tensors, name, process_set)
        gathered = tuple(result_of(call))
        own = calls_of(process_set).comm.rank
        ctx.process_set = process_set
        ctx.own = [(int(rows[:own].sum()), int(rows[own])) for _, rows in call.found]
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        means = grouped_allreduce(gradients, process_set=ctx.process_set)
        parts = [mean.narrow(0, begin, count) for mean, (begin, count) in zip(means, ctx.own)]
        return (None, None, *parts)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: OptionalSet = None
) -> list[torch.Tensor]:
    """`allgather` of several tensors, as one call. Collective."""
    if needs_gradient(*tensors):
        differentiable: Any = _Allgather.apply
        return list(differentiable(name, process_set, *tensors))
    return list(result_of(grouped_allgather_async(tensors, name, process_set)))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: OptionalSet = None
) -> torch.Tensor:
    """All ranks' tensors, one after the other along the first dimension, on all ranks. Collective.

    The first dimension may differ between ranks, the others must not (MismatchError).
    """
    if needs_gradient(tensor):
        return grouped_allgather([tensor], name, process_set)[0]
    gathered: torch.Tensor = result_of(allgather_async(tensor, name, process_set))
    return gathered


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


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`alltoall` that goes on in the background; `synchronize` returns both tensors. Collective."""

    def plan(comm: Any, one: torch.Tensor, found: list[torch.Tensor]) -> tuple[str, Steps]:
        rows = _splits(one, splits, comm.size)
        return _rows(one), transfer.exchange_rows(comm, one.detach(), rows, found)

    call = _begin("alltoall", tensor, name, process_set, False, plan)
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)

    def both(_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, rows = call.found[0]
        return output, rows.to(like.device, like.dtype)

    call.shown = both
    return call


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: Any, process_set: Any) -> Any:
        output, rows = result_of(alltoall_async(tensor, splits, name, process_set))
        ctx.rows, ctx.process_set = rows, process_set
        ctx.mark_non_differentiable(rows)
        return output, rows

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call = alltoall_async(gradients[0].contiguous(), ctx.rows, None, ctx.process_set)
        return result_of(call)[0], None, None, None


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

    Returns what has come; with `splits` also how many rows came from which rank, like `splits`.
    ValueError if they do not go up (the others get MismatchError).
    """
    if needs_gradient(tensor):
        differentiable: Any = _Alltoall.apply
        output, rows = differentiable(tensor, splits, name, process_set)
    else:
        output, rows = result_of(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, rows)


# Reducescatter


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """`reducescatter` that goes on in the background: leave the tensor alone until `synchronize`.
    Collective."""
    options = AllreduceOptions(op=op, before=prescale_factor, after=postscale_factor)

    def plan(comm: Any, one: torch.Tensor, found: list[torch.Tensor]) -> tuple[str, Steps]:
        form, words = options.form(one.dtype, comm.size)
        if op is Adasum:
            raise NotImplementedError("op: Adasum is of whole tensors; use Average or Sum")
        return f"{wire.describe(one)}, {words}", transfer.reduce_rows(comm, one, form, found)

    return _begin("reducescatter", tensor, name, process_set, True, plan)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Call:
    """`reducescatter_async` of several tensors, as one call. Collective."""
    given: Any = Several(tensors)
    factors = (prescale_factor, postscale_factor)
    return reducescatter_async(given, name, op, process_set, *factors)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Any, *tensors: Any) -> Any:
        name, op, process_set, before, after = ctx.options = options
        call = grouped_reducescatter_async(tensors, name, op, process_set, before, after)
        return tuple(result_of(call))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _, op, process_set, before, after = ctx.options
        if op not in (Average, Sum):
            raise RuntimeError(f"reducescatter: {op.name} has no gradient; use Average or Sum")
        factor = before * after * (calls_of(process_set).comm.size if op is Sum else 1)
        call = grouped_allgather_async([g * factor for g in gradients], None, process_set)
        return (None, *result_of(call))


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: OptionalSet = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors, as one call. Collective."""
    compressor = check_compression(compression)
    pairs = [compressor.compress(one) for one in tensors]
    sent = [one for one, _ in pairs]
    factors = (prescale_factor, postscale_factor)
    if needs_gradient(*sent):
        differentiable: Any = _Reducescatter.apply
        reduced = differentiable((name, op, process_set, *factors), *sent)
    else:
        call = grouped_reducescatter_async(sent, name, op, process_set, *factors)
        reduced = result_of(call)
    return [compressor.decompress(one, ctx) for one, (_, ctx) in zip(reduced, pairs)]


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

    The first ranks get one row more if they do not go up. Options as of `allreduce`.
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

    op: Average or Sum.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op: expected Average or Sum, got {op!r}")
    indices = tensor._indices().t().contiguous()
    calls = [
        allgather_async(indices, name and f"{name}.indices", process_set),
        allgather_async(tensor._values(), name and f"{name}.values", process_set),
    ]

    def wait() -> torch.Tensor:
        places, values = (synchronize(call) for call in calls)
        if op is Average:
            values = values / calls_of(process_set).comm.size
        return torch.sparse_coo_tensor(places.t(), values, tensor.shape)

    return wait
