# SPDX-License-Identifier: Apache-2.0
"""Adasum of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..._core.mpi import MPI
from ...collectives.adasum import adasum
from .handles import Form, scale
from .wire import WIDE


def adasum_tensor(
    comm: MPI.Intracomm, form: Form, source: torch.Tensor, output: torch.Tensor
) -> Iterator[MPI.Request]:
    """The output becomes the combination of the ranks' sources. 16-bit floats are combined in
    float32 and rounded once."""
    wide = torch.empty(source.shape, dtype=WIDE[source.dtype], device="cpu").copy_(source)
    if form.before is not None:
        scale(wide, form.before)
    yield from adasum(comm, wide.view(-1).numpy(), [(0, wide.numel())])
    if form.after != 1:
        scale(wide, form.after)
    output.detach().copy_(wide)
