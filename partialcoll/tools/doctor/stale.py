# SPDX-License-Identifier: Apache-2.0
"""What killed jobs have left: segments in /dev/shm, and folders of Open MPI's launchers in
the folder for what is temporary. This library's own segments have no names and go with their
processes; MPI's have, and stay.

A segment counts as stale if it is this user's, has not been changed for a while, and no process has
it mapped or open. The folder of a job of ours must not be locked either (tools/job.py). A
launcher's folder counts as stale if it is this user's, names this host and the launcher's process,
and no process has that number: the folder for what is temporary may be one that hosts share.
Who uses one may be in another container, where it cannot be seen: a process that does not see all
of them removes nothing. Other processes may remove any of this at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .. import job
from ..job import shared_files
from .checks import Finding, fine

_SHARED = Path("/dev/shm")
_JOBS = "partialcoll-"  # their folders
_NAMES = ("mpich_shm_*", "Intel_MPI_*", "ucx_shm_*", "vader_segment.*", "sm_segment.*", f"{_JOBS}*")
_LAUNCHER = re.compile("(?:ompi|prted)\\.([0-9]+)")  # its folder, and its process
_WHILE = 600.0  # seconds, in which a job has mapped what it has made
_ALL_PROCESSES = "pid:[4026531836]"  # what the kernel calls the first namespace


def _used() -> set[Path]:
    used: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        for path in shared_files(process):
            used |= {path, _SHARED / path.relative_to(_SHARED).parts[0]}
    return used


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file or link, which may have gone."""
    with contextlib.suppress(OSError):
        return path.lstat()
    return None


def stale() -> list[Path]:
    """Return files and folders that no process uses."""
    old = time.time() - _WHILE
    mine = set()
    for path in (path for name in _NAMES for path in _SHARED.glob(name)):
        status = _status(path)
        if status is not None and status.st_uid == os.getuid() and status.st_mtime < old:
            mine.add(path)
    unused = mine - _used() if mine else mine
    return sorted(path for path in unused if not (_is_job(path) and job.lives(path)))


def _is_job(path: Path) -> bool:
    return path.name.startswith(_JOBS) and path.is_dir()


def _below(path: Path) -> Iterator[Path]:
    """Yield the path, and everything below a folder that can be read."""
    yield path
    if not path.is_symlink():
        for folder, folders, files in os.walk(path):
            yield from (Path(folder, name) for name in (*folders, *files))


def _bytes(path: Path) -> int:
    found = map(_status, _below(path))
    return sum(status.st_blocks * 512 for status in found if status is not None)


def _remove(paths: list[Path]) -> Iterator[Path]:
    """Remove the paths; yield those that could be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield path


def _sees_all() -> bool:
    return os.readlink("/proc/self/ns/pid") == _ALL_PROCESSES


def _entries(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_of(folder: Path, process: str) -> bool:
    """Return whether a launcher with this process number on this host made the folder. The launcher
    names both in a file for processes that look for it."""
    names = {f"pmix.{host}.tool.{process}" for host in (socket.gethostname(), os.uname().nodename)}
    return any(path.name in names for path in _entries(folder))


def launchers() -> list[Path]:
    """Return the folders of launchers that have ended."""
    found = []
    for path in _entries(Path(tempfile.gettempdir())):
        named, status = _LAUNCHER.fullmatch(path.name), _status(path)
        if named is None or status is None or status.st_uid != os.getuid():
            continue
        if not Path("/proc", named[1]).exists() and _is_of(path, named[1]):
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
    """Check for stale segments, and remove them if that is wanted."""
    paths = stale()
    what = f"{len(paths)} segments of ended jobs, {sum(map(_bytes, paths)) >> 20} MB in /dev/shm"
    why = "They take memory until the machine is started again."
    return _finding("stale segments", paths, what, remove, why)


def check_launchers(remove: bool) -> Finding:
    """Check for stale folders of launchers, and remove them if that is wanted."""
    paths = launchers()
    what = f"{len(paths)} folders of killed launchers of Open MPI in {tempfile.gettempdir()}"
    why = "A launcher that gets the process number of one of them does not start."
    return _finding("stale launchers", paths, what, remove, why)
