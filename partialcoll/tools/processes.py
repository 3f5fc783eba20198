# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, as their folders in /proc: those of a job, and what they share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from .. import _command

_SHARED = Path("/dev/shm")
_SEGMENTS = ("mpich_shm_", "Intel_MPI_", "ucx_shm_")  # Open MPI's are put into the job's folder
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def marked(name: str, value: str) -> Iterator[Path]:
    """Those that have this variable in their environment."""
    mark = f"{name}={value}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if mark in _environment(process):
            yield process


def _environment(process: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


def is_rank(process: Path) -> bool:
    """Of a job, or started by one."""
    names = {entry.partition(b"=")[0].decode(errors="replace") for entry in _environment(process)}
    return not names.isdisjoint(_command.JOB_VARIABLES)


def is_program(process: Path) -> bool:
    """A rank, not what it has started."""
    return is_rank(process) and not is_rank(_parent(process))


def _parent(process: Path) -> Path:
    with contextlib.suppress(OSError):
        after_name = (process / "stat").read_text(errors="replace").rpartition(")")[2]
        return process.parent / after_name.split()[1]
    return process.parent / "none"


def send(process: Path, signum: int) -> None:
    """Unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(process.name), signum)


def wake(process: Path, signum: int) -> None:
    """Send it, also to one that has been stopped."""
    send(process, signum)
    send(process, signal.SIGCONT)


def end_with_parent() -> None:
    """In a child, before it becomes what it is for: SIGTERM when the thread that has started it
    ends, by a signal that nobody can catch, say."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def shared_files(process: Path) -> Iterator[Path]:
    """What it has mapped or open in /dev/shm."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()
        found += [line.split(maxsplit=5)[-1] for line in lines]
    for entry in (process / "fd").glob("*"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    for path in map(Path, found):
        if _SHARED in path.parents:
            yield path


def segments(process: Path) -> set[Path]:
    """Those of its MPI, which would have removed them in the end."""
    return {path for path in shared_files(process) if path.name.startswith(_SEGMENTS)}
