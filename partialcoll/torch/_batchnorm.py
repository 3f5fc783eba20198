# SPDX-License-Identifier: Apache-2.0
"""Running statistics of batch normalization: each rank's own while it trains, the same after join.

They follow the batches that a rank has seen, not the gradients, so no round makes them equal.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.modules import batchnorm

from .._core.mpi import MPI
from ..collectives.agreement import check_agreement
from ..decentralized import GlobalSum
from . import _averages


def buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those of batch and instance normalization, by name, each once."""
    found: dict[torch.Tensor, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.track_running_stats:
            for key, buffer in module.named_buffers(name, recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    found.setdefault(buffer, key)
    return [(name, buffer) for buffer, name in found.items()]


@torch.no_grad()
def average(
    comm: MPI.Intracomm, total: GlobalSum, model: torch.nn.Module, on_failure: str = "raise"
) -> None:
    """The mean over ranks of what is floating point, the largest of what counts batches. The
    same bits on all ranks. Collective; MismatchError if the ranks have different ones."""
    named = buffers(model)
    said = [(name, f"buffer of shape {tuple(b.shape)}") for name, b in named]
    check_agreement(comm, said, on_failure)
    tensors = [buffer for _, buffer in named]
    _averages.average(total, [tensor for tensor in tensors if tensor.is_floating_point()])
    counts = [tensor for tensor in tensors if not tensor.is_floating_point()]
    rows = np.zeros((comm.size, len(counts)))  # the ranks'
    rows[comm.rank] = [int(count) for count in counts]
    rows = total.sum(rows.ravel()).reshape(rows.shape)
    for count, most in zip(counts, rows.max(axis=0)):
        count.fill_(int(most))
