# SPDX-License-Identifier: Apache-2.0
"""The state of a replica: for a peer that needs it, for checkpoints, and as hashes to compare.

For a peer: parameters, the optimizer's state and groups, the attached schedulers. Tensors become
arrays over their own memory, so that `pickle` with out-of-band buffers takes them as they are (see
`partialcoll.StateExchange`); what numpy has no type for, bfloat16 above all, travels as its bits.
Back: parameters are written in place, so gradients, views and references of users stay; the
optimizer loads through its own `load_state_dict`. Bit for bit in both directions.

For a checkpoint: an entry "partialcoll" in the state_dict: whose it is, how many rounds were
applied, the schedulers attached, and the pending deposit, that is what this rank has deposited and
no applied round has brought yet. The handle that holds it ends with the process; what is loaded is
added to the first deposit, so no gradient is lost and none counted twice. Where no rank has any the
entry is shared: every rank may load it, of any number of them. Plain types and tensors only, so
that `torch.load` takes it with ``weights_only=True``.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .._core.mpi import MPI
from ..collectives.fingerprints import Groups
from ..errors import StateError
from .flat import Layout, Named, by_falling_stride
from .ops import wire

KEY = "partialcoll"
_FIELDS = ("size", "rank", "version", "updates", "strategy", "layout", "schedulers")
# Integers of the same size carry the bits of what numpy does not have.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def map_tree(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The same dicts, lists and tuples, with ``by(x)`` in place of each `x` of a kind."""
    if isinstance(value, kind):
        return by(value)
    if type(value) is dict:
        return {key: map_tree(item, kind, by) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_tree(item, kind, by) for item in value)
    return value


# For a peer


class Bits(NamedTuple):
    """A tensor: its elements in the order of memory, their dtype, and which dimension of the
    tensor each dimension of the array is."""

    array: NDArray[Any]
    dtype: str
    order: tuple[int, ...]


def pack(value: Any) -> Any:
    """The same tree with each tensor as `Bits`, over the tensor's memory. Whoever keeps it beyond
    the next step copies it; pickling does."""
    return map_tree(value, torch.Tensor, _pack_tensor)


