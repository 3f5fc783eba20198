# SPDX-License-Identifier: Apache-2.0
"""Train ResNet-18 on CUDA devices while one rank is late, with and without waiting for it.

In each step one rank, drawn for the step, sleeps before its gradient. Without a device it is a
short run on the CPU. Needs torch.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

from lib.job import Rows, experiment
from lib.training import resnet18

from partialcoll.tools.cli import options, values

CLASSES = 10


def train(strategy: Any, steps: int, late_s: float, device: Any) -> dict[str, Any]:
    """Return images a second of all ranks, and the loss at the start and at the end."""
    import torch
    import torch.nn.functional as F

    import partialcoll.torch as pct

    cuda = device.type == "cuda"
    torch.manual_seed(0)
    model = resnet18(CLASSES).to(device)
    wrapped = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = pct.DistributedOptimizer(
        wrapped, model.named_parameters(), strategy=strategy, model=model
    )
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    batch, side = (128, 64) if cuda else (4, 32)
    patterns = torch.randn(CLASSES, 3, side, side, device=device)
    own = torch.Generator(device).manual_seed(1 + pct.rank())  # data of this rank
    drawn = random.Random(0)  # the same on all ranks
    losses = []
    begin = time.perf_counter()
    for _ in range(steps):
        if drawn.randrange(pct.size()) == pct.rank():
            time.sleep(late_s)
        labels = torch.randint(CLASSES, (batch,), generator=own, device=device)
        noise = torch.randn(batch, 3, side, side, generator=own, device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(patterns[labels] + noise), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    optimizer.join()
    optimizer.close()
    ends = torch.stack([torch.stack(losses[:5]).mean(), torch.stack(losses[-5:]).mean()])
    first, last = pct.allreduce(ends, name="loss").tolist()
    images = round(pct.size() * batch * steps / seconds, 1)
    return {"images_per_s": images, "loss_first": round(first, 4), "loss_last": round(last, 4)}


def run(given: SimpleNamespace, comm: Any) -> Rows:
    import torch

    import partialcoll.torch as pct

    pct.init()
    device, name, steps = torch.device("cpu"), "cpu", given.steps or 6
    if torch.cuda.is_available():
        device = torch.device("cuda", pct.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
        name, steps = torch.cuda.get_device_name(device), given.steps or 40
    else:
        torch.set_num_threads(1)
    strategies = {"allreduce": pct.Allreduce(), "eager": pct.Eager("solo")}
    train(strategies["allreduce"], 3, 0.0, device)  # warms up
    about = {"device": name, "ranks": pct.size(), "steps": steps, "late_ms": given.late_ms}
    rows = [
        {"strategy": which, **about, **train(strategy, steps, given.late_ms / 1e3, device)}
        for which, strategy in strategies.items()
    ]
    pct.shutdown()
    return rows


command = experiment(
    "device",
    run,
    options.option("--steps", values.POSITIVE_INT, None, "default: 40, and 6 without a device"),
    options.option("--late-ms", values.NOT_NEGATIVE, 60.0, "of the rank that is late"),
    about=__doc__,
    ranks=2,
)
