# SPDX-License-Identifier: Apache-2.0
"""Averages over the ranks: of tensors where they are, and models made of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._core.buffers import Array
from ..decentralized import GlobalSum
from .flat import Named, ParameterVector, by_falling_stride


@torch.no_grad()
def average(total: GlobalSum, tensors: Sequence[torch.Tensor]) -> None:
    """Make each of them the ranks' mean, in place. The same shapes in the same order on all ranks,
    over which `total` is. Collective."""
    there = [_flat(tensor.detach()) for tensor in tensors]
    flats = [flat.cpu() for flat in there]  # those of the host as they are
    total.average([flat.numpy() for flat in flats if flat.dtype != torch.bfloat16])
    for parts in total.pieces(flat for flat in flats if flat.dtype == torch.bfloat16):
        wide = [part.double() for part in parts]  # numpy has no such dtype
        total.average([one.numpy() for one in wide], wide=False)  # of few digits
        for part, one in zip(parts, wide):
            part.copy_(one)
    for flat, own in zip(there, flats):
        if flat is not own:
            flat.copy_(own)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view of it with one dimension of real numbers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.permute(by_falling_stride(tensor)).view(-1)


def as_vector(parameters: Named) -> Array:
    """The parameters in one vector; a copy."""
    return ParameterVector(parameters).vector()


def with_parameters(model: torch.nn.Module, parameters: Named, vector: Array) -> torch.nn.Module:
    """A copy of the model with these values of the parameters."""
    copied = copy.deepcopy(model)
    twin: dict[Any, torch.Tensor] = dict(zip(model.parameters(), copied.parameters()))
    values = ParameterVector(parameters).views(torch.from_numpy(np.asarray(vector)))
    with torch.no_grad():
        for (_, parameter), value in zip(parameters, values):
            if parameter in twin:
                twin[parameter].copy_(value)
    return copied
