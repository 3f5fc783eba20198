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


def _number(path: Path) -> int | None:
    """A file's number; None if there is none, as for "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _left_in(folder: Path, limit: str, used: str) -> int | None:
    """What a control group still allows; what only caches files can be taken back."""
    most, now = _number(folder / limit), _number(folder / used)
    if most is None or now is None:
        return None
    cached = 0
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name in ("inactive_file", "total_inactive_file"):
                cached = int(value)
    except (OSError, ValueError):
        pass
    return max(0, most - now + cached)


def _control_groups() -> list[int]:
    """What the control groups of this process (a container, a batch job) still allow."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            left.append(
                _left_in(folder, *(names if controllers else ("memory.max", "memory.current")))
            )
            if folder == base:
                break
    return [value for value in left if value is not None]


def _address_space() -> list[int]:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return [] if limit == resource.RLIM_INFINITY else [limit]


def available() -> int:
    """Bytes that can be used without swapping, as far as the system says."""
    free = _meminfo()
    known = [*_control_groups(), *_address_space(), *([] if free is None else [free])]
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
