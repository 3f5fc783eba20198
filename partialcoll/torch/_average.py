# SPDX-License-Identifier: Apache-2.0
"""The exact mean over ranks of tensors, in place: `GlobalSum` on their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..decentralized import GlobalSum

_PIECE = 1 << 16  # elements of bfloat16 that are converted at once


@torch.no_grad()
def average(total: GlobalSum, tensors: Sequence[torch.Tensor]) -> None:
    """Make each of them the ranks' mean. The same shapes in the same order on all ranks, over
    which `total` is. Collective."""
    flats = [_flat(tensor.detach()) for tensor in tensors]
    total.average([flat.numpy() for flat in flats if flat.dtype != torch.bfloat16])
    for parts in _pieces([flat for flat in flats if flat.dtype == torch.bfloat16]):
        wide = [part.double() for part in parts]
        total.average([one.numpy() for one in wide])
        for part, one in zip(parts, wide):
            part.copy_(one)


def _pieces(flats: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """What numpy has no dtype for, so much at once."""
    parts: list[torch.Tensor] = []
    room = _PIECE
    for part in (part for flat in flats for part in flat.split(_PIECE)):
        if len(part) > room:
            yield parts
            parts, room = [], _PIECE
        parts.append(part)
        room -= len(part)
    if parts:
        yield parts


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view of it with one dimension of real numbers, by falling stride."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda i: -strides[i])
    return tensor.permute(order).view(-1)
