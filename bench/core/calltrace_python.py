# SPDX-License-Identifier: Apache-2.0
"""How many functions and files of the package does one call from Python pass?

One rank, in this process, after the same call was made a few times. Counts what the calling thread
enters of partialcoll, by ``sys.setprofile``; functions of torch, numpy and C are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F

import partialcoll as pc
import partialcoll.torch as pct
from partialcoll.tools import report

PACKAGE = str(Path(pc.__file__).parent)
LAYERS, WIDTH = 31, 16  # 62 parameters
WARM_UP = 60  # caches are full then


def entered(call: Callable[[], Any]) -> list[CodeType]:
    """Return the functions of the package that the call enters, in order."""
    found: list[CodeType] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code)

    for _ in range(WARM_UP):
        call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def steps() -> Callable[[], Any]:
    """Return a step of an optimizer; its gradients are computed outside of the trace."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = pct.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model.named_parameters(),
        strategy=pct.Eager("majority"),
        model=model,
    )
    x = torch.ones(4, WIDTH)

    def step() -> None:
        profile = sys.getprofile()
        sys.setprofile(None)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        sys.setprofile(profile)
        optimizer.step()

    return step


def rounds() -> Callable[[], Any]:
    from mpi4py import MPI  # starts MPI

    x = torch.ones(2).numpy()
    handle = pc.Allreduce_init(MPI.COMM_WORLD, x, x.copy(), quorum="full")

    def call() -> None:
        handle.Start()
        handle.Wait()

    return call


@click.command(help=__doc__)
@click.option("--list", "listed", is_flag=True, help="print the functions of each call, in order")
def command(listed: bool) -> None:
    pct.init()
    dist.init_process_group("partialcoll")
    x = torch.ones(2)
    calls = {
        "Start + Wait": rounds(),
        "optimizer.step": steps(),
        "dist.all_reduce": lambda: dist.all_reduce(x),
        "allreduce_async + synchronize": lambda: pct.synchronize(pct.allreduce_async(x)),
        "the same, with a name": lambda: pct.synchronize(pct.allreduce_async(x, name="x")),
    }
    rows = []
    for name, call in calls.items():
        codes = entered(call)
        row = {"call": name, "calls": len(codes), "functions": len(set(codes))}
        rows.append({**row, "files": len({code.co_filename for code in codes})})
        if listed:
            print(f"{name}:")
            for code in codes:
                place = Path(code.co_filename).relative_to(PACKAGE)
                print(f"    {place}:{code.co_firstlineno} {code.co_qualname}")
    report.table(rows)
