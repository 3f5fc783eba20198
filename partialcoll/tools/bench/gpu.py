# SPDX-License-Identifier: Apache-2.0
"""Buffers on a device: a handle beside copies by hand around MPI_Allreduce. `limit_us` is how long
copies to pinned memory and back take on all ranks at once: no sum on the host is faster."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from ...errors import Error
from .. import plots, report, skewed
from . import turns

COLUMNS = report.columns(
    "collective ranks device devices bytes latency_us_p50 start_us exposed_us bandwidth_gbs "
    "speedup_vs_mpi limit_us speedup_vs_limit wrong"
)
_CHECKED_CALLS = 3

Call = Callable[[], Any]


class Device:
    """The device of this rank. `kind` is torch's name for it."""

    def __init__(self, comm: MPI.Intracomm, kind: str = "cuda") -> None:
        if importlib.util.find_spec("torch") is None:
            raise Error("needs PyTorch with CUDA, which is not installed")
        import torch  # takes a while, and need not be there for the rest

        self._torch = torch
        self._module: Any = getattr(torch, kind)
        if not self._module.is_available():
            raise Error(
                f"PyTorch {torch.__version__} finds no CUDA device; partialcoll info says which "
                "driver there is"
            )
        self._pinned = kind == "cuda"  # torch has no such memory for others
        self.count = self._module.device_count()
        neighbors = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.place = torch.device(kind, neighbors.rank % self.count)
        if self._pinned:
            self._module.set_device(self.place)  # where its own `_sleep` runs
        neighbors.Free()

    @property
    def name(self) -> str:
        return str(getattr(self._module, "get_device_name", str)(self.place))

    def over(self) -> None:
        self._module.current_stream(self.place).synchronize()

    def new(self, count: int) -> Any:
        return self._torch.zeros(count, device=self.place)

    def beside(self, count: int) -> Any:
        return self._torch.zeros(count, pin_memory=self._pinned)

    def work(self, us: float) -> Call | None:
        """Return a function that keeps the device busy for so long; None if there is none."""
        sleep = getattr(self._module, "_sleep", None)
        if sleep is None:
            return None
        cycles = 10_000_000
        for _ in range(2):  # the first one warms up
            begin = time.perf_counter()
            sleep(cycles)
            self.over()
            took = time.perf_counter() - begin
        return partial(sleep, max(1, int(cycles * us * 1e-6 / took)))


def measure(
    comm: MPI.Intracomm,
    device: Device,
    count: int,
    iters: int,
    more: Mapping[str, Callable[[Any, Any], Call]],
    work_us: float = 10_000,
) -> list[report.Row]:
    """Measure `count` float32 in alternation; return the rows on rank 0. Collective. `more` holds
    other contenders by name: functions that make a call from one tensor to another."""
    x, y = device.new(count), device.new(count)
    sent, come = device.beside(count), device.beside(count)
    handle = pc.Allreduce_init(comm, x, y, quorum="full")

    def full() -> None:
        handle.Start()
        handle.Wait()
        device.over()

    def mpi() -> None:
        """Copy by hand, one copy after the other."""
        sent.copy_(x, non_blocking=True)
        device.over()
        comm.Allreduce(sent.numpy(), come.numpy())
        y.copy_(come, non_blocking=True)
        device.over()

    def copies() -> None:
        sent.copy_(x, non_blocking=True)
        x.copy_(sent, non_blocking=True)
        device.over()

    calls: dict[str, Call] = {"mpi": mpi, "full": full}
    calls.update((name, make(x, y)) for name, make in more.items())
    wrong = dict.fromkeys(calls, 0)
    for step in range(_CHECKED_CALLS):  # they also warm up
        for name, call in calls.items():
            x.fill_((comm.rank + step) % 7 + 1)
            y.fill_(-1)
            call()
            total = sum((rank + step) % 7 + 1 for rank in range(comm.size))
            wrong[name] += int((y != total).sum())
            turns.meet(comm)

    def timed(call: Call) -> float:
        device.over()
        turns.meet(comm)
        return 1e6 * turns.per_call(call, 1)

    def start_us() -> float:
        device.over()
        took = turns.per_call(handle.Start, 1)
        handle.Wait()
        return 1e6 * took

    measures = [partial(timed, call) for call in (*calls.values(), copies)]
    *samples, copying = turns.by_turns(measures, iters, comm=comm)
    starts = turns.by_turns([start_us], iters, comm=comm)[0]
    work = device.work(work_us)

    def exposed_us() -> float:
        """Return the microseconds of a call beyond the work that follows its start."""
        assert work is not None
        device.over()
        begin = time.perf_counter()
        work()
        device.over()
        middle = time.perf_counter()
        handle.Start()
        work()
        handle.Wait()
        device.over()
        return 1e6 * (time.perf_counter() + begin - 2 * middle)

    exposed: list[float] = []
    if work is not None:
        exposed = turns.by_turns([exposed_us], iters, comm=comm)[0]
    handle.Free()
    rows = [
        {
            "collective": name,
            "ranks": comm.size,
            "device": device.name,
            "devices": device.count,
            "bytes": 4 * count,
            "latency_us_avg": float(np.mean(us)),
            "latency_us_p50": float(np.median(us)),
            "start_us": float(np.median(starts)) if name == "full" else None,
            "exposed_us": float(np.median(exposed)) if name == "full" and exposed else None,
            "bandwidth_gbs": 4 * count / float(np.median(us)) / 1e3,
            "speedup_vs_mpi": None,
            "limit_us": float(np.median(copying)),
            "speedup_vs_limit": None,
            "wrong": comm.allreduce(wrong[name]),
        }
        for name, us in zip(calls, samples)
    ]
    skewed.compare(rows, by="latency_us_p50")
    return rows if comm.rank == 0 else []


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    device, rows = Device(comm), []
    for size in report.progress(options.sizes, comm.rank == 0, "gpu"):
        rows += measure(comm, device, max(1, size // 4), options.iters, {})
    return rows


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    title = title or f"{rows[0]['ranks']} ranks on {rows[0]['devices']} × {rows[0]['device']}"
    how: dict[str, Any] = {"title": title, "log": True}
    label = partial(skewed.label, rows=rows)
    plots.over_bytes(rows, path, "latency_us_p50", "time of a call, median (µs)", label, **how)
