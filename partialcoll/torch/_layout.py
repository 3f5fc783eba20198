# SPDX-License-Identifier: Apache-2.0
"""Where the gradients lie: flat buffers of one dtype each, and a view in one for each parameter."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._buffers import Array

# Bytes. Views begin at multiples of it, as memory of torch's own does.
_ALIGNMENT = 64

_NUMPY = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}
DTYPES = (*_NUMPY, torch.bfloat16)


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the array's memory; for bfloat16, which numpy lacks, by way of its bits."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(dtype)
    return torch.from_numpy(array)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those of a gradient of it: its own (channels_last, ...) if it leaves no holes. Fused
    optimizers go through memory and take it for granted."""
    return torch.empty_like(tensor, device="meta").stride()


class Layout:
    """The flat buffers for a list of tensors, and each tensor's place in them.

    One buffer for each dtype; with `bucket_bytes` several, none above that unless a single tensor
    is, filled from the last tensor on, since backward computes the gradients of the last layers
    first.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], bucket_bytes: int | None = None) -> None:
        self.dtypes: list[torch.dtype] = []  # one for each buffer
        self.counts: list[int] = []
        self._most = math.inf if bucket_bytes is None else bucket_bytes
        if bucket_bytes is None:
            for dtype in DTYPES:
                if any(tensor.dtype == dtype for tensor in tensors):
                    self._add_buffer(dtype)
            self._places = [self._place(tensor) for tensor in tensors]
        else:
            self._places = [self._place(tensor) for tensor in reversed(tensors)][::-1]

    def _add_buffer(self, dtype: torch.dtype) -> int:
        self.dtypes.append(dtype)
        self.counts.append(0)
        return len(self.dtypes) - 1

    def _buffer_for(self, dtype: torch.dtype, count: int) -> int:
        """The last one of the dtype, if there is room."""
        for which in reversed(range(len(self.dtypes))):
            if self.dtypes[which] == dtype:
                nbytes = (self.counts[which] + count) * dtype.itemsize
                if nbytes <= self._most or not self.counts[which]:
                    return which
                break
        return self._add_buffer(dtype)

    def _place(self, tensor: torch.Tensor) -> tuple[int, int, int, torch.Size, tuple[int, ...]]:
        """The next one: its buffer, begin, end, shape and strides there."""
        grain = _ALIGNMENT // tensor.element_size()
        count = -(-tensor.numel() // grain) * grain
        which = self._buffer_for(tensor.dtype, count)
        begin = self.counts[which]
        self.counts[which] += count
        return which, begin, begin + tensor.numel(), tensor.shape, dense_strides(tensor)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._places)

    def bucket(self, i: int) -> int:
        """The buffer in which tensor i lies."""
        return self._places[i][0]

    def digest(self) -> str:
        """Equal for layouts in which each tensor lies in the same place, in the same order."""
        places = [(which, begin, tuple(shape), s) for which, begin, _, shape, s in self._places]
        return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()

    def outline(self) -> list[Any]:
        """One tensor without memory for each buffer: what `like=` of a handle takes."""
        return [torch.zeros(n, dtype=d) for n, d in zip(self.counts, self.dtypes)]

    def new(self) -> list[torch.Tensor]:
        """Buffers of its own, filled with zeros."""
        return [torch.zeros(n, dtype=d) for n, d in zip(self.counts, self.dtypes)]

    def tensors(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """The buffers as tensors on the memory of these arrays."""
        return [as_tensor(array, dtype) for array, dtype in zip(arrays, self.dtypes)]

    def view(self, flats: Sequence[torch.Tensor], i: int) -> torch.Tensor:
        """Tensor i's part of the buffers, in its shape and order of memory."""
        which, begin, end, shape, strides = self._places[i]
        return flats[which][begin:end].as_strided(shape, strides)

    def part(self, flats: Sequence[Any], i: int) -> Any:
        """Tensor i's part of the buffers (arrays or tensors), flat, in the order of memory."""
        which, begin, end, _, _ = self._places[i]
        return flats[which][begin:end]

    def views(self, flats: Sequence[torch.Tensor]) -> Views:
        """Each tensor's part of the buffers."""
        return Views(self, flats, len(self._places))


class Views:
    """A view of flat buffers for each tensor.

    ``p.grad.data = ...``, which `model.to()` does as well, gives a view other memory; who looks
    only at whether `p.grad` is the view would not see it.
    """

    def __init__(self, layout: Layout, flats: Sequence[torch.Tensor], count: int) -> None:
        self._layout, self._flats = layout, flats
        self.tensors = [layout.view(flats, i) for i in range(count)]
        self._addresses = self._where()

    def _where(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.tensors]

    def strayed(self) -> Sequence[int]:
        """Those to which somebody has given other memory."""
        now = self._where()
        if now == self._addresses:
            return ()
        return [i for i, (a, b) in enumerate(zip(now, self._addresses)) if a != b]

    def has_strayed(self, i: int) -> bool:
        """Has somebody given this one other memory?"""
        return self.tensors[i].data_ptr() != self._addresses[i]

    def sound(self) -> list[torch.Tensor]:
        """All of them; made anew where they have strayed."""
        for i in self.strayed():
            self.tensors[i] = self._layout.view(self._flats, i)
        return self.tensors
