# SPDX-License-Identifier: Apache-2.0
"""How much memory there is for a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Callable


def _meminfo() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _control_group() -> int | None:
    """What the control group (a container, a batch job) still allows."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


def available() -> int:
    """Bytes that can be used without swapping, as far as the system says."""
    known = [value for value in (_meminfo(), _control_group()) if value is not None]
    return min(known, default=1 << 62)


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
