# SPDX-License-Identifier: Apache-2.0
"""Gradients that go while backward computes others: what is left of their transfer in a step?

Emulated hosts of one rank each (see bench/lib/hosts.py: needs root, iproute2, MPICH, torch). The
backward pass of each layer takes a while in which its processor is free, as with an accelerator;
then the layer's gradient is there. DistributedDataParallel over gloo, Allreduce() and
Allreduce(overlap=True) take turns in one job, beside steps that move nothing. `exposed_ms` is what
a step takes more than those; `link_ms` what its gradients need on a link by bandwidth alone,
2 (P-1)/P times their size.

    python bench/run.py overlap [--hosts 4] [--rate 1gbit] [--backward-ms 500] [--layers 10]
                                [--width 1024] [--bucket 8M] [--iters 9] [--json F]
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

from lib.hosts import RATE, bits_per_second, on_hosts
from lib.job import count, experiment, gloo_group
from lib.training import Method, Ours, by_turns

from partialcoll.tools.cli import options, values

COLUMNS = (
    "method",
    "ranks",
    "bytes",
    "backward_ms",
    "link_ms",
    "step_ms",
    "exposed_ms",
    "of_allreduce",
    "difference",
)


def network(options: SimpleNamespace) -> Any:
    """Layers whose gradients take their time."""
    import torch

    seconds = options.backward_ms / 1e3 / options.layers

    class Pause(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            time.sleep(seconds)
            return gradient

    class Layer(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return Pause.apply(super().forward(x).tanh())

    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(Layer(options.width, options.width) for _ in range(options.layers))
    )


def methods(options: SimpleNamespace, comm: Any) -> dict[str, Method]:
    """By name."""
    import torch

    import partialcoll.torch as pct

    class DDP(Method):
        def __init__(self, model: Any, comm: Any) -> None:
            super().__init__(model, comm)
            self.model = torch.nn.parallel.DistributedDataParallel(
                self.model, bucket_cap_mb=options.bucket / 2**20
            )

    class Overlap(Ours):
        strategy = pct.Allreduce(overlap=True, bucket_bytes=options.bucket)

    made: dict[str, type[Method]] = {
        "nothing moves": Method,
        "ddp-gloo": DDP,
        "Allreduce()": Ours,
        "Allreduce(overlap=True)": Overlap,
    }
    return {name: make(network(options), comm) for name, make in made.items()}


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """All methods by turns; rows. Collective."""
    import torch

    import partialcoll.torch as pct

    pct.init()
    some = methods(options, comm)
    draw = torch.Generator().manual_seed(comm.rank)

    def data() -> Any:
        return [
            tuple(torch.randn(2, 4, options.width, generator=draw)) for _ in range(options.steps)
        ]

    by_turns(list(some.values()), options.iters, 1, data)
    ends = {
        name: torch.nn.utils.parameters_to_vector(method.model.parameters()).detach()
        for name, method in some.items()
    }
    typical = {name: statistics.median(method.samples) for name, method in some.items()}
    nbytes = 4 * ends["Allreduce()"].numel()
    rows = []
    for name, method in some.items():
        exposed = typical[name] - typical["nothing moves"]
        link = 16 * nbytes * (comm.size - 1) / comm.size / bits_per_second(options.rate)
        alike = name != "nothing moves"
        rows.append(
            {
                "method": name,
                "ranks": comm.size,
                "bytes": nbytes,
                "backward_ms": options.backward_ms,
                "link_ms": link * 1e3,
                "step_ms": typical[name] * 1e3,
                "exposed_ms": exposed * 1e3,
                "of_allreduce": typical[name] / typical["Allreduce()"],
                "difference": float((ends[name] - ends["ddp-gloo"]).abs().max()) if alike else None,
            }
        )
        method.close()
    pct.shutdown()
    return rows if comm.rank == 0 else []


def measure(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """With gloo's process group around it. Collective."""
    with gloo_group(comm, "eth0"):  # of the emulated hosts
        return run(options, comm)


command = experiment(
    "overlap",
    COLUMNS,
    measure,
    count("--hosts", 4, "of one rank each"),
    options.option("--rate", RATE, "1gbit", "of links"),
    count("--backward-ms", 500, "of all layers together"),
    count("--layers", 10, "of the network"),
    count("--width", 1024, "of a layer"),
    options.option("--bucket", values.SIZE, "8M", "bytes of a bucket"),
    count("--steps", 3, "of a turn"),
    count("--iters", 9, "turns"),
    about=__doc__,
    start=lambda given: on_hosts(given.hosts, [given.rate]),
)
