# SPDX-License-Identifier: Apache-2.0
"""What fingerprints are of: an optimizer's hyperparameters, and the bits of tensors."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..collectives.fingerprints import Groups
from .ops import wire


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


def checksum_tensors(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a CRC-32 of the tensors' bits, in order: a quarter of the time of `hash_tensors`.

    Replicas that differ by accident have the same one with a probability of 2^-32.
    """
    value = 0
    for tensor in tensors:
        value = zlib.crc32(wire.bits(tensor).data, value)
    return value.to_bytes(4, "little")
