# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed as plans: what all ranks have to agree on, as a text, how
the data moves, and what it fills. Arguments are checked here; nothing is communicated yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from .._core.mpi import MPI
from .ops import transfer, wire
from .ops.call import Move, Steps
from .ops.handles import CHUNK, Form, Handles, Reduction, whole

Tensors = Sequence[torch.Tensor]
# What the ranks compare, how the data moves, what is filled.
Plan = tuple[str, Move, Tensors]

_INTEGER_ONLY = {"band", "bor", "bxor"}
_NOT_COMPLEX = {"min", "max"}
_NOT_BOOL = {"avg"}
_OPS = {"sum", "product", "min", "max", "avg", *_INTEGER_ONLY}


def _what(tensor: torch.Tensor) -> str:
    """For messages, and equal on ranks that may exchange such tensors."""
    return f"{tensor.numel()} elements of {wire.name(tensor.dtype)}"


def _sizes(tensors: Tensors, like: torch.Tensor) -> str:
    return f"{[tensor.numel() for tensor in tensors]} elements of {wire.name(like.dtype)}"


def one_of(tensors: Any, argument: str = "tensors") -> Any:
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
    _check_dtypes(argument, tensors, like)


def _check_dtypes(argument: str, tensors: Tensors, like: torch.Tensor) -> None:
    for tensor in tensors:
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


