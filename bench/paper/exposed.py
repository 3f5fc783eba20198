# SPDX-License-Identifier: Apache-2.0
"""What a decentralized step exposes to the training thread, through partialcoll.torch.

A model of --parameters float32, SGD, steps that compute for --batch-ms (the rest by sleeping). By
turns, in blocks of --local-steps steps: torch's optimizer alone, and wrapped, with each strategy.
more_ms is what step() takes longer than torch's alone, wait_ms what the optimizer says itself that
steps spend on anything but the update (`metrics().wait_s`): means of a block, so with Swarm
averages over its local steps; the medians over blocks, of the slowest rank. exposed_percent is the
larger of the two, in percent of the batch. Outside of a job it starts one. Needs torch (exit status
2 without it).

    python bench/run.py exposed [-n 2] [--strategies swarm] [--parameters 25000000] [--json F]
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment

from partialcoll.tools import report
from partialcoll.tools.bench.train.strategies import STRATEGIES, make
from partialcoll.tools.cli import options, values

COLUMNS = report.columns(
    "strategy ranks parameters batch_ms torch_step_ms step_ms more_ms wait_ms exposed_percent "
    "communications"
)


class Training:
    """A model of its own and its optimizer, which `wrap` may wrap."""

    def __init__(self, options: SimpleNamespace, wrap: Any = None) -> None:
        import torch

        self.batch = options.batch_ms / 1e3
        part = options.parameters // options.tensors
        sizes = [part] * (options.tensors - 1)
        sizes.append(options.parameters - sum(sizes))
        torch.manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
        self.optimizer: Any = torch.optim.SGD(self.parameters, lr=1e-4)
        if wrap is not None:
            named = [(f"p{i}", p) for i, p in enumerate(self.parameters)]
            self.optimizer = wrap(self.optimizer, named)
        self.blocks: list[float] = []
        self.waits: list[float] = []

    def _wait(self) -> float:
        metrics = getattr(self.optimizer, "metrics", None)
        return 0.0 if metrics is None else float(metrics().wait_s)

    def block(self, steps: int) -> None:
        """So many steps; the mean seconds of step(), and of its waiting."""
        import torch

        seconds, waited = 0.0, self._wait()
        for _ in range(steps):
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            torch.autograd.backward(sum(p.sum() for p in self.parameters))
            time.sleep(max(0.0, begin + self.batch - time.perf_counter()))
            begin = time.perf_counter()
            self.optimizer.step()
            seconds += time.perf_counter() - begin
        self.blocks.append(seconds / steps)
        self.waits.append((self._wait() - waited) / steps)


def median(blocks: list[float]) -> float:
    """Without the first block, which touched the memory."""
    return statistics.median(blocks[1:])


def beside(name: str, options: SimpleNamespace, comm: Any) -> dict[str, Any]:
    """The row of a strategy. Collective."""
    from mpi4py import MPI

    import partialcoll.torch as pct
    from partialcoll.tools.bench.turns import meet

    strategy = make(name, options, options.topology)
    alone = Training(options)
    wrapped = Training(
        options, lambda inner, named: pct.DistributedOptimizer(inner, named, strategy=strategy)
    )
    for _ in range(options.iters + 1):
        for training in (alone, wrapped):
            training.block(options.local_steps)
    meet(comm)
    mine = (median(alone.blocks), median(wrapped.blocks), median(wrapped.waits))
    torch_s, step_s, wait_s = (comm.allreduce(value, MPI.MAX) for value in mine)
    more_s = comm.allreduce(mine[1] - mine[0], MPI.MAX)
    sent = comm.allreduce(wrapped.optimizer.metrics().communications)
    wrapped.optimizer.join()
    wrapped.optimizer.close()
    return {
        "strategy": name,
        "ranks": comm.size,
        "parameters": options.parameters,
        "batch_ms": options.batch_ms,
        "torch_step_ms": torch_s * 1e3,
        "step_ms": step_s * 1e3,
        "more_ms": more_s * 1e3,
        "wait_ms": wait_s * 1e3,
        "exposed_percent": max(more_s, wait_s) * 1e5 / options.batch_ms,
        "communications": sent,
    }


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """A row for each strategy. Collective."""
    import torch

    import partialcoll.torch as pct

    torch.set_num_threads(1)
    pct.init()
    rows = [beside(name, options, comm) for name in options.strategies]
    pct.shutdown()
    return rows


command = experiment(
    "exposed",
    COLUMNS,
    run,
    options.option(
        "--strategies",
        values.some_of(tuple(STRATEGIES)),
        "swarm",
        f"some of {', '.join(STRATEGIES)}",
    ),
    count("--parameters", 25_000_000, "of the model"),
    count("--tensors", 40, "they lie in"),
    options.option("--batch-ms", values.POSITIVE, 100.0, "that a step computes for"),
    count("--local-steps", 4, "of a block"),
    count("--iters", 20, "blocks"),
    about=__doc__,
    ranks=2,
    topology=None,
    rate=None,
    grid=None,
    history=16,
)
