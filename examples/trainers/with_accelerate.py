# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate on MPI: DDP over the backend, or eager-SGD, which does not wait for
late ranks.

mpiexec -n 4 python examples/trainers/with_accelerate.py [--backend gloo]
mpiexec -n 4 python examples/trainers/with_accelerate.py --quorum majority --late 50
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import partialcoll.torch as pct

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="partialcoll")
parser.add_argument("--quorum", help="of eager-SGD; without: DDP")
parser.add_argument("--late", type=float, default=0, help="ms, one rank in each step")
options = parser.parse_args()
pct.init()
torch.set_num_threads(1)
dist.init_process_group(options.backend)  # before the Accelerator, which uses it
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank, size = accelerator.process_index, accelerator.num_processes

set_seed(1)
ring = torch.randint(3, (2048,))
radius, angle = 1 + ring + 0.2 * torch.randn(2048), 6.283 * torch.rand(2048)
data = TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), ring)
loader = accelerator.prepare(DataLoader(data, batch_size=64 // size, shuffle=True))

hidden = [torch.nn.Linear(2, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU()]
model = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
if options.quorum:
    model = accelerator.prepare_model(model, evaluation_mode=True)  # without DDP
    optimizer = pct.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        backward_passes_per_step=accelerator.gradient_accumulation_steps,
        strategy=pct.Eager(options.quorum, clip_norm=1.0),  # in place of clip_grad_norm_
        model=model,
    )
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
else:
    model = accelerator.prepare_model(model)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
optimizer, scheduler = accelerator.prepare(optimizer, scheduler)

for _epoch in range(6):
    losses = []
    for step, (points, rings) in enumerate(loader):
        if step % size == rank:
            time.sleep(options.late / 1000)
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(points), rings)
            accelerator.backward(loss)
            if accelerator.sync_gradients and not options.quorum:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    if options.quorum:
        pct.join()  # then nothing is late, and the state is complete for all ranks
    mean = accelerator.gather(torch.stack(losses)).mean()

sums = pct.allgather_object([p.sum().item() for p in model.parameters()])
assert all(one == sums[0] for one in sums), "the replicas differ"
accelerator.print(f"loss {mean:.6f}; all ranks have the same model")
accelerator.end_training()
