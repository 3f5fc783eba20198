# SPDX-License-Identifier: Apache-2.0
"""What fingerprints are of: an optimizer's hyperparameters, and the bits of tensors."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ..collectives.fingerprints import Groups
from .ops import wire

_PIECE = 4096  # bytes


def hyperparameters(groups: Iterable[dict[str, Any]]) -> Groups:
    """Everything in the groups that changes the update."""
    return tuple(
        tuple((name, _plain(value)) for name, value in group.items() if name != "params")
        for group in groups
    )


def _plain(value: Any) -> Any:
    """The same on ranks where it means the same: no address, and no order of a set."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else hash_tensors([value])
    if isinstance(value, Mapping):
        return sorted(((repr(key), _plain(one)) for key, one in value.items()))
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(one)) for one in value)
    if isinstance(value, functools.partial):
        return "partial", _plain(value.func), _plain(value.args), _plain(value.keywords)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind: Any = type(value)
    shows_address = kind.__repr__ is object.__repr__
    return f"a {kind.__module__}.{kind.__qualname__}" if shows_address else value


def hash_tensors(tensors: Iterable[torch.Tensor]) -> bytes:
    """Of their bits, in order."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(wire.bits(tensor).data)
    return digest.digest()


def checksum_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number that is not 0 and depends on the tensors' bits.

    Each tensor is cut into pieces of 4 KiB, which are added up as words; the number is the CRC-32
    of the sums. That takes as long as reading the memory once. It does not tell apart tensors that
    have the same pieces in another order; other differences go unnoticed with a probability of
    2^-32.
    """
    value = 0
    for tensor in tensors:
        raw = wire.bits(tensor)
        whole = raw.size // _PIECE * _PIECE
        pieces = raw[:whole].view(np.uint64).reshape(-1, _PIECE // 8)
        value = zlib.crc32(np.add.reduce(pieces, axis=0).data, value)
        value = zlib.crc32(raw[whole:].data, value)
    return value + 1
