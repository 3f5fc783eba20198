# SPDX-License-Identifier: Apache-2.0
"""Eager-SGD on sequences of different length: no rank waits for the one with the longest.

mpiexec -n 4 python examples/torch_sequences.py

An LSTM learns whether the first of many numbers was positive. Each rank draws batches of one length
each, so the time of a step varies by a factor of ten, as it does with videos or sentences. Still
every rank applies the same updates.
"""

import time

import torch
import torch.nn.functional as F

import partialcoll.torch as pct

STEPS, BATCH = 120, 32

pct.init()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same model everywhere, even without broadcast_parameters


class Classifier(torch.nn.Module):
    """Predicts the sign of the first element of a sequence."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(1, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1]).squeeze(1)


def batch(random):
    length = int(4 + 36 * torch.rand((), generator=random) ** 3)  # most are short
    x = torch.randn(BATCH, length, 1, generator=random)
    return x, (x[:, 0, 0] > 0).float()


model = Classifier()
optimizer = pct.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01),
    model.named_parameters(),
    strategy=pct.Eager("majority", clip_norm=1.0),
    model=model,
)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
optimizer.attach(schedule, every=STEPS // 2)  # after this many rounds, on every rank

random = torch.Generator().manual_seed(100 + pct.rank())
begin = time.perf_counter()
for _ in range(STEPS):
    x, y = batch(random)
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(model(x), y).backward()
    optimizer.step()
seconds = time.perf_counter() - begin
optimizer.join()

m = optimizer.metrics()
x, y = batch(torch.Generator().manual_seed(7))
accuracy = ((model(x) > 0) == y.bool()).float().mean().item()
print(
    f"rank {pct.rank()}: {m.steps} steps in {seconds:.1f} s, {m.wait_s:.2f} s of them waiting; "
    f"{m.mean_active:.1f} of {pct.size()} ranks in an update, {m.included_ratio:.0%} of the own "
    f"gradients in one; accuracy {accuracy:.2f}"
)
assert m.included_ratio == 1.0, "a gradient was lost"
same = pct.allgather_object([p.sum().item() for p in model.parameters()])
assert all(one == same[0] for one in same), "the replicas differ"
optimizer.close()
pct.shutdown()
