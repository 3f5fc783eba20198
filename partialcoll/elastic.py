# SPDX-License-Identifier: Apache-2.0
"""Processes in place of those that have died.

>>> comm = elastic.joined()            # None in a process that was started ordinarily
>>> if comm is None:
...     comm = MPI.COMM_WORLD
...     handle = pc.Allreduce_init(comm, x, y, on_failure="continue")
... else:
...     handle = pc.Allreduce_init(comm, x, y, on_failure="continue", join=True)
>>> # … and when somebody has died, on all that are left:
>>> handle.grow(elastic.respawn(handle.comm, [sys.executable, __file__], to=handle.size))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._core import checks
from ._core.alone import alone
from ._core.attendance import attending
from ._core.communicator import address
from ._core.ffi import check, lib
from ._core.mpi import MPI
from .errors import StateError

_joined: list[MPI.Intracomm] = []  # at most one: a process is spawned once


def respawn(comm: MPI.Intracomm, command: Sequence[str], *, to: int) -> MPI.Intracomm:
    """Spawn what is missing, so that there are `to` processes together. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of those that live: `AllreduceHandle.comm`, or what ``comm.Shrink()`` gives.
    command : list of str
        Program and arguments, the same on all ranks; rank 0's counts.
    to : int
        Processes, at least as many as there are.

    Returns a communicator of all, those of `comm` first, in their order: the new ones get it from
    `joined`. It is the caller's, who may free it. If there are enough already, a duplicate.

    Raises what MPI does, on all ranks; RankFailedError if somebody of `comm` has died meanwhile;
    StateError if no process lives that mpiexec has started. A command that ends before it has
    initialized MPI leaves all waiting.
    """
    address(comm)
    to = checks.integer("to", to, comm.size)
    checks.several("command", command, what="a list of texts")
    with attending("respawn", comm):
        _check_alive(comm)
        if to == comm.size:
            return comm.Dup()
        merged = alone(lambda: _spawn(comm, list(command), to - comm.size), hold=True)
        _check_alive(merged)
        return merged


def _spawn(comm: MPI.Intracomm, command: list[str], count: int) -> MPI.Intracomm:
    _check_launched(comm)
    between = comm.Spawn(command[0], command[1:], maxprocs=count)
    merged = between.Merge(high=False)
    between.Free()
    return merged


def joined() -> MPI.Intracomm | None:
    """In a process that `respawn` has started: the communicator of all, those who have spawned it
    first. None in any other. Collective over them at the first call, the same one afterwards."""
    if not _joined:
        parent = MPI.Comm.Get_parent()
        if parent == MPI.COMM_NULL:
            return None
        merged = alone(lambda: parent.Merge(high=True), hold=True)
        _check_alive(merged)
        _joined.append(merged)
    return _joined[0]


def _check_launched(comm: MPI.Intracomm) -> None:
    """Open MPI's launcher forgets the job that it was started for when all of that have ended; what
    is to be spawned then never comes."""
    own, first = np.empty(1, np.intc), np.empty(1, np.intc)
    own[0] = MPI.Comm.Get_parent() == MPI.COMM_NULL
    comm.Allreduce(own, first, MPI.MAX)
    if not first[0]:
        raise StateError(
            "respawn: none of the processes that mpiexec has started lives, and it starts no "
            "others then; keep one of them alive"
        )


def _check_alive(comm: MPI.Intracomm) -> None:
    """Nobody of it has died; else an error on all. Collective."""
    check(lib.pcoll_growth_check(address(comm)))
