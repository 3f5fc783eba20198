# SPDX-License-Identifier: Apache-2.0
"""Comparisons in alternation, so that other load on the machine affects all contenders alike;
barriers that sleep; and the same handle on both planes, in shared memory and by messages only."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
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
    """Return the values of each measure, in `iters` turns after `warmup` turns that do not count.
    With a communicator, the value of the slowest rank counts, and the call is collective."""

    def sample(measure: Callable[[], float]) -> float:
        value = measure()
        return value if comm is None else comm.allreduce(value, MPI.MAX)

    some = list(measures)
    turns = [[sample(measure) for measure in some] for _ in range(warmup + iters)]
    return [list(samples) for samples in zip(*turns[warmup:])]


def per_call(call: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def meet(comm: MPI.Intracomm, nap_s: float = 1e-4) -> None:
    """Wait for all ranks, without a busy core, and without warnings about late ranks."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(nap_s)


def start_and_wait(
    handle: pc.AllreduceHandle, *, takes_slot: bool = False
) -> Callable[[], pc.Round]:
    """Return a function that makes one call of a handle. With `takes_slot` the send buffer belongs
    to the library, and each call takes it again, as any program must."""

    def call() -> pc.Round:
        handle.Start()
        return handle.Wait()

    def take_and_call() -> pc.Round:
        _ = handle.send_buffer
        return call()

    return take_and_call if takes_slot else call


class Gate:
    """Release all ranks together. They are woken, which is faster than the sleeps of `meet`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._now, self._latest = np.zeros(1), np.zeros(1)
        self._handle = pc.Allreduce_init(
            comm,
            self._now,
            self._latest,
            op=MPI.MAX,
            quorum="full",
            algorithm="recdbl",  # whatever a table says, which may be about to be measured
            domain="auto",
            name="bench gate",
        )

    @property
    def domains(self) -> int:
        return self._handle.domains

    def meet(self) -> float:
        """Wait for all ranks; return when the last one came, by its clock. Collective."""
        self._now[0] = time.perf_counter()
        self._handle.Start()
        self._handle.Wait()
        return float(self._latest[0])

    def free(self) -> None:
        self._handle.Free()


_say_once = functools.cache(functools.partial(print, file=sys.stderr, flush=True))


def handles(
    comm: MPI.Intracomm,
    domains: Sequence[str],
    make: Callable[[str], pc.AllreduceHandle],
    what: str,
) -> Iterator[pc.AllreduceHandle]:
    """Yield a handle for each domain that is asked for and available, made when its turn comes.
    Collective. If a handle has another domain (`AllreduceHandle.domain`, which rows must carry), a
    message says so, and it is left out if that domain is asked for as well."""
    for domain in domains:
        handle = make(domain)
        if handle.domain != domain:
            if comm.rank == 0:
                why = "no two ranks share memory, or the algorithm is one of messages only"
                _say_once(f'{what}: domain "{domain}" comes to "{handle.domain}" here ({why})')
            if handle.domain in domains:
                handle.Free()
                continue
        yield handle
