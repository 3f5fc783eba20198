# SPDX-License-Identifier: Apache-2.0
"""When a run is over where no rank waits for another.

A rank makes so many steps of its own, and then says so. Nobody is made to wait for one that is much
slower: once half of the ranks have made theirs, the others have a tenth of that time more, at least
a second, and end with the step that they are in. So ranks that differ by little all make all of
their steps, and one that is 100 times slower makes as many as it can while the others train.
"""

from __future__ import annotations

import math
import time

import numpy as np

from ...._core.mpi import MPI

# Of the time in which half of the ranks have made their steps, and seconds at least.
_MORE, _LEAST = 0.1, 1.0


def last_moment(times: list[float], ranks: int) -> float:
    """Seconds after which nobody begins another step, given those after which some ranks had made
    theirs; infinity while they are too few."""
    half = (ranks + 1) // 2
    if len(times) < half:
        return math.inf
    passed = sorted(times)[half - 1]
    return passed + max(_MORE * passed, _LEAST)


class Ending:
    """Tells the ranks of each other's ends, by messages that nobody waits for. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed.
    steps : int
        That each rank is to make.
    """

    def __init__(self, comm: MPI.Intracomm, steps: int) -> None:
        self._comm, self._steps = comm.Dup(), steps
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._room = np.zeros((comm.size, 1))
        self._open = {r: self._comm.Irecv(self._room[r], r) for r in self._others}
        self._begin = time.perf_counter()

    def begin(self) -> None:
        """Time counts from now. Local."""
        self._begin = time.perf_counter()

    def over(self, made: int) -> bool:
        """Is it over for this rank, which has made so many steps? Local."""
        if made >= self._steps:
            return True
        self._open = {rank: request for rank, request in self._open.items() if not request.Test()}
        times = [float(self._room[r, 0]) for r in self._others if r not in self._open]
        return time.perf_counter() - self._begin >= last_moment(times, self._comm.size)

    def close(self) -> None:
        """It is over for this rank. Local, but for `free`."""
        now = np.array([time.perf_counter() - self._begin])
        self._sent = [(now, self._comm.Isend(now, rank)) for rank in self._others]

    def free(self) -> None:
        """After `close` on all ranks. Collective."""
        MPI.Request.Waitall([request for _, request in self._sent])
        MPI.Request.Waitall(list(self._open.values()))
        self._comm.Free()
