# SPDX-License-Identifier: Apache-2.0
"""What a training script does once, by Horovod's names: everybody begins with the same parameters
and optimizer state; objects; the end of an epoch; the timeline that is not there."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NoReturn

import torch
from mpi4py import MPI

from .._errors import MismatchError
from . import _wire
from ._calls import Calls
from ._loop import Loop
from ._tensors import check_name, check_process_set, check_root
from ._world import world

Entries = list[tuple[str, Any]]

# Objects


def _named(text: str, name: str | None) -> str:
    return text if name is None else f"{text}, name={name!r}"


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: None = None
) -> Any:
    """The root's object, on every rank; it is pickled. Collective.

    The root gets its own object back. If it cannot be pickled, the root raises what pickle does,
    the others MismatchError.
    """
    calls = world().calls
    data = b""
    try:
        check_process_set(process_set)
        check_name(name)
        root = check_root(root_rank, calls.comm.size)
        if calls.comm.rank == root:
            data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        calls.refuse(error)
    calls.agree(_named(f"broadcast_object from rank {root}", name))
    data = calls.comm.bcast(data, root)
    return obj if calls.comm.rank == root else pickle.loads(data)


def allgather_object(obj: Any, name: str | None = None, process_set: None = None) -> list[Any]:
    """The objects of all ranks, in their order, on every rank; they are pickled. Collective."""
    calls = world().calls
    try:
        check_process_set(process_set)
        check_name(name)
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        calls.refuse(error)
    calls.agree(_named("allgather_object", name))
    return [pickle.loads(one) for one in calls.comm.allgather(data)]


# Parameters


def _entries(params: Any) -> Entries:
    """Names and values; a dictionary's in the order of its names, which may differ by rank."""
    if not isinstance(params, Iterable) or isinstance(params, (str, torch.Tensor)):
        raise TypeError(
            "params: expected a state_dict, named_parameters() or pairs of name and tensor, got "
            f"{type(params).__name__}"
        )
    found: Entries = []
    for pair in (
        sorted(params.items(), key=lambda item: str(item[0]))
        if isinstance(params, Mapping)
        else params
    ):
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                "params: expected pairs of name and tensor, as named_parameters() gives them, got "
                f"{type(pair).__name__}"
            )
        found.append((pair[0], pair[1]))
    return found


def _describe(entries: Entries, replaceable: bool) -> list[tuple[str, str]]:
    """Each entry's name, and what all ranks must agree on. Raises what is wrong with one."""
    said = []
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            try:
                _wire.check_tensor(value, written=True, reduced=False)
            except (TypeError, ValueError) as error:
                raise type(error)(f"params[{name!r}]: {error}") from None
            said.append((name, _wire.describe(value)))
        elif replaceable:
            said.append((name, "an object"))
        else:
            raise TypeError(
                f"params[{name!r}]: expected a tensor, got {type(value).__name__}; other objects "
                "only in a dictionary, where they can be replaced"
            )
    return said


def _first_difference(everybody: list[list[tuple[str, str]]]) -> str:
    """Of what the ranks have described; there is one."""
    for i in range(max(map(len, everybody))):
        sides: dict[str, list[int]] = {}
        for rank, said in enumerate(everybody):
            text = "{}: {}".format(*said[i]) if i < len(said) else "nothing more"
            sides.setdefault(text, []).append(rank)
        if len(sides) > 1:
            return "; ".join(
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {text}"
                for text, ranks in sides.items()
            )
    return "they differ"


def _compare(comm: MPI.Intracomm, what: str, said: list[tuple[str, str]]) -> None:
    """Raises MismatchError, on all ranks, if they describe different things."""
    everybody = comm.allgather(said)
    if any(one != everybody[0] for one in everybody):
        raise MismatchError(f"{what}: the ranks differ: {_first_difference(everybody)}")


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
        root = check_root(root_rank, calls.comm.size)
        entries = _entries(params)
        said = _describe(entries, isinstance(params, dict))
    except Exception as error:
        calls.refuse(error)
    calls.agree(f"broadcast_parameters from rank {root}")
    _compare(calls.comm, "broadcast_parameters", said)
    places = {value.data_ptr() for _, value in entries if isinstance(value, torch.Tensor)}
    loops = [optimizer._loop for optimizer in world().optimizers]
    concerned = [loop for loop in loops if any(p.data_ptr() in places for _, p in loop.parameters)]
    for loop in concerned:
        loop.parameters_to_be_replaced()
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            _wire.send_bits(calls.comm, value, None, root)
        else:
            params[name] = broadcast_object(value, root)
    for loop in concerned:
        loop.parameters_replaced()


# The optimizer's state


