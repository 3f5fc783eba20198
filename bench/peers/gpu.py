# SPDX-License-Identifier: Apache-2.0
"""Buffers on CUDA devices: a handle beside copies by hand around MPI_Allreduce, gloo and NCCL.

What ``partialcoll bench gpu`` measures, with torch's own ways from tensor to tensor: gloo's, and
NCCL's where each rank has a device of its own. All take turns in one job.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

from lib.job import count, experiment, gloo_group

from partialcoll.tools.bench import gpu
from partialcoll.tools.cli import options


def of_group(group: Any, device: Any) -> Callable[[Any, Any], Callable[[], None]]:
    import torch.distributed as dist

    def make(x: Any, y: Any) -> Callable[[], None]:
        def call() -> None:
            y.copy_(x)
            dist.all_reduce(y, group=group)
            device.over()

        return call

    return make


def run(given: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    device = gpu.Device(comm)
    torch.cuda.set_device(device.place)
    rows = []
    with gloo_group(comm):
        more = {"gloo": of_group(None, device)}
        if dist.is_nccl_available() and device.count >= comm.size:
            more["nccl"] = of_group(dist.new_group(backend="nccl"), device)
        for size in given.sizes:
            rows += gpu.measure(comm, device, max(1, size // 4), given.iters, more)
    return rows


command = experiment(
    "gpu",
    run,
    options.sizes("1K,64K,1M,16M,256M,1G"),
    count("--iters", 15, "turns"),
    about=__doc__,
    ranks=2,
)
