# SPDX-License-Identifier: Apache-2.0
"""Collectives on tensors, by Horovod's names: `allreduce` and `broadcast`, in place or not,
waited for at once or later."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch

from .._buffers import Array
from ..policy import Full, Policy, as_policy
from . import _calls, _wire
from ._agreement import Intent
from ._calls import Call, Calls
from ._compression import Compression, check_compression
from ._reductions import Average, Reduction, Sum
from ._world import world

# What the functions share


def check_process_set(process_set: Any) -> None:
    """Horovod's argument, which is for something that is not there."""
    if process_set is not None:
        raise NotImplementedError("process_set: expected None: there is one set, all ranks of init")


def check_root(root_rank: Any, ranks: int) -> int:
    """The number of a rank."""
    if isinstance(root_rank, bool) or not isinstance(root_rank, int):
        raise TypeError(f"root_rank: expected a rank, got {type(root_rank).__name__}")
    if not 0 <= root_rank < ranks:
        raise ValueError(f"root_rank: expected 0 to {ranks - 1}, got {root_rank}")
    return root_rank


def check_name(name: Any) -> None:
    """None or a text."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a text or None, got {type(name).__name__}")


def _reduction(average: Any, op: Any) -> Reduction:
    if average is not None and op is not None:
        raise ValueError("average: expected it without op, got both; op=Average or op=Sum will do")
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, Reduction):
        raise TypeError(f"op: expected Average, Sum, Min, Max or Product, got {op!r}")
    return op


def _quorum(quorum: Policy | str, name: str | None) -> Policy | None:
    """None: all ranks take part."""
    if quorum == "full":
        return None
    policy = as_policy(quorum)
    if policy == Full():
        return None
    if name is None:
        raise ValueError(
            f"name: expected one with quorum={str(policy)!r}: ranks that do not wait for each "
            "other do not make their calls in the same order"
        )
    return policy


# Allreduce


def _prepare(
    calls: Calls,
    tensor: Any,
    output: Callable[[torch.Tensor], torch.Tensor] | None,
    average: Any,
    name: Any,
    compression: Any,
    op: Any,
    before: Any,
    after: Any,
    process_set: Any,
    quorum: Any,
) -> tuple[Call, Policy | None]:
    """The call that these arguments make. output: where the result goes, None: in place."""
    check_process_set(process_set)
    check_name(name)
    policy = _quorum(quorum, name)
    _wire.check_tensor(tensor, written=output is None)
    sent, ctx = check_compression(compression).compress(tensor.detach())
    _wire.check_tensor(sent, written=False)
    plan = _wire.plan_reducing(sent, _reduction(average, op), before, after, calls.comm.size)

    def take(result: Array) -> torch.Tensor:
        into = tensor if output is None else output(tensor)
        if sent.dtype == into.dtype:
            return plan.take(result, into)
        rounded = plan.take(result, torch.empty_like(sent))
        into.detach().copy_(compression.decompress(rounded, ctx))
        return into

    text = plan.text if name is None else f"{plan.text}, name={name!r}"
    return Call(Intent(text, plan.key), partial(plan.deposit, sent), take), policy


def _new(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, requires_grad=False)


def _allreduce(
    tensor: Any,
    output: Callable[[torch.Tensor], torch.Tensor] | None,
    asynchronous: bool,
    name: Any,
    *options: Any,
) -> Call:
    """Begin it; a synchronous one is over when this returns."""
    calls = world().calls
    average, compression, op, before, after, process_set, quorum = options
    named = name if asynchronous and isinstance(name, str) else None
    try:
        call, policy = _prepare(
            calls,
            tensor,
            output,
            average,
            name,
            compression,
            op,
            before,
            after,
            process_set,
            quorum,
        )
    except Exception as error:
        if isinstance(name, str) and calls.knows(name):
            raise
        calls.refuse(error, named)
    if policy is not None:
        calls.begin_partial(call, name, policy)
    elif asynchronous:
        calls.begin(call, named)
    else:
        calls.carry_out(call)
    return call


class _Allreduce(torch.autograd.Function):
    """The gradient of a sum over ranks is the sum of the gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Any, options: tuple[Any, ...]) -> Any:
        ctx.options = options
        return _calls.finish(_allreduce(tensor, _new, False, name, *options))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        average, compression, op, before, after, process_set, _ = ctx.options
        if _reduction(average, op) not in (Average, Sum):
            raise RuntimeError(f"allreduce: {op.name} has no gradient; use Average or Sum")
        options = (average, compression, op, before, after, process_set, "full")
        return _calls.finish(_allreduce(gradient, _new, False, None, *options)), None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
    *,
    quorum: Policy | str = "full",
) -> torch.Tensor:
    """The tensor combined over all ranks, in a new tensor. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        On the CPU, of the same shape and dtype on all ranks, with any strides. float16 and
        bfloat16 are combined in float32 and rounded once. If it requires a gradient, so does the
        result (Average and Sum): its gradient is combined over the ranks in backward.
    average : bool
        Horovod's old way to say op=Average or op=Sum.
    name : str
        All ranks make their calls in the same order; a name is compared, which finds mistakes.
        With a quorum it says which calls belong together.
    compression : Compressor
        Of `Compression`.
    op : Average, Sum, Min, Max or Product
        Default: Average; of integers it is rounded down. Of bool: Min, Max, Product.
    prescale_factor, postscale_factor : float
        Multiply what goes in and what comes out; only for floating-point and complex tensors.
    process_set : None
        Horovod's name for something that is not there.
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
    options = (average, compression, op, prescale_factor, postscale_factor, process_set, quorum)
    if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
        differentiable: Any = _Allreduce.apply
        result: torch.Tensor = differentiable(tensor, name, options)
        return result
    combined: torch.Tensor = _calls.finish(_allreduce(tensor, _new, False, name, *options))
    return combined


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
    *,
    quorum: Policy | str = "full",
) -> torch.Tensor:
    """`allreduce` in place; returns the tensor. Collective."""
    options = (average, Compression.none, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = _calls.finish(_allreduce(tensor, None, False, name, *options, quorum))
    return result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
    *,
    compression: Any = Compression.none,
    quorum: Policy | str = "full",
) -> Call:
    """`allreduce` that goes on in the background; `synchronize` returns the result. Collective.

    The tensor may be changed when it returns. Calls without a name are matched by their order,
    calls with one by their name: once each name has been used, in the same order on all ranks,
    the order of named calls may differ. The first call of a name, and the first with another size,
    dtype or op, waits for all ranks. So does a call that finds the one of the same name, or the
    one eight calls without a name before it, still under way. All ranks make it asynchronous, or
    none does.
    """
    options = (average, compression, op, prescale_factor, postscale_factor, process_set, quorum)
    return _allreduce(tensor, _new, True, name, *options)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
    *,
    quorum: Policy | str = "full",
) -> Call:
    """`allreduce_async` in place: leave the tensor alone until `synchronize`. Collective."""
    options = (average, Compression.none, op, prescale_factor, postscale_factor, process_set)
    return _allreduce(tensor, None, True, name, *options, quorum)


# What is under way


def _check_call(handle: Any) -> Call:
    if not isinstance(handle, Call):
        raise TypeError(
            f"handle: expected what an asynchronous call has returned, got {type(handle).__name__}"
        )
    return handle


def poll(handle: Call) -> bool:
    """Is the call over, so that `synchronize` returns at once? Local; drives communication."""
    return _calls.look(_check_call(handle))


def synchronize(handle: Call) -> torch.Tensor:
    """Wait for an asynchronous call; its result.

    Raises what the call itself would: MismatchError, if the ranks have made different ones.
    """
    result: torch.Tensor = _calls.finish(_check_call(handle))
    return result


# Broadcast


def _broadcast(
    tensor: Any,
    root_rank: Any,
    name: Any,
    process_set: Any,
    output: Callable[[torch.Tensor], torch.Tensor] | None,
    asynchronous: bool,
) -> Any:
    """The tensor, or the call if asynchronous."""
    calls = world().calls
    try:
        check_process_set(process_set)
        check_name(name)
        root = check_root(root_rank, calls.comm.size)
        _wire.check_tensor(tensor, written=output is None, reduced=False)
    except Exception as error:
        calls.refuse(error, name if asynchronous and isinstance(name, str) else None)
    text = f"broadcast of {_wire.describe(tensor)} from rank {root}"
    if name is not None:
        text += f", name={name!r}"
    if not asynchronous:
        calls.agree(text)
        return _wire.send_bits(calls.comm, tensor, output and output(tensor), root)
    own = tensor if calls.comm.rank == root else None
    call = Call(
        Intent(text, _wire.bits_key(tensor)),
        partial(_wire.deposit_bits, own),
        lambda result: _wire.take_bits(result, tensor if output is None else output(tensor)),
    )
    return calls.begin(call, name)


class _Broadcast(torch.autograd.Function):
    """The gradient goes back to where the values came from: the sum over ranks, at the root."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: Any, name: Any, more: Any) -> Any:
        ctx.root = root_rank
        return _broadcast(tensor, root_rank, name, more, _new, False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = allreduce(gradients[0], op=Sum)
        own = total if world().comm.rank == ctx.root else torch.zeros_like(total)
        return own, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None
) -> torch.Tensor:
    """The root's tensor, bit for bit, in a new tensor on every rank. Collective.

    Shape and dtype must be the same everywhere (MismatchError). If the tensor requires a gradient,
    so does the result: the gradients of all ranks add up at the root.
    """
    if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
        differentiable: Any = _Broadcast.apply
        sent: torch.Tensor = differentiable(tensor, root_rank, name, process_set)
        return sent
    result: torch.Tensor = _broadcast(tensor, root_rank, name, process_set, _new, False)
    return result


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None
) -> torch.Tensor:
    """`broadcast` in place; returns the tensor. Collective."""
    result: torch.Tensor = _broadcast(tensor, root_rank, name, process_set, None, False)
    return result


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None
) -> Call:
    """`broadcast` that goes on in the background; see `allreduce_async`. Collective.

    It costs as much as an allreduce: for much data take `broadcast` or `broadcast_parameters`.
    """
    call: Call = _broadcast(tensor, root_rank, name, process_set, _new, True)
    return call


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None
) -> Call:
    """`broadcast_async` in place: leave the tensor alone until `synchronize`. Collective."""
    call: Call = _broadcast(tensor, root_rank, name, process_set, None, True)
    return call
