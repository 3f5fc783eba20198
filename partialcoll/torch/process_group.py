# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed, on MPI.

>>> import partialcoll.torch
>>> torch.distributed.init_process_group("partialcoll")  # under mpiexec, with no other setup

Here torch's calls become operations: what all ranks have to agree on, as a text, and how the data
moves. The order in which they are carried out, waiting and time limits: ops/queue.py; the data:
ops/handles.py, ops/transfer.py; send and recv: messages.py; how the ranks meet: rendezvous.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Callable

import torch
import torch.distributed as dist
from mpi4py import MPI

from . import environment, rendezvous
from .messages import Messages
from .ops import transfer, wire
from .ops.call import Call, Move
from .ops.handles import CHUNK, Form, Reduction
from .ops.queue import Queue
from .ops.work import Work

NAME = "partialcoll"
WINDOW = 3  # operations that are announced ahead

# Without the signatures of torch's own methods, which are overloaded and change.
_Base: Any = dist.ProcessGroup

Tensors = Sequence[torch.Tensor]
# What the ranks compare, how the data moves, what is filled.
Plan = tuple[str, Move, Tensors]

_INTEGER_ONLY = {"band", "bor", "bxor"}
_NOT_COMPLEX = {"min", "max"}
_NOT_BOOL = {"avg"}
_OPS = {"sum", "product", "min", "max", "avg", *_INTEGER_ONLY}

_retired: dict[str, ProcessGroup] = {}  # destroyed, and not freed yet


def _what(tensor: torch.Tensor) -> str:
    """For messages, and equal on ranks that may exchange such tensors."""
    return f"{tensor.numel()} elements of {wire.name(tensor.dtype)}"


def _sizes(tensors: Tensors, like: torch.Tensor) -> str:
    return f"{[tensor.numel() for tensor in tensors]} elements of {wire.name(like.dtype)}"


def _one(tensors: Any, argument: str = "tensors") -> Any:
    """The list that torch passes is for several devices, of which there is one."""
    if len(tensors) != 1:
        raise ValueError(f"{argument}: expected one, got {len(tensors)}")
    return tensors[0]


def _form(op: Any, dtype: torch.dtype, ranks: int) -> Form:
    """What becomes of the values. TypeError if the reduction is not defined for the dtype."""
    name, factor = op.op.name.lower(), None
    exact = not (dtype.is_floating_point or dtype.is_complex)
    if name == "premul_sum":
        if exact:
            raise TypeError(f"op: PREMUL_SUM is not defined for {wire.name(dtype)}")
        name, factor = "sum", op.factor
    if name not in _OPS:
        raise TypeError(f"op: expected one of {', '.join(sorted(_OPS))}, got {name}")
    if (
        (name in _INTEGER_ONLY and not exact)
        or (name in _NOT_COMPLEX and dtype.is_complex)
        or (name in _NOT_BOOL and dtype == torch.bool)
    ):
        raise TypeError(f"op: {name} is not defined for {wire.name(dtype)}")
    return Form("sum", None, ranks) if name == "avg" else Form(name, factor)


def _check_like(argument: str, tensors: Tensors, like: torch.Tensor) -> None:
    """Tensors that are filled with what others send, of the dtype of one that is sent."""
    for tensor in tensors:
        wire.check_tensor(tensor, written=True, reduced=False)
        if tensor.dtype != like.dtype:
            raise TypeError(
                f"{argument}: expected {wire.name(like.dtype)}, got {wire.name(tensor.dtype)}"
            )


def _check_size(argument: str, tensor: torch.Tensor, count: int, what: str = "") -> None:
    if tensor.numel() != count:
        raise ValueError(f"{argument}: expected {count} elements{what}, got {tensor.numel()}")


