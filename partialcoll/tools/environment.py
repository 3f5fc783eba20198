# SPDX-License-Identifier: Apache-2.0
"""Environment variables of the library and the memory of this machine, checked before a job or a
simulation starts: each rank of a job would stumble over a value that means nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

from .. import policy
from .._core import settings
from .._core.pure import check, ffi, lib
from ..errors import Error


def available_memory() -> int:
    """Return the bytes that can be used without swapping, as far as the system, its control groups
    (a container, a batch job) and the limits of this process say."""
    import resource

    from .._core.pure import simulator

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit = 1 << 62 if limit == resource.RLIM_INFINITY else limit
    return min(int(simulator.lib.pcoll_memory_left()), limit)


def largest_in_memory(needed: Callable[[int], int], upper: int) -> int:
    there = available_memory()
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= there:
            low = middle
        else:
            high = middle - 1
    return low


def _is_domain(text: str) -> bool:
    check(lib.pcoll_domain_parse(text.encode(), ffi.new("int32_t *"), ffi.new("uint32_t *")))
    return True


def _can_be_folder(text: str) -> bool:
    path = Path(text)
    place = path if path.exists() else path.absolute().parent
    return place.is_dir() and os.access(place, os.W_OK)


# What is expected of each, and what says whether a text is that (false or ValueError: it is not).
VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "PARTIALCOLL_PROGRESS": ("agent, manual or spin", ("agent", "manual", "spin").__contains__),
    "PARTIALCOLL_ALGORITHM": (
        f"{', '.join(settings.ALGORITHMS[:-1])} or {settings.ALGORITHMS[-1]}",
        settings.ALGORITHMS.__contains__,
    ),
    "PARTIALCOLL_DOMAIN": ("node, rank, auto, node:K or auto:K", _is_domain),
    "PARTIALCOLL_QUORUM": ("a policy such as solo, quorum:0.5 or full", policy.parse),
    "PARTIALCOLL_TIMEOUT": (settings.SECONDS, settings.are_seconds),
    "PARTIALCOLL_STALL_WARN": (settings.SECONDS, settings.are_seconds),
    "PARTIALCOLL_HOST_TIMEOUT": (
        "0, or seconds from 2 on",
        lambda text: float(text) == 0 or 2 <= float(text) <= 1e6,  # as csrc/watch
    ),
    "PARTIALCOLL_LOG": ("debug, info or warning", settings.is_level),
    "PARTIALCOLL_TUNE": (
        "a file that can be read, or none",
        lambda text: text == "none" or (os.path.isfile(text) and os.access(text, os.R_OK)),
    ),
    "PARTIALCOLL_RECORD": ("a folder that can be written to", _can_be_folder),
    "PARTIALCOLL_REPLAY": ("the folder of a record", os.path.isdir),
}


def tuning_table() -> str | None:
    """Return the file that ``algorithm="auto"`` reads, or would read if it existed; None if it
    reads none."""
    path = ffi.new("char[]", 4096)
    check(lib.pcoll_tuning_path(path, len(path)))
    text = os.fsdecode(ffi.string(path))
    return text if text not in ("", "none") else None


def check_environment(but: str = "") -> None:
    """Raise Error, which names the variable, for the first variable whose value means nothing. An
    empty value counts as not set. `but` names a variable that is not checked."""
    for name, (expected, fits) in VARIABLES.items():
        text = os.environ.get(name) if name != but else None
        try:
            good = not text or fits(text)
        except ValueError:
            good = False
        if not good:
            raise Error(f"{name}: expected {expected}, got {text!r}")
