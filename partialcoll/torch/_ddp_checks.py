# SPDX-License-Identifier: Apache-2.0
"""What a DistributedDataParallel must be like for the communication hook, and finding it.

DDP tells its hook nothing but the bucket: which module it is of, and whether it communicates on
its own besides, is for the DDP object to say. Whatever DDP waits for in every step would make
everybody wait for the slowest again, quorum or not, so it is refused, with what to do.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch
import torch.distributed as dist

from .._core import checks
from .._core.mpi import MPI
from ..errors import StateError
from ._checks import check_dense, check_model, check_one_device, check_parameter
from .flat import Named
from .strategies import Eager

DDP = torch.nn.parallel.DistributedDataParallel


def _all() -> list[Any]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), DDP)]


def warn_if_wrapped(parameters: Named) -> None:
    """A DDP object with some of these does what their optimizer is to do."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    mine = {id(parameter) for _, parameter in parameters}
    if any(id(parameter) in mine for model in _all() for parameter in model.parameters()):
        warnings.warn(
            "DistributedOptimizer: its model is in a DistributedDataParallel, which averages the "
            "gradients as well, and waits for all ranks in each backward pass; train with the "
            "module inside, or with a plain optimizer and pct.partial_allreduce_hook",
            stacklevel=4,
        )


def find(state: Any) -> Any:
    """The one DDP object that has this state in its hooks. StateError if there is no such."""
    found = [model for model in _all() if holds(model, state)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StateError(
            f"PartialState: it is registered with {len(found)} DistributedDataParallel objects; "
            "each needs one of its own"
        )
    raise StateError(
        "PartialState: no DistributedDataParallel object with it was found; call "
        "state.attach(ddp) after ddp.register_comm_hook(state, pct.partial_allreduce_hook)"
    )


def holds(ddp: Any, state: Any) -> bool:
    """Is the state in the hooks of this DDP object?"""
    hooks = vars(ddp).get("_comm_hooks", ())
    return any(other is state for _, other in hooks)


def check_strategy(strategy: Eager) -> None:
    """Raises ValueError for what a hook cannot do."""
    if strategy.deliver != "one":
        raise ValueError(
            "deliver: expected 'one' (a backward pass of DDP takes one round), got "
            f"{strategy.deliver!r}; with DistributedOptimizer there is Eager(deliver='all')"
        )
    if strategy.clip_norm is not None:
        raise ValueError(
            f"clip_norm: expected None, got {strategy.clip_norm}: clip after backward, as with any "
            "DistributedDataParallel"
        )


def check(ddp: Any, comm: MPI.Intracomm) -> None:
    """Raises ValueError or TypeError for what would wait for everybody, or cannot work."""
    checks.instance("ddp", ddp, DDP, "a torch.nn.parallel.DistributedDataParallel")
    ranks = ddp.process_group.size()
    if ranks != comm.size:
        raise ValueError(
            f"DistributedDataParallel: its process group has {ranks} ranks, the communicator of "
            f"pct.init() has {comm.size}; both must be of the same ranks"
        )
    if ddp.find_unused_parameters:
        raise ValueError(
            "DistributedDataParallel: find_unused_parameters=True makes every step wait for all "
            "ranks (an allreduce of which parameters were used); make it with "
            "find_unused_parameters=False, and with static_graph=True if some parameters are "
            "never used, or add 0 * parameter.sum() to the loss for those that are used at times"
        )
    if ddp.broadcast_buffers and len(ddp.modules_buffers):
        raise ValueError(
            "DistributedDataParallel: broadcast_buffers=True, the default, makes every forward "
            "pass wait for rank 0, since the model has buffers; make it with "
            "broadcast_buffers=False (join() and average_parameters() average BatchNorm's)"
        )
    if getattr(ddp, "mixed_precision", None) is not None:
        raise ValueError(
            "DistributedDataParallel: mixed_precision= reduces other tensors than the "
            "parameters'; use torch.autocast"
        )
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise ValueError(
            "DistributedDataParallel: delay_all_reduce_named_params= is an allreduce that waits "
            "for all ranks; leave it out"
        )
    if getattr(getattr(ddp, "_join_config", None), "enable", False):
        raise ValueError(
            "DistributedDataParallel: within ddp.join() every step waits for all ranks; use "
            "state.join() for uneven data"
        )
    check_model(ddp.module)
    check_dense(ddp.module, "make it with sparse=False")


def parameters(ddp: Any, seen: list[torch.Tensor] | None) -> Named:
    """Those that the buckets brought, or before the first of them those that will come, by name,
    in the model's order (that of buckets changes). Raises TypeError for one that cannot work."""
    known = {id(tensor) for tensor in seen or ()}
    named = []
    for name, parameter in ddp.module.named_parameters():
        if seen is None:
            ignored = ddp.parameters_to_ignore
            wanted = parameter.requires_grad and not {name, f".{name}"} & set(ignored)
        else:
            wanted = id(parameter) in known
        if wanted:
            check_parameter(name, parameter)
            named.append((name, parameter))
    if len(named) < len(known):
        raise StateError(
            f"PartialState: {len(known) - len(named)} parameters in the buckets are not among the "
            "model's; make the DistributedDataParallel again after replacing parameters"
        )
    check_one_device(named)
    return named
