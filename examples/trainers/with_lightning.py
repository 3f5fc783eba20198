# SPDX-License-Identifier: Apache-2.0
"""Lightning on MPI: DDP over the backend, or eager-SGD, which does not wait for late ranks.

mpiexec -n 4 python examples/trainers/with_lightning.py [--backend gloo]
mpiexec -n 4 python examples/trainers/with_lightning.py --quorum majority --late 50
"""

import argparse
import time

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import partialcoll.torch as pct

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="partialcoll")
parser.add_argument("--quorum", help="of eager-SGD; without: DDP")
parser.add_argument("--late", type=float, default=0, help="ms, one rank in each step")
options = parser.parse_args()
pct.init()


class OwnGradients(DDPStrategy):
    def configure_ddp(self):
        """Like DDP, except that the optimizer averages the gradients."""


class Rings(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(2, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU()
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(32, 3))

    def training_step(self, batch, index):
        if index % pct.size() == pct.rank():
            time.sleep(options.late / 1000)
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        if options.quorum:
            strategy = pct.Eager(options.quorum, clip_norm=1.0)  # in place of gradient_clip_val
            named = self.named_parameters()
            optimizer = pct.DistributedOptimizer(optimizer, named, strategy=strategy, model=self)
            pct.broadcast_parameters(self.state_dict(), root_rank=0)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def on_train_batch_end(self, *arguments):
        if options.quorum and self.trainer.is_last_batch:
            pct.join()  # then nothing is late, and the checkpoint is complete for all ranks


lightning.seed_everything(1, verbose=False)
ring = torch.randint(3, (2048,))
radius, angle = 1 + ring + 0.2 * torch.randn(2048), 6.283 * torch.rand(2048)
data = TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), ring)

kind = OwnGradients if options.quorum else DDPStrategy
trainer = lightning.Trainer(
    strategy=kind(process_group_backend=options.backend),
    accelerator="cpu",
    devices=pct.local_size(),  # on each node
    num_nodes=pct.size() // pct.local_size(),
    gradient_clip_val=None if options.quorum else 1.0,
    max_epochs=6,
    logger=False,
    enable_checkpointing=False,
)
model = Rings()
trainer.fit(model, DataLoader(data, batch_size=64 // pct.size(), shuffle=True))
sums = pct.allgather_object([p.sum().item() for p in model.parameters()])
assert all(one == sums[0] for one in sums), "the replicas differ"
if pct.rank() == 0:
    print(f"loss {trainer.callback_metrics['loss']:.6f}; all ranks have the same model")
