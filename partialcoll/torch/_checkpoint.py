# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of a wrapped optimizer has beyond that of its class, and back.

Under "partialcoll" in the state_dict: whose it is, how many rounds were applied, the schedulers
attached, and the pending deposit, that is what this rank has deposited and no applied round has
brought yet. The handle that holds it ends with the process; what is loaded is added to the first
deposit, so no gradient is lost and none counted twice. Plain types and tensors only, so that
`torch.load` takes it with ``weights_only=True``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ._layout import Layout

KEY = "partialcoll"
_FIELDS = ("size", "rank", "version", "updates", "strategy", "layout", "schedulers")


def _name(flat: torch.Tensor) -> str:
    return str(flat.dtype).removeprefix("torch.")


def by_dtype(flats: Sequence[torch.Tensor] | None) -> dict[str, torch.Tensor] | None:
    """A deposit: one flat tensor for each dtype, by its name; copies."""
    return None if flats is None else {_name(flat): flat.clone() for flat in flats}


def check_own(
    saved: Any, rank: int, size: int, schedulers: Sequence[Any], more: Iterable[str]
) -> None:
    """Raises ValueError unless it is one of this rank, of as many ranks, with these fields."""
    if not isinstance(saved, dict) or any(field not in saved for field in _FIELDS):
        raise ValueError(f"state_dict: its entry {KEY!r} is none that state_dict() has written")
    if any(field not in saved for field in more):
        raise ValueError(
            f"state_dict: it was written with the strategy {saved['strategy']}, which keeps other "
            "things than this one; take that one, or the state without its entry "
            f"{KEY!r} to begin anew"
        )
    if (saved["size"], saved["rank"]) != (size, rank):
        raise ValueError(
            f"state_dict: it is of rank {saved['rank']} of {saved['size']} ranks, expected one of "
            f"rank {rank} of {size}: each rank loads what it has saved, with as many ranks"
        )
    if len(saved["schedulers"]) != len(schedulers):
        raise ValueError(
            f"state_dict: it has the state of {len(saved['schedulers'])} attached schedulers, "
            f"{len(schedulers)} are attached: attach() the same ones before"
        )


def check(saved: Any, rank: int, size: int, layout: Layout, schedulers: Sequence[Any]) -> None:
    """Raises ValueError unless it is one of this rank, of as many ranks, of such gradients."""
    check_own(saved, rank, size, schedulers, ("pending",))
    if saved["pending"] is not None and saved["layout"] != layout.digest():
        raise ValueError(
            "state_dict: its pending gradient is of parameters of other shapes, dtypes or orders "
            "of memory than this model's"
        )


def pending(saved: dict[str, Any], like: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """The pending deposit, in this order; a copy."""
    if saved["pending"] is None:
        return None
    return [saved["pending"][_name(flat)].clone() for flat in like]


def to_tensors(state: Any) -> Any:
    """A process's state with tensors in place of its vectors, for `torch.save`."""
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state)
    if isinstance(state, dict):
        return {key: to_tensors(value) for key, value in state.items()}
    return state


def from_tensors(state: Any) -> Any:
    """And back."""
    if isinstance(state, torch.Tensor):
        return state.numpy()
    if isinstance(state, dict):
        return {key: from_tensors(value) for key, value in state.items()}
    return state
