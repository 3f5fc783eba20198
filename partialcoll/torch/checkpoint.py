# SPDX-License-Identifier: Apache-2.0
"""The state of a replica, for a peer that needs it and for checkpoints.

For a peer: parameters, the optimizer's state and groups, the attached schedulers. Tensors are
pickled as bytes over their own memory, which out-of-band buffers take as they are (see
`partialcoll.StateExchange`).
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
from collections.abc import Sequence
from typing import Any, Callable

import torch
from numpy.typing import NDArray

from ..errors import StateError
from .flat import Layout, Named, by_falling_stride
from .ops import wire

KEY = "partialcoll"
_FIELDS = ("size", "rank", "version", "updates", "strategy", "layout", "schedulers")


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


class Bits:
    """A tensor that is pickled over its own memory, and unpickled as a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self._tensor.detach().cpu()
        order = by_falling_stride(tensor)  # channels_last and the like: pickle makes no copy
        if not tensor.permute(order).is_contiguous():
            tensor, order = tensor.contiguous(), tuple(range(tensor.dim()))
        dense = tensor.permute(order)
        return _tensor_of, (wire.bits(dense), wire.name(dense.dtype), tuple(dense.shape), order)


def _tensor_of(
    array: NDArray[Any], dtype: str, shape: tuple[int, ...], order: tuple[int, ...]
) -> torch.Tensor:
    """The tensor, over the array's memory where that can be written."""
    flat = torch.from_numpy(array if array.flags.writeable else array.copy())
    dense = flat.view(getattr(torch, dtype)).view(shape)
    return dense.permute([order.index(i) for i in range(len(order))])


def pack(value: Any) -> Any:
    """Return the same tree with each dense tensor as `Bits`: pickle it before the next step."""
    return map_tree(
        value, torch.Tensor, lambda one: Bits(one) if one.layout == torch.strided else one
    )


def capture(
    parameters: Named, optimizer: torch.optim.Optimizer, schedulers: Sequence[Any]
) -> dict[str, Any]:
    """Return the state of a replica, to be pickled. It is valid as long as a result of `pack`."""
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
    """Make this replica what `capture` saw, from the unpickled state; StateError if that is of
    another model. The tensors of the state then belong to the optimizer."""
    names = [name for name, _ in parameters]
    for what, theirs, own in (
        ("parameters", list(state["parameters"]), names),
        ("schedulers attached", len(state["schedulers"]), len(schedulers)),
    ):
        if theirs != own:
            raise StateError(f"the state of a peer: expected {what} {own}, got {theirs}")
    with torch.no_grad():
        for name, parameter in parameters:
            parameter.copy_(state["parameters"][name])
    load_optimizer(optimizer, state["optimizer"])
    for scheduler, of_scheduler in zip(schedulers, state["schedulers"]):
        scheduler.load_state_dict(of_scheduler)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state by the optimizer's own `load_state_dict`, which makes new groups. The old ones
    are put back with the new values, here and in optimizers that this one holds: a user may hold a
    group, and an optimizer around another one shares its groups. Values keep their types: that
    method makes tensors the parameters' dtype, and takes texts in a tuple apart."""
    several = [optimizer]  # and those around which it is written: Lookahead, SAM and others
    for one in several:
        for value in vars(one).values():
            if isinstance(value, torch.optim.Optimizer) and not any(value is o for o in several):
                several.append(value)
    before = [list(one.param_groups) for one in several]
    optimizer.load_state_dict({key: value for key, value in state.items() if key != KEY})
    for one, members in zip(several, before):
        for old, new in zip(members, one.param_groups):
            if old is not new:
                values = dict(new)
                old.clear()
                old.update(values)
        one.param_groups[:] = members
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    saved = state.get("state")
    for index, entries in saved.items() if isinstance(saved, dict) else ():
        if not isinstance(index, int) or not isinstance(entries, dict):
            continue
        p = parameters[index]
        for loaded in [one.state[p] for one in several if p in one.state]:
            for key in entries.keys() & loaded.keys():
                value = entries[key]
                if not isinstance(value, torch.Tensor):
                    loaded[key] = copy.deepcopy(value)
                elif loaded[key].dtype != value.dtype:
                    loaded[key] = value.to(loaded[key].device)


# The entry of a checkpoint


def check_own(
    saved: Any, rank: int, size: int, schedulers: Sequence[Any], layout: Layout, field: str
) -> None:
    """Raise ValueError unless `saved` is an entry of this rank, of as many ranks, or shared, and
    what its `field` holds, if anything, is of this layout."""
    if not isinstance(saved, dict) or any(name not in saved for name in _FIELDS):
        raise ValueError(f"state_dict: its entry {KEY!r} is none that state_dict() has written")
    if field not in saved:
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
    if saved[field] is not None and saved["layout"] != layout.digest():
        what = "its pending gradient" if field == "pending" else "it"
        raise ValueError(
            f"state_dict: {what} is of parameters of other shapes, dtypes or orders of memory than "
            "this model's"
        )
