# SPDX-License-Identifier: Apache-2.0
"""Skewed arrival: rank i arrives i times the skew late. What does waiting for all cost, and
what does a quorum save?

Source: Li et al., PPoPP 2020, section 6.1 (the microbenchmark; 32 ranks, 1 ms).
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable, cast

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from .. import report, skewed
from . import balanced, turns

COLUMNS, plot = skewed.COLUMNS, skewed.plot
# Seconds that a rank computes before it arrives; before, it sleeps: 32 ranks share few cores.
_COMPUTING = 100e-6

# Calls a collective once: who was in the round (None: all), and seconds.
Call = Callable[[], tuple[Any, float]]


class StaggeredGate(turns.Gate):
    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._one_clock = len(set(comm.allgather(MPI.Get_processor_name()))) == 1
        self._margin = 0.5e-3 + 0.1e-3 * comm.size

    def pass_at(self, delay: float, work: Any) -> None:
        """Return `delay` seconds after a common point in time, out of a computation on `work`:
        a rank that has slept would pay for its cold caches, and call that latency.

        Ranks of one machine share its clock; across machines the point is when the ranks
        have met, which adds the time of one small allreduce to the skew.
        """
        latest = self.meet()
        arrival = delay + (latest + self._margin if self._one_clock else time.perf_counter())
        left = arrival - _COMPUTING - time.perf_counter()
        if left > 0:
            time.sleep(left)
        while time.perf_counter() < arrival:
            work += 1


def _from_python(made: balanced.BatchContender) -> Call:
    """Return a call with nothing between the clock and the calls: late ranks have cold caches."""
    handle = made.handle
    if handle is None:
        return lambda: (None, turns.per_call(made.call, 1))

    def call() -> tuple[Any, float]:
        begin = time.perf_counter()
        handle.Start()
        rnd = handle.Wait()
        seconds = time.perf_counter() - begin
        return rnd.mask, seconds

    return call


def _from_c(made: balanced.BatchContender) -> Call:
    """Return the same call in C, timed there, as a program in C or Fortran waits."""
    handle = cast(pc.AllreduceHandle, made.handle)

    def call() -> tuple[Any, float]:
        seconds = handle._measure() * 1e-6
        return handle._describe().mask, seconds

    return call


_CALLS = {"python": _from_python, "c": _from_c}


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    send = np.full(options.count, comm.rank + 1, dtype=np.float32)
    recv = np.empty_like(send)
    gate = StaggeredGate(comm)
    contenders: list[balanced.BatchContender] = []
    for name in options.collectives:
        kind = balanced.BatchKind(name, options.domain, options.algorithm, options.late)
        for made in balanced.of_kind(kind, False, comm, send, recv, "bench skew"):
            for each in ["python"] if made.handle is None else options.interface:
                label = f"{name} (C)" if each == "c" else name
                call = _CALLS[each](made)
                contenders.append(replace(made, name=label, call=call, active=[]))
    latencies: list[list[float]] = [[] for _ in contenders]
    delay = comm.rank * options.skew_ms * 1e-3
    steps = range(-options.warmup, options.iters)
    for step in report.progress(steps, comm.rank == 0, "skew"):
        for c, us in zip(contenders, latencies):
            recv.fill(-1)
            gate.pass_at(delay, np.zeros_like(recv))
            mask, seconds = c.call()
            if step < 0:
                continue
            us.append(seconds * 1e6)
            ranks = np.arange(comm.size) if mask is None else np.flatnonzero(mask)
            c.active.append(len(ranks))
            if mask is None or options.late == "drop":  # else carried deposits make other sums
                expected = np.float32((ranks + 1).sum())  # rank r contributes r+1
                c.wrong += int(np.count_nonzero(recv != expected))
    rows = []
    for c, us in zip(contenders, latencies):
        every, active, wrong = comm.gather(us), comm.gather(c.active), comm.reduce(c.wrong)
        if every is not None and active is not None:
            limit = skewed.limit_us(c.name.removesuffix(" (C)"), comm.size, options.skew_ms * 1e3)
            how = {"domain": c.domain, "algorithm": c.algorithm, "limit_us": limit}
            how["wrong"] = wrong if c.handle is None or options.late == "drop" else None
            us_of_all = np.concatenate(every)
            rows.append(skewed.row(c.name, comm.size, options.count, us_of_all, active, **how))
    for handle in dict.fromkeys(c.handle for c in contenders if c.handle is not None):
        handle.Free()
    gate.free()
    skewed.compare(rows)
    return rows


def title(options: SimpleNamespace, rows: list[report.Row]) -> str:
    size = 4 * options.count
    text = f"{size / 1024:.0f} KiB" if size >= 1024 else f"{size} B"
    return f"{rows[0]['ranks']} ranks arriving {options.skew_ms:g} ms apart, {text}"
