# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel that does not wait for the slowest rank: one line for the hook, and one
for ranks with different numbers of batches.

mpiexec -n 4 python examples/torch_ddp_hook.py
"""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import partialcoll.torch as pct

EPOCHS = 3


def batches(epoch):
    random = torch.Generator().manual_seed(100 * epoch + pct.rank())
    for i in range(8 + pct.rank()):  # uneven
        x = torch.randn(32, 5, generator=random)
        if (i + epoch) % pct.size() == pct.rank():
            time.sleep(0.02)  # late, in turn
        yield x, x.sum(1, keepdim=True).sin()


def main(folder):
    # Any process group works. DDP uses it at the start only; this one is for a single machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(os.path.join(folder, "store"), pct.size())
    dist.init_process_group("gloo", store=store, rank=pct.rank(), world_size=pct.size())
    torch.manual_seed(pct.rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    ddp = DistributedDataParallel(model, broadcast_buffers=False)  # each rank has its own
    state = pct.PartialState(ddp, quorum="solo")
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)

    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            loss = (ddp(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        state.join(optimizer)  # a rank with fewer batches waits here, and applies other rounds
        if pct.rank() == 0:
            print(f"epoch {epoch}: round {state.round}, last loss {loss.item():.3f}", flush=True)

    metrics = state.metrics()
    if pct.rank() == 0:
        print(f"{metrics.mean_active:.1f} of {pct.size()} ranks in a round on average")
    models = pct.allgather_object([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for other in models for a, b in zip(other, models[0]))
    state.close()
    dist.destroy_process_group()


torch.set_num_threads(1)
pct.init()
with tempfile.TemporaryDirectory() as own:
    main(pct.broadcast_object(own))
    pct.barrier()  # the folder of rank 0 is in use until here
pct.shutdown()
