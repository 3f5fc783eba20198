# SPDX-License-Identifier: Apache-2.0
"""The exact mean over ranks of tensors, in place: the sum in float64, rounded once, the same bits
on all ranks. Piece by piece, so that a large model takes no memory of its size; who waits burns no
core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from mpi4py import MPI

from ..allreduce import Allreduce_init

_PIECE = 1 << 16  # elements of float64


class Average:
    """Averages lists of tensors over the ranks of a communicator. Collective to make, to call and
    to free."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._ranks = comm.size
        like = np.empty(_PIECE)
        self._handle = Allreduce_init(comm, None, None, like=like, quorum="full", history=1)

    @torch.no_grad()
    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make each of them the ranks' mean. The same shapes in the same order on all ranks."""
        for parts in _pieces(tensors):
            place = torch.from_numpy(self._handle.send_buffer)
            place.zero_()
            begin = 0
            for part in parts:
                place[begin : begin + part.numel()].copy_(part)
                begin += part.numel()
            self._handle.Start()
            self._handle.Wait()
            mean = torch.from_numpy(self._handle.result / self._ranks)
            begin = 0
            for part in parts:
                part.copy_(mean[begin : begin + part.numel()])
                begin += part.numel()

    def free(self) -> None:
        """Idempotent."""
        self._handle.Free()


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Flat parts of the tensors' memory, together as many as fit into a piece."""
    parts: list[torch.Tensor] = []
    room = _PIECE
    for tensor in tensors:
        flat = _flat(tensor.detach())
        while flat.numel():
            parts.append(flat[:room])
            flat = flat[room:]
            room -= parts[-1].numel()
            if not room:
                yield parts
                parts, room = [], _PIECE
    if parts:
        yield parts


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view of it with one dimension of real numbers, by falling stride."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda i: -strides[i])
    return tensor.permute(order).view(-1)
