# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel over gloo, and partialcoll: a step without a late rank
(train_ddp), and DDP with partialcoll's communication hook (ddp_hook). All train the same perceptron
on the same samples with SGD. They need torch."""

from __future__ import annotations

import random
import time
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

    def step(self, x: Any, y: Any) -> None:
        from mpi4py import MPI

        self.flat.zero_()
        self.backward(x, y)
        self.comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())
        self.flat.div_(self.comm.size)
        self.optimizer.step()


def on_time(given: SimpleNamespace, comm: Any) -> Rows:
    """Measure partialcoll's optimizer beside torch's DistributedDataParallel over gloo, and beside
    one Comm.Allreduce of mpi4py by hand, where nobody is late.

    The methods take turns, in blocks of a few steps; a step's time is that of the slowest rank.
    `difference` is that of the parameters in the end. Outside of a job the command starts one.
    """
    import torch

    import partialcoll.torch as pct

    with gloo_group(comm):
        pct.init()
        model = network(given.layers, given.width)
        methods = {
            "ddp-gloo": DDP(model, comm),
            "Comm.Allreduce": PlainAllreduce(model, comm),
            "allreduce": Ours(model, comm),
            "eager-full": Ours(model, comm, pct.Eager("full")),
        }
        draw = torch.Generator().manual_seed(comm.rank)
        shape = (given.steps, given.batch, given.width)

        def data() -> Any:
            return list(zip(torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)))

        by_turns(list(methods.values()), given.iters, 2, data)
        rows = [{**method.row(name), "batch": given.batch} for name, method in methods.items()]
        best = min(row["step_ms"] for row in rows[:2])
        expected = methods["Comm.Allreduce"].parameters()
        for row, method in zip(rows, methods.values()):
            row["vs_faster_of_the_others"] = row["step_ms"] / best
            row["difference"] = float((method.parameters() - expected).abs().max())
            method.close()
        pct.shutdown()
    return rows


class Hooked(DDP):
    """DDP, with partialcoll's hook unless `quorum` is None; steps may be late."""

    def __init__(self, model: Any, comm: Any, quorum: str | None) -> None:
        import partialcoll.torch as pct

        super().__init__(model, comm)
        self.state = pct.PartialState(self.model, quorum) if quorum else None

    def step(self, x: Any, y: Any, late_s: float = 0.0) -> None:
        import torch

        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        time.sleep(late_s)
        loss.backward()
        self.optimizer.step()

    def settle(self) -> None:
        if self.state:
            self.state.join(self.optimizer)

    def row(self, name: str) -> dict[str, Any]:
        active = self.state.metrics().mean_active if self.state else self.comm.size
        return {**super().row(name), "active": active}

    def close(self) -> None:
        if self.state:
            self.state.close()


def hooks(given: SimpleNamespace, comm: Any) -> Rows:
    """Measure DistributedDataParallel over gloo: its own allreduce, and partialcoll's hook.

    All take turns in blocks of steps, in one job; first without a late rank, then with one rank,
    chosen at random for each step, late by --late-ms. step_ms is the time of a block divided by
    its steps, of the slowest rank; the median over blocks, and the fastest and slowest of them.
    active is how many ranks' gradients a round had on average. Outside of a job the command starts
    one.
    """
    import torch

    import partialcoll.torch as pct

    pct.init()
    rows: Rows = []
    kinds = ("full", "majority", "solo")
    with gloo_group(comm):
        for late_ms in (0.0, given.late_ms):
            model, drawn = network(given.layers, given.width), random.Random(0)
            methods = {"ddp-gloo": Hooked(model, comm, None)}
            methods.update((f"hook-{quorum}", Hooked(model, comm, quorum)) for quorum in kinds)
            torch.manual_seed(comm.rank)
            x, y = torch.randn(2, given.batch, given.width)

            def data(x: Any = x, y: Any = y, drawn: Any = drawn, late_ms: float = late_ms) -> Any:
                who = [drawn.randrange(comm.size) for _ in range(given.steps)]
                return [(x, y, late_ms / 1e3 * (rank == comm.rank)) for rank in who]

            by_turns(list(methods.values()), given.iters, 1, data)
            some = [{**m.row(name), "late_ms": late_ms} for name, m in methods.items()]
            for row, method in zip(some, methods.values()):
                row["speedup_vs_ddp"] = some[0]["step_ms"] / row["step_ms"]
                method.close()
            rows += some
    pct.shutdown()
    return rows


command = experiment(
    "train_ddp",
    on_time,
    count("--layers", 4, "of the perceptron"),
    count("--width", 512, "of each layer"),
    count("--batch", 32, "of a rank"),
    count("--steps", 10, "of a turn"),
    count("--iters", 15, "turns"),
    ranks=2,
)
ddp_hook = experiment(
    "ddp_hook",
    hooks,
    count("--layers", 4, "of the perceptron"),
    count("--width", 512, "of each layer"),
    count("--batch", 32, "of each rank"),
    count("--steps", 10, "of a block"),
    count("--iters", 15, "blocks"),
    options.option("--late-ms", values.POSITIVE, 20.0, "of the rank that is late"),
    ranks=2,
)
