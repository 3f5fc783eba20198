# SPDX-License-Identifier: Apache-2.0
"""What is compared takes turns, so that whatever else the machine does hits all alike; and ranks
meet before they are measured without burning cores."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI


def by_turns(
    measures: Iterable[Callable[[], float]],
    iters: int,
    *,
    warmup: int = 1,
    comm: MPI.Intracomm | None = None,
) -> list[list[float]]:
    """What each of them gives, in so many turns after those that warm up; with a communicator, on
    the rank that is slowest (collective)."""

    def sample(measure: Callable[[], float]) -> float:
        value = measure()
        return value if comm is None else comm.allreduce(value, MPI.MAX)

    some = list(measures)
    turns = [[sample(measure) for measure in some] for _ in range(warmup + iters)]
    return [list(samples) for samples in zip(*turns[warmup:])]


def per_call(call: Callable[[], Any], calls: int) -> float:
    """Seconds of a call, the mean of so many back to back."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def meet(comm: MPI.Intracomm, nap_s: float = 1e-4) -> None:
    """A barrier that takes no core from the one who works, and warns of nobody."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(nap_s)


def start_and_wait(
    handle: pc.AllreduceHandle, *, takes_slot: bool = False
) -> Callable[[], pc.Round]:
    """A call of a handle. takes_slot: its send buffer is the library's, and is taken anew each
    time, as everybody has to."""

    def call() -> pc.Round:
        handle.Start()
        return handle.Wait()

    def take_and_call() -> pc.Round:
        _ = handle.send_buffer
        return call()

    return take_and_call if takes_slot else call


class Gate:
    """Lets ranks go together: they are woken, which is sooner than the end of a nap in `meet`."""

    def __init__(self, comm: MPI.Intracomm, **how: Any) -> None:
        self._now, self._latest = np.zeros(1), np.zeros(1)
        self._handle = pc.Allreduce_init(
            comm,
            self._now,
            self._latest,
            op=MPI.MAX,
            quorum="full",
            algorithm="recdbl",  # whatever a table says, which may be about to be measured
            name="bench gate",
            **how,
        )

    @property
    def domains(self) -> int:
        """See `AllreduceHandle.domains`."""
        return self._handle.domains

    def meet(self) -> float:
        """Returns when the last one came, by its clock. Collective."""
        self._now[0] = time.perf_counter()
        self._handle.Start()
        self._handle.Wait()
        return float(self._latest[0])

    def free(self) -> None:
        """Collective."""
        self._handle.Free()