def _pack_tensor(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided:
        return tensor
    tensor, order = _in_order_of_memory(tensor.detach().cpu())
    try:
        array = tensor.numpy()
    except TypeError:  # no such dtype there
        array = tensor.view(_BITS[tensor.element_size()]).numpy()
    return Bits(array, wire.name(tensor.dtype), order)


def _in_order_of_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Dimensions by falling stride (channels_last and the like): no copy is made for pickle."""
    if not tensor.is_contiguous():
        order = by_falling_stride(tensor)
        dense = tensor.permute(order)
        if dense.is_contiguous():
            return dense, order
    return tensor.contiguous(), tuple(range(tensor.dim()))


def unpack(value: Any) -> Any:
    """The tree with tensors again, over the arrays' memory where that can be written."""
    return map_tree(value, Bits, _unpack_tensor)


def _unpack_tensor(bits: Bits) -> torch.Tensor:
    array = bits.array if bits.array.flags.writeable else bits.array.copy()
    dense = torch.from_numpy(array).view(getattr(torch, bits.dtype))
    return dense.permute(*np.argsort(bits.order).tolist()) if bits.order else dense


def capture(
    parameters: Named, optimizer: torch.optim.Optimizer, schedulers: Sequence[Any]
) -> dict[str, Any]:
    """What makes a replica; see `pack` for how long it is good."""
    return {
        "parameters": {name: pack(parameter) for name, parameter in parameters},
        "optimizer": pack(optimizer.state_dict()),
        "schedulers": [pack(scheduler.state_dict()) for scheduler in schedulers],
    }


def restore(
    state: dict[str, Any],
    parameters: Named,
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[Any],
) -> None:
    """Make this replica what `capture` saw. Takes the arrays over: they are no longer the
    caller's. StateError if it is the state of another model."""
    _check_same("parameters", list(state["parameters"]), [name for name, _ in parameters])
    _check_same("schedulers attached", len(state["schedulers"]), len(schedulers))
    with torch.no_grad():
        for name, parameter in parameters:
            parameter.copy_(unpack(state["parameters"][name]))
    load_optimizer(optimizer, unpack(state["optimizer"]))
    for scheduler, of_scheduler in zip(schedulers, state["schedulers"]):
        scheduler.load_state_dict(unpack(of_scheduler))


def _check_same(what: str, theirs: Any, own: Any) -> None:
    if theirs != own:
        raise StateError(f"the state of a peer: expected {what} {own}, got {theirs}")


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state by the optimizer's own `load_state_dict`.

    That method makes new groups. The old ones are put back with the new values, in this optimizer
    and in those that it holds: a user may hold a group, and an optimizer around another one shares
    its groups. Values keep their types, since that method makes tensors the parameters' dtype, and
    takes texts in a tuple apart.
    """
    several = _optimizers(optimizer)
    before = [list(one.param_groups) for one in several]
    optimizer.load_state_dict({key: value for key, value in state.items() if key != KEY})
    for one, members in zip(several, before):
        for old, new in zip(members, one.param_groups):
            if old is not new:
                values = dict(new)
                old.clear()
                old.update(values)
        one.param_groups[:] = members
    _keep_values(several, state.get("state"))


def _optimizers(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return an optimizer and those that are attributes of it, or of these: Lookahead, SAM and
    others are written around another one."""
    found = [optimizer]
    for one in found:
        for value in vars(one).values():
            if isinstance(value, torch.optim.Optimizer) and all(
                value is not known for known in found
            ):
                found.append(value)
    return found


def _keep_values(several: Sequence[torch.optim.Optimizer], saved: Any) -> None:
    """Give the loaded state the types of the saved one, in whichever optimizer it was loaded."""
    parameters = [p for group in several[0].param_groups for p in group["params"]]
    for index, entries in saved.items() if isinstance(saved, dict) else ():
        if not isinstance(index, int) or not isinstance(entries, dict):
            continue
        for loaded in [
            one.state[parameters[index]] for one in several if parameters[index] in one.state
        ]:
            for key in entries.keys() & loaded.keys():
                value = entries[key]
                if not isinstance(value, torch.Tensor):
                    loaded[key] = copy.deepcopy(value)
                elif loaded[key].dtype != value.dtype:
                    loaded[key] = value.to(loaded[key].device)


# The entry of a checkpoint


def entry(comm: MPI.Intracomm, strategy: str) -> dict[str, Any]:
    """That of a rank which has seen no round yet."""
    who = {"size": comm.size, "rank": comm.rank, "strategy": strategy}
    return {**who, "version": 0, "updates": 0, "pending": None, "layout": "", "schedulers": []}


def by_dtype(flats: Sequence[torch.Tensor] | None) -> dict[str, torch.Tensor] | None:
    """A deposit: one flat tensor for each dtype, by its name; copies."""
    return None if flats is None else {wire.name(flat.dtype): flat.clone() for flat in flats}


def pending(saved: dict[str, Any], layout: Layout) -> list[torch.Tensor] | None:
    """The deposit of an entry, in buffers of this layout; a copy."""
    if saved["pending"] is None:
        return None
    return [saved["pending"][wire.name(d)].to(layout.device, copy=True) for d in layout.dtypes]


def check_own(
    saved: Any, rank: int, size: int, schedulers: Sequence[Any], more: Iterable[str]
) -> None:
    """Raises ValueError unless it is one of this rank, of as many ranks, or shared, and has these
    fields."""
    if not isinstance(saved, dict) or any(field not in saved for field in _FIELDS):
        raise ValueError(f"state_dict: its entry {KEY!r} is none that state_dict() has written")
    if any(field not in saved for field in more):
        raise ValueError(
            f"state_dict: it was written with the strategy {saved['strategy']}, which keeps other "
            "things than this one; take that one, or the state without its entry "
            f"{KEY!r} to begin anew"
        )
    if (saved["size"], saved["rank"]) != (size, rank) and not saved.get("shared", False):
        raise ValueError(
            f"state_dict: it is of rank {saved['rank']} of {saved['size']} ranks, expected one of "
            f"rank {rank} of {size}: each rank loads what it has saved, with as many ranks, but "
            "for what Allreduce or Eager have saved right after join(); without its entry "
            f"{KEY!r} it is that of a plain optimizer"
        )
    if len(saved["schedulers"]) != len(schedulers):
        raise ValueError(
            f"state_dict: it has the state of {len(saved['schedulers'])} attached schedulers, "
            f"{len(schedulers)} are attached: attach() the same ones before"
        )


def check_pending(saved: dict[str, Any], layout: Layout) -> None:
    """Raises ValueError unless what is pending there is a deposit of this layout."""
    if saved["pending"] is not None and saved["layout"] != layout.digest():
        raise ValueError(
            "state_dict: its pending gradient is of parameters of other shapes, dtypes or orders "
            "of memory than this model's"
        )


def to_tensors(state: Any) -> Any:
    """A process's state with tensors in place of its vectors, for `torch.save`."""
    return map_tree(state, np.ndarray, torch.from_numpy)


def from_tensors(state: Any) -> Any:
    """And back."""
    return map_tree(state, torch.Tensor, lambda tensor: tensor.cpu().numpy())


_PIECE = 4096  # bytes


# For comparison between ranks


def hyperparameters(groups: Iterable[dict[str, Any]]) -> Groups:
    """Everything in the groups that changes the update."""
    return tuple(
        tuple((name, _plain(value)) for name, value in group.items() if name != "params")
        for group in groups
    )


def _plain(value: Any) -> Any:
    """The same on ranks where it means the same: no address, and no order of a set."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else hash_tensors([value])
    if isinstance(value, Mapping):
        return sorted(((repr(key), _plain(one)) for key, one in value.items()))
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(one)) for one in value)
    if isinstance(value, functools.partial):
        return "partial", _plain(value.func), _plain(value.args), _plain(value.keywords)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind: Any = type(value)
    shows_address = kind.__repr__ is object.__repr__
    return f"a {kind.__module__}.{kind.__qualname__}" if shows_address else value


def hash_tensors(tensors: Iterable[torch.Tensor]) -> bytes:
    """Of their bits, in order."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(wire.bits(tensor).data)
    return digest.digest()


def checksum_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number that is not 0 and depends on the tensors' bits.

    Each tensor is cut into pieces of 4 KiB, which are added up as words; the number is the CRC-32
    of the sums. That takes as long as reading the memory once. It does not tell apart tensors that
    have the same pieces in another order; other differences go unnoticed with a probability of
    2^-32.
    """
    value = 0
    for tensor in tensors:
        raw = wire.bits(tensor)
        whole = raw.size // _PIECE * _PIECE
        pieces = raw[:whole].view(np.uint64).reshape(-1, _PIECE // 8)
        value = zlib.crc32(np.add.reduce(pieces, axis=0).data, value)
        value = zlib.crc32(raw[whole:].data, value)
    return value + 1
