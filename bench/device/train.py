# SPDX-License-Identifier: Apache-2.0
"""Train ResNet-18 on CUDA devices while one rank is late, with and without waiting for it.

    partialcoll run -n 2 python bench/device/train.py [--steps 40] [--late-ms 60] [--json F]

In each step one rank, drawn for the step, sleeps before its gradient. Without a device it is a
short run on the CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import partialcoll.torch as pct
from partialcoll.tools import report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lib.training import resnet18

CLASSES = 10
STRATEGIES = {"allreduce": pct.Allreduce, "eager": lambda: pct.Eager("solo")}


def train(name: str, steps: int, late_s: float, device: torch.device) -> dict[str, Any]:
    """Return a row: images a second of all ranks, and the loss at the start and at the end."""
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    model = resnet18(CLASSES).to(device)
    wrapped = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = pct.DistributedOptimizer(
        wrapped, model.named_parameters(), strategy=STRATEGIES[name](), model=model
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
    return {
        "strategy": name,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "ranks": pct.size(),
        "steps": steps,
        "late_ms": 1e3 * late_s,
        "images_per_s": round(pct.size() * batch * steps / seconds, 1),
        "loss_first": round(first, 4),
        "loss_last": round(last, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="default: 40, and 6 without a device")
    parser.add_argument("--late-ms", type=float, default=60)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    pct.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", pct.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    steps = given.steps or (40 if device.type == "cuda" else 6)
    rows = []
    train("allreduce", 3, 0.0, device)  # warms up
    for name in STRATEGIES:
        rows.append(train(name, steps, given.late_ms / 1e3, device))
        if pct.rank() == 0:
            print(json.dumps(rows[-1]), flush=True)
            if given.json:
                kept = report.document("bench device", pct.size(), rows)
                given.json.write_text(json.dumps(kept, indent=2) + "\n")
    pct.shutdown()


if __name__ == "__main__":
    main()
