# SPDX-License-Identifier: Apache-2.0
"""What a decentralized step exposes to the training thread, through partialcoll.torch.

A model of --parameters float32, SGD, steps that compute for --batch-ms (the rest by sleeping). By
turns, in blocks of --local-steps steps: torch's optimizer alone, and wrapped, with each strategy.
more_ms is what step() takes longer than torch's alone, wait_ms what the optimizer says itself that
steps spend on anything but the update (`metrics().wait_s`): means of a block, so with Swarm
averages over its local steps; the medians over blocks, of the slowest rank. exposed_percent is the
larger of the two, in percent of the batch. Outside of a job it starts one. Needs torch (exit status
2 without it).
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment
from lib.training import PLAIN, Method, Ours

from partialcoll.tools.bench.train.strategies import STRATEGIES, make
from partialcoll.tools.bench.turns import meet
from partialcoll.tools.cli import options, values


def block(method: Method, given: SimpleNamespace) -> tuple[float, float]:
    """Return the mean seconds of step(), and of its waiting, over a block of steps."""
    import torch

    def waited() -> float:
        return float(method.optimizer.metrics().wait_s) if isinstance(method, Ours) else 0.0

    seconds, before = 0.0, waited()
    for _ in range(given.local_steps):
        begin = time.perf_counter()
        method.optimizer.zero_grad()
        torch.autograd.backward(sum(p.sum() for p in method.model))
        time.sleep(max(0.0, begin + given.batch_ms / 1e3 - time.perf_counter()))
        begin = time.perf_counter()
        method.optimizer.step()
        seconds += time.perf_counter() - begin
    return seconds / given.local_steps, (waited() - before) / given.local_steps


def beside(name: str, options: SimpleNamespace, comm: Any) -> dict[str, Any]:
    import torch
    from mpi4py import MPI

    torch.manual_seed(0)
    model = torch.nn.ParameterList(torch.randn(options.parameters).chunk(options.tensors))
    strategy = make(name, options, options.topology)
    methods = (Method(model, comm, PLAIN), Ours(model, comm, strategy, PLAIN))
    blocks = [[block(method, options) for method in methods] for _ in range(options.iters + 1)]
    meet(comm)
    # Without the first blocks, which touched the memory.
    alone, wrapped, waits = (
        statistics.median(pair[which][field] for pair in blocks[1:])
        for which, field in ((0, 0), (1, 0), (1, 1))
    )
    mine = (alone, wrapped, waits, wrapped - alone)
    torch_s, step_s, wait_s, more_s = (comm.allreduce(value, MPI.MAX) for value in mine)
    optimizer = methods[1].optimizer
    sent = comm.allreduce(optimizer.metrics().communications)
    optimizer.join()
    methods[1].close()
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
    import torch

    import partialcoll.torch as pct

    torch.set_num_threads(1)
    pct.init()
    rows = [beside(name, options, comm) for name in options.strategies]
    pct.shutdown()
    return rows


command = experiment(
    "exposed",
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
