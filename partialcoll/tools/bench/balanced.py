# SPDX-License-Identifier: Apache-2.0
"""No skew: latency and bandwidth of each collective over the message size. Outside of the timing a
few calls with other values each are checked, every element on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.buffers import Array
from ..._core.mpi import MPI
from .. import plots, report, skewed
from . import turns

COLUMNS = report.columns(
    "collective domain algorithm ranks bytes latency_us_avg latency_us_p50 latency_us_p99 "
    "speedup_vs_mpi limit_us speedup_vs_limit bandwidth_gbs busbw_gbs active_mean wrong"
)
_BATCH_BYTES = 8 << 20  # of a batch, so that large messages have few calls
_MOST_CALLS = 100
_CHECKED_CALLS = 3


@dataclass(frozen=True)
class BatchKind:
    """A contender to be made: a policy or "mpi", with the domains to measure it in."""

    name: str
    domains: Sequence[str]
    algorithm: str
    late: str = "drop"


@dataclass
class BatchContender:
    """One collective on buffers of one size, and what this rank measured of it."""

    name: str
    domain: str
    algorithm: str
    call: Callable[[], Any]
    send: Callable[[], Array]
    """Returns the array to fill for the next call."""
    result: Callable[[], Array]
    """Returns the result of the last call."""
    received: Array | None
    """The memory that a call fills, if the caller owns it."""
    handle: pc.AllreduceHandle | None = None
    active: list[int] = field(default_factory=list)
    wrong: int = 0

    def check(self, comm: MPI.Intracomm, step: int) -> None:
        if self.received is not None:
            self.received.fill(-1)
        self.send().fill((comm.rank + step) % 7 + 1)
        rnd = self.call()
        mask = rnd.mask if isinstance(rnd, pc.Round) else np.ones(comm.size, bool)
        expected = ((np.flatnonzero(mask) + step) % 7 + 1).sum()
        self.wrong += int(np.count_nonzero(self.result() != np.float32(expected)))
        self.active.append(int(mask.sum()))


def of_handle(name: str, handle: pc.AllreduceHandle, received: Array | None) -> BatchContender:
    return BatchContender(
        name,
        handle.domain,
        handle.algorithm,
        turns.start_and_wait(handle, takes_slot=received is None),
        send=lambda: handle.send_buffer,
        result=lambda: handle.result,
        received=received,
        handle=handle,
    )


def of_kind(
    kind: BatchKind,
    zero_copy: bool,
    comm: MPI.Intracomm,
    send: Array,
    recv: Array,
    command: str = "bench balanced",
) -> list[BatchContender]:
    if kind.name == "mpi":
        call = partial(comm.Allreduce, send, recv, MPI.SUM)
        return [BatchContender("mpi", "-", "native", call, lambda: send, lambda: recv, recv)]

    def make(domain: str) -> pc.AllreduceHandle:
        buffers = (None, None) if zero_copy else (send, recv)
        return pc.Allreduce_init(
            comm,
            *buffers,
            quorum=kind.name,
            late=kind.late,
            algorithm=kind.algorithm,
            domain=domain,
            like=send if zero_copy else None,
            name=f"bench {kind.name}",
        )

    name = f"{kind.name} (zero copy)" if zero_copy else kind.name
    received = None if zero_copy else recv
    made = turns.handles(comm, kind.domains, make, f"{command}, {kind.name}")
    return [of_handle(name, handle, received) for handle in made]


def by_turns(
    contenders: Sequence[BatchContender],
    comm: MPI.Intracomm,
    count: int,
    iters: int,
    link_gbps: float | None = None,
    calls: int | None = None,
) -> list[report.Row]:
    """Check and time the contenders in alternation, and free their handles; return the rows on rank
    0. Collective. `link_gbps` is the bandwidth of each host, in gigabits per second, for the
    computed limit. `calls` is the number of calls in a batch; default: fewer for large messages."""
    gate = turns.Gate(comm)
    calls = calls or max(1, min(_MOST_CALLS, _BATCH_BYTES // (4 * count)))

    def batch(call: Callable[[], Any]) -> float:
        gate.meet()
        return 1e6 * turns.per_call(call, calls)

    for step in range(_CHECKED_CALLS):  # they also warm up
        for c in contenders:
            c.check(comm, step)
            gate.meet()
    measures = [partial(batch, c.call) for c in contenders]
    samples = turns.by_turns(measures, iters, warmup=0, comm=comm)
    limit, hosts = None, gate.domains
    if link_gbps and hosts > 1:  # what the link of a host must carry: 2S(H-1)/H
        limit = 2 * 4 * count * (hosts - 1) / hosts * 8 / link_gbps / 1e3
    rows = []
    for c, us in zip(contenders, samples):
        active, wrong = comm.gather(c.active), comm.reduce(c.wrong)
        if active is not None:
            how = {"domain": c.domain, "algorithm": c.algorithm, "limit_us": limit, "wrong": wrong}
            row = skewed.row(c.name, comm.size, count, us, active, **how)
            row["bandwidth_gbs"] = row["bytes"] / row["latency_us_avg"] / 1e3
            row["busbw_gbs"] = row["bandwidth_gbs"] * 2 * (comm.size - 1) / comm.size
            rows.append(row)
        if c.handle is not None:
            c.handle.Free()
    gate.free()
    skewed.compare(rows, by="latency_us_p50")
    return rows


def measure(
    kinds: Sequence[BatchKind],
    comm: MPI.Intracomm,
    count: int,
    iters: int,
    zero_copy: bool = False,
    **how: Any,
) -> list[report.Row]:
    """Measure collectives on `count` elements with `by_turns`, to which `how` is passed. With
    `zero_copy` deposits and results stay in the library's memory."""
    send, recv = np.ones(count, np.float32), np.empty(count, np.float32)
    contenders = [c for kind in kinds for c in of_kind(kind, zero_copy, comm, send, recv)]
    return by_turns(contenders, comm, count, iters, **how)


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    kinds = [BatchKind(name, options.domain, options.algorithm) for name in options.collectives]
    how, rows = {"zero_copy": options.zero_copy, "link_gbps": options.link_gbps}, []
    for size in report.progress(options.sizes, comm.rank == 0, "balanced"):
        rows += measure(kinds, comm, max(1, size // 4), options.iters, **how)
    return rows


def plot(rows: list[report.Row], path: str, title: str = "", by: str = "collective") -> None:
    how: dict[str, Any] = {"title": title or f"{rows[0]['ranks']} ranks, no skew", "log": True}
    label = partial(skewed.label, rows=rows, by=by)
    plots.over_bytes(rows, path, "latency_us_p50", "time of a call, median (µs)", label, **how)
