# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of gossip buffer operations for the calling rank while the others sleep."""

from __future__ import annotations

import itertools
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from .. import plots, report
from .turns import by_turns, meet


class _Pair:
    """Rank 0 acts on rank 1; both know the initial values."""

    def __init__(self, comm: MPI.Intracomm, size: int, bits: int) -> None:
        self.comm = comm
        draw = np.random.default_rng(comm.rank)
        self.x = draw.standard_normal(max(size // 4, 1), np.float32)
        self.out = np.zeros_like(self.x)
        self.codec = pc.Lattice(bits) if bits else None
        self.buffer = pc.GossipBuffer(
            comm, like=self.x, topology="complete", codec=self.codec, max_uncollected=2**30
        )
        self.total = self._sum()
        self.buffer.publish(self.x)

    def _sum(self) -> float:
        local = self.x.astype(np.float64).sum() + self.buffer.pending().astype(np.float64).sum()
        return float(self.comm.allreduce(local))

    def sum_error(self) -> float:
        """Return the change of the sum over all ranks, relative to that of absolute values."""
        size: float = self.comm.allreduce(float(np.abs(self.x.astype(np.float64)).sum()))
        return abs(self._sum() - self.total) / size

    def operations(self) -> dict[str, tuple[int, Callable[[], Any]]]:
        """Return each operation with the number of models that it reads and writes, of other
        ranks' memory or of the window. Averaging reads one model and gives one."""
        g, x, out, peer = self.buffer, self.x, self.out, 1 - self.comm.rank
        return {
            "memcpy": (1, lambda: np.copyto(out, x)),
            "sendrecv": (2, lambda: self.comm.Sendrecv(x, peer, recvbuf=out, source=peer)),
            "publish": (1, lambda: g.publish(x)),
            "read": (1, lambda: g.read(1, key=x if self.codec else None, out=out)),
            "average": (2, lambda: g.average(x, 1)),
            "collect": (2, lambda: g.collect(x)),
            "push": (1, lambda: g.push(1, x)),
            "drain": (1, g.drain),
        }

    def prepare(self, op: str) -> None:
        """Prepare an operation: something to collect or to drain, or room to push."""
        if self.comm.rank == 1:
            if op == "collect":
                self.buffer.average(self.x, 0)
            if op == "drain":
                self.buffer.push(0, self.x)
            if op == "push":
                self.buffer.drain()
            self.buffer.collect(self.x)
        elif op == "average":
            self.buffer.publish(self.x)

    def sample(self, op: str, action: Callable[[], Any]) -> float:
        self.prepare(op)
        meet(self.comm)
        begin = time.perf_counter()
        if self.comm.rank == 0 or (op == "sendrecv" and self.comm.rank == 1):
            action()
        seconds = time.perf_counter() - begin
        meet(self.comm)
        return seconds


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    rows = []
    for bits, size in itertools.product((0, *options.bits), options.sizes):
        pair = _Pair(comm, size, bits)
        operations = pair.operations()
        measures = [partial(pair.sample, op, action) for op, (_, action) in operations.items()]
        samples = by_turns(measures, options.iters, warmup=2)  # finds out distances, touches memory
        error = pair.sum_error()
        pair.buffer.Free()
        for (op, (moved, _)), times in zip(operations.items(), samples):
            seconds = float(np.median(times))
            rows.append(
                {
                    "op": op,
                    "codec": bits or None,
                    "peers": comm.size - 1,
                    "bytes": pair.x.nbytes,
                    "gbs": moved * pair.x.nbytes / seconds / 1e9,
                    "latency_us": seconds * 1e6,
                    "sum_error": error,
                }
            )
    return rows


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    some = [row for row in rows if not row["codec"]]
    ylabel = "GB/s (models that are moved)"
    plots.over_bytes(some, path, "gbs", ylabel, lambda row: str(row["op"]), title=title)
