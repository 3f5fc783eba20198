# SPDX-License-Identifier: Apache-2.0
"""`allreduce` by Horovod's names: of one tensor or several, in place or not, now or later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from ..collectives.agreement import OPEN
from ..policy import Policy
from .arguments import (
    AllreduceOptions as _Options,
)
from .arguments import (
    Several,
    all_of,
    check_linear,
    check_name,
    named,
    with_gradient,
)
from .compression import Compression, check_compression
from .ops import wire
from .ops.adasum import adasum_tensor
from .ops.call import Call, Steps, result_of
from .ops.handles import Handles
from .ops.handles import Reduction as Reducing
from .process_sets import OptionalSet
from .reductions import Adasum, Average, Reduction, Sum
from .world import calls_of


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Part:
    """One tensor of a call: its reduction, what the ranks compare of it, where it goes, and what is
    to be done for that when it is over."""

    def __init__(
        self, tensor: Any, options: _Options, ranks: int, in_place: bool, later: bool
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
    tensors: Any, name: Any, options: _Options, ranks: int, in_place: bool, later: bool
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
    tensors: Any, name: Any, options: _Options, in_place: bool = False, later: bool = True
) -> Call:
    """A synchronous call is over when this returns."""
    calls = calls_of(options.process_set, name if later and not options.partial else None)

    def prepare() -> Call:
        return _prepare(tensors, name, options, calls.comm.size, in_place, later)

    return calls.make(prepare, name, later, options.partial)


def _now(tensors: Any, name: Any, options: _Options, in_place: bool = False) -> Any:
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
    options = _Options(average, op, *factors, process_set, quorum, compression)
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
    options = _Options(average, op, prescale_factor, postscale_factor, process_set, quorum)
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
    options = _Options(average, op, *factors, process_set, quorum, compression)
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
    options = _Options(average, op, prescale_factor, postscale_factor, process_set, quorum)
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
    options = _Options(average, op, *factors, process_set, compression=compression)
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
    options = _Options(average, op, prescale_factor, postscale_factor, process_set)
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
    options = _Options(average, op, prescale_factor, postscale_factor, process_set)
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
    options = _Options(average, op, prescale_factor, postscale_factor, process_set)
    return _begin(Several(tensors), name, options, in_place=True)
