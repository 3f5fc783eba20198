# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel on MPI: torch's own training loop, with one line of this library.

mpiexec -n 4 python examples/torch_ddp.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import partialcoll.torch  # noqa: F401  # the backend, and who the ranks are

torch.set_num_threads(1)
dist.init_process_group("partialcoll")
rank, size = dist.get_rank(), dist.get_world_size()


def spirals(count):
    """Return points in the plane, and the spiral of each, one of three."""
    random = torch.Generator().manual_seed(1)
    arm = torch.randint(3, (count,), generator=random)
    radius = 0.2 + 2 * torch.rand(count, generator=random)
    angle = 2 * radius + 2.094 * arm + 0.1 * torch.randn(count, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


points, labels = spirals(2048)
data = TensorDataset(points[:1536], labels[:1536])
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=128 // size, sampler=sampler)

torch.manual_seed(rank)  # ranks start differently; DDP takes rank 0's parameters
layers = [torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(64, 3)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(12):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    if rank == 0 and epoch % 3 == 2:
        print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}")

with torch.no_grad():
    mine = slice(1536 + rank, None, size)  # of the points that were held out
    right = (model.module(points[mine]).argmax(1) == labels[mine]).sum()
dist.all_reduce(right)
everyones = [None] * size
dist.all_gather_object(everyones, [p.sum().item() for p in model.parameters()])
assert all(one == everyones[0] for one in everyones), "the replicas differ"
assert right > 0.9 * 512, f"{right} of 512 right"
if rank == 0:
    print(f"{right} of 512 points that were held out are right; all ranks have the same model")
dist.destroy_process_group()
