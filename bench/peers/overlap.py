# SPDX-License-Identifier: Apache-2.0
"""Gradients that go while backward computes others: what is left of their transfer in a step?

Emulated hosts of one rank each (see bench/lib/hosts.py: needs root, iproute2, MPICH, torch). The
backward pass of each layer takes a while in which its processor is free, as with an accelerator;
then the layer's gradient is there. DistributedDataParallel over gloo, Allreduce() and
Allreduce(overlap=True) take turns in one job, beside steps that move nothing. `exposed_ms` is what
a step takes more than those; `link_ms` what its gradients need on a link by bandwidth alone,
2 (P-1)/P times their size.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from lib.hosts import RATE, bits_per_second, on_hosts
from lib.job import Rows, count, experiment, gloo_group
from lib.training import DDP, Method, Ours, by_turns

from partialcoll.tools.cli import options, values


def network(options: SimpleNamespace) -> Any:
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


def run(given: SimpleNamespace, comm: Any) -> Rows:
    import torch

    import partialcoll.torch as pct

    with gloo_group(comm, "eth0"):  # of the emulated hosts
        pct.init()
        overlap = pct.Allreduce(overlap=True, bucket_bytes=given.bucket)
        methods = {
            "nothing moves": Method(network(given), comm),
            "ddp-gloo": DDP(network(given), comm, bucket_cap_mb=given.bucket / 2**20),
            "Allreduce()": Ours(network(given), comm),
            "Allreduce(overlap=True)": Ours(network(given), comm, overlap),
        }
        draw = torch.Generator().manual_seed(comm.rank)

        def data() -> Any:
            shape = (2, 4, given.width)
            return [tuple(torch.randn(shape, generator=draw)) for _ in range(given.steps)]

        by_turns(methods.values(), given.iters, 1, data)
        ends = {name: method.parameters() for name, method in methods.items()}
        step_ms = {name: method.row(name)["step_ms"] for name, method in methods.items()}
        nbytes = 4 * ends["Allreduce()"].numel()
        link = 16 * nbytes * (comm.size - 1) / comm.size / bits_per_second(given.rate)
        rows = [
            {
                "method": name,
                "ranks": comm.size,
                "bytes": nbytes,
                "backward_ms": given.backward_ms,
                "link_ms": link * 1e3,
                "step_ms": step_ms[name],
                "exposed_ms": step_ms[name] - step_ms["nothing moves"],
                "of_allreduce": step_ms[name] / step_ms["Allreduce()"],
                "difference": float((ends[name] - ends["ddp-gloo"]).abs().max()),
            }
            for name in methods
        ]
        rows[0]["difference"] = None  # there nothing is trained together
        for method in methods.values():
            method.close()
        pct.shutdown()
    return rows


command = experiment(
    "overlap",
    run,
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
