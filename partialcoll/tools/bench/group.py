# SPDX-License-Identifier: Apache-2.0
"""Averaging over all ranks in groups on a grid, beside the allreduce of all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

import partialcoll as pc

from ..._core.buffers import Array
from ..._core.mpi import MPI
from .. import plots, report
from . import turns
from .turns import meet

COLUMNS = report.columns(
    "method keys ranks grid bytes rounds seconds speedup_vs_mpi busbw_gbs exact error wrong "
    "matched_ahead void_rounds"
)
_EPSILON = float(np.finfo(np.float32).eps)


def values(rank: int, step: int, count: int) -> Array:
    """Return the contribution of a rank, different at neighboring places and in each step."""
    x: Array = ((np.arange(count) * 7 + 13 * rank + 29 * step) % 1009).astype(np.float32)
    return x


class AveragingMethod:
    """A method that averages `x`, float32, over ranks, and what this rank measured of it. With a
    grid it is a turn of a grouped allreduce, one round for each axis, or a single round; else the
    function `allreduce` sums `x` in place."""

    allreduce: Callable[[], Any]

    def __init__(
        self,
        name: str,
        comm: MPI.Intracomm,
        count: int,
        grid: str = "",
        turn: bool = True,
        **how: Any,
    ) -> None:
        self.name, self.comm, self.count = name, comm, count
        self.x = np.zeros(count, np.float32)
        self.error, self.wrong, self.exact, self._step = 0.0, 0, True, 0
        self.handle: pc.AllreduceHandle | None = None
        self.group: pc.GroupAllreduce | None = None
        self.sides: Sequence[int] = [comm.size]
        self._last: Any = None  # the last round of the group
        if grid:
            sides: Any = grid if grid == "auto" else tuple(map(int, grid.split("x")))
            self.group = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, self.x, grid=sides, **how)
            self.sides = self.group.grid if turn else self.group.grid[:1]

    def average(self) -> Sequence[int]:
        """Replace `x` by the average; return the ranks whose values are in it. Collective."""
        if self.group is None:
            self.allreduce()
            self.x /= np.float32(self.comm.size)
            return range(self.comm.size)
        for _ in self.sides:
            self.group.Start()
            self._last = self.group.Wait()
        if len(self.sides) > 1 and self._last.exact:
            return range(self.comm.size)
        ranks: Sequence[int] = self._last.group
        return ranks

    def timed(self, check: bool = False) -> float:
        self._step += 1
        np.copyto(self.x, values(self.comm.rank, self._step, self.count))
        meet(self.comm)
        begin = time.perf_counter()
        ranks = self.average()
        seconds = time.perf_counter() - begin
        if check:
            self._check(ranks or [self.comm.rank])
        return seconds

    def _check(self, ranks: Sequence[int]) -> None:
        exact = self._last is None or self._last.exact
        self.exact &= exact and len(ranks) == self.comm.size
        if not exact and len(self.sides) > 1:
            return  # the result depends on all groups of the turn
        mean = np.zeros(self.count)
        for rank in ranks:
            mean += values(rank, self._step, self.count)
        mean /= len(ranks)
        error = np.abs(self.x - mean) / np.maximum(mean, 1)
        self.error = max(self.error, float(error.max()))
        # Each addition and division may round; values are whole numbers of one size.
        self.wrong += int(np.count_nonzero(error > 4 * len(self.sides) * _EPSILON))

    def row(self, samples: Sequence[float]) -> report.Row:
        comm, group = self.comm, self.group
        seconds, nbytes = float(np.median(samples)), 4 * self.count
        traffic = sum(2 * (side - 1) / side for side in self.sides)  # of a link, for a byte of data
        row = {
            "method": self.name,
            "keys": group and group.keys,
            "ranks": comm.size,
            "grid": group and "x".join(map(str, group.grid)),
            "bytes": nbytes,
            "rounds": len(self.sides),
            "seconds": seconds,
            "fastest": min(samples),
            "slowest": max(samples),
            "busbw_gbs": nbytes * traffic / seconds / 1e9,
            "exact": bool(comm.allreduce(bool(self.exact), MPI.LAND)),
            "error": comm.allreduce(self.error, MPI.MAX),
            "wrong": comm.allreduce(self.wrong),
            **dict.fromkeys(("matched_ahead", "void_rounds", "shares")),
        }
        if group is not None:
            rounds = max(1, comm.allreduce(group.stats.rounds))
            row["matched_ahead"] = comm.allreduce(group.stats.matched_ahead) / rounds
            row["void_rounds"] = comm.allreduce(group.stats.void_rounds)
            row["shares"] = list(self._last.shares)
        return row


def by_turns(methods: Iterable[AveragingMethod], iters: int, warmup: int = 2) -> list[report.Row]:
    """Check, time and free the methods, alternating; return the rows on all ranks. Collective."""
    some = list(methods)
    checks = [partial(method.timed, check=True) for method in some]
    turns.by_turns(checks, warmup, warmup=0)
    measures = [method.timed for method in some]
    samples = turns.by_turns(measures, iters, warmup=0, comm=some[0].comm)
    turns.by_turns(checks, 1, warmup=0)
    rows = [method.row(times) for method, times in zip(some, samples)]
    for method in some:
        for handle in filter(None, (method.handle, method.group)):
            handle.Free()
    mpi = next((row["seconds"] for row in rows if row["method"] == "mpi"), None)
    for row in rows:
        row["speedup_vs_mpi"] = mpi and mpi / row["seconds"]
    return rows


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    rows, bandwidth = [], options.bandwidth
    how: dict[str, Any] = {
        "keys": options.keys,
        "bandwidth": bandwidth[comm.rank] if isinstance(bandwidth, list) else bandwidth,
        "measure_every": 4,
    }
    for size in report.progress(options.sizes, comm.rank == 0, "group"):
        count = max(1, size // 4)
        mpi, full = (AveragingMethod(name, comm, count) for name in ("mpi", "full"))
        mpi.allreduce = partial(comm.Allreduce, MPI.IN_PLACE, mpi.x)
        full.handle = pc.Allreduce_init(comm, MPI.IN_PLACE, full.x, quorum="full", history=1)
        full.allreduce = turns.start_and_wait(full.handle)
        methods = [mpi, full]
        for grid in options.grid:
            methods.append(AveragingMethod("group", comm, count, grid, **how))
            if len(methods[-1].sides) > 1:
                name = "group, one round"
                methods.append(AveragingMethod(name, comm, count, grid, turn=False, **how))
        # Bandwidths are measured in some rounds, and are known after them.
        rows += by_turns(methods, options.iters, warmup=12 if bandwidth == "measured" else 2)
    return rows


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    def label(row: report.Row) -> str:
        return row["method"] + (f", {row['grid']}" if row["grid"] else "")

    title = title or f"{rows[0]['ranks']} ranks"
    how: dict[str, Any] = {"title": title, "scale": 1e3, "log": True}
    plots.over_bytes(rows, path, "seconds", "time of an averaging, median (ms)", label, **how)
