# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a call: the same handle and rounds, driven from Python and from C."""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

import partialcoll as pc

from .. import _buffers, _report
from .._ffi import check, ffi, lib

COLUMNS = ("call", "us")
_CALLS = 1000


def _from_python(call: Callable[[], Any]) -> Callable[[], float]:
    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter() - begin) / _CALLS * 1e6

    return measure


def _from_c(handle: pc.AllreduceHandle, send: Any, recv: Any) -> Callable[[], float]:
    pointers = [_buffers.addresses([array]) for array in (send, recv)]
    us = ffi.new("double *")
    rnd = ffi.new("pcoll_round *")

    def measure() -> float:
        check(lib.pcoll_handle_measure(handle._core(), *pointers, _CALLS, us, rnd, ffi.NULL))
        return float(us[0])

    return measure


def run(options: argparse.Namespace, comm: MPI.Intracomm) -> list[_report.Row]:
    """Measure; rows on rank 0. Collective."""
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)
    handle = pc.Allreduce_init(comm, send, recv, quorum="full", name="bench overhead")

    def start_and_wait() -> None:
        handle.Start()
        handle.Wait()

    measures = {
        "Start+Wait": _from_python(start_and_wait),
        "start+take in C": _from_c(handle, send, recv),
        "pc.Allreduce": _from_python(lambda: pc.Allreduce(comm, send, recv, quorum="full")),
        "comm.Allreduce (mpi4py)": _from_python(lambda: comm.Allreduce(send, recv)),
    }
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for step in range(-1, options.iters):  # the first one warms up
        for name, measure in measures.items():
            us = comm.allreduce(measure(), MPI.MAX)
            if step >= 0:
                samples[name].append(us)
    handle.Free()
    median = {name: float(np.median(times)) for name, times in samples.items()}
    added = np.subtract(samples["Start+Wait"], samples["start+take in C"])
    rows = [{"call": name, "us": us} for name, us in median.items()]
    rows.append({"call": "added by Python", "us": float(np.median(added))})
    return rows if comm.rank == 0 else []


def plot(rows: list[_report.Row], path: str) -> None:
    """Bars of the calls' times."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 2.6), constrained_layout=True)
    bars = axes.barh([r["call"] for r in rows], [r["us"] for r in rows], color="#1a73e8")
    axes.bar_label(bars, fmt="%.2f µs", padding=2)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(r["us"] for r in rows))
    axes.set_xlabel("microseconds a call, 8 bytes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(options: argparse.Namespace) -> None:
    """The command ``bench overhead`` on the ranks of a job."""
    _report.on_job(options, "bench overhead", COLUMNS, run, plot)
