# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed, on MPI, for CPU tensors.

>>> import partialcoll.torch
>>> torch.distributed.init_process_group("partialcoll")  # under mpiexec, with no other setup

Here torch's calls become operations: what all ranks have to agree on, as a text, and how the data
moves. The order in which they are carried out, waiting and time limits: _group_queue.py; the data:
_group_data.py; send and recv: _group_messages.py; how the ranks meet: _meeting.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from mpi4py import MPI

from . import _meeting, _wire
from ._agreement import Intent
from ._group_data import Plane, check_op
from ._group_messages import Messages
from ._group_queue import Queue, Work

NAME = "partialcoll"

# Without the signatures of torch's own methods, which are overloaded and change.
_Base: Any = dist.ProcessGroup

Tensors = Sequence[torch.Tensor]
# What the ranks compare, how the data moves, what is filled.
Plan = tuple[str, "Callable[[], None] | None", Tensors]

_retired: dict[str, ProcessGroup] = {}  # destroyed, and not freed yet


def _what(tensor: torch.Tensor) -> str:
    """For messages, and equal on ranks that may exchange such tensors."""
    return f"{tensor.numel()} elements of {_wire.name(tensor.dtype)}"


def _one(tensors: Any, argument: str = "tensors") -> Any:
    """The list that torch passes is for several devices, of which there is one."""
    if len(tensors) != 1:
        raise ValueError(f"{argument}: expected one, got {len(tensors)}")
    return tensors[0]


def _reduction(op: Any, tensor: torch.Tensor) -> tuple[str, Any]:
    """Its name and the factor that it begins with, if any."""
    name, factor = op.op.name.lower(), None
    if name == "premul_sum":
        name, factor = "sum", op.factor
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            raise TypeError(f"op: PREMUL_SUM is not defined for {_wire.name(tensor.dtype)}")
    check_op(name, tensor.dtype)
    return name, factor


