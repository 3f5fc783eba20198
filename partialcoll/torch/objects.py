# SPDX-License-Identifier: Apache-2.0
"""Objects, parameters and optimizer state by Horovod's names: what one rank has, on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..collectives import state_exchange
from ..collectives.agreement import first_difference, ranks_by_text, together
from ..errors import MismatchError
from . import checkpoint
from .arguments import check_root, named
from .calls import Calls
from .ops import transfer, wire
from .ops.call import Call, Steps
from .ops.handles import Handles
from .optimizer import check_kind
from .world import OptionalSet, attended, calls_of, world

Entries = list[tuple[str, Any]]

# Objects


@attended
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Any:
    """The root's object, on every rank; it is pickled. Collective.

    Parameters
    ----------
    obj : object
        The root's is sent, and returned there; the others' does not matter. If it cannot be
        pickled, the root raises what pickle does, the others MismatchError.
    root_rank : int
        Whose it is, by its number in the world; ValueError if it is not there.
    name, process_set
        See `allreduce`.
    """
    calls = calls_of(process_set)
    comm = calls.comm
    buffers: list[state_exchange.Bytes] = []
    try:
        root = check_root(root_rank, process_set)
        text = named(f"broadcast_object from rank {root}", name)
        if comm.rank == root:
            buffers = state_exchange.pack(obj)
    except Exception as error:
        calls.refuse(error)
    calls.run(Call(text, lambda to: transfer.spread_buffers(to, buffers, root)))
    return obj if comm.rank == root else state_exchange.unpack(buffers)


@attended
def allgather_object(
    obj: Any, name: str | None = None, process_set: OptionalSet = None
) -> list[Any]:
    """The objects `obj` of all ranks, in their order, on every rank; they are pickled. Collective.

    `name` and `process_set` as of `allreduce`; what cannot be pickled raises as in
    `broadcast_object`.
    """
    calls = calls_of(process_set)
    try:
        text = named("allgather_object", name)
    except Exception as error:
        calls.refuse(error)
    return calls.gather(text, obj)


# Parameters


def _entries(params: Any) -> Entries:
    """Names and values; a dictionary's in the order of its names, which may differ by rank."""
    if not isinstance(params, Iterable) or isinstance(params, (str, torch.Tensor)):
        raise TypeError(
            "params: expected a state_dict, named_parameters(), parameters() or pairs of name and "
            f"tensor, got {type(params).__name__}"
        )
    found: Entries = []
    for i, pair in enumerate(
        sorted(params.items(), key=lambda item: str(item[0]))
        if isinstance(params, Mapping)
        else params
    ):
        if isinstance(pair, torch.Tensor):  # parameters(): they have their places for names
            found.append((str(i), pair))
            continue
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                "params: expected pairs of name and tensor, as named_parameters() gives them, got "
                f"{type(pair).__name__}"
            )
        found.append((pair[0], pair[1]))
    return found


def _describe(entries: Entries, replaceable: bool) -> list[str]:
    """Each entry's name, and what all ranks must agree on. Raises what is wrong with one."""
    said = []
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            try:
                wire.check_tensor(value, written=True, reduced=False)
            except (TypeError, ValueError) as error:
                raise type(error)(f"params[{name!r}]: {error}") from None
            said.append(f"{name}: {wire.describe(value)}")
        elif replaceable:
            said.append(f"{name}: an object")
        else:
            raise TypeError(
                f"params[{name!r}]: expected a tensor, got {type(value).__name__}; other objects "
                "only in a dictionary, where they can be replaced"
            )
    return said


def _compare(calls: Calls, what: str, root: int, said: list[str]) -> None:
    """Raises MismatchError, on all ranks, if they describe different things; names the first."""
    everybody = calls.gather(f"{what} from rank {root}", said)
    differing = first_difference(everybody, "nothing more")
    if differing:
        raise MismatchError(f"{what}: the ranks differ: {ranks_by_text(differing)}")


@attended
def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Everybody's parameters become the root's, bit for bit, in place. Collective.

    Parameters
    ----------
    params : dict, or pairs of name and tensor
        ``model.state_dict()`` or ``model.named_parameters()``. What is no tensor is replaced in
        the dictionary.
    root_rank : int
        Whose they become.

    Raises
    ------
    MismatchError
        On all ranks, if they have different entries; names the first, its shapes and the ranks.
    TypeError, ValueError
        This rank's arguments are wrong (the others get MismatchError).
    """
    calls = world().calls
    try:
        root = check_root(root_rank, None)
        entries = _entries(params)
        said = _describe(entries, isinstance(params, dict))
    except Exception as error:
        calls.refuse(error)
    _compare(calls, "broadcast_parameters", root, said)
    tensors = [value for _, value in entries if isinstance(value, torch.Tensor)]
    objects = {name: value for name, value in entries if not isinstance(value, torch.Tensor)}
    places = {tensor.data_ptr() for tensor in tensors}
    loops = [optimizer._loop for optimizer in world().optimizers]
    concerned = [loop for loop in loops if any(p.data_ptr() in places for _, p in loop.parameters)]
    for loop in concerned:
        loop.parameters_to_be_replaced()
    _send(calls, tensors, root)
    if objects:
        params.update(broadcast_object(objects, root))
    for loop in concerned:
        loop.parameters_replaced()


def _send(calls: Calls, tensors: list[torch.Tensor], root: int) -> None:
    """In place."""

    def move(to: Handles) -> Steps:
        for one in tensors:
            yield from transfer.broadcast(to, one, root)

    calls.run(Call(f"{len(tensors)} tensors from rank {root}", move, tensors))


# The optimizer's state


def _groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """What the ranks' optimizers must have in common."""
    said = [f"optimizer: {type(optimizer).__qualname__}"]
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            said.append(f"group {i}, parameter {j}: {wire.describe(parameter)}")
    return said


@attended
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Everybody's optimizer becomes the root's: state, and options of the groups (learning rate,
    momentum, …). Collective.

    It does not matter which ranks have state already: a rank that has loaded a checkpoint serves
    those that have not, and one whose optimizer is new empties the others'. A
    `DistributedOptimizer` takes the number of the round and its schedulers from there, too.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With the same parameters, in the same groups, on all ranks.
    root_rank : int
        Whose it becomes.
    model : torch.nn.Module
        Horovod's; not needed.

    Raises
    ------
    MismatchError
        On all ranks, if the optimizers differ in class, groups or shapes, or a rank cannot load
        what came.
    TypeError, ValueError
        This rank's arguments are wrong (the others get MismatchError).
    """
    calls = world().calls
    loop = getattr(optimizer, "_loop", None)  # of a DistributedOptimizer
    inner = optimizer if loop is None else loop._inner
    state: Any = None
    try:
        root = check_root(root_rank, None)
        check_kind(optimizer)
        own = calls.comm.rank == root
        if own:
            position = None if loop is None else loop.position()
            state = {"optimizer": checkpoint.pack(inner.state_dict()), "rounds": position}
    except Exception as error:
        calls.refuse(error)
    _compare(calls, "broadcast_optimizer_state", root, _groups(inner))
    state = broadcast_object(state, root)

    def load() -> None:
        if not own:
            checkpoint.load_optimizer(inner, state["optimizer"])
            if loop is not None and state["rounds"] is not None:
                loop.begin_at(state["rounds"])

    together(calls, load)
