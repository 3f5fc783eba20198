# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed beside gloo: all_reduce, and a step of DDP, of
perceptrons and of ResNet-18.

Both are groups of the same ranks in one job and take turns, call by call; a ratio is the median of
the pairs of neighboring calls, so that what comes from the rest of the machine falls on both. Each
call ends when its slowest rank has it. Outside of a job it starts one. Needs torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
from lib.job import count, experiment
from lib.training import DDP, network, resnet18

from partialcoll.tools.cli import options


def compare(
    comm: Any, what: str, size: int, calls: Sequence[Callable[[], None]], turns: int
) -> dict[str, Any]:
    """Return the row of two calls, ours and theirs. Seconds are of the slowest rank, of the
    processor of all ranks. Collective."""
    from mpi4py import MPI

    from partialcoll.tools.bench.turns import meet

    walls, used = np.zeros((2, turns)), np.zeros((2, turns))
    for turn in range(-2, turns):
        for which, call in enumerate(calls):
            meet(comm)
            begin, cpu = time.perf_counter(), time.process_time()
            call()
            wall = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
            cpu = comm.allreduce(time.process_time() - cpu)
            if turn >= 0:
                walls[which, turn], used[which, turn] = wall, cpu
    ours, theirs = np.median(walls, axis=1)
    return {
        "what": what,
        "ranks": comm.size,
        "bytes": size,
        "partialcoll_ms": float(ours) * 1e3,
        "gloo_ms": float(theirs) * 1e3,
        "ratio": float(np.median(walls[0] / walls[1])),
        "cpu_ratio": float(used[0].sum() / used[1].sum()),
    }


def ddp_step(
    comm: Any, group: Any, what: str, model: Any, shapes: Sequence[tuple[int, ...]], turns: int
) -> dict[str, Any]:
    """Measure and check SGD on random input and output of these shapes. Collective."""
    import torch

    draws = [torch.Generator().manual_seed(comm.rank) for _ in range(2)]
    small = {"lr": 1e-3}  # steps that keep small what the backends round differently
    methods = [DDP(model, comm, small, process_group=one) for one in (None, group)]

    def step(which: int) -> None:
        methods[which].step(*(torch.randn(shape, generator=draws[which]) for shape in shapes))

    size = 4 * methods[0].parameters().numel()
    row = compare(comm, what, size, [partial(step, 0), partial(step, 1)], turns)
    ours, theirs = (method.parameters() for method in methods)
    assert torch.allclose(ours, theirs, atol=1e-3), "not the same parameters"
    return row


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import partialcoll.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("partialcoll")
    group = dist.new_group(backend="gloo")
    rows = []
    for size in options.sizes:  # float32, in place
        x, y = (torch.ones(max(1, size // 4)) for _ in range(2))
        calls = (
            lambda x=x: dist.all_reduce(x.fill_(1)),
            lambda y=y: dist.all_reduce(y.fill_(1), group=group),
        )
        rows.append(compare(comm, "all_reduce", size, calls, options.iters))
        assert (x == comm.size).all() and (y == comm.size).all(), "wrong sums"
    for width in (64, 512, 1024):
        model, shape = network(4, width), (32, width)
        rows.append(ddp_step(comm, group, "DDP step", model, [shape, shape], options.iters))
    model, shapes = resnet18(), [(8, 3, 32, 32), (8, 1000)]
    rows.append(ddp_step(comm, group, "DDP step, ResNet-18", model, shapes, options.iters))
    dist.destroy_process_group()
    return rows


command = experiment(
    "backend",
    run,
    options.sizes("4K,64K,256K,1M,4M,16M,64M"),
    count("--iters", 15, "turns"),
    about=__doc__,
    ranks=4,
)
