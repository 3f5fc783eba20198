# SPDX-License-Identifier: Apache-2.0
"""A step of training beside torch's DistributedDataParallel over gloo. Needs torch."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from lib.job import Rows, count, experiment, gloo_group
from lib.training import DDP, Method, Ours, by_turns, network

from partialcoll.tools.cli import options, values


class PlainAllreduce(Method):
    """All gradients in one buffer, one MPI_Allreduce in place."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        super().__init__(model, comm)
        parameters = list(self.model.parameters())
        self.flat = torch.zeros(sum(p.numel() for p in parameters))
        for parameter, part in zip(parameters, self.flat.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter)

    def step(self, *sample: Any) -> None:
        from mpi4py import MPI

        self.flat.zero_()
        self.backward(*sample)
        self.comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())
        self.flat.div_(self.comm.size)
        self.optimizer.step()


class Hooked(DDP):
    """DDP with partialcoll's hook."""

    def __init__(self, model: Any, comm: Any, quorum: str) -> None:
        import partialcoll.torch as pct

        super().__init__(model, comm)
        self.state = pct.PartialState(self.model, quorum)

    def settle(self) -> None:
        self.state.join(self.optimizer)

    def row(self, name: str) -> dict[str, Any]:
        return {**super().row(name), "active": self.state.metrics().mean_active}

    def close(self) -> None:
        self.state.close()


def run(given: SimpleNamespace, comm: Any) -> Rows:
    """Measure a step of DistributedDataParallel over gloo: by its own allreduce, and with
    partialcoll's hook; of partialcoll's optimizer; and with one Comm.Allreduce of mpi4py by hand.

    All train the same perceptron on the same samples with SGD, and take turns in blocks of steps,
    in one job; first without a late rank, then with one rank, chosen at random for each step, late
    by --late-ms. step_ms is the time of a block divided by its steps, of the slowest rank; the
    median over blocks, and the fastest and slowest of them. active is how many ranks' gradients a
    round had on average, difference that of the parameters in the end from those by hand. Outside
    of a job the command starts one.
    """
    import torch

    import partialcoll.torch as pct

    pct.init()
    rows: Rows = []
    with gloo_group(comm):
        for late_ms in (0.0, given.late_ms):
            model, drawn = network(given.layers, given.width), random.Random(0)
            methods = {
                "ddp-gloo": DDP(model, comm),
                **{f"hook-{q}": Hooked(model, comm, q) for q in ("full", "majority", "solo")},
                "Comm.Allreduce": PlainAllreduce(model, comm),
                "allreduce": Ours(model, comm),
                "eager-full": Ours(model, comm, pct.Eager("full")),
            }
            torch.manual_seed(comm.rank)
            x, y = torch.randn(2, given.batch, given.width)

            def data(x: Any = x, y: Any = y, drawn: Any = drawn, late_ms: float = late_ms) -> Any:
                who = [drawn.randrange(comm.size) for _ in range(given.steps)]
                return [(x, y, late_ms / 1e3 * (rank == comm.rank)) for rank in who]

            by_turns(methods.values(), given.iters, 1, data)
            expected = methods["Comm.Allreduce"].parameters()
            some = [{**m.row(name), "late_ms": late_ms} for name, m in methods.items()]
            for row, method in zip(some, methods.values()):
                row["speedup_vs_ddp"] = some[0]["step_ms"] / row["step_ms"]
                row["difference"] = float((method.parameters() - expected).abs().max())
                method.close()
            rows += some
    pct.shutdown()
    return rows


command = experiment(
    "ddp_hook",
    run,
    count("--layers", 4, "of the perceptron"),
    count("--width", 512, "of each layer"),
    count("--batch", 32, "of each rank"),
    count("--steps", 10, "of a block"),
    count("--iters", 15, "blocks"),
    options.option("--late-ms", values.POSITIVE, 20.0, "of the rank that is late"),
    ranks=2,
)
