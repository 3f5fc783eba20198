# SPDX-License-Identifier: Apache-2.0
"""CPU used while nothing happens (idle agents), and while all ranks but one wait for it."""

from __future__ import annotations

import argparse
import time
from typing import Callable

import numpy as np
from mpi4py import MPI

import partialcoll as pc

from .. import _report, _skew
from . import planes

COLUMNS = ("state", "domain", "ranks", "cpu_percent_per_rank")


def _cpu_percent(action: Callable[[], object]) -> float:
    """CPU time of this process over wall time during the action, in percent of a core."""
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - wall)


def run(options: argparse.Namespace, comm: MPI.Intracomm) -> list[_report.Row]:
    """Measure each domain alone, after the other; rows on rank 0. Collective."""

    def make(domain: str) -> pc.AllreduceHandle:
        buffer, result = np.ones(1024, np.float32), np.empty(1024, np.float32)
        return pc.Allreduce_init(
            comm, buffer, result, quorum="full", domain=domain, name="bench idle"
        )

    rows = []
    for handle in planes.handles(comm, options.domain, make, "bench idle"):
        rows += _measure(handle, options.seconds, comm)
    return rows


def _measure(handle: pc.AllreduceHandle, seconds: float, comm: MPI.Intracomm) -> list[_report.Row]:
    """Both states of one handle, which is freed then; rows on rank 0. Collective."""

    def meet() -> None:
        handle.Start()
        handle.Wait()

    def wait_for_last() -> None:
        if comm.rank == comm.size - 1:
            time.sleep(seconds)
        meet()

    rows = []
    for state, action in (
        ("idle", lambda: time.sleep(seconds)),
        ("waiting", wait_for_last),
    ):
        meet()
        percent = comm.gather(_cpu_percent(action))
        if percent is not None:
            rows.append(
                {
                    "state": state,
                    "domain": handle.domain,
                    "ranks": comm.size,
                    "cpu_percent_per_rank": float(np.mean(percent)),
                }
            )
    handle.Free()
    return rows


def plot(rows: list[_report.Row], path: str) -> None:
    """Bars of CPU use."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4, 3), constrained_layout=True)
    bars = axes.bar(
        [_skew.label(r, rows, "state") for r in rows],
        [r["cpu_percent_per_rank"] for r in rows],
        color="#1a73e8",
    )
    axes.bar_label(bars, fmt="%.2f %%")
    axes.set_ylabel("CPU of a core per rank (%)")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(options: argparse.Namespace) -> None:
    """The command ``bench idle`` on the ranks of a job."""
    _report.on_job(options, "bench idle", COLUMNS, run, plot)
