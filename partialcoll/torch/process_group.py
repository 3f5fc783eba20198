# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed, on MPI.

>>> import partialcoll.torch
>>> torch.distributed.init_process_group("partialcoll")  # under mpiexec, with no other setup

A collective of torch's becomes a plan: the text that all ranks compare, how the data moves, and the
tensors that are filled. The arguments are checked here, and messages are sent and received.
ops/call.py carries the plans out in their order, and has waiting and time limits; ops/transfer.py
moves the data; in rendezvous.py the ranks meet.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, Callable

import torch
import torch.distributed as dist

from .._core import checks, communicator, waiting
from .._core.failures import Departures, alone, failed_ranks, goes_on, told_by
from .._core.mpi import MPI
from .._core.worker import Worker
from ..errors import Error, RankFailedError, StateError
from . import rendezvous
from .checkpoint import map_tree
from .ops import transfer, wire
from .ops.call import Call, GroupTimeout, Line, Move, Queue, Work, here, untraced
from .ops.transfer import CHUNK, Form, Reduction, Steps

NAME = "partialcoll"
WINDOW = 3  # operations of the program that are compared ahead

Tensors = Sequence[torch.Tensor]
# The text that the ranks compare, the transfer, the tensors that it fills.
Plan = tuple[str, Move, Tensors]

_UNSET = timedelta(0)  # torch's options have a negative one
_INTEGER_ONLY = {"band", "bor", "bxor"}
_OPS = {"sum", "product", "min", "max", "avg", "premul_sum", *_INTEGER_ONLY}

# Without the signatures of torch's own methods, which are overloaded and change.
_Base: Any = dist.ProcessGroup

retired: dict[str, ProcessGroup] = {}  # destroyed, and not freed yet


# Checks of arguments, and their names in messages, which are equal on ranks that match


def _what(tensor: torch.Tensor) -> str:
    return f"{tensor.numel()} elements of {wire.name(tensor.dtype)}"


def _sizes(tensors: Tensors, like: torch.Tensor) -> str:
    return f"{[tensor.numel() for tensor in tensors]} elements of {wire.name(like.dtype)}"


def _one_of(tensors: Any, argument: str = "tensors") -> Any:
    """The list that torch passes is for several devices, of which there is one."""
    if len(tensors) != 1:
        raise ValueError(f"{argument}: expected one, got {len(tensors)}")
    return tensors[0]


def _form(op: Any, dtype: torch.dtype, ranks: int) -> tuple[Form, str]:
    """Return the reduction and its name; raise TypeError if it is not defined for the dtype."""
    form, name = _form_of(int(op.op), dtype, ranks)
    return (form._replace(before=op.factor) if name == "PREMUL_SUM" else form), name


@functools.cache
def _form_of(kind: int, dtype: torch.dtype, ranks: int) -> tuple[Form, str]:
    shown = dist.ReduceOp.RedOpType(kind).name  # slow, so the result is cached
    name, exact = shown.lower(), not (dtype.is_floating_point or dtype.is_complex)
    if name not in _OPS:
        raise TypeError(f"op: expected one of {', '.join(sorted(_OPS))}, got {name}")
    if (
        (exact and name == "premul_sum")
        or (not exact and name in _INTEGER_ONLY)
        or (name in ("min", "max") and dtype.is_complex)
        or (name == "avg" and dtype == torch.bool)
    ):
        raise TypeError(f"op: {shown} is not defined for {wire.name(dtype)}")
    if name == "avg":
        return Form("sum", None, ranks), shown
    return Form("sum" if name == "premul_sum" else name), shown


def _check_like(
    what: str, tensor: Any, like: torch.Tensor, count: int | None = None, written: bool = True
) -> None:
    """A tensor of the dtype of another one, and of `count` elements."""
    wire.check_tensor(tensor, written, reduced=False)
    if tensor.dtype != like.dtype:
        raise TypeError(f"{what}: expected {wire.name(like.dtype)}, got {wire.name(tensor.dtype)}")
    if count is not None and tensor.numel() != count:
        raise ValueError(f"{what}: expected {count} elements, got {tensor.numel()}")