def _check_like(argument: str, tensors: Tensors, like: torch.Tensor, count: int | None) -> None:
    """Tensors that are filled, one for each rank, each as large as one that is sent; count: the
    number of ranks, None: it is not to be looked at."""
    if count is not None and len(tensors) != count:
        raise ValueError(
            f"{argument}: expected a tensor for each of {count} ranks, got {len(tensors)}"
        )
    for tensor in tensors:
        _wire.check_tensor(tensor, written=True, reduced=False)
        if tensor.dtype != like.dtype:
            raise TypeError(
                f"{argument}: expected {_wire.name(like.dtype)}, got {_wire.name(tensor.dtype)}"
            )


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
        self._queue = Queue(comm, name)
        self._plane = Plane(comm, name, self._queue.patient)
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

    def _begin(self, options: Any, plan: Callable[[], Plan]) -> Work:
        """The next operation of this group. If the arguments are wrong, the others hear of it."""
        limit = self._limit(options)
        try:
            text, move, filled = plan()
        except (TypeError, ValueError) as error:
            self._queue.refuse(error, limit)
        self._sequence += 1
        asynchronous = getattr(options, "asyncOp", True)
        work = self._queue.submit(Intent(text), move, list(filled), limit, asynchronous)
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
        self._plane.free()
        self._queue.free()
        self._mail.Free()
        self._comm.Free()

    @property
    def usable(self) -> bool:
        """Are its ranks still together, as far as this one knows?"""
        return not self._queue.broken

    # Reductions

    def _reducing(self, name: str, tensors: Tensors, op: Any, root: int | None = None) -> Plan:
        for tensor in tensors:
            _wire.check_tensor(tensor, written=root in (None, self.rank()))
        plans = [(tensor, *_reduction(op, tensor)) for tensor in tensors]
        taken = root in (None, self.rank())

        def move() -> None:
            for tensor, op_name, factor in plans:
                self._plane.reduce(tensor, op_name, factor, taken)

        text = ", ".join(map(_what, tensors)) + f", {op.op.name}"
        return f"{name} of {text}", move, tensors

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = dist.AllreduceOptions() if opts is None else opts
        return self._begin(
            opts, lambda: self._reducing("all_reduce", [_one(tensors)], opts.reduceOp)
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        return self._begin(
            opts, lambda: self._reducing("all_reduce_coalesced", tensors, opts.reduceOp)
        )

    def reduce(self, tensors: Any, opts: Any) -> Work:
        name = f"reduce to rank {opts.rootRank}"
        return self._begin(
            opts, lambda: self._reducing(name, [_one(tensors)], opts.reduceOp, opts.rootRank)
        )

    def _scattering(self, pairs: Sequence[tuple[torch.Tensor, Tensors]], op: Any) -> Plan:
        """For each output of this rank: the pieces that it sends to all ranks, itself included."""
        plans = []
        for output, pieces in pairs:
            _wire.check_tensor(output, written=True)
            _check_like("input_list", pieces, output, self.size())
            own = pieces[self.rank()]
            if own.numel() != output.numel():
                raise ValueError(
                    f"output: expected {own.numel()} elements as in the input for this rank, got "
                    f"{output.numel()}"
                )
            plans.append((output, pieces, *_reduction(op, output)))

        def move() -> None:
            for output, pieces, op_name, factor in plans:
                self._plane.reduce_pieces(pieces, op_name, factor, output)

        sizes = ", ".join(
            f"{[piece.numel() for piece in pieces]} elements of {_wire.name(output.dtype)}"
            for output, pieces in pairs
        )
        outputs = [output for output, _ in pairs]
        return f"reduce_scatter of {sizes}, {op.op.name}", move, outputs

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        return self._begin(
            opts,
            lambda: self._scattering([(_one(outputs), _one(inputs, "input_list"))], opts.reduceOp),
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = dist.ReduceScatterOptions() if opts is None else opts

        def plan() -> Plan:
            pairs = [
                (output, self._equal_pieces("input", whole, output))
                for output, whole in zip(outputs, inputs)
            ]
            return self._scattering(pairs, opts.reduceOp)

        return self._begin(opts, plan)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _equal_pieces(self, argument: str, whole: Any, part: Any) -> Tensors:
        """A tensor as one piece for each rank, each as large as another tensor."""
        _wire.check_tensor(whole, written=False, reduced=False)
        _wire.check_tensor(part, written=False, reduced=False)
        if whole.numel() != part.numel() * self.size():
            raise ValueError(
                f"{argument}: expected {self.size()} times {part.numel()} elements, got "
                f"{whole.numel()}"
            )
        flat = whole.detach().reshape(-1)
        pieces: Tensors = flat.view(self.size(), part.numel()).unbind(0)
        return pieces

    # Bytes

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        def plan() -> Plan:
            tensor = _one(tensors)
            _wire.check_tensor(tensor, written=self.rank() != opts.rootRank, reduced=False)
            text = f"broadcast of {_what(tensor)} from rank {opts.rootRank}"
            return text, lambda: self._plane.broadcast(tensor, opts.rootRank), [tensor]

        return self._begin(opts, plan)

    def _gathering(self, pairs: Sequence[tuple[Tensors, torch.Tensor]]) -> Plan:
        for outputs, tensor in pairs:
            _wire.check_tensor(tensor, written=False, reduced=False)
            _check_like("tensor_list", outputs, tensor, self.size())
            own = outputs[self.rank()]
            if own.numel() != tensor.numel():
                raise ValueError(
                    f"tensor_list: expected {tensor.numel()} elements for this rank's tensor, got "
                    f"{own.numel()}"
                )

        def move() -> None:
            for outputs, tensor in pairs:
                self._plane.gather(tensor, outputs, None)

        sizes = ", ".join(
            f"{[output.numel() for output in outputs]} elements of {_wire.name(tensor.dtype)}"
            for outputs, tensor in pairs
        )
        filled = [output for outputs, _ in pairs for output in outputs]
        return f"all_gather of {sizes}", move, filled

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._begin(
            opts, lambda: self._gathering([(_one(outputs, "tensor_list"), _one(inputs))])
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The i-th output list is for the i-th input; torch passes one list for each rank."""
        return self._begin(opts, lambda: self._gathering(list(zip(zip(*outputs), inputs))))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        def plan() -> Plan:
            for output, tensor in zip(outputs, inputs):
                self._equal_pieces("output", output, tensor)
                _check_like("output", [output], tensor, None)

            def move() -> None:
                for output, tensor in zip(outputs, inputs):
                    self._plane.gather_flat(tensor, output)

            return f"all_gather of {', '.join(map(_what, inputs))} each", move, outputs

        return self._begin(opts, plan)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        root = opts.rootRank

        def plan() -> Plan:
            tensor = _one(inputs)
            _wire.check_tensor(tensor, written=False, reduced=False)
            own = _one(outputs, "gather_list") if self.rank() == root else None
            if own is not None:
                _check_like("gather_list", own, tensor, self.size())
                for output in own:
                    self._same_size("gather_list", output, tensor)
            text = f"gather of {_what(tensor)} to rank {root}"
            return text, lambda: self._plane.gather(tensor, own, root), own or []

        return self._begin(opts, plan)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        root = opts.rootRank

        def plan() -> Plan:
            tensor = _one(outputs)
            _wire.check_tensor(tensor, written=True, reduced=False)
            own = _one(inputs, "scatter_list") if self.rank() == root else None
            if own is not None:
                if len(own) != self.size():
                    raise ValueError(
                        f"scatter_list: expected a tensor for each of {self.size()} ranks, got "
                        f"{len(own)}"
                    )
                for piece in own:
                    _wire.check_tensor(piece, written=False, reduced=False)
                    _check_like("tensor", [tensor], piece, None)
                    self._same_size("scatter_list", piece, tensor)
            text = f"scatter of {_what(tensor)} from rank {root}"
            return text, lambda: self._plane.scatter(tensor, own, root), [tensor]

        return self._begin(opts, plan)

    @staticmethod
    def _same_size(argument: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
        if tensor.numel() != like.numel():
            raise ValueError(f"{argument}: expected {like.numel()} elements, got {tensor.numel()}")

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        def plan() -> Plan:
            for argument, tensors in (
                ("input_tensor_list", inputs),
                ("output_tensor_list", outputs),
            ):
                if len(tensors) != self.size():
                    raise ValueError(
                        f"{argument}: expected a tensor for each of {self.size()} ranks, got "
                        f"{len(tensors)}"
                    )
            for tensor in inputs:
                _wire.check_tensor(tensor, written=False, reduced=False)
                _check_like("output_tensor_list", outputs, tensor, None)
            text = f"all_to_all of {_wire.name(inputs[0].dtype)}"
            return text, lambda: self._plane.exchange(inputs, outputs), outputs

        return self._begin(opts, plan)

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Work:
        def plan() -> Plan:
            _wire.check_tensor(input, written=False, reduced=False)
            _check_like("output", [output], input, None)
            come = self._split("output_split_sizes", output, output_splits)
            sent = self._split("input_split_sizes", input, input_splits)
            text = f"all_to_all_single of {_wire.name(input.dtype)}"
            return text, lambda: self._plane.exchange(sent, come), [output]

        return self._begin(opts, plan)

    alltoall_base = all_to_all_single

    def _split(self, argument: str, tensor: torch.Tensor, sizes: Any) -> Tensors:
        """By the first dimension, evenly if there are no sizes."""
        rows = tensor.shape[0] if tensor.dim() else 0
        ranks = self.size()
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

    def barrier(self, opts: Any = None) -> Work:
        return self._begin(opts, lambda: ("barrier", None, []))

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
        _wire.check_tensor(tensor, written=False, reduced=False)
        return self._messages.send(tensor, self._check_peer("dst", dst), tag, self._timeout)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        tensor = _one(tensors)
        _wire.check_tensor(tensor, written=True, reduced=False)
        return self._messages.recv(tensor, self._check_peer("src", src), tag, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        tensor = _one(tensors)
        _wire.check_tensor(tensor, written=True, reduced=False)
        return self._messages.recv(tensor, None, tag, self._timeout)


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
    identity, comm = _meeting.gather_members(
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
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    _meeting.install()
    _meeting.set_environment()
