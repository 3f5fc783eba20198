# SPDX-License-Identifier: Apache-2.0
"""What makes a replica, as arrays that can be sent, and back into the live objects.

Parameters, the optimizer's state and its groups, the attached schedulers. Tensors become numpy
arrays over their own memory, so that `pickle` with out-of-band buffers takes them as they are (see
`partialcoll.resync`); what numpy has no type for, bfloat16 above all, travels as its bits. Back:
parameters are written in place, so gradients, views and references of users stay; the optimizer
loads through its own `load_state_dict`. Bit for bit in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .._errors import StateError

# Integers of the same size carry the bits of what numpy does not have.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Named = Sequence[tuple[str, torch.nn.Parameter]]


class Bits(NamedTuple):
    """A tensor: its elements in the order of memory, their dtype, and which dimension of the
    tensor each dimension of the array is."""

    array: NDArray[Any]
    dtype: str
    order: tuple[int, ...]


def pack(value: Any) -> Any:
    """The same tree with each tensor as `Bits`, over the tensor's memory. Whoever keeps it beyond
    the next step copies it; pickling does."""
    if isinstance(value, torch.Tensor):
        return _pack_tensor(value)
    if type(value) is dict:
        return {key: pack(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(item) for item in value)
    return value  # pickle knows what to do with it


def _pack_tensor(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided:
        return tensor
    tensor, order = _in_order_of_memory(tensor.detach().cpu())
    try:
        array = tensor.numpy()
    except TypeError:  # no such dtype there
        array = tensor.view(_BITS[tensor.element_size()]).numpy()
    return Bits(array, str(tensor.dtype).removeprefix("torch."), order)


def _in_order_of_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Dimensions by falling stride (channels_last and the like): no copy is made for pickle."""
    dimensions = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return tensor, dimensions
    order = tuple(sorted(dimensions, key=lambda i: -tensor.stride()[i]))
    dense = tensor.permute(order)
    return (dense, order) if dense.is_contiguous() else (tensor.contiguous(), dimensions)


def unpack(value: Any) -> Any:
    """The tree with tensors again, over the arrays' memory where that can be written."""
    if isinstance(value, Bits):
        array = value.array if value.array.flags.writeable else value.array.copy()
        dense = torch.from_numpy(array).view(getattr(torch, value.dtype))
        return dense.permute(*np.argsort(value.order).tolist()) if value.order else dense
    if type(value) is dict:
        return {key: unpack(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(item) for item in value)
    return value


def capture(
    parameters: Named,
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[Any],
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
    """Its own `load_state_dict`, but the groups stay the same objects, since a user may hold
    one, and tensors keep their dtype: that method makes all of them the parameters'."""
    groups = optimizer.param_groups
    members = list(groups)
    optimizer.load_state_dict(state)
    for old, new in zip(members, optimizer.param_groups):
        values = dict(new)
        old.clear()
        old.update(values)
    groups[:] = members
    optimizer.param_groups = groups
    _keep_dtypes(optimizer, state["state"])


def _keep_dtypes(optimizer: torch.optim.Optimizer, saved: dict[Any, Any]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entries in saved.items():
        if not isinstance(index, int) or not isinstance(entries, dict):
            continue
        loaded = optimizer.state[parameters[index]]
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and loaded[key].dtype != value.dtype:
                loaded[key] = value.to(loaded[key].device)
