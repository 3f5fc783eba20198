# SPDX-License-Identifier: Apache-2.0
"""Measure the time that decentralized steps of partialcoll.torch take in the training thread.

A model of --parameters float32, SGD, steps that compute for --batch-ms (the rest by sleeping).
Blocks of --local-steps steps alternate: torch's optimizer alone, and wrapped, with each strategy.
more_ms is the additional time of step() over torch's alone; wait_ms is the optimizer's own count of
time spent on anything but the update (`metrics().wait_s`). Both are means of a block (with Swarm
over its local steps), then medians over blocks, of the slowest rank. exposed_percent is the
larger of the two, in percent of the batch. Outside of a job it starts one. Needs torch.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from lib.job import Rows, count, experiment
from lib.training import PLAIN, Method, Ours

from partialcoll.tools.bench.train.strategies import STRATEGIES, make
from partialcoll.tools.bench.turns import meet
from partialcoll.tools.cli import options, values


def run(options: SimpleNamespace, comm: Any) -> Rows:
    import torch
    from mpi4py import MPI

    import partialcoll.torch as pct

    torch.set_num_threads(1)
    pct.init()
    rows = []
    for name in options.strategies:
        torch.manual_seed(0)
        model = torch.nn.ParameterList(torch.randn(options.parameters).chunk(options.tensors))
        strategy = make(name, options, options.topology)
        ours = Ours(model, comm, strategy, PLAIN)
        methods = (Method(model, comm, PLAIN), ours)
        # Seconds of step() of both, and of its waiting. The first block touches the memory.
        seconds, waits = np.zeros((options.iters + 1, 2)), np.zeros(options.iters + 1)
        for block in range(options.iters + 1):
            before = ours.optimizer.metrics().wait_s
            for which, method in enumerate(methods):
                for _ in range(options.local_steps):
                    begin = time.perf_counter()
                    method.optimizer.zero_grad()
                    torch.autograd.backward(sum(p.sum() for p in method.model))
                    time.sleep(max(0.0, begin + options.batch_ms / 1e3 - time.perf_counter()))
                    begin = time.perf_counter()
                    method.optimizer.step()
                    seconds[block, which] += time.perf_counter() - begin
            waits[block] = ours.optimizer.metrics().wait_s - before
        meet(comm)
        alone, wrapped = np.median(seconds[1:], axis=0)
        mine = np.array([alone, wrapped, np.median(waits[1:]), wrapped - alone])
        mine *= 1e3 / options.local_steps
        comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
        torch_ms, step_ms, wait_ms, more_ms = mine.tolist()
        sent = comm.allreduce(ours.optimizer.metrics().communications)
        ours.optimizer.join()
        ours.close()
        rows.append(
            {
                "strategy": name,
                "ranks": comm.size,
                "parameters": options.parameters,
                "batch_ms": options.batch_ms,
                "torch_step_ms": torch_ms,
                "step_ms": step_ms,
                "more_ms": more_ms,
                "wait_ms": wait_ms,
                "exposed_percent": max(more_ms, wait_ms) * 100 / options.batch_ms,
                "communications": sent,
            }
        )
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
