# SPDX-License-Identifier: Apache-2.0
"""A training step where nobody is late: partialcoll's optimizer beside torch's
DistributedDataParallel over gloo, and beside one Comm.Allreduce of mpi4py by hand.

The same perceptron, the same samples, SGD. The methods take turns, in blocks of a few steps; a
step's time is that of the slowest rank. `difference` is that of the parameters in the end. Outside
of a job it starts one. Needs torch (exit status 2 without it).

    python bench/run.py train_ddp [-n 2] [--layers 4] [--width 512] [--batch 32] [--json F]
"""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment, gloo_group
from lib.training import Method, Ours, by_turns, network

COLUMNS = (
    "method",
    "ranks",
    "parameters",
    "step_ms",
    "fastest_ms",
    "slowest_ms",
    "vs_faster_of_the_others",
    "difference",
)
OTHERS = ("ddp-gloo", "Comm.Allreduce")


class DDP(Method):
    """torch's own."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        super().__init__(model, comm)
        self.model = torch.nn.parallel.DistributedDataParallel(self.model)


class OfMPI(Method):
    """All gradients in one buffer, one MPI_Allreduce in place."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        super().__init__(model, comm)
        parameters = list(self.model.parameters())
        self.flat = torch.zeros(sum(p.numel() for p in parameters))
        for parameter, part in zip(parameters, self.flat.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter)

    def step(self, x: Any, y: Any) -> None:
        from mpi4py import MPI

        self.flat.zero_()
        self.backward(x, y)
        self.comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())
        self.flat.div_(self.comm.size)
        self.optimizer.step()


def methods(model: Any, comm: Any) -> dict[str, Method]:
    """By name."""
    import partialcoll.torch as pct

    class Full(Ours):
        strategy = pct.Eager("full")

    made: dict[str, type[Method]] = {
        "ddp-gloo": DDP,
        "Comm.Allreduce": OfMPI,
        "allreduce": Ours,
        "eager-full": Full,
    }
    return {name: make(model, comm) for name, make in made.items()}


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """All methods by turns; rows. Collective."""
    import torch

    import partialcoll.torch as pct

    pct.init()
    model = network(options.layers, options.width)
    some = methods(model, comm)
    draw = torch.Generator().manual_seed(comm.rank)
    shape = (options.steps, options.batch, options.width)

    def data() -> Any:
        return list(zip(torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)))

    by_turns(list(some.values()), options.iters, 2, data)
    ends = {
        name: torch.nn.utils.parameters_to_vector(method.model.parameters()).detach()
        for name, method in some.items()
    }
    best = min(statistics.median(some[name].samples) for name in OTHERS)
    rows = []
    for name, method in some.items():
        seconds = statistics.median(method.samples)
        rows.append(
            {
                "method": name,
                "ranks": comm.size,
                "parameters": sum(p.numel() for p in model.parameters()),
                "batch": options.batch,
                "step_ms": seconds * 1e3,
                "fastest_ms": min(method.samples) * 1e3,
                "slowest_ms": max(method.samples) * 1e3,
                "vs_faster_of_the_others": seconds / best,
                "difference": float((ends[name] - ends["Comm.Allreduce"]).abs().max()),
            }
        )
        method.close()
    pct.shutdown()
    return rows


def measure(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """With gloo's process group around it. Collective."""
    with gloo_group(comm):
        return run(options, comm)


command = experiment(
    "train_ddp",
    COLUMNS,
    measure,
    count("--layers", 4, "of the perceptron"),
    count("--width", 512, "of each layer"),
    count("--batch", 32, "of a rank"),
    count("--steps", 10, "of a turn"),
    count("--iters", 15, "turns"),
    about=__doc__,
    ranks=2,
)
