# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over gloo: its own allreduce, and with partialcoll's communication hook.

The same perceptron, the same samples, SGD, by turns in blocks of steps, in one job; first with
nobody late, then with one rank, drawn anew for each step, late by --late-ms. step_ms is the time of
a block divided by its steps, of the slowest rank; the median over blocks, and the fastest and
slowest of them. active is how many ranks' gradients a round had on average. Outside of a job it
starts one. Needs torch (exit status 2 without it).

    python bench/run.py ddp_hook [-n 2] [--layers 4] [--width 512] [--batch 32] [--json F]
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment, gloo_group

from partialcoll.tools.bench.turns import meet
from partialcoll.tools.cli import options, values

COLUMNS = (
    "method",
    "ranks",
    "parameters",
    "late_ms",
    "step_ms",
    "fastest_ms",
    "slowest_ms",
    "speedup_vs_ddp",
    "active",
)
METHODS = {"ddp-gloo": None, "hook-full": "full", "hook-majority": "majority", "hook-solo": "solo"}


class Method:
    """A DDP object of its own, and the times of its blocks."""

    def __init__(self, name: str, model: Any) -> None:
        import torch

        import partialcoll.torch as pct

        self.name, self.samples, self.state = name, [], None
        self.ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01, momentum=0.9)
        if METHODS[name] is not None:
            self.state = pct.PartialState(METHODS[name])
            self.ddp.register_comm_hook(self.state, pct.partial_allreduce_hook)

    def block(self, comm: Any, x: Any, y: Any, late: list[float]) -> None:
        """A step for each of these delays in seconds. Collective."""
        import torch
        from mpi4py import MPI

        meet(comm)
        begin = time.perf_counter()
        for delay in late:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.ddp(x), y)
            if delay:
                time.sleep(delay)
            loss.backward()
            self.optimizer.step()
        own = (time.perf_counter() - begin) / len(late)
        if self.state is not None:
            self.state.join(self.optimizer)
        self.samples.append(comm.allreduce(own, MPI.MAX) * 1e3)


def delays(options: SimpleNamespace, comm: Any, turn: int, late: float) -> list[float]:
    """Of this rank, one for each step of a block: the same draws for every method."""
    draw = random.Random(turn)
    who = [draw.randrange(comm.size) for _ in range(options.steps)]
    return [late * (rank == comm.rank) for rank in who]


def measure(options: SimpleNamespace, comm: Any, late_ms: float) -> list[dict[str, Any]]:
    """A row for each method. Collective."""
    import torch

    torch.manual_seed(0)
    layers: list[Any] = []
    for _ in range(options.layers):
        layers += [torch.nn.Linear(options.width, options.width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    methods = [Method(name, model) for name in METHODS]
    torch.manual_seed(comm.rank)
    x, y = torch.randn(2, options.batch, options.width)
    for turn in range(options.iters + 1):
        late = delays(options, comm, turn, late_ms / 1e3)
        for method in methods:
            method.block(comm, x, y, late)
    rows = []
    for method in methods:
        samples = method.samples[1:]  # in the first, buckets and handles were made
        rows.append(
            {
                "method": method.name,
                "ranks": comm.size,
                "parameters": sum(p.numel() for p in model.parameters()),
                "late_ms": late_ms,
                "step_ms": statistics.median(samples),
                "fastest_ms": min(samples),
                "slowest_ms": max(samples),
                "active": comm.size if method.state is None else method.state.metrics().mean_active,
            }
        )
        rows[-1]["speedup_vs_ddp"] = rows[0]["step_ms"] / rows[-1]["step_ms"]
        if method.state is not None:
            method.state.close()
    return rows


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """Nobody late, then one rank. Collective."""
    import partialcoll.torch as pct

    pct.init()
    with gloo_group(comm):
        rows = [row for late in (0.0, options.late_ms) for row in measure(options, comm, late)]
    pct.shutdown()
    return rows


command = experiment(
    "ddp_hook",
    COLUMNS,
    run,
    count("--layers", 4, "of the perceptron"),
    count("--width", 512, "of each layer"),
    count("--batch", 32, "of each rank"),
    count("--steps", 10, "of a block"),
    count("--iters", 15, "blocks"),
    options.option("--late-ms", values.POSITIVE, 20.0, "of the rank that is late"),
    about=__doc__,
    ranks=2,
)
