# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: cores, shared memory, what a container or a limit forbids. Each looks for
itself; `local` is how many ranks of this job are on this host (1: there is no job)."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from pathlib import Path

from ..memory import available
from .finding import Finding, fine

_SHARED = Path("/dev/shm")
_MB = 1 << 20
# MPICH with four ranks hung or crashed with 16 MB, and ran with 64.
_FEW_SHARED, _SCARCE_SHARED = 16 * _MB, 64 * _MB
_FEW_LOCKED = 64 * _MB
_ADAPTERS = Path("/sys/class/infiniband")
_PROTECTION = Path("/proc/sys/kernel/yama/ptrace_scope")


def _is(cores: int) -> str:
    return f"{cores} core{'s' if cores != 1 else ''}"


def check_cores(local: int) -> Finding:
    """Fewer than ranks?"""
    cores = os.cpu_count() or 1
    if local <= cores:
        return fine("cores", f"{_is(cores)}, {local} rank{'s' if local != 1 else ''} here")
    return Finding(
        "cores",
        "warning",
        f"{local} ranks share {_is(cores)}",
        "MPI's blocking calls keep a core busy while they wait: an allreduce of 8 KiB took 6 us "
        "on 2 ranks and 4 to 15 ms on 8 (MPICH, 2 cores).",
        "No more ranks than cores for measurements; handles of this library sleep while they "
        "wait, so let these do the waiting.",
    )


def check_binding(local: int) -> Finding:
    """May this process use one core only?"""
    usable, cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if usable > 1 or cores == 1:
        return fine("binding", f"{usable} of {_is(cores)} for this process")
    return Finding(
        "binding",
        "warning",
        f"this process may use one core of {cores}",
        "The agent, which moves rounds on while the program computes, shares that core with it.",
        "mpiexec --bind-to none (Open MPI binds one or two ranks to one core each), "
        "-bind-to none (MPICH), srun --cpu-bind=none or --cpus-per-task=2; no taskset.",
    )


def check_shared_memory(local: int) -> Finding:
    """Is there room for MPI's own segments?"""
    why = "MPI crashes or hangs when its shared memory is full, mostly while it begins."
    mend = (
        "docker run --shm-size=1g or --ipc=host; a larger tmpfs (mount -o remount,size=1g "
        "/dev/shm); partialcoll doctor --remove-stale where it is full of what jobs have left."
    )
    if not os.access(_SHARED, os.W_OK):
        return Finding("shared memory", "stop", "/dev/shm cannot be written to", why, mend)
    free = shutil.disk_usage(_SHARED).free
    what = f"{free // _MB} MB free in /dev/shm"
    if free >= _SCARCE_SHARED:
        return fine("shared memory", what)
    level = "stop" if free < _FEW_SHARED else "warning"
    return Finding("shared memory", level, what, why, mend)


def check_memory(local: int) -> Finding:
    """Of this machine or this control group."""
    free = available()
    if free >= 256 * _MB * local:
        return fine("memory", f"{free // _MB} MB")
    return Finding(
        "memory",
        "warning",
        f"{free // _MB} MB for {local} ranks here",
        "A Python process with MPI takes 32 MB and more, and whoever exceeds a limit is killed.",
        "Fewer ranks, or more memory for the job (srun --mem, docker run --memory).",
    )


def check_locked_memory(local: int) -> Finding:
    """May an adapter register memory?"""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    what = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KB may be locked"
    if limit == resource.RLIM_INFINITY or limit >= _FEW_LOCKED:
        return fine("memlock", what)
    adapters = _ADAPTERS.exists() and any(_ADAPTERS.iterdir())
    return Finding(
        "memlock",
        "warning" if adapters else "note",
        what,
        "MPI locks what an adapter (InfiniBand and its like) reads and writes, and so do copies "
        "to GPUs."
        if adapters
        else "Without an adapter or a GPU it does not matter.",
        "ulimit -l unlimited; LimitMEMLOCK=infinity for the daemon that starts the ranks; docker "
        "run --ulimit memlock=-1.",
    )


def _error_of_copying() -> int:
    """Of process_vm_readv, by which MPIs copy between ranks; 0: it works."""

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    libc, words = ctypes.CDLL(None, use_errno=True), (ctypes.c_long * 2)()
    size = ctypes.sizeof(ctypes.c_long)
    pieces = [Piece(ctypes.addressof(words) + i * size, size) for i in range(2)]
    to, source = map(ctypes.byref, pieces)
    done = libc.process_vm_readv(os.getpid(), to, 1, source, 1, 0)
    return ctypes.get_errno() if done < 0 else 0


def check_copying(local: int) -> Finding:
    """May ranks copy out of each other's memory?"""
    error = _error_of_copying()
    scope = int(_PROTECTION.read_text()) if _PROTECTION.exists() else 0
    if not error and (scope == 0 or os.geteuid() == 0):
        return fine("copying", "ranks may read each other's memory")
    what = f"process_vm_readv: {os.strerror(error)}" if error else f"ptrace_scope is {scope}"
    return Finding(
        "copying",
        "warning",
        what,
        "Large messages between ranks of a host fail then (MPICH 5), or are copied twice, through "
        "shared memory (Open MPI, with a complaint). Domains of this library do not need it.",
        "docker run --cap-add SYS_PTRACE, or a newer Docker; sysctl kernel.yama.ptrace_scope=0; or "
        "let MPI do without: MPIR_CVAR_CH4_CMA_ENABLE=0; OMPI_MCA_smsc=^cma, UCX_TLS=^cma.",
    )


MACHINE = (
    check_cores,
    check_binding,
    check_memory,
    check_shared_memory,
    check_locked_memory,
    check_copying,
)
