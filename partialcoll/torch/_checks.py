# SPDX-License-Identifier: Apache-2.0
"""What is refused when an optimizer is wrapped: models and options that cannot work, by name."""

from __future__ import annotations

from typing import Any

import torch

from .._core import checks
from .flat import DTYPES, Named, dense_strides
from .ops import wire


def check_kind(optimizer: Any) -> None:
    """A torch optimizer that computes one update from one gradient."""
    checks.instance("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer: LBFGS calls its closure several times in a step, for gradients of this "
            "rank alone, and is not supported; take one that steps once on a gradient"
        )


def check_optimizer(optimizer: Any) -> None:
    """One that can be wrapped."""
    check_kind(optimizer)
    loop = optimizer.__dict__.get("_loop")
    if loop is not None and not loop.closed:
        raise TypeError(
            "optimizer: it is in a DistributedOptimizer already, which is still open; use that "
            "one, or close() it before"
        )
    if "step" in optimizer.__dict__:
        raise TypeError(
            "optimizer: a learning rate scheduler is attached already; make the "
            "DistributedOptimizer first, and the scheduler with what it returns"
        )


def check_model(model: Any) -> None:
    """No layers of torch's that communicate on their own in every forward pass."""
    if model is None:
        return
    checks.instance("model", model, torch.nn.Module, "a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise TypeError(
                f"model: {name or 'it'} is a SyncBatchNorm, which waits for all ranks in every "
                "forward pass; use BatchNorm (its buffers are averaged in join()), or "
                "partialcoll.torch.SyncBatchNorm, which waits as well"
            )


def is_sparse(layer: torch.nn.Module) -> bool:
    """Does autograd give its parameters sparse gradients? The word alone says nothing: attention
    may be sparse as well."""
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return isinstance(layer, embeddings) and bool(layer.sparse)


def wants_sparse(inner: torch.optim.Optimizer) -> bool:
    """Does it take nothing else?"""
    return isinstance(inner, torch.optim.SparseAdam)


def check_dense(model: Any, remedy: str) -> None:
    """No layers with sparse gradients."""
    for name, module in model.named_modules():
        if is_sparse(module):
            raise TypeError(
                f"model: {name or 'it'} ({type(module).__name__}) has sparse gradients; {remedy}"
            )


def name_parameters(optimizer: torch.optim.Optimizer, named: Any, model: Any) -> Named:
    """The optimizer's parameters that require a gradient, in its order, with their names.

    Raises ValueError for names that come twice and for parameters without a name.
    """
    known: dict[torch.nn.Parameter, str] = {}
    if named is None and model is not None:
        named = model.named_parameters()
    if named is not None:
        known = _names(named)
    found = []
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            if named is not None and parameter not in known:
                raise ValueError(
                    f"named_parameters: parameter {j} of group {i} (shape "
                    f"{tuple(parameter.shape)}) of the optimizer has no name there"
                )
            name = known.get(parameter, f"group{i}.{j}")
            check_parameter(name, parameter)
            found.append((name, parameter))
    if not found:
        raise ValueError("optimizer: expected parameters that require a gradient, got none")
    check_one_device(found)
    return found


def check_one_device(parameters: Named) -> None:
    """All of them, of this rank. Raises ValueError."""
    for name, parameter in parameters:
        first, one = parameters[0]
        if parameter.device != one.device:
            raise ValueError(
                f"parameters {first!r} and {name!r}: expected all on one device, got {one.device} "
                f"and {parameter.device}"
            )


def check_apart(parameters: Named, others: Named) -> None:
    """No parameter is in another optimizer that is open: both would gather its gradient."""
    taken = {parameter for _, parameter in others}
    for name, parameter in parameters:
        if parameter in taken:
            raise ValueError(
                f"parameter {name!r}: it is in another DistributedOptimizer, which is still open; "
                "close() that one before"
            )


def check_memory(parameters: Named) -> None:
    """Raises ValueError if two of them share memory: each would get a place of its own."""
    seen: dict[int, str] = {}
    for name, parameter in parameters:
        if not parameter.numel():
            continue
        other = seen.setdefault(parameter.data_ptr(), name)
        if other != name:
            raise ValueError(
                f"parameters {other!r} and {name!r} share memory; make them one parameter, or "
                "give each its own"
            )


def _names(named: Any) -> dict[torch.nn.Parameter, str]:
    known: dict[torch.nn.Parameter, str] = {}
    seen: set[str] = set()
    for item in named.items() if isinstance(named, dict) else named:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
            raise TypeError(
                "named_parameters: expected pairs of name and parameter, as "
                f"model.named_parameters() gives them, got {type(item).__name__}"
            )
        if item[0] in seen:
            raise ValueError(f"named_parameters: the name {item[0]!r} comes twice")
        seen.add(item[0])
        known.setdefault(item[1], item[0])
    return known


def check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    """A dense one, of a dtype that can be added up."""
    if parameter.is_meta:
        raise TypeError(f"parameter {name!r}: expected one with memory, got one on meta")
    if parameter.dtype not in DTYPES or parameter.layout != torch.strided:
        expected = ", ".join(wire.name(dtype) for dtype in DTYPES)
        raise TypeError(
            f"parameter {name!r}: expected a dense one of {expected}, got "
            f"{parameter.dtype}, {parameter.layout}"
        )


def describe(parameters: Named) -> list[tuple[str, str]]:
    """What must be the same on all ranks of the parameters, as (name, text)."""
    return [(name, _form(parameter)) for name, parameter in parameters]


def _form(parameter: torch.Tensor) -> str:
    text = f"shape {tuple(parameter.shape)} of {wire.name(parameter.dtype)}"
    return text if parameter.is_contiguous() else f"{text}, strides {dense_strides(parameter)}"
