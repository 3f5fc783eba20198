# SPDX-License-Identifier: Apache-2.0
"""The memory of this machine, and the file that ``algorithm="auto"`` reads."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable

from .._core.pure import check, ffi, lib, simulator


def available_memory() -> int:
    """Return the bytes that can be used without swapping, as far as the system, its control groups
    (a container, a batch job) and the limits of this process say."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit = 1 << 62 if limit == resource.RLIM_INFINITY else limit
    return min(int(simulator.lib.pcoll_memory_left()), limit)


def check_memory(
    option: str, asked: Iterable[int], needed: Callable[[int], int], upper: int, also: str = ""
) -> None:
    """Raise ValueError, with the largest possible number, unless each number asked for is from 1 to
    `upper`, and memory has the bytes `needed` for it."""
    there, low, high = available_memory(), 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= there else (low, middle - 1)
    for number in asked:
        if not 1 <= number <= low:
            here = f"what the memory of this machine allows{also}"
            raise ValueError(f"{option}: expected 1 to {low} ({here}), got {number}")


def tuning_table() -> str | None:
    """Return the file that ``algorithm="auto"`` reads if it exists; None if it reads none."""
    path = ffi.new("char[]", 4096)
    check(lib.pcoll_tuning_path(path, len(path)))
    text = os.fsdecode(ffi.string(path))
    return text if text not in ("", "none") else None
