# SPDX-License-Identifier: Apache-2.0
"""Measure the overhead of Python: the same handle and rounds, driven from Python and from C."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from .. import plots, report
from .turns import by_turns, per_call, start_and_wait

_CALLS = 1000


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)
    handle = pc.Allreduce_init(comm, send, recv, quorum="full", name="bench overhead")

    def from_python(call: Callable[[], Any]) -> Callable[[], float]:
        return lambda: 1e6 * per_call(call, _CALLS)

    measures: dict[str, Callable[[], float]] = {
        "Start+Wait": from_python(start_and_wait(handle)),
        "start+take in C": partial(handle._measure, _CALLS),
        "pc.Allreduce": from_python(lambda: pc.Allreduce(comm, send, recv, quorum="full")),
        "comm.Allreduce (mpi4py)": from_python(lambda: comm.Allreduce(send, recv)),
    }
    samples = dict(zip(measures, by_turns(measures.values(), options.iters, comm=comm)))
    handle.Free()
    median = {name: float(np.median(times)) for name, times in samples.items()}
    added = np.subtract(samples["Start+Wait"], samples["start+take in C"])
    rows = [{"call": name, "us": us} for name, us in median.items()]
    rows.append({"call": "added by Python", "us": float(np.median(added))})
    return rows


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    with plots.picture(path, title or "a call with 8 bytes", size=(7.5, 3.2)) as panels:
        axes, us = panels[0, 0], [row["us"] for row in rows]
        names = [row["call"].replace(" ", "\n", 1) for row in rows]
        plots.bars(axes, names, us, [f"{each:.2f}" for each in us])
        axes.set_ylim(0, 1.2 * max(us))
        axes.set_ylabel("microseconds")
