# SPDX-License-Identifier: Apache-2.0
"""Running statistics of batch normalization: each rank's own while it trains, the same after join.

They follow the batches that a rank has seen, not the gradients, so no round makes them equal.
"""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.modules import batchnorm

from ..collectives.agreement import check_agreement


def buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those of batch and instance normalization, by name, each once."""
    found: dict[torch.Tensor, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.track_running_stats:
            for key, buffer in module.named_buffers(name, recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    found.setdefault(buffer, key)
    return [(name, buffer) for buffer, name in found.items()]


def average(comm: MPI.Intracomm, model: torch.nn.Module) -> None:
    """The mean over ranks of what is floating point, the largest of what counts batches. The
    same bits on all ranks. Collective; MismatchError if the ranks have different ones."""
    named = buffers(model)
    check_agreement(comm, [(name, f"buffer of shape {tuple(b.shape)}") for name, b in named])
    tensors = [buffer for _, buffer in named]
    floats = [t for t in tensors if t.is_floating_point()]
    counts = [t for t in tensors if not t.is_floating_point()]
    _reduce(comm, floats, torch.float64, MPI.SUM, comm.size)
    _reduce(comm, counts, torch.int64, MPI.MAX, 1)


def _reduce(
    comm: MPI.Intracomm, tensors: list[torch.Tensor], dtype: torch.dtype, op: MPI.Op, divisor: int
) -> None:
    """On rank 0, then to all: no MPI promises the same bits everywhere of an allreduce."""
    if not tensors:
        return
    own = torch.cat([t.detach().reshape(-1).to(dtype) for t in tensors]).numpy()
    whole = np.empty_like(own)
    comm.Reduce(own, whole, op, 0)
    comm.Bcast(whole, 0)
    if divisor > 1:
        whole /= divisor
    begin = 0
    with torch.no_grad():
        for tensor in tensors:
            part = torch.from_numpy(whole[begin : begin + tensor.numel()])
            tensor.copy_(part.view(tensor.shape))
            begin += tensor.numel()
