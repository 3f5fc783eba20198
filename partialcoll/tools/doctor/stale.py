# SPDX-License-Identifier: Apache-2.0
"""What jobs that were killed have left in /dev/shm. This library's own segments have no names and
go with their processes; MPI's have, and stay.

A file counts as stale if it is this user's, has not been changed for a while, and no process has it
mapped or open. Who uses one may be in another container, where it cannot be seen: a process that
does not see all of them removes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ..processes import shared_files
from .finding import Finding, fine

_SHARED = Path("/dev/shm")
_NAMES = (
    "mpich_shm_*",
    "Intel_MPI_*",
    "ucx_shm_*",
    "vader_segment.*",
    "sm_segment.*",
    "partialcoll-*",
)
_WHILE = 600.0  # seconds, in which a job has mapped what it has made
_ALL_PROCESSES = "pid:[4026531836]"  # what the kernel calls the first namespace


def _used() -> set[Path]:
    used: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        for path in shared_files(process):
            used |= {path, _SHARED / path.relative_to(_SHARED).parts[0]}
    return used


def stale() -> list[Path]:
    """Files and folders that nobody uses."""
    old = time.time() - _WHILE
    found = [path for name in _NAMES for path in _SHARED.glob(name)]
    mine = [p for p in found if p.lstat().st_uid == os.getuid() and p.lstat().st_mtime < old]
    return sorted({*mine} - _used()) if mine else []


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_blocks * 512 for file in files)


def _remove(paths: list[Path]) -> Iterator[Path]:
    """Those that could be."""
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield path


def _sees_all() -> bool:
    return os.readlink("/proc/self/ns/pid") == _ALL_PROCESSES


def check_stale(remove: bool) -> Finding:
    """Is there any, and away with it if that is wanted."""
    paths = stale()
    what = f"{len(paths)} segments of ended jobs, {sum(map(_bytes, paths)) >> 20} MB in /dev/shm"
    if not paths:
        return fine("stale segments", "none of this user")
    if not _sees_all():
        return Finding("stale segments", "note", f"{what}, or of jobs in another container")
    if remove and len(list(_remove(paths))) == len(paths):
        return fine("stale segments", f"removed {what}")
    return Finding(
        "stale segments",
        "warning",
        what,
        "They take memory until the machine is started again.",
        "partialcoll doctor --remove-stale",
    )
