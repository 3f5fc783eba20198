# SPDX-License-Identifier: Apache-2.0
"""Averages of the ranks' models: how far apart they are, and one model of all of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from .._core.buffers import Array
from . import _batchnorm
from .flat import Named, ParameterVector


def as_vector(parameters: Named) -> Array:
    """The parameters in one vector; a copy."""
    return ParameterVector(parameters).vector()


def averaged_copy(
    comm: MPI.Intracomm, model: torch.nn.Module, parameters: Named, vector: Array
) -> torch.nn.Module:
    """A copy of the model with these values of the parameters, and with the statistics of batch
    normalisation averaged. Collective."""
    copied = copy.deepcopy(model)
    twin: dict[Any, torch.Tensor] = dict(zip(model.parameters(), copied.parameters()))
    values = ParameterVector(parameters).views(torch.from_numpy(np.asarray(vector)))
    with torch.no_grad():
        for (_, parameter), value in zip(parameters, values):
            if parameter in twin:
                twin[parameter].copy_(value)
    _batchnorm.average(comm, copied)
    return copied
