# SPDX-License-Identifier: Apache-2.0
"""CPU used while nothing happens (idle agents), and while all ranks but one wait for it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from .. import plots, report, skewed
from . import turns


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    def make(domain: str) -> pc.AllreduceHandle:
        buffer, result = np.ones(1024, np.float32), np.empty(1024, np.float32)
        return pc.Allreduce_init(
            comm, buffer, result, quorum="full", domain=domain, name="bench idle"
        )

    rows = []
    for handle in turns.handles(comm, options.domain, make, "bench idle"):
        meet = turns.start_and_wait(handle)
        for state in ("idle", "waiting"):
            meet()
            cpu, wall = time.process_time(), time.perf_counter()
            if state == "idle" or comm.rank == comm.size - 1:
                time.sleep(options.seconds)
            if state == "waiting":
                meet()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            percent = comm.gather(100 * cpu / wall)
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


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    with plots.picture(path, title or f"{rows[0]['ranks']} ranks", size=(4.6, 3.2)) as panels:
        names = [skewed.label(row, rows, "state") for row in rows]
        percent = [row["cpu_percent_per_rank"] for row in rows]
        plots.bars(panels[0, 0], names, percent, [f"{each:.2f} %" for each in percent])
        panels[0, 0].set_ylim(0, 1.2 * max(percent) or 1)
        panels[0, 0].set_ylabel("CPU of a core per rank (%)")
