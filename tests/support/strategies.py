# SPDX-License-Identifier: Apache-2.0
"""The decentralized strategies of partialcoll.torch, small models, and functions for tests."""

import contextlib
import dataclasses
import time

import numpy as np
import torch

import partialcoll as pc
import partialcoll.torch as pct

STRATEGIES = {
    "adpsgd": pct.ADPSGD(),
    "dpsgd": pct.DPSGD(),
    "swarm": pct.Swarm(local_steps=2),
    "swarm-8bit": pct.Swarm(local_steps=2, codec=pc.Lattice(bits=8)),
    "a2cid2": pct.A2CiD2(variant="paper"),  # has momentum on few ranks
    "a2cid2-baseline": pct.A2CiD2(accelerated=False),
    "moshpit": pct.Moshpit(),
    "moshpit-overlap": pct.Moshpit(local_steps=2, overlap=True),
    "sgp": pct.SGP(),
    "localsgd": pct.LocalSGD(local_steps=3),
    "slowmo": pct.SlowMo(pct.LocalSGD(local_steps=2), tau=4),
    "slowmo-adpsgd": pct.SlowMo(pct.ADPSGD(), tau=4),
    "slowmo-sgp": pct.SlowMo(pct.SGP(), tau=4),
}
# A step waits for no other rank.
WAIT_FREE = ("adpsgd", "swarm", "swarm-8bit", "a2cid2", "a2cid2-baseline", "sgp")
LOCK_STEP = [name for name in STRATEGIES if name not in WAIT_FREE and "moshpit" not in name]
# Communication changes no average. SlowMo adds its momentum.
CONSERVING = [name for name in STRATEGIES if "slowmo" not in name]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
}


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss(model, rank, step):
    g = torch.Generator().manual_seed(1000 * rank + step)
    dtype = next(model.parameters()).dtype
    x, y = torch.randn(5, 6, generator=g).to(dtype), torch.randn(5, 3, generator=g).to(dtype)
    return (model(x) - y).square().mean()


def wrap(module, make="sgd", **options):
    optimizer = OPTIMIZERS[make](module.parameters()) if isinstance(make, str) else make
    return pct.DistributedOptimizer(optimizer, module.named_parameters(), **options)


def train(model, opt, rank, steps, delay=0.0, each=lambda: None):
    rng = np.random.default_rng(rank)
    for step in range(steps):
        opt.zero_grad()
        loss(model, rank, step).backward()
        if delay and rng.random() < 0.3:
            time.sleep(rng.random() * delay)  # a rank is late now and then
        opt.step()
        each()


def vector(model):
    """Return all parameters as one vector in float64."""
    real = [torch.view_as_real(p) if p.is_complex() else p for p in model.parameters()]
    return torch.cat([p.detach().double().reshape(-1) for p in real]).numpy()


def bits(model):
    parts = (p.detach().contiguous().view(-1).view(torch.uint8) for p in model.parameters())
    return b"".join(part.numpy().tobytes() for part in parts)


def same_everywhere(comm, model):
    return len(set(comm.allgather(bits(model)))) == 1


def mean_of(comm, vector):
    return comm.allreduce(vector) / comm.size


class Ledger:
    """Records the optimizer's own changes on this rank, and those of the program."""

    def __init__(self, model, opt):
        self.model, self.total, self.first = model, 0.0, vector(model)
        opt.register_step_pre_hook(lambda *_: self._look())
        opt.register_step_post_hook(lambda *_: self._note())

    def _look(self):
        self._before = vector(self.model)

    def _note(self):
        self.total = self.total + (vector(self.model) - self._before)

    @contextlib.contextmanager
    def change(self):
        self._look()
        yield
        self._note()

    def expected(self, comm):
        """Return the average of all ranks, if communication has not changed it."""
        return mean_of(comm, self.first + self.total)


def patient(strategy, ranks):
    """Return Moshpit in lock-step: one group of all, without suspecting delayed ranks."""
    if isinstance(strategy, pct.Moshpit):
        return dataclasses.replace(strategy, grid=(ranks,), timeout=240.0)
    return strategy


def without_slow_momentum(strategy):
    """Return a SlowMo that follows its inner strategy."""
    if isinstance(strategy, pct.SlowMo):
        return pct.SlowMo(strategy.inner, tau=strategy.tau, beta=0.0)
    return strategy


def as_plain(name, model, plain):
    """Compare bitwise, except SlowMo, which divides and multiplies by the learning rate."""
    if "slowmo" in name:
        return bool(np.allclose(vector(model), vector(plain), rtol=0, atol=1e-6))
    return bits(model) == bits(plain)
