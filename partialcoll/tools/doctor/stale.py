# SPDX-License-Identifier: Apache-2.0
"""What killed jobs have left: segments in /dev/shm, and folders of Open MPI's launchers in
the folder for what is temporary. This library's own segments have no names and go with their
processes; MPI's have, and stay.

A segment counts as stale if it is this user's, has not been changed for a while, and no process has
it mapped or open; a folder, if it is this user's and no process has the number that is its name.
Who uses one may be in another container, where it cannot be seen: a process that does not see all
of them removes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
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
_LAUNCHER = re.compile("(?:ompi|prted)\\.([0-9]+)")  # its folder, and its process
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


def launchers() -> list[Path]:
    """Folders of those that are gone."""
    found = []
    for path in Path(tempfile.gettempdir()).iterdir():
        named = _LAUNCHER.fullmatch(path.name)
        if named and not Path("/proc", named[1]).exists() and path.lstat().st_uid == os.getuid():
            found.append(path)
    return sorted(found)


def _finding(check: str, paths: list[Path], what: str, remove: bool, why: str) -> Finding:
    if not paths:
        return fine(check, "none of this user")
    if not _sees_all():
        return Finding(check, "note", f"{what}, or of jobs in another container")
    if remove and len(list(_remove(paths))) == len(paths):
        return fine(check, f"removed {what}")
    return Finding(check, "warning", what, why, "partialcoll doctor --remove-stale")


def check_stale(remove: bool) -> Finding:
    """Is there any, and away with it if that is wanted."""
    paths = stale()
    what = f"{len(paths)} segments of ended jobs, {sum(map(_bytes, paths)) >> 20} MB in /dev/shm"
    why = "They take memory until the machine is started again."
    return _finding("stale segments", paths, what, remove, why)


def check_launchers(remove: bool) -> Finding:
    """The same for launchers."""
    paths = launchers()
    what = f"{len(paths)} folders of killed launchers of Open MPI in {tempfile.gettempdir()}"
    why = "A launcher that gets the process number of one of them does not start."
    return _finding("stale launchers", paths, what, remove, why)
