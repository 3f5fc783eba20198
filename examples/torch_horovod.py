# SPDX-License-Identifier: Apache-2.0
"""A training script written for Horovod. Only the import and the last lines, which free the
optimizer's resources, differ.

mpiexec -n 4 python examples/torch_horovod.py

With strategy=pct.Eager("majority") in the DistributedOptimizer below it no longer waits for the
slowest rank.
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import partialcoll.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())  # ranks start differently; the broadcast below makes them equal
torch.set_num_threads(1)


def rings(count):
    """Return points in the plane, and the ring of each, one of three."""
    random = torch.Generator().manual_seed(1)
    ring = torch.randint(3, (count,), generator=random)
    radius = 1 + ring + 0.2 * torch.randn(count, generator=random)
    angle = 6.283 * torch.rand(count, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), ring


points, labels = rings(2048)
data = TensorDataset(points[:1536], labels[:1536])
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
loader = DataLoader(data, batch_size=128 // hvd.size(), sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Tanh()
)
model.append(torch.nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(8):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    hvd.join()
    mean = hvd.allreduce(total / len(loader), name="loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {mean:.4f}")

with torch.no_grad():
    mine = slice(1536 + hvd.rank(), None, hvd.size())  # of the points that were held out
    right = (model(points[mine]).argmax(1) == labels[mine]).sum()
    right = hvd.allreduce(right, op=hvd.Sum, name="right")
    same = hvd.allgather_object([p.sum().item() for p in model.parameters()])
assert all(one == same[0] for one in same), "the replicas differ"
assert right > 0.9 * 512, f"{right} of 512 right"
if hvd.rank() == 0:
    print(f"{right} of 512 points that were held out are right; all ranks have the same model")
optimizer.close()  # Horovod has no such call
hvd.shutdown()