def _one_by_one(move: Callable[..., Steps], pairs: Sequence[Any]) -> Move:
    return lambda to: chain.from_iterable(move(to, *pair) for pair in pairs)


def _collective(options: Callable[[], Any] = type(None)) -> Callable[[Callable[..., Plan]], Any]:
    """Make a collective of torch's of the function that plans it. The last argument is its options,
    which torch may leave out: then they are what `options` makes."""

    def decorate(plan: Callable[..., Plan]) -> Any:
        others = len(inspect.signature(plan).parameters) - 2

        @functools.wraps(plan)
        def begin(self: ProcessGroup, *given: Any, opts: Any = None) -> Work:
            opts = given[others] if len(given) > others else opts
            return self._begin(plan, given[:others], options() if opts is None else opts)

        return untraced(begin)

    return decorate


# Messages from one rank to another. A thread that waits for a non-blocking MPI message polls it; a
# background thread polls messages that no thread waits for. Both sleep between two polls.


class Message(Work):
    def __init__(
        self, messages: Messages, text: str, tensor: torch.Tensor, timeout: float, written: bool
    ) -> None:
        super().__init__([tensor], messages)
        self._text, self._begin, self._timeout = text, time.monotonic(), timeout
        self._memory, self._side = wire.bits(tensor), wire.side_of([tensor])
        self._looking = threading.Lock()
        self._decided = False  # it will be over: its outcome is known
        self._request: MPI.Request = MPI.REQUEST_NULL
        self._source = -1 if written else None  # of one that is received; -1: not known yet

    def __str__(self) -> str:
        return self._text

    def look(self, ending: bool = False) -> bool:
        """Return whether it has ended, with or without an error. ending: the group ends."""
        error: Exception | None = None
        with self._looking:
            if self._decided:
                return self._over
            try:
                if ending:
                    raise StateError(f"the group was destroyed before {self}")
                if not self._arrived():
                    return False
            except Exception as raised:
                error = raised
                self._give_up()
            self._decided = True
        self._end(error)
        return True

    def _arrived(self) -> bool:
        status = MPI.Status()
        try:
            with told_by(self._queue.comm):
                over = alone(lambda: self._request.Test(status))
        except MPI.Exception as error:
            raise Error(f"{self}: {error.Get_error_string()}") from error
        if not over:
            if self._queue.ends and (lost := failed_ranks(self._queue.comm)):
                raise RankFailedError(lost, f"{self}: the messages of its group end")
            if time.monotonic() - self._begin >= self._timeout:
                raise GroupTimeout(f"{self} was not over after its timeout of {self._timeout:g} s")
            waiting.look()
        elif self._source is not None:
            self._source = status.Get_source()
            come, expected = status.Get_elements(MPI.BYTE), self._memory.size
            if come != expected:
                raise Error(f"{self}: expected {expected} bytes, got {come}")
            with self._side:
                wire.land(self._tensors[0], self._memory)
            self._side.settle()
        return bool(over)

    def _give_up(self) -> None:
        """Keep the memory that MPI still reads or writes."""
        if self._request and self._source is not None:
            with contextlib.suppress(MPI.Exception):  # a rank has died
                self._request.Cancel()
                self._request.Test()
        if self._request:
            transfer.unfinished.append(self._request)

    def source_rank(self) -> int:
        assert self._source is not None
        return self._source

    _source_rank = source_rank


