# SPDX-License-Identifier: Apache-2.0
"""Collectives on tensors, by Horovod's names: `allreduce` and `broadcast`, in place or not,
waited for at once or later; the end of an epoch; the timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import torch

from .._core import checks
from .._core.settings import logger
from ..errors import MismatchError
from ..policy import Full, Policy, as_policy
from ._loop import Loop
from .compression import Compression, check_compression
from .ops import timeline, transfer, wire
from .ops.adasum import adasum_tensor
from .ops.call import Call, Steps
from .ops.handles import Form, Handles
from .ops.handles import Reduction as Reducing
from .process_sets import OptionalSet
from .reductions import Adasum, Average, Max, Min, Reduction, Sum
from .world import calls_of, size, world

# Arguments


def check_root(root_rank: Any, process_set: OptionalSet) -> int:
    """The number, within the set, of a rank given by its number in the world."""
    if isinstance(root_rank, bool) or not isinstance(root_rank, int):
        raise TypeError(f"root_rank: expected a rank, got {type(root_rank).__name__}")
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank: expected 0 to {size() - 1}, got {root_rank}")
    return root_rank if process_set is None else process_set.root(root_rank)


def check_name(name: Any) -> None:
    """None or a text."""
    if name is not None:
        checks.instance("name", name, str, "a text or None")


def named(text: str, name: str | None) -> str:
    """What the ranks compare, with the name."""
    return text if name is None else f"{text}, name={name!r}"


class AllreduceOptions(NamedTuple):
    """Of an allreduce, as they are given."""

    average: Any = None
    compression: Any = Compression.none
    op: Any = None
    before: Any = 1.0
    after: Any = 1.0
    process_set: OptionalSet = None
    quorum: Any = "full"

    def reduction(self) -> Reduction:
        if self.average is not None and self.op is not None:
            raise ValueError(
                "average: expected it without op, got both; op=Average or op=Sum will do"
            )
        if self.average is not None:
            return Average if self.average else Sum
        if self.op is None:
            return Average
        if not isinstance(self.op, Reduction):
            known = "Average, Sum, Min, Max, Product or Adasum"
            raise TypeError(f"op: expected {known}, got {self.op!r}")
        return self.op

    def policy(self, name: str | None) -> Policy | None:
        """None: all ranks take part."""
        if self.quorum == "full":
            return None
        policy = as_policy(self.quorum)
        if policy == Full():
            return None
        if self.op is Adasum:
            raise ValueError(f"quorum: expected 'full' with op=Adasum, got {str(policy)!r}")
        if name is None:
            raise ValueError(
                f"name: expected one with quorum={str(policy)!r}: ranks that do not wait for each "
                "other do not make their calls in the same order"
            )
        return policy

    def factors(self, dtype: torch.dtype) -> tuple[float, float]:
        before = _factor("prescale_factor", self.before)
        after = _factor("postscale_factor", self.after)
        if dtype == torch.bool and (before, after) != (1, 1):
            raise TypeError(
                "prescale_factor and postscale_factor: expected 1 for a tensor of "
                f"{wire.name(dtype)}, got {before} and {after}"
            )
        return before, after

    def form(self, dtype: torch.dtype, ranks: int) -> tuple[Form, str]:
        """What becomes of the values, and how it is called. Raises TypeError or ValueError if the
        dtype does not go with the rest."""
        op = self.reduction()
        truth = dtype == torch.bool
        if (truth and op in (Average, Sum)) or (dtype.is_complex and op in (Min, Max)):
            more = "; convert it, for instance with tensor.int()" if truth else ""
            raise TypeError(f"op: {op.name} is not defined for {wire.name(dtype)}{more}")
        if op is Adasum and not dtype.is_floating_point:
            raise TypeError(f"op: Adasum is for floating point, got {wire.name(dtype)}")
        before, after = self.factors(dtype)
        text = op.name
        if (before, after) != (1, 1):
            text += f", prescale_factor={before}, postscale_factor={after}"
        name, divisor = ("sum", ranks) if op is Average else (op.value, 1)  # by torch's name
        return Form(name, None if before == 1 else before, divisor, after), text


def _factor(argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument}: expected a number, got {type(value).__name__}")
    return float(value)


# Allreduce


def _new(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, requires_grad=False)


class Several(tuple):  # type: ignore[type-arg]
    """The tensors of a grouped call, which is made as that of a single one."""


def all_of(given: Any) -> Sequence[Any]:
    """The tensors of a call."""
    if not isinstance(given, Several):
        return [given]
    if not given:
        raise ValueError("tensors: expected at least one, got none")
    return given


class _Part(NamedTuple):
    """One tensor's reduction, what the ranks compare of it, where it goes, and what is to be done
    for that when it is over."""

    move: Reducing
    text: str
    output: torch.Tensor
    land: Callable[[], Any] | None


def _part(tensor: Any, options: AllreduceOptions, ranks: int, in_place: bool) -> _Part:
    wire.check_tensor(tensor, written=in_place)
    compressor = check_compression(options.compression)
    plain = tensor.detach()
    sent, ctx = compressor.compress(plain)
    if sent is not plain:
        wire.check_tensor(sent, written=False)
    form, words = options.form(sent.dtype, ranks)
    output = tensor if in_place else _new(tensor)
    move, text = Reducing(form, sent, output), f"{wire.describe(sent)}, {words}"
    if sent.dtype == output.dtype:
        return _Part(move, text, output, None)
    rounded = torch.empty_like(sent)

    def land() -> None:
        output.detach().copy_(compressor.decompress(rounded, ctx))

    return _Part(Reducing(form, sent, rounded), text, output, land)


def _adasum(moves: list[Reducing]) -> Callable[[Handles], Steps]:
    """Combined in pairs of ranks, not reduced over a handle."""

    def steps(handles: Handles) -> Steps:
        for move in moves:
            yield from adasum_tensor(handles.comm, move.form, move.source, move.output)

    return steps


def _prepare(
    tensors: Any, name: Any, options: AllreduceOptions, ranks: int, in_place: bool, later: bool
) -> tuple[Call, Policy | None]:
    """The call that these arguments make: of one tensor, or of a list of them."""
    check_name(name)
    policy, several = options.policy(name), isinstance(tensors, Several)
    parts = [_part(one, options, ranks, in_place) for one in all_of(tensors)]
    what = "grouped allreduce" if several else "allreduce"
    text = named(f"{what} of {'; '.join(part.text for part in parts)}", name)
    if policy is not None:
        text += f", quorum={policy}"
    elif later:
        text = f"asynchronous {text}"
    moves: Any = [part.move for part in parts]
    outputs, apart = [part.output for part in parts], later and name is None
    if options.op is Adasum:
        moves, apart = _adasum(moves), False
    call = Call(text, moves, outputs, apart=apart)
    call.lands = [part.land for part in parts if part.land is not None]
    if several:
        call.shown = list
    return call, policy


def _allreduce(
    tensor: Any,
    name: Any,
    options: AllreduceOptions,
    *,
    in_place: bool = False,
    later: bool = False,
) -> Call:
    """Begin it; a synchronous one is over when this returns."""
    calls = calls_of(options.process_set)
    queue = None if options.op is Adasum else name  # its messages have no names
    try:
        call, policy = _prepare(tensor, name, options, calls.comm.size, in_place, later)
    except Exception as error:
        if calls.knows(name):
            raise
        calls.refuse(error, queue if later and isinstance(name, str) else None)
    if policy is not None:
        return calls.begin_partial(call, name, policy)
    return calls.begin(call, queue) if later else calls.run(call)


def result_of(call: Call) -> Any:
    """Wait until it is over; its result, or its error."""
    call.wait()
    while call.lands:
        call.lands.pop()()
    return call.shown(call.result())


class _Allreduce(torch.autograd.Function):
    """The gradient of a sum over ranks is the sum of the gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, name: Any, options: AllreduceOptions, *tensors: Any) -> Any:
        ctx.options = options
        return tuple(result_of(_allreduce(Several(tensors), name, options)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op = ctx.options.reduction()
        if op not in (Average, Sum):
            raise RuntimeError(f"allreduce: {op.name} has no gradient; use Average or Sum")
        options = ctx.options._replace(quorum="full")
        return (None, None, *result_of(_allreduce(Several(gradients), None, options)))


def needs_gradient(*tensors: Any) -> bool:
    """Is the result to have one?"""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


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
        Default: Average; of integers it is rounded down. Of bool: Min, Max, Product. Adasum, of
        floating point: what the ranks' tensors have in common counts once (`ops/adasum.py`).
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
    options = AllreduceOptions(
        average, compression, op, prescale_factor, postscale_factor, process_set, quorum
    )
    if needs_gradient(tensor):
        differentiable: Any = _Allreduce.apply
        (result,) = differentiable(name, options, tensor)
    else:
        result = result_of(_allreduce(tensor, name, options))
    found: torch.Tensor = result
    return found


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
    """`allreduce` in place; returns the tensor. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, Compression.none, op, *factors, process_set, quorum)
    return result_of(_allreduce(tensor, name, options, in_place=True))


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
    calls with one by their name: once each name has been used, in the same order on all ranks,
    the order of named calls may differ. The first call of a name, and the first with another size,
    dtype or op, waits for all ranks. So does a call that finds the one of the same name, or the
    one eight calls without a name before it, still under way. All ranks make it asynchronous, or
    none does.
    """
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, compression, op, *factors, process_set, quorum)
    return _allreduce(tensor, name, options, later=True)


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
    """`allreduce_async` in place: leave the tensor alone until `synchronize`. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, Compression.none, op, *factors, process_set, quorum)
    return _allreduce(tensor, name, options, in_place=True, later=True)


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
    """`allreduce` of several tensors, as one call. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, compression, op, *factors, process_set)
    if needs_gradient(*tensors):
        differentiable: Any = _Allreduce.apply
        return list(differentiable(name, options, *tensors))
    return list(result_of(_allreduce(Several(tensors), name, options)))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place; returns the tensors. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, Compression.none, op, *factors, process_set)
    return list(result_of(_allreduce(Several(tensors), name, options, in_place=True)))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """`grouped_allreduce` that goes on in the background; see `allreduce_async`. Collective."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, Compression.none, op, *factors, process_set)
    return _allreduce(Several(tensors), name, options, later=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: OptionalSet = None,
) -> Call:
    """`grouped_allreduce_async` in place: leave the tensors alone until `synchronize`."""
    factors = (prescale_factor, postscale_factor)
    options = AllreduceOptions(average, Compression.none, op, *factors, process_set)
    return _allreduce(Several(tensors), name, options, in_place=True, later=True)


# What is under way


def _check_call(handle: Any) -> Call:
    return checks.instance("handle", handle, Call, "what an asynchronous call has returned")


def poll(handle: Call) -> bool:
    """Is the call over, so that `synchronize` returns at once? Local; drives communication."""
    return _check_call(handle).poll()


def synchronize(handle: Call) -> Any:
    """Wait for an asynchronous call; its result: a tensor, or a list of a grouped one's.

    Raises what the call itself would: MismatchError, if the ranks have made different ones.
    """
    return result_of(_check_call(handle))


def barrier(process_set: OptionalSet = None) -> None:
    """Wait for all ranks, or for those of a set. Collective; burns no core, and says who is missing
    if it takes long."""
    calls_of(process_set).agree("barrier")


# Broadcast


def _spread(text: str, own: bool, tensor: torch.Tensor, output: torch.Tensor, apart: bool) -> Call:
    """One rank's bits as an allreduce: in the background no rank has to do anything for it."""
    memory = transfer.Memory(tensor, True, None if output is tensor else output)
    place = torch.from_numpy(memory.bytes)
    bits = Reducing(Form("bor"), place if own else None, place)

    def move(handles: Handles) -> Steps:
        yield from bits.steps(handles)
        memory.land()

    return Call(text, move, [output], first=bits, apart=apart)


