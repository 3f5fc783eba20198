# SPDX-License-Identifier: Apache-2.0
"""Averages of the ranks' models: how far apart they are, and one model of all of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from .._buffers import Array
from ..processes import Total
from . import _batchnorm
from ._checks import Named
from ._flat import Flat


def as_vector(parameters: Named) -> Array:
    """The parameters in one vector; a copy."""
    return Flat(parameters).vector()


def mean(total: Total, vector: Array) -> Array:
    """Of the ranks' vectors, in float64, the same bits on all ranks. Collective."""
    summed = total.sum(np.append(vector, 1.0))
    average: Array = summed[:-1] / summed[-1]
    return average


def distance(total: Total, vector: Array) -> float:
    """The square root of mean_i |x_i - mean|^2. Collective."""
    apart = vector - mean(total, vector)
    squares = total.sum(np.array([apart @ apart, 1.0]))
    return float(np.sqrt(squares[0] / squares[1]))


def averaged_copy(
    comm: MPI.Intracomm, model: torch.nn.Module, parameters: Named, vector: Array
) -> torch.nn.Module:
    """A copy of the model with these values of the parameters, and with the statistics of batch
    normalisation averaged. Collective."""
    copied = copy.deepcopy(model)
    twin: dict[Any, torch.Tensor] = dict(zip(model.parameters(), copied.parameters()))
    values = Flat(parameters).views(torch.from_numpy(np.asarray(vector)))
    with torch.no_grad():
        for (_, parameter), value in zip(parameters, values):
            if parameter in twin:
                twin[parameter].copy_(value)
    _batchnorm.average(comm, copied)
    return copied