class Messages:
    """The messages of one group. comm: of the group's ranks, for this only. on_failure: "raise":
    all end when a rank of the group dies; else those with that rank."""

    def __init__(self, comm: MPI.Intracomm, on_failure: str) -> None:
        self.comm = comm
        self.ends = on_failure == "raise" and goes_on()
        highest = comm.Get_attr(MPI.TAG_UB)
        self._highest_tag = 32767 if highest is None else int(highest)
        self._under_way: list[Message] = []
        self._lock = threading.Lock()
        self._worker = Worker("partialcoll messages", self._work_off, self._fail)
        self.aside, self.wake = self._worker.aside, self._worker.wake
        self.halt, self.join = self._worker.halt, self._worker.join

    def drive(self, message: Message) -> None:
        waiting.until(message.look, bool)

    def begin(self, what: str, tensors: Any, peer: int | None, tag: int, timeout: float) -> Message:
        """Begin to send to a rank, or to receive from it; None: from any. what: "send to" or "recv
        from". Raise ValueError if there is no such rank or tag, StateError when it has ended."""
        communicator.check_running("torch.distributed")
        tensor, written, size = _one_of(tensors), what == "recv from", self.comm.size
        wire.check_tensor(tensor, written, reduced=False)
        if peer is not None and not 0 <= peer < size:
            raise ValueError(f"{'src' if written else 'dst'}: expected 0 to {size - 1}, got {peer}")
        if not 0 <= tag <= self._highest_tag:
            raise ValueError(f"tag: expected 0 to {self._highest_tag}, got {tag}")
        begin: Callable[..., Any] = self.comm.Irecv if written else self.comm.Isend
        who = "any rank" if peer is None else f"rank {peer}"
        message = Message(self, f"{what} {who}, tag {tag}", tensor, timeout, written)
        with told_by(self.comm), transfer.one_message(message._memory) as room:
            message._request = begin(room, MPI.ANY_SOURCE if peer is None else peer, tag)
        if not message.look():
            with self._lock:
                if self._worker.stopping:
                    raise StateError("the group has been destroyed")
                self._under_way.append(message)
            self.wake()
        return message

    def _work_off(self) -> None:
        while self._under_way and not self._worker.stopping:
            time.sleep(2e-3)
            over = [message for message in self._under_way if message.look()]
            with self._lock:
                self._under_way = [one for one in self._under_way if one not in over]

    def _fail(self) -> None:
        with self._lock:
            rest, self._under_way = self._under_way, []
        if MPI.Is_initialized() and not MPI.Is_finalized():
            for message in rest:
                message.look(ending=True)


# The group


