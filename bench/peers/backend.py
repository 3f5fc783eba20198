# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed beside gloo: all_reduce, and a step of DDP, of
perceptrons and of ResNet-18.

Both are groups of the same ranks in one job and take turns, call by call; a ratio is the median of
the pairs of neighboring calls, so that what comes from the rest of the machine falls on both. Each
call ends when its slowest rank has it. Outside of a job it starts one. Needs torch (exit status 2
without it).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Callable

from lib.job import count, experiment
from lib.training import DDP, network, resnet18

from partialcoll.tools.cli import options


def timed(comm: Any, call: Callable[[], None]) -> tuple[float, float]:
    """Seconds of one call on the slowest rank, and of the processor on all of them. Collective."""
    from mpi4py import MPI

    from partialcoll.tools.bench.turns import meet

    meet(comm)
    begin, used = time.perf_counter(), time.process_time()
    call()
    wall = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    return wall, comm.allreduce(time.process_time() - used)


def compare(
    comm: Any,
    what: str,
    size: int,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    turns: int,
) -> dict[str, Any]:
    pairs = [(timed(comm, ours), timed(comm, theirs)) for _ in range(turns + 2)][2:]
    walls = [(a[0], b[0]) for a, b in pairs]
    return {
        "what": what,
        "ranks": comm.size,
        "bytes": size,
        "partialcoll_ms": statistics.median(a for a, _ in walls) * 1e3,
        "gloo_ms": statistics.median(b for _, b in walls) * 1e3,
        "ratio": statistics.median(a / b for a, b in walls),
        "cpu_ratio": sum(a[1] for a, _ in pairs) / sum(b[1] for _, b in pairs),
    }


def all_reduce(comm: Any, group: Any, size: int, turns: int) -> dict[str, Any]:
    """Of float32, in place, checked at the end. Collective."""
    import torch
    import torch.distributed as dist

    tensors = [torch.ones(max(1, size // 4)) for _ in range(2)]
    row = compare(
        comm,
        "all_reduce",
        size,
        lambda: dist.all_reduce(tensors[0].fill_(1)),
        lambda: dist.all_reduce(tensors[1].fill_(1), group=group),
        turns,
    )
    assert all((tensor == comm.size).all() for tensor in tensors), "wrong sums"
    return row


def ddp_step(
    comm: Any, group: Any, what: str, model: Any, shapes: Sequence[tuple[int, ...]], turns: int
) -> dict[str, Any]:
    """Forward, backward and SGD on random data of these shapes, of input and output; checked at the
    end. Collective."""
    import torch

    draws = [torch.Generator().manual_seed(comm.rank) for _ in range(2)]
    small = {"lr": 1e-3}  # steps that keep small what the backends round differently
    methods = [DDP(model, comm, small, process_group=one) for one in (None, group)]

    def step(which: int) -> None:
        methods[which].step(*(torch.randn(shape, generator=draws[which]) for shape in shapes))

    size = 4 * methods[0].parameters().numel()
    row = compare(comm, what, size, lambda: step(0), lambda: step(1), turns)
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
    rows = [all_reduce(comm, group, size, options.iters) for size in options.sizes]
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
