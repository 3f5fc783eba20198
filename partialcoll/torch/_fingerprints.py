# SPDX-License-Identifier: Apache-2.0
"""What fingerprints are of: an optimizer's hyperparameters, and the bits of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def hash_tensors(tensors: Iterable[torch.Tensor]) -> bytes:
    """Of their bits, in order."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(wire.bits(tensor).data)
    return digest.digest()
