# SPDX-License-Identifier: Apache-2.0
"""Ranks with different amounts of data, checkpoints, and continuing from the end of the last run.

mpiexec -n 4 python examples/torch_resume.py [folder]      (run it twice with the same folder)
"""

import os
import sys
import tempfile
from pathlib import Path

import torch

import partialcoll.torch as pct

EPOCHS = 2  # in each run


def batches(epoch):
    random = torch.Generator().manual_seed(100 * epoch + pct.rank())
    for _ in range(6 + 2 * pct.rank()):  # uneven
        x = torch.randn(32, 5, generator=random)
        yield x, x.sum(1, keepdim=True).sin()


def main(folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = pct.DistributedOptimizer(
        optimizer, model.named_parameters(), strategy=pct.Eager("majority"), model=model
    )
    # Schedulers follow the rounds, not the calls, and are part of the checkpoint.
    optimizer.attach(torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.8))

    # Each rank has its own file: its last deposit may be in no round yet.
    file, first = folder / f"rank-{pct.rank()}.pt", 0
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
        say(f"goes on with epoch {first}, round {optimizer.round}")

    for epoch in range(first, first + EPOCHS):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        optimizer.join()  # a rank with fewer batches waits here, and applies the others' updates
        say(f"epoch {epoch}: round {optimizer.round}, last loss {loss.item():.3f}")
        save(file, model, optimizer, epoch + 1)
    optimizer.close()


def save(file, model, optimizer, epoch):
    """Write atomically: a run that is killed meanwhile leaves the old file."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)


def say(what):
    if pct.rank() == 0:
        print(what, flush=True)


torch.set_num_threads(1)
pct.init()
if len(sys.argv) > 1:
    main(Path(sys.argv[1]))
else:  # twice, to show that it continues
    with tempfile.TemporaryDirectory() as own:
        for _ in range(2):
            main(Path(own))
pct.shutdown()
