# SPDX-License-Identifier: Apache-2.0
"""Train on GPUs with loss scaling, without waiting for the slowest rank; on the CPU without a GPU.

mpiexec -n 4 python examples/torch_cuda.py
"""

import torch
import torch.nn.functional as F

import partialcoll.torch as pct

pct.init()
torch.manual_seed(0)
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", pct.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
else:
    torch.set_num_threads(1)

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
model.to(device)  # before its parameters are wrapped
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = pct.DistributedOptimizer(
    optimizer, model.named_parameters(), strategy=pct.Eager("majority"), model=model
)
pct.broadcast_parameters(model.state_dict(), root_rank=0)
scaler = torch.amp.GradScaler(device.type)

teacher = torch.randn(64, 8, device=device)
own = torch.Generator(device).manual_seed(1 + pct.rank())  # data of this rank
for step in range(1, 61):
    x = torch.randn(32, 64, generator=own, device=device)
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
        loss = F.cross_entropy(model(x), (x @ teacher).argmax(1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # deposits the gradient, and applies the rounds so far
    scaler.update()
    if step % 20 == 0:
        optimizer.join()  # all ranks have the same model, also those that were late
        mean = pct.allreduce(loss.detach(), name="loss")
        if pct.rank() == 0:
            print(f"step {step}: loss {mean:.3f} on {device}")

optimizer.close()
pct.shutdown()