def _broadcast(
    tensor: Any,
    root_rank: Any,
    name: Any,
    process_set: OptionalSet,
    *,
    in_place: bool = False,
    later: bool = False,
) -> Call:
    """Begin it; a synchronous one is over when this returns."""
    calls = calls_of(process_set)
    comm = calls.comm
    try:
        check_name(name)
        root = check_root(root_rank, process_set)
        wire.check_tensor(tensor, written=in_place, reduced=False)
    except Exception as error:
        calls.refuse(error, name if later and isinstance(name, str) else None)
    text = named(f"broadcast of {wire.describe(tensor)} from rank {root}", name)
    output = tensor if in_place else _new(tensor)
    if later:
        text, own = f"asynchronous {text}", comm.rank == root
        return calls.begin(_spread(text, own, tensor, output, name is None), name)
    into = None if in_place else output
    return calls.run(Call(text, transfer.broadcast(comm, tensor, root, into), [output]))


class _Broadcast(torch.autograd.Function):
    """The gradient goes back to where the values came from: the mean over ranks, at the root, as
    Horovod has it (each rank's loss is a part of their mean)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: Any, name: Any, more: Any) -> Any:
        ctx.root, ctx.process_set = root_rank, more
        return result_of(_broadcast(tensor, root_rank, name, more))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        mean = allreduce(gradients[0], process_set=ctx.process_set)
        own = mean if world().comm.rank == ctx.root else torch.zeros_like(mean)
        return own, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """The root's tensor, bit for bit, in a new tensor on every rank. Collective.

    Shape and dtype must be the same everywhere (MismatchError). If the tensor requires a gradient,
    so does the result: the root gets the mean of all ranks' gradients, as with Horovod.
    """
    if needs_gradient(tensor):
        differentiable: Any = _Broadcast.apply
        sent: torch.Tensor = differentiable(tensor, root_rank, name, process_set)
        return sent
    return result_of(_broadcast(tensor, root_rank, name, process_set))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """`broadcast` in place; returns the tensor. Collective."""
    return result_of(_broadcast(tensor, root_rank, name, process_set, in_place=True))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast` that goes on in the background; see `allreduce_async`. Collective.

    It costs as much as an allreduce: for much data take `broadcast` or `broadcast_parameters`.
    """
    return _broadcast(tensor, root_rank, name, process_set, later=True)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast_async` in place: leave the tensor alone until `synchronize`. Collective."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True, later=True)


# The end of an epoch


def join(device: int = -1) -> int:
    """No more data on this rank: wait until all ranks have come here. Collective.

    Every `DistributedOptimizer` joins: this rank contributes nothing to the others' steps and
    applies their updates. When it returns, all ranks have the same parameters and training can go
    on. `allreduce` and its like have no part in it: make as many of these calls on every rank. Who
    makes one while another rank has joined gets MismatchError, and that one waits on; of those that
    share rows out the first call only, later ones wait with a warning.

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
    came = np.array([time.time()])
    Loop.join([optimizer._loop for optimizer in here.optimizers])
    times = np.empty(here.comm.size)
    while True:
        try:
            here.calls.run(Call("join", lambda _: iter([here.comm.Iallgather(came, times)])))
            return int(np.argmax(times))
        except MismatchError as error:  # who calls something else has been told, and comes later
            logger.warning("join: this rank waits on: %s", error)


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