class ProcessGroup(_Base):
    """One group of ranks. Made by `init_process_group` and `new_group`.

    The collectives are those of `torch.distributed`, which calls them here; all ranks make them in
    the same order. Ranks that differ in what they call get MismatchError, all of them, and may go
    on. An operation that takes longer than the group's time limit raises GroupTimeout, which is a
    TimeoutError, and ends the group. wanted: as torch describes the group to a backend.
    """

    def __init__(self, wanted: Any, identity: str, comm: MPI.Intracomm, on_failure: str) -> None:
        super().__init__(comm.rank, comm.size)
        name, self._timeout = wanted.group_id, wanted.timeout.total_seconds()
        self._name, self._description, self._identity = name, "undefined", identity
        self._rank, self._ranks = comm.rank, comm.size
        self._comm = comm  # its messages are send and recv
        how: Any = {"owner": "torch.distributed", "on_failure": on_failure}
        how["remedy"] = "destroy_process_group() and make it anew"
        calls, inner = f"group {name}", f"group {name}, in a callback"
        # The queues of the program, and of callbacks (ops/call.py).
        self._queues = (Queue(comm.Dup(), calls, WINDOW, **how), Queue(comm.Dup(), inner, 1, **how))
        self._line = Line()
        self._messages = Messages(comm, on_failure)
        # The other ranks hear of an exception that ends the program of one; once.
        tells = not (wanted.global_ranks_in_group and isinstance(dist.group.WORLD, ProcessGroup))
        self._departures = Departures(comm) if tells else None
        self._coalescing: dict[int, list[Work]] = {}  # by thread
        self._sequence = 0

    # The interface that torch requires of a group

    def getBackendName(self) -> str:
        return NAME

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices of tensors that the group takes. Objects are sent by the first one."""
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

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
        return f"<partialcoll process group {self._name}, rank {self._rank} of {self._ranks}>"

    # Beginning and ending operations

    def _begin(self, plan: Callable[..., Plan], given: Sequence[Any], options: Any) -> Work:
        """Begin the next operation. If the arguments are wrong, the other ranks are told."""
        asked = getattr(options, "timeout", _UNSET)
        limit = asked.total_seconds() if asked > _UNSET else self._timeout
        queue = self._queues[here.inside]
        try:
            text, move, filled = plan(self, *given, options)
            read: list[torch.Tensor] = []
            if not (len(given) == 1 and filled is given[0]):
                map_tree(given, torch.Tensor, read.append)
            call = Call(text, move, filled, timeout=limit, read=read)
        except Exception as error:
            refused = Call(f"{type(error).__name__}: {error}", timeout=limit, refused=True)
            queue.submit(refused, background=True)
            raise
        call.line = self._line
        self._sequence += 1
        queue.submit(call, background=getattr(options, "asyncOp", True))
        if self._coalescing:
            self._coalescing.get(threading.get_ident(), []).append(call)
        return call

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing[threading.get_ident()] = []

    def _end_coalescing(self, device: Any) -> Work | None:
        """The last operation stands for all, since they end in their order."""
        works = self._coalescing.pop(threading.get_ident(), [])
        return works[-1] if works else None

    def shutdown(self) -> None:
        """Local: nothing that is under way goes on. Its memory is freed when a new world begins,
        or MPI ends. Others may still wait for this rank, and hear why if an error ends it."""
        if self._departures is not None:
            self._departures.ignore()
        ending = (*self._queues, self._messages)
        for one in ending:
            one.halt()
        for one in ending:  # their threads may be in callbacks, which wait for any of these
            one.join()
        retired[self._identity] = self

    abort = shutdown

    def free(self) -> None:
        """Free what the group has held. Collective, after `shutdown`."""
        for queue in self._queues:
            queue.free()
            queue.comm.Free()
        if self._departures is not None:
            self._departures.free()
        self._comm.Free()

    @property
    def usable(self) -> bool:
        """Whether no queue of the group is broken, as far as this rank knows."""
        return not any(queue.broken for queue in self._queues)

    # Reductions

    def _reducing(self, name: str, tensors: Tensors, op: Any, root: int | None = None) -> Plan:
        taken, moves, shown = root is None or root == self._rank, [], ""
        for one in tensors:
            wire.check_tensor(one, written=taken)
            form, shown = _form(op, one.dtype, self._ranks)
            moves.append(Reduction(form, one, one, wanted=taken, chunk=CHUNK))
        return f"{name} of {', '.join(map(_what, tensors))}, {shown}", moves, tensors

    @_collective(dist.AllreduceOptions)
    def allreduce(self, tensors: Any, opts: Any) -> Plan:
        tensor, op = _one_of(tensors), opts.reduceOp
        if not (isinstance(tensor, torch.Tensor) and tensor.is_sparse):
            return self._reducing("all_reduce", tensors, op)
        form, shown = _form(op, tensor.dtype, self._ranks)
        if form.op != "sum":
            raise TypeError(f"op: expected sum or avg for a sparse tensor, got {form.op}")
        text = f"all_reduce of {wire.describe(tensor)}, sparse in {tensor.sparse_dim()} dimensions"
        move = lambda to: transfer.reduce_sparse(to.everybody, tensor, form)  # noqa: E731
        return f"{text}, {shown}", move, [tensor]

    @_collective(dist.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Plan:
        return self._reducing("all_reduce_coalesced", tensors, opts.reduceOp)

    @_collective(dist.ReduceOptions)
    def reduce(self, tensors: Any, opts: Any) -> Plan:
        root = opts.rootRank
        return self._reducing(f"reduce to rank {root}", [_one_of(tensors)], opts.reduceOp, root)

    def _scattering(self, pairs: Sequence[tuple[torch.Tensor, Tensors]], op: Any) -> Plan:
        """For each output of this rank: the pieces that it sends to all ranks, itself included."""
        moved, shown = [], ""
        for output, pieces in pairs:
            wire.check_tensor(output, written=True)
            self._check_each("input_list", pieces, output, written=False)
            _check_like("output", output, output, pieces[self._rank].numel())
            form, shown = _form(op, output.dtype, self._ranks)
            moved.append((pieces, form, output))
        sizes = ", ".join(_sizes(pieces, output) for output, pieces in pairs)
        outputs = [output for output, _ in pairs]
        text = f"reduce_scatter of {sizes}, {shown}"
        return text, _one_by_one(transfer.reduce_pieces, moved), outputs

    @_collective(dist.ReduceScatterOptions)
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._scattering([(_one_of(outputs), _one_of(inputs, "input_list"))], opts.reduceOp)

    @_collective(dist.ReduceScatterOptions)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        pieces = [self._equal_pieces("input", *pair) for pair in zip(inputs, outputs)]
        return self._scattering(list(zip(outputs, pieces)), opts.reduceOp)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def _equal_pieces(self, argument: str, whole: Any, part: Any) -> Tensors:
        """A tensor as one piece for each rank, each as large as another tensor."""
        wire.check_tensor(whole, written=False, reduced=False)
        wire.check_tensor(part, written=False, reduced=False)
        if whole.numel() != part.numel() * self._ranks:
            raise ValueError(
                f"{argument}: expected {self._ranks} times {part.numel()} elements, got "
                f"{whole.numel()}"
            )
        return whole.detach().reshape(self._ranks, part.numel()).unbind(0)

    # Bytes

    @_collective(dist.BroadcastOptions)
    def broadcast(self, tensors: Any, opts: Any) -> Plan:
        tensor, root = _one_of(tensors), opts.rootRank
        wire.check_tensor(tensor, written=self._rank != root, reduced=False)
        text = f"broadcast of {_what(tensor)} from rank {root}"
        return text, lambda to: transfer.broadcast(to, tensor, root), [tensor]

    def _gathering(self, pairs: Sequence[tuple[torch.Tensor, Tensors]]) -> Plan:
        for tensor, outputs in pairs:
            wire.check_tensor(tensor, written=False, reduced=False)
            self._check_each("tensor_list", outputs, tensor)
            _check_like("tensor_list", outputs[self._rank], tensor, tensor.numel())
        sizes = ", ".join(_sizes(outputs, tensor) for tensor, outputs in pairs)
        filled = list(chain.from_iterable(outputs for _, outputs in pairs))
        return f"all_gather of {sizes}", _one_by_one(transfer.gather_all, pairs), filled

    @_collective()
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._gathering([(_one_of(inputs), _one_of(outputs, "tensor_list"))])

    @_collective()
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        """The i-th output list is for the i-th input; torch passes one list for each rank."""
        return self._gathering(list(zip(inputs, zip(*outputs))))

    @_collective()
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        for tensor, output in zip(inputs, outputs):
            self._equal_pieces("output", output, tensor)
            _check_like("output", output, tensor)
        pairs = [(tensor, [output]) for tensor, output in zip(inputs, outputs)]
        move = _one_by_one(transfer.gather_all, pairs)
        return f"all_gather of {', '.join(map(_what, inputs))} each", move, outputs

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def _with_root(self, name: str, one: Any, lists: Any, root: int, gathers: bool) -> Plan:
        """A tensor of every rank to the list of the root, or from there."""
        wire.check_tensor(one, written=not gathers, reduced=False)
        own: Any = []
        if self._rank == root:
            own = _one_of(lists, f"{name}_list")
            self._check_each(f"{name}_list", own, one, count=one.numel(), written=gathers)
        ends = [(root, one)], list(enumerate(own))
        sent, come = ends if gathers else ends[::-1]
        text = f"{name} of {_what(one)} {'to' if gathers else 'from'} rank {root}"
        return text, lambda to: transfer.messages(to, sent, come), own if gathers else [one]

    @_collective(dist.GatherOptions)
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._with_root("gather", _one_of(inputs), outputs, opts.rootRank, True)

    @_collective(dist.ScatterOptions)
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._with_root("scatter", _one_of(outputs), inputs, opts.rootRank, False)

    @_collective()
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        self._check_each("input_tensor_list", inputs, written=False)
        self._check_each("output_tensor_list", outputs, inputs[0])
        text = f"all_to_all of {wire.name(inputs[0].dtype)}"
        return text, lambda to: transfer.exchange(to, inputs, outputs), outputs

    @_collective()
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any
    ) -> Plan:
        wire.check_tensor(input, written=False, reduced=False)
        _check_like("output", output, input)
        come = self._split("output_split_sizes", output, output_splits)
        sent = self._split("input_split_sizes", input, input_splits)
        text = f"all_to_all_single of {wire.name(input.dtype)}"
        return text, lambda to: transfer.exchange(to, sent, come), [output]

    def _split(self, argument: str, tensor: torch.Tensor, sizes: Any) -> Tensors:
        """By the first dimension, evenly if there are no sizes."""
        rows = tensor.shape[0] if tensor.dim() else 0
        found = wire.splits(argument, sizes or None, rows, self._ranks)
        return torch.split(tensor.detach(), found)

    def _check_each(self, argument: str, tensors: Tensors, like: Any = None, **how: Any) -> None:
        """One for each rank, as of `_check_like`."""
        if len(tensors) != self._ranks:
            raise ValueError(
                f"{argument}: expected a tensor for each of {self._ranks} ranks, got {len(tensors)}"
            )
        for tensor in tensors:
            _check_like(argument, tensor, tensors[0] if like is None else like, **how)

    @_collective()
    def barrier(self, opts: Any) -> Plan:
        return "barrier", None, []

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Run a barrier with its own time limit. GroupTimeout names all ranks that are missing,
        with any value of `wait_all_ranks`."""
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # Names that torch has used for the same calls
    _reduce_scatter_base, _allgather_base = reduce_scatter_single, all_gather_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    # Messages

    @untraced
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        return self._messages.begin("send to", tensors, dst, tag, self._timeout)

    @untraced
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        return self._messages.begin("recv from", tensors, src, tag, self._timeout)

    @untraced
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._messages.begin("recv from", tensors, None, tag, self._timeout)


