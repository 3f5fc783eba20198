# SPDX-License-Identifier: Apache-2.0
"""Ways to train a model that are compared in one job: they alternate in blocks of steps."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from partialcoll.tools.bench.turns import meet

SGD = {"lr": 0.05, "momentum": 0.9}
PLAIN = {"lr": 1e-4}  # without momentum, which costs a step as much again


class Method:
    """A way to train; `step` computes the gradient of some samples and applies everybody's."""

    def __init__(self, model: Any, comm: Any, sgd: Mapping[str, float] = SGD) -> None:
        import torch

        self.model, self.comm = copy.deepcopy(model), comm
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), **sgd)
        self.samples: list[float] = []

    def backward(self, x: Any, y: Any, late_s: float = 0.0) -> None:
        import torch

        loss = torch.nn.functional.mse_loss(self.model(x), y)
        time.sleep(late_s)
        loss.backward()

    def step(self, *sample: Any) -> None:
        self.optimizer.zero_grad()
        self.backward(*sample)
        self.optimizer.step()

    def settle(self) -> None:
        """Do what belongs to a block of steps, but not to their time. Collective."""

    def parameters(self) -> Any:
        import torch

        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def row(self, name: str) -> dict[str, Any]:
        return {
            "method": name,
            "ranks": self.comm.size,
            "parameters": self.parameters().numel(),
            "step_ms": statistics.median(self.samples) * 1e3,
            "fastest_ms": min(self.samples) * 1e3,
            "slowest_ms": max(self.samples) * 1e3,
        }

    def close(self) -> None:
        """Free what the method has. Collective."""


class DDP(Method):
    def __init__(self, model: Any, comm: Any, sgd: Mapping[str, float] = SGD, **how: Any) -> None:
        import torch

        super().__init__(model, comm, sgd)
        self.model = torch.nn.parallel.DistributedDataParallel(self.model, **how)


class Ours(Method):
    """partialcoll.torch, with a strategy or its default."""

    def __init__(
        self, model: Any, comm: Any, strategy: Any = None, sgd: Mapping[str, float] = SGD
    ) -> None:
        import partialcoll.torch as pct

        super().__init__(model, comm, sgd)
        self.optimizer = pct.DistributedOptimizer(
            self.optimizer, self.model.named_parameters(), strategy=strategy
        )

    def close(self) -> None:
        self.optimizer.close()


def by_turns(methods: Iterable[Any], turns: int, warmup: int, draw: Callable[[], Any]) -> None:
    """Run blocks of steps of all methods, one after the other; each keeps its `samples`, seconds of
    a step on the slowest rank. `draw` returns the data of a turn. Collective."""
    from mpi4py import MPI

    for turn in range(-warmup, turns):
        data = draw()
        for method in methods:
            meet(method.comm)
            begin = time.perf_counter()
            for sample in data:
                method.step(*sample)
            mine = time.perf_counter() - begin
            method.settle()
            seconds = method.comm.allreduce(mine, MPI.MAX)
            if turn >= 0:
                method.samples.append(seconds / len(data))


def network(layers: int, width: int) -> Any:
    import torch

    torch.manual_seed(0)
    inner = [torch.nn.Linear(width, width) for _ in range(layers)]
    return torch.nn.Sequential(*[m for one in inner for m in (one, torch.nn.ReLU())][:-1])


def resnet18(classes: int = 1000) -> Any:
    """Return ResNet-18 for images of 3 channels, of any size from 32 x 32: 11.7 million parameters
    in 62 tensors, most of them in the last layers, and 60 buffers.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1.
    """
    from torch import nn

    def normed(come: int, out: int, size: int, stride: int) -> Any:
        conv = nn.Conv2d(come, out, size, stride, padding=size // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(out))  # in place of the bias

    class Block(nn.Module):
        def __init__(self, come: int, out: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = normed(come, out, 3, stride), normed(out, out, 3, 1)
            self.past = nn.Identity() if come == out else normed(come, out, 1, stride)

        def forward(self, x: Any) -> Any:
            return (self.second(self.first(x).relu()) + self.past(x)).relu()

    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for come, out in zip(widths, widths[1:])
        for block in (Block(come, out, 1 if come == out else 2), Block(out, out, 1))
    ]
    begin = (normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    return nn.Sequential(*begin, *blocks, *end)
