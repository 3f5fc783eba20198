# SPDX-License-Identifier: Apache-2.0
"""Gradients that go while backward computes others: what is left of their transfer in a step?

Emulated hosts of one rank each (see emulated_hosts.py: needs root, iproute2, MPICH, torch). The
backward pass of each layer takes a while in which its processor is free, as with an accelerator;
then the layer's gradient is there. DistributedDataParallel over gloo, Allreduce() and
Allreduce(overlap=True) take turns in one job, beside steps that move nothing. `exposed_ms` is what
a step takes more than those; `link_ms` what its gradients need on a link by bandwidth alone,
2 (P-1)/P times their size.

    python bench/overlap.py [--hosts 4] [--rate 1gbit] [--backward-ms 500] [--layers 10]
                            [--width 1024] [--bucket 8M] [--iters 9] [--json F]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import gloo
from train_ddp import Method, Ours, by_turns
from uneven import bits_per_second

from partialcoll.cli import arguments

SELF = os.path.abspath(__file__)
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


def network(options: argparse.Namespace) -> Any:
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


def methods(options: argparse.Namespace, comm: Any) -> dict[str, Method]:
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


def run(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
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


def measure(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
    """With gloo's process group around it. Collective."""
    import torch.distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # of the emulated hosts
    with tempfile.TemporaryDirectory(prefix="partialcoll-gloo-") as folder:
        gloo.join_gloo(comm, comm.bcast(folder))
        comm.Barrier()
    rows = run(options, comm)
    torch.distributed.destroy_process_group()
    return rows


def start(options: argparse.Namespace) -> int:
    """Make the hosts and run this script on their ranks; its exit status."""
    from emulated_hosts import Hosts, run

    with Hosts(options.hosts, [options.rate]) as hosts:
        return run(hosts, 1, [sys.executable, SELF, *sys.argv[1:]])


def _rate(text: str) -> str:
    bits_per_second(text)
    return text


def main() -> int:
    """The command line; the ranks come here as well."""
    number = arguments.positive_int
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=number, default=4, help="ranks (default 4)")
    parser.add_argument("--rate", type=_rate, default="1gbit", help="of links (default 1gbit)")
    parser.add_argument("--backward-ms", type=number, default=500, help="(default 500)")
    parser.add_argument("--layers", type=number, default=10, help="(default 10)")
    parser.add_argument("--width", type=number, default=1024, help="of a layer (default 1024)")
    parser.add_argument("--bucket", type=arguments.size, default=8 << 20, help="(default 8M)")
    parser.add_argument("--steps", type=number, default=3, help="of a turn (default 3)")
    parser.add_argument("--iters", type=number, default=9, help="turns (default 9)")
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    from partialcoll import _mpiexec

    if not _mpiexec.in_job():
        return start(options)
    from partialcoll import _report

    options.plot = None
    _report.on_job(options, "bench overlap", COLUMNS, measure, lambda rows, path: None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