class Plans:
    """Those of one communicator's ranks. A method for each of torch's, with its options last."""

    def __init__(self, comm: MPI.Intracomm, go_on: bool) -> None:
        self._comm, self._go_on, self._rank, self._ranks = comm, go_on, comm.rank, comm.size

    @property
    def _everybody(self) -> MPI.Intracomm:
        """For what MPI moves itself."""
        return whole(self._comm, self._go_on)

    # Reductions

    def _reducing(self, name: str, tensors: Tensors, op: Any, root: int | None = None) -> Plan:
        taken = root in (None, self._rank)
        for tensor in tensors:
            wire.check_tensor(tensor, written=taken)
        moves = [
            Reduction(_form(op, one.dtype, self._ranks), one, one, wanted=taken, chunk=CHUNK)
            for one in tensors
        ]
        return f"{name} of {', '.join(map(_what, tensors))}, {op.op.name}", moves, tensors

    def allreduce(self, tensors: Any, opts: Any) -> Plan:
        tensor = one_of(tensors)
        if isinstance(tensor, torch.Tensor) and tensor.is_sparse:
            return self._sparse(tensor, opts.reduceOp)
        return self._reducing("all_reduce", [tensor], opts.reduceOp)

    def _sparse(self, tensor: torch.Tensor, op: Any) -> Plan:
        form = _form(op, tensor.dtype, self._ranks)
        if form.op != "sum":
            raise TypeError(f"op: expected sum or avg for a sparse tensor, got {form.op}")
        text = f"all_reduce of {wire.describe(tensor)}, sparse in {tensor.sparse_dim()} dimensions"
        move = transfer.reduce_sparse(self._everybody, tensor, form)
        return f"{text}, {op.op.name}", move, [tensor]

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Plan:
        return self._reducing("all_reduce_coalesced", tensors, opts.reduceOp)

    def reduce(self, tensors: Any, opts: Any) -> Plan:
        root = opts.rootRank
        return self._reducing(f"reduce to rank {root}", [one_of(tensors)], opts.reduceOp, root)

    def _scattering(self, pairs: Sequence[tuple[torch.Tensor, Tensors]], op: Any) -> Plan:
        """For each output of this rank: the pieces that it sends to all ranks, itself included."""
        forms = []
        for output, pieces in pairs:
            wire.check_tensor(output, written=True)
            self._check_each("input_list", pieces)
            _check_sent(*pieces)
            _check_dtypes("input_list", pieces, output)
            count = pieces[self._rank].numel()
            _check_size("output", output, count, " as in the input for this rank")
            forms.append(_form(op, output.dtype, self._ranks))

        comm = self._everybody
        move = chain.from_iterable(
            transfer.reduce_pieces(comm, pieces, form, output)
            for (output, pieces), form in zip(pairs, forms)
        )
        sizes = ", ".join(_sizes(pieces, output) for output, pieces in pairs)
        return f"reduce_scatter of {sizes}, {op.op.name}", move, [output for output, _ in pairs]

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._scattering([(one_of(outputs), one_of(inputs, "input_list"))], opts.reduceOp)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        pairs = [
            (one, self._equal_pieces("input", whole, one)) for one, whole in zip(outputs, inputs)
        ]
        return self._scattering(pairs, opts.reduceOp)

    def _equal_pieces(self, argument: str, whole: Any, part: Any) -> Tensors:
        """A tensor as one piece for each rank, each as large as another tensor."""
        _check_sent(whole, part)
        if whole.numel() != part.numel() * self._ranks:
            raise ValueError(
                f"{argument}: expected {self._ranks} times {part.numel()} elements, got "
                f"{whole.numel()}"
            )
        pieces: Tensors = whole.detach().reshape(self._ranks, part.numel()).unbind(0)
        return pieces

    # Bytes

    def broadcast(self, tensors: Any, opts: Any) -> Plan:
        tensor, root = one_of(tensors), opts.rootRank
        wire.check_tensor(tensor, written=self._rank != root, reduced=False)
        text = f"broadcast of {_what(tensor)} from rank {root}"
        return text, lambda to: transfer.broadcast(to, tensor, root), [tensor]

    def _gathering(self, pairs: Sequence[tuple[Tensors, torch.Tensor]]) -> Plan:
        for outputs, tensor in pairs:
            _check_sent(tensor)
            self._check_each("tensor_list", outputs, tensor)
            own = outputs[self._rank]
            _check_size("tensor_list", own, tensor.numel(), " for this rank's tensor")

        def move(to: Handles) -> Steps:
            for outputs, tensor in pairs:
                yield from transfer.gather_all(to, tensor, outputs)

        sizes = ", ".join(_sizes(outputs, tensor) for outputs, tensor in pairs)
        return f"all_gather of {sizes}", move, [one for outputs, _ in pairs for one in outputs]

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        return self._gathering([(one_of(outputs, "tensor_list"), one_of(inputs))])

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        """The i-th output list is for the i-th input; torch passes one list for each rank."""
        return self._gathering(list(zip(zip(*outputs), inputs)))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        pairs = list(zip(outputs, inputs))
        for output, tensor in pairs:
            self._equal_pieces("output", output, tensor)
            _check_like("output", [output], tensor)

        def move(to: Handles) -> Steps:
            for output, tensor in pairs:
                yield from transfer.gather_flat(to, tensor, output)

        return f"all_gather of {', '.join(map(_what, inputs))} each", move, outputs

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        tensor, root = one_of(inputs), opts.rootRank
        _check_sent(tensor)
        own = one_of(outputs, "gather_list") if self._rank == root else None
        if own is not None:
            self._check_each("gather_list", own, tensor)
            for output in own:
                _check_size("gather_list", output, tensor.numel())
        text = f"gather of {_what(tensor)} to rank {root}"
        return text, transfer.gather(self._everybody, tensor, own, root), own or []

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        tensor, root = one_of(outputs), opts.rootRank
        wire.check_tensor(tensor, written=True, reduced=False)
        own = one_of(inputs, "scatter_list") if self._rank == root else None
        if own is not None:
            self._check_each("scatter_list", own)
            for piece in own:
                _check_sent(piece)
                _check_like("tensor", [tensor], piece)
                _check_size("scatter_list", piece, tensor.numel())
        text = f"scatter of {_what(tensor)} from rank {root}"
        return text, transfer.scatter(self._everybody, tensor, own, root), [tensor]

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Plan:
        self._check_each("input_tensor_list", inputs)
        self._check_each("output_tensor_list", outputs)
        for tensor in inputs:
            _check_sent(tensor)
            _check_like("output_tensor_list", outputs, tensor)
        text = f"all_to_all of {wire.name(inputs[0].dtype)}"
        return text, transfer.exchange(self._everybody, inputs, outputs), outputs

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any
    ) -> Plan:
        _check_sent(input)
        _check_like("output", [output], input)
        come = self._split("output_split_sizes", output, output_splits)
        sent = self._split("input_split_sizes", input, input_splits)
        text = f"all_to_all_single of {wire.name(input.dtype)}"
        return text, transfer.exchange(self._everybody, sent, come), [output]

    def _split(self, argument: str, tensor: torch.Tensor, sizes: Any) -> Tensors:
        """By the first dimension, evenly if there are no sizes."""
        rows, ranks = tensor.shape[0] if tensor.dim() else 0, self._ranks
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
        if len(tensors) != self._ranks:
            raise ValueError(
                f"{argument}: expected a tensor for each of {self._ranks} ranks, got {len(tensors)}"
            )
        if like is not None:
            _check_like(argument, tensors, like)

    def barrier(self, opts: Any) -> Plan:
        return "barrier", None, []