# How torch makes groups of the backend, and when their memory is freed


@dataclass(frozen=True)
class GroupOptions:
    """``pg_options=`` of `torch.distributed.init_process_group` and `new_group`.

    `on_failure`: when a rank of the group dies: "raise": RankFailedError from every operation;
    "continue": reductions, broadcasts, barriers and all_gather go on among those who live, and
    others are refused (docs/faults.md).
    """

    on_failure: str = "raise"

    def __post_init__(self) -> None:
        checks.one_of("on_failure", self.on_failure, ("raise", "continue"))


def _free_retired(comm: MPI.Intracomm) -> None:
    """Free groups that all members have destroyed without errors. Collective over the world."""
    mine = {identity: group.size() for identity, group in retired.items() if group.usable}
    everybody = list(chain.from_iterable(comm.allgather(mine)))
    for identity in sorted(mine):
        if everybody.count(identity) == mine[identity]:
            retired.pop(identity).free()


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Create a group of this backend, for torch; see `torch.distributed.Backend`. Collective."""
    given = GroupOptions() if backend_options is None else backend_options
    checks.instance("pg_options", given, GroupOptions, "GroupOptions() or None")
    identity, comm = rendezvous.gather_members(options, repr(given))
    if not options.global_ranks_in_group:
        _free_retired(comm)
    return ProcessGroup(options, identity, comm, given.on_failure)


def register() -> None:
    """Make the backend known to torch, and the ranks that MPI has started to it. Local."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.install()
    rendezvous.set_environment()