class _Tensor:
    """Stands for a tensor where a state is described."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def new(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def _replace(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The same structure with everything of a kind replaced, in a fixed order."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, dict):
        return {key: _replace(one, kind, by) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_replace(one, kind, by) for one in value)
    return value


def _outline(calls: Calls, state: Any) -> tuple[Any, list[torch.Tensor]]:
    """The state with `_Tensor` for tensors, and these."""
    tensors: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> _Tensor:
        _wire.check_tensor(tensor, written=False, reduced=False)
        tensors.append(tensor)
        return _Tensor(tensor)

    try:
        return _replace(state, torch.Tensor, keep), tensors
    except Exception as error:
        calls.refuse(error)


def _send_state(calls: Calls, state: Any, root: int) -> Any:
    """The root's state on every rank; its own, as it is, on the root. Collective."""
    tensors: list[torch.Tensor] = []

    def make(outline: _Tensor) -> torch.Tensor:
        tensors.append(outline.new())
        return tensors[-1]

    if calls.comm.rank == root:
        outline, tensors = _outline(calls, state)
        broadcast_object(outline, root)
    else:
        state = _replace(broadcast_object(None, root), _Tensor, make)
    for tensor in tensors:
        _wire.send_bits(calls.comm, tensor, None, root)
    return state


def _own_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The optimizer's class without what `DistributedOptimizer` adds."""
    for kind in type(optimizer).__mro__:
        if not kind.__module__.startswith("partialcoll.") and kind is not object:
            return kind
    raise AssertionError("a torch.optim.Optimizer has a class of its own")


def _groups(optimizer: torch.optim.Optimizer) -> list[tuple[str, str]]:
    """What the ranks' optimizers must have in common."""
    said = [("optimizer", _own_class(optimizer).__qualname__)]
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            said.append((f"group {i}, parameter {j}", _wire.describe(parameter)))
    return said


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer: LBFGS is not supported; take one that steps without a closure")


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """All of it, and the tensors as they are: `load_state_dict` gives them the parameters' dtype,
    which those of the root need not have."""
    _own_class(optimizer).load_state_dict(optimizer, state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [i for group in state["param_groups"] for i in group["params"]]
    for number, parameter in zip(numbers, parameters):
        entries = state["state"].get(number)
        if isinstance(entries, dict):
            optimizer.state[parameter].update(entries)


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
    state: dict[str, Any] | None = None
    loop = getattr(optimizer, "_loop", None)  # of a DistributedOptimizer
    try:
        root = check_root(root_rank, calls.comm.size)
        _check_optimizer(optimizer)
        if calls.comm.rank == root:
            state = {"optimizer": _own_class(optimizer).state_dict(optimizer)}
            state["rounds"] = None if loop is None else loop.position()
    except Exception as error:
        calls.refuse(error)
    calls.agree(f"broadcast_optimizer_state from rank {root}")
    _compare(calls.comm, "broadcast_optimizer_state", _groups(optimizer))
    state = _send_state(calls, state, root)
    failure: Exception | None = None
    try:
        if calls.comm.rank != root:
            _load(optimizer, state["optimizer"])
            if loop is not None and state["rounds"] is not None:
                loop.begin_at(state["rounds"])
    except Exception as error:
        failure = error
    failures = calls.comm.allgather(failure and f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, text in enumerate(failures):
        if text:
            raise MismatchError(f"broadcast_optimizer_state: rank {rank} cannot load it: {text}")


# The end of an epoch


def join(device: int = -1) -> int:
    """No more data on this rank: wait until all ranks have come here. Collective.

    Every `DistributedOptimizer` joins: this rank contributes nothing to the others' steps and
    applies their updates. When it returns, all ranks have the same parameters and training can go
    on. `allreduce` and its like have no part in it: make as many of these calls on every rank.

    Several optimizers join at the same time, each in a thread, since the others go on with steps
    of all of them: their schedulers and ``on_round=`` may run side by side here. (Where MPI gives
    less than THREAD_MULTIPLE they join in the order they were made, and with uneven data only
    strategies whose steps wait for nobody do: `ADPSGD` and its like.)

    Parameters
    ----------
    device : int
        Horovod's; only -1 (the CPU) is taken.

    Returns the rank that came last, by the machines' clocks.
    """
    here = world()
    try:
        if device != -1:
            raise ValueError(f"device: expected -1, the CPU, got {device!r}")
    except ValueError as error:
        here.calls.refuse(error)
    came = time.time()
    Loop.join([optimizer._loop for optimizer in here.optimizers])
    here.calls.agree("join")
    times = here.comm.allgather(came)
    return times.index(max(times))


# Not there


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Horovod's timeline: not there (NotImplementedError)."""
    raise NotImplementedError(
        "start_timeline: there is no timeline; opt.metrics() and handle.stats count rounds and "
        "waiting, torch.profiler shows where the time goes"
    )


def stop_timeline() -> NoReturn:
    """Horovod's timeline: not there (NotImplementedError)."""
    raise NotImplementedError("stop_timeline: there is no timeline to stop")
