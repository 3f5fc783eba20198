# SPDX-License-Identifier: Apache-2.0
"""A training step where nobody is late: partialcoll's optimizer beside torch's
DistributedDataParallel over gloo, and beside one Comm.Allreduce of mpi4py by hand.

The same perceptron, the same samples, SGD. The methods take turns, in blocks of a few steps; a
step's time is that of the slowest rank. `difference` is that of the parameters in the end. Outside
of a job it starts one. Needs torch (exit status 2 without it).

    python bench/train_ddp.py [-n 2] [--layers 4] [--width 512] [--batch 32] [--json F]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Callable

import gloo

from partialcoll.cli import arguments

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
RATE = 0.05


class Method:
    """A way to train; `step` computes the gradient of some samples and applies everybody's."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        self.model, self.comm = copy.deepcopy(model), comm
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.samples: list[float] = []

    def backward(self, x: Any, y: Any) -> None:
        """This rank's gradient."""
        import torch

        torch.nn.functional.mse_loss(self.model(x), y).backward()

    def step(self, x: Any, y: Any) -> None:
        """A training step. Collective."""
        self.optimizer.zero_grad()
        self.backward(x, y)
        self.optimizer.step()

    def close(self) -> None:
        """Collective."""


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


class Ours(Method):
    """partialcoll.torch."""

    strategy: Any = None

    def __init__(self, model: Any, comm: Any) -> None:
        import partialcoll.torch as pct

        super().__init__(model, comm)
        self.optimizer = pct.DistributedOptimizer(
            self.optimizer, self.model.named_parameters(), strategy=self.strategy
        )

    def close(self) -> None:
        self.optimizer.close()


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


def block(method: Method, data: list[Any]) -> float:
    """Seconds of a step, on the slowest rank, one step after the other. Collective."""
    from mpi4py import MPI

    from partialcoll.bench.group import meet

    meet(method.comm)
    begin = time.perf_counter()
    for x, y in data:
        method.step(x, y)
    seconds: float = method.comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    return seconds / len(data)


def by_turns(methods: Sequence[Any], turns: int, warmup: int, draw: Callable[[], Any]) -> None:
    """Blocks of steps of all methods, one after the other; each keeps its `samples`. draw: the
    data of a turn. Collective."""
    for turn in range(-warmup, turns):
        data = draw()
        for method in methods:
            seconds = block(method, data)
            if turn >= 0:
                method.samples.append(seconds)


def network(layers: int, width: int) -> Any:
    """A perceptron, the same on all ranks."""
    import torch

    torch.manual_seed(0)
    inner = [torch.nn.Linear(width, width) for _ in range(layers)]
    return torch.nn.Sequential(*[m for one in inner for m in (one, torch.nn.ReLU())][:-1])


def run(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
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


def measure(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
    """With gloo's process group around it. Collective."""
    import torch.distributed

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="partialcoll-gloo-") as folder:
        gloo.join_gloo(comm, comm.bcast(folder))
        comm.Barrier()
    rows = run(options, comm)
    torch.distributed.destroy_process_group()
    return rows


def main() -> int:
    number = arguments.positive_int
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=number, default=2, help="ranks (default 2)")
    parser.add_argument("--layers", type=number, default=4, help="(default 4)")
    parser.add_argument("--width", type=number, default=512, help="of each layer (default 512)")
    parser.add_argument("--batch", type=number, default=32, help="of a rank (default 32)")
    parser.add_argument("--steps", type=number, default=10, help="of a turn (default 10)")
    parser.add_argument("--iters", type=number, default=15, help="turns (default 15)")
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    status = gloo.elsewhere(options, __file__)
    return gloo.report(options, __file__, COLUMNS, measure) if status is None else status


if __name__ == "__main__":
    sys.exit(main())
