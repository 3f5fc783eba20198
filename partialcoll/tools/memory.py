# SPDX-License-Identifier: Apache-2.0
"""How much memory there is for a simulation."""

from __future__ import annotations

from typing import Callable


def _address_space() -> list[int]:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return [] if limit == resource.RLIM_INFINITY else [limit]


def available() -> int:
    """Bytes that can be used without swapping, as far as the system, its control groups (a
    container, a batch job) and this process's limits say."""
    from .._core.simulator import simulator

    return min(int(simulator.lib.pcoll_memory_left()), *_address_space(), 1 << 62)


def most(needed: Callable[[int], int], upper: int) -> int:
    """The largest number up to `upper` of which `needed` bytes are available; by bisection."""
    there = available()
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= there:
            low = middle
        else:
            high = middle - 1
    return low