def _check_sent(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        wire.check_tensor(tensor, written=False, reduced=False)


def _tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Those in lists of lists of them."""
    for one in given if isinstance(given, (list, tuple)) else ():
        if isinstance(one, torch.Tensor):
            yield one
        else:
            yield from _tensors_in(one)


def _operation(options: Callable[[], Any] | None = None) -> Callable[[Callable[..., Plan]], Any]:
    """A collective of torch's, made of the plan for it. The last argument is its options, which
    torch may leave out: then they are what `options` makes."""

    def make(plan: Callable[..., Plan]) -> Callable[..., Work]:
        others = len(inspect.signature(plan).parameters) - 2

        @functools.wraps(plan)
        def begin(self: ProcessGroup, *given: Any, opts: Any = None) -> Work:
            opts = given[others] if len(given) > others else opts
            if opts is None and options is not None:
                opts = options()
            read = list(_tensors_in(given[:others]))
            return self._begin(opts, lambda: plan(self, *given[:others], opts), read)

        return begin

    return make


class ProcessGroup(_Base):
    """One group of ranks. Made by `init_process_group` and `new_group`.

    The collectives are those of `torch.distributed`, which calls them here; all ranks make them in
    the same order. Ranks that differ in what they call get MismatchError, all of them, and may go
    on. An operation that takes longer than the group's time limit raises GroupTimeout, which is a
    TimeoutError, and ends the group.
    """

    def __init__(self, name: str, identity: str, comm: MPI.Intracomm, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._name, self._description, self._identity = name, "undefined", identity
        self._comm, self._mail = comm, comm.Dup()
        self._timeout = timeout.total_seconds()
        title, remedy = f"group {name}", "destroy_process_group() and make it anew"
        self._queue = Queue(comm, title, WINDOW, owner="torch.distributed", remedy=remedy)
        self._messages = Messages(self._mail)
        self._coalescing: list[Work] | None = None
        self._sequence = 0

    # What torch asks a group for

    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """For operations that begin later."""
        self._timeout = timeout.total_seconds()

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def __repr__(self) -> str:
        return f"<partialcoll process group {self._name}, rank {self.rank()} of {self.size()}>"

    # Beginning and ending operations

    def _limit(self, options: Any) -> float:
        asked: timedelta | None = getattr(options, "timeout", None)
        if asked is None or asked <= timedelta(0):
            return self._timeout
        return asked.total_seconds()

    def _begin(self, options: Any, plan: Callable[[], Plan], read: Tensors) -> Work:
        """The next operation of this group. If the arguments are wrong, the others hear of it."""
        limit, background = self._limit(options), getattr(options, "asyncOp", True)
        try:
            text, move, filled = plan()
            call = Call(text, move, filled, timeout=limit, read=read)
        except (TypeError, ValueError) as error:
            self._queue.refuse(error, limit, background=True)
        self._sequence += 1
        work = self._queue.submit(call, background)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: Any) -> Work | None:
        """The last operation stands for all, since they end in their order."""
        works, self._coalescing = self._coalescing, None
        return works[-1] if works else None

    def shutdown(self) -> None:
        """Local: nothing that is under way goes on. Its memory is freed when a new world begins,
        or MPI ends."""
        self._queue.stop()
        self._messages.stop()
        _retired[self._identity] = self

    abort = shutdown

    def free(self) -> None:
        """Free what the group has held. Collective, after `shutdown`."""
        self._queue.free()
        self._mail.Free()
        self._comm.Free()

    @property
    def usable(self) -> bool:
        """Are its ranks still together, as far as this one knows?"""
        return not self._queue.broken

    # Reductions

    def _reducing(self, name: str, tensors: Tensors, op: Any, root: int | None = None) -> Plan:
        taken = root in (None, self.rank())
        for tensor in tensors:
            wire.check_tensor(tensor, written=taken)
        moves = [
            Reduction(_form(op, one.dtype, self.size()), one, one, wanted=taken, chunk=CHUNK)
            for one in tensors
        ]
        return f"{name} of {', '.join(map(_what, tensors))}, {op.op.name}", moves, tensors

    @_operation(dist.AllreduceOptions)
    def allreduce(self, tensors: Any, opts: Any) -> Plan:
        return self._reducing("all_reduce", [_one(tensors)], opts.reduceOp)

    @_operation(dist.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Plan:
        return self._reducing("all_reduce_coalesced", tensors, opts.reduceOp)

    @_operation(dist.ReduceOptions)
    def reduce(self, tensors: Any, opts: Any) -> Plan:
        root = opts.rootRank
        return self._reducing(f"reduce to rank {root}", [_one(tensors)], opts.reduceOp, root)

    def _scattering(self, pairs: Sequence[tuple[torch.Tensor, Tensors]], op: Any) -> Plan:
        """For each output of this rank: the pieces that it sends to all ranks, itself included."""
        forms = []
        for output, pieces in pairs:
            wire.check_tensor(output, written=True)
            self._check_each("input_list", pieces, output)
            count = pieces[self.rank()].numel()
            _check_size("output", output, count, " as in the input for this rank")
            forms.append(_form(op, output.dtype, self.size()))

        move = chain.from_iterable(
            transfer.reduce_pieces(self._comm, pieces, form, output)
            for (output, pieces), form in zip(pairs, forms)
        )
        sizes = ", ".join(_sizes(pieces, output) for output, pieces in pairs)
        return f"reduce_scatter of {sizes}, {op.op.name}", move, [output for output, _ in pairs]

    @_operation(dist.ReduceScatterOptions)
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._scattering([(_one(outputs), _one(inputs, "input_list"))], opts.reduceOp)

    @_operation(dist.ReduceScatterOptions)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        pairs = [
            (one, self._equal_pieces("input", whole, one)) for one, whole in zip(outputs, inputs)
        ]
        return self._scattering(pairs, opts.reduceOp)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _equal_pieces(self, argument: str, whole: Any, part: Any) -> Tensors:
        """A tensor as one piece for each rank, each as large as another tensor."""
        _check_sent(whole, part)
        if whole.numel() != part.numel() * self.size():
            raise ValueError(
                f"{argument}: expected {self.size()} times {part.numel()} elements, got "
                f"{whole.numel()}"
            )
        pieces: Tensors = whole.detach().reshape(self.size(), part.numel()).unbind(0)
        return pieces

    # Bytes

    @_operation(dist.BroadcastOptions)
    def broadcast(self, tensors: Any, opts: Any) -> Plan:
        tensor, root = _one(tensors), opts.rootRank
        wire.check_tensor(tensor, written=self.rank() != root, reduced=False)
        text = f"broadcast of {_what(tensor)} from rank {root}"
        return text, transfer.broadcast(self._comm, tensor, root), [tensor]

    def _gathering(self, pairs: Sequence[tuple[Tensors, torch.Tensor]]) -> Plan:
        for outputs, tensor in pairs:
            _check_sent(tensor)
            self._check_each("tensor_list", outputs, tensor)
            own = outputs[self.rank()]
            _check_size("tensor_list", own, tensor.numel(), " for this rank's tensor")

        move = chain.from_iterable(
            transfer.gather(self._comm, tensor, outputs, None) for outputs, tensor in pairs
        )
        sizes = ", ".join(_sizes(outputs, tensor) for outputs, tensor in pairs)
        return f"all_gather of {sizes}", move, [one for outputs, _ in pairs for one in outputs]

    @_operation()
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._gathering([(_one(outputs, "tensor_list"), _one(inputs))])

    @_operation()
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        """The i-th output list is for the i-th input; torch passes one list for each rank."""
        return self._gathering(list(zip(zip(*outputs), inputs)))

    @_operation()
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        pairs = list(zip(outputs, inputs))
        for output, tensor in pairs:
            self._equal_pieces("output", output, tensor)
            _check_like("output", [output], tensor)

        move = chain.from_iterable(
            transfer.gather_flat(self._comm, tensor, output) for output, tensor in pairs
        )
        return f"all_gather of {', '.join(map(_what, inputs))} each", move, outputs

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_operation(dist.GatherOptions)
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        tensor, root = _one(inputs), opts.rootRank
        _check_sent(tensor)
        own = _one(outputs, "gather_list") if self.rank() == root else None
        if own is not None:
            self._check_each("gather_list", own, tensor)
            for output in own:
                _check_size("gather_list", output, tensor.numel())
        text = f"gather of {_what(tensor)} to rank {root}"
        return text, transfer.gather(self._comm, tensor, own, root), own or []

    @_operation(dist.ScatterOptions)
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        tensor, root = _one(outputs), opts.rootRank
        wire.check_tensor(tensor, written=True, reduced=False)
        own = _one(inputs, "scatter_list") if self.rank() == root else None
        if own is not None:
            self._check_each("scatter_list", own)
            for piece in own:
                _check_sent(piece)
                _check_like("tensor", [tensor], piece)
                _check_size("scatter_list", piece, tensor.numel())
        text = f"scatter of {_what(tensor)} from rank {root}"
        return text, transfer.scatter(self._comm, tensor, own, root), [tensor]

    @_operation()
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        self._check_each("input_tensor_list", inputs)
        self._check_each("output_tensor_list", outputs)
        for tensor in inputs:
            _check_sent(tensor)
            _check_like("output_tensor_list", outputs, tensor)
        text = f"all_to_all of {wire.name(inputs[0].dtype)}"
        return text, transfer.exchange(self._comm, inputs, outputs), outputs

    @_operation()
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any
    ) -> Plan:
        _check_sent(input)
        _check_like("output", [output], input)
        come = self._split("output_split_sizes", output, output_splits)
        sent = self._split("input_split_sizes", input, input_splits)
        text = f"all_to_all_single of {wire.name(input.dtype)}"
        return text, transfer.exchange(self._comm, sent, come), [output]

    alltoall_base = all_to_all_single

    def _split(self, argument: str, tensor: torch.Tensor, sizes: Any) -> Tensors:
        """By the first dimension, evenly if there are no sizes."""
        rows, ranks = tensor.shape[0] if tensor.dim() else 0, self.size()
        if not sizes:
            if rows % ranks:
                raise ValueError(
                    f"{argument}: expected sizes for {rows} rows on {ranks} ranks, got none"
                )
            sizes = [rows // ranks] * ranks
        if len(sizes) != ranks or sum(sizes) != rows or min(sizes) < 0:
            raise ValueError(
                f"{argument}: expected {ranks} sizes with the sum {rows}, got {list(sizes)}"
            )
        pieces: Tensors = torch.split(tensor.detach(), list(sizes))
        return pieces

    def _check_each(self, argument: str, tensors: Tensors, like: Any = None) -> None:
        """One for each rank; that are filled, if they are to be like another one."""
        if len(tensors) != self.size():
            raise ValueError(
                f"{argument}: expected a tensor for each of {self.size()} ranks, got {len(tensors)}"
            )
        if like is not None:
            _check_like(argument, tensors, like)

    @_operation()
    def barrier(self, opts: Any) -> Plan:
        return "barrier", None, []

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier with a time limit of its own. GroupTimeout names those who are missing, all of
        them, with any value of `wait_all_ranks`."""
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # Messages

    def _check_peer(self, argument: str, peer: int) -> int:
        if not 0 <= peer < self.size():
            raise ValueError(f"{argument}: expected 0 to {self.size() - 1}, got {peer}")
        return peer

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = _one(tensors)
        _check_sent(tensor)
        return self._messages.send(tensor, self._check_peer("dst", dst), tag, self._timeout)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        return self._receive(tensors, self._check_peer("src", src), tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Work:
        tensor = _one(tensors)
        wire.check_tensor(tensor, written=True, reduced=False)
        return self._messages.recv(tensor, source, tag, self._timeout)


# How torch makes groups


def _free_retired(comm: MPI.Intracomm) -> None:
    """Those that all their members have destroyed in good order. Collective over the world."""
    mine = {identity: group.size() for identity, group in _retired.items() if group.usable}
    count: dict[str, int] = {}
    for theirs in comm.allgather(mine):
        for identity in theirs:
            count[identity] = count.get(identity, 0) + 1
    for identity in sorted(mine):
        if count[identity] == mine[identity]:
            _retired.pop(identity).free()


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """What torch calls for a group of this backend; see `torch.distributed.Backend`. Collective."""
    ranks = list(options.global_ranks_in_group)
    timeout: timedelta = options.timeout
    identity, comm = rendezvous.gather_members(
        options.store,
        options.group_id,
        options.group_rank,
        options.group_size,
        ranks,
        timeout.total_seconds(),
    )
    if not ranks:
        _free_retired(comm)
    return ProcessGroup(options.group_id, identity, comm, timeout)


def register() -> None:
    """Make the backend known to torch, and the ranks that MPI has started to it. Local."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.install()
    environment.set_environment()
