# SPDX-License-Identifier: Apache-2.0
"""Moshpit SGD: ranks average in groups. One of them leaves, the others continue, and it returns.

mpiexec -n 4 python examples/torch_moshpit.py
"""

import time

import torch

import partialcoll.torch as pct

STEPS, LEAVES_AT = 400, 30


def batch(step):
    random = torch.Generator().manual_seed(1000 * step + pct.rank())
    x = torch.randn(32, 5, generator=random)
    return x, x.sum(1, keepdim=True).sin()


def loss(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


torch.set_num_threads(1)
pct.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
held_out = batch(-1)
first = loss(model, *held_out).item()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# A group on the grid averages every second step, along another axis each time.
optimizer = pct.DistributedOptimizer(
    optimizer,
    model.named_parameters(),
    strategy=pct.Moshpit(grid="auto", local_steps=2, timeout=5.0),
    model=model,
)

restless = pct.size() > 1 and pct.rank() == pct.size() - 1
for _ in optimizer.until(STEPS):
    if restless and optimizer.round == LEAVES_AT:
        restless = False
        optimizer.leave()  # at once; no rank waits for this one from now on
        time.sleep(0.1)  # the machine is needed elsewhere
        optimizer.rejoin()  # takes model and step number from a rank that continued
        print(f"rank {pct.rank()} left at step {LEAVES_AT}, is back at step {optimizer.round}")
    time.sleep(0.002)  # as if a step took longer
    optimizer.zero_grad()
    loss(model, *batch(optimizer.round)).backward()
    optimizer.step()

optimizer.join()  # then all ranks have the same model
last = loss(model, *held_out).item()
if pct.rank() == 0:
    metrics = optimizer.metrics()
    print(
        f"loss {first:.3f} -> {last:.3f}; of {metrics.steps} steps, {metrics.wait_s:.2f} s waited"
    )
assert last < 0.5 * first
assert optimizer.consensus_distance() == 0.0
optimizer.close()
pct.shutdown()
