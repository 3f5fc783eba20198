# SPDX-License-Identifier: Apache-2.0
"""No skew: latency and bandwidth of each collective over the message size, every element checked.

The collectives take turns. Of each, a batch of calls back to back is timed; what a call of the
slowest rank took is one sample. Outside of the timing a few calls with other values each are
checked, every element on every rank.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

import partialcoll as pc

from .. import _report, _skew

COLUMNS = (
    "collective",
    "algorithm",
    "ranks",
    "bytes",
    "latency_us_avg",
    "latency_us_p50",
    "latency_us_p99",
    "speedup_vs_mpi",
    "limit_us",
    "speedup_vs_limit",
    "bandwidth_gbs",
    "busbw_gbs",
    "active_mean",
    "wrong",
)
_BATCH_BYTES = 8 << 20  # of a batch, so that large messages have few calls
_MOST_CALLS = 100
_CHECKED_CALLS = 3


def _batch_us(call: Callable[[], Any], calls: int) -> float:
    """Mean microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


class Contender:
    """One collective on buffers of one size."""

    def __init__(
        self, name: str, domain: str, algorithm: str, comm: MPI.Intracomm, send: Any, recv: Any
    ) -> None:
        self.name, self.domain, self.algorithm = name, domain, "native"
        self.handle: pc.AllreduceHandle | None = None
        self.samples: list[float] = []
        self.active: list[int] = []
        self.wrong = 0
        if name == "mpi":
            self.call: Callable[[], Any] = lambda: comm.Allreduce(send, recv, MPI.SUM)
        else:
            handle = pc.Allreduce_init(
                comm, send, recv, quorum=name, late="drop", algorithm=algorithm
            )
            self.handle = handle
            self.algorithm = handle.algorithm

            def start_and_wait() -> pc.Round:
                handle.Start()
                return handle.Wait()

            self.call = start_and_wait

    def check(self, comm: MPI.Intracomm, send: Any, recv: Any, step: int) -> None:
        """One call whose every element is compared with the sum over the mask."""
        send.fill((comm.rank + step) % 7 + 1)
        recv.fill(-1)
        rnd = self.call()
        mask = np.ones(comm.size, bool) if rnd is None else rnd.mask
        expected = ((np.flatnonzero(mask) + step) % 7 + 1).sum()
        self.wrong += int(np.count_nonzero(recv != np.float32(expected)))
        self.active.append(int(mask.sum()))


def _row(c: Contender, comm: MPI.Intracomm, count: int, link_gbps: float | None) -> Any:
    wrong = comm.reduce(c.wrong)
    active = comm.gather(c.active)
    if active is None:
        return None
    row = _skew.row(
        c.name,
        comm.size,
        count,
        c.samples,
        active,
        domain=c.domain,
        algorithm=c.algorithm,
        limit=None,
        wrong=wrong,
    )
    if link_gbps:
        sent = 2 * row["bytes"] * (comm.size - 1) / comm.size
        row["limit_us"] = sent * 8 / link_gbps / 1e3
    row["bandwidth_gbs"] = row["bytes"] / row["latency_us_avg"] / 1e3
    row["busbw_gbs"] = row["bandwidth_gbs"] * 2 * (comm.size - 1) / comm.size
    return row


def measure(
    kinds: Sequence[tuple[str, str, str]],
    comm: MPI.Intracomm,
    count: int,
    iters: int,
    link_gbps: float | None = None,
) -> list[_report.Row]:
    """Collectives (name, domain, algorithm) on so many elements, by turns; rows on rank 0.

    link_gbps: what each rank can send, gigabits per second, for the limit by arithmetic.
    Collective.
    """
    send, recv = np.ones(count, np.float32), np.empty(count, np.float32)
    contenders = [Contender(*kind, comm, send, recv) for kind in kinds]
    gate = pc.Allreduce_init(comm, np.ones(1), quorum="full", name="bench gate")
    calls = max(1, min(_MOST_CALLS, _BATCH_BYTES // (4 * count)))

    def meet() -> None:
        """Without anybody burning a core for it."""
        gate.Start()
        gate.Wait()

    for step in range(_CHECKED_CALLS):  # they also warm up
        for c in contenders:
            c.check(comm, send, recv, step)
            meet()
    for _ in range(iters):
        for c in contenders:
            meet()
            c.samples.append(comm.allreduce(_batch_us(c.call, calls), MPI.MAX))
    rows = [row for c in contenders if (row := _row(c, comm, count, link_gbps)) is not None]
    for c in contenders:
        if c.handle is not None:
            c.handle.Free()
    gate.Free()
    _skew.compare(rows, by="latency_us_p50")
    return rows


def run(options: argparse.Namespace, comm: MPI.Intracomm) -> list[_report.Row]:
    """Measure every size; the rows on rank 0, an empty list elsewhere. Collective."""
    kinds = [
        (name, "-" if name == "mpi" else domain, options.algorithm)
        for name in options.collectives
        for domain in (options.domain if name != "mpi" else options.domain[:1])
    ]
    rows = []
    for size in _report.progress(options.sizes, comm.rank == 0, "balanced"):
        rows += measure(kinds, comm, max(1, size // 4), options.iters, options.link_gbps)
    return rows


def plot(rows: list[_report.Row], title: str, path: str, by: str = "collective") -> None:
    """Latency over the message size, both logarithmic, of each value of the field `by`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.8), constrained_layout=True)
    for name in dict.fromkeys(row[by] for row in rows):
        own = [row for row in rows if row[by] == name]
        axes.plot(
            [row["bytes"] for row in own],
            [row["latency_us_p50"] for row in own],
            marker="o",
            label=name.replace("mpi", "MPI_Allreduce"),
            color="#9aa0a6" if name == "mpi" else None,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("time of a call, median (µs)")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(options: argparse.Namespace) -> None:
    """The command ``bench balanced`` on the ranks of a job."""

    def draw(rows: list[_report.Row], path: str) -> None:
        plot(rows, f"{rows[0]['ranks']} ranks, no skew", path)

    _report.on_job(options, "bench balanced", COLUMNS, run, draw)
