# SPDX-License-Identifier: Apache-2.0
"""Ways to train a perceptron beside each other: by turns, in blocks of steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any, Callable

from partialcoll.tools.bench.turns import meet

RATE = 0.05


class Method:
    """A way to train; `step` computes the gradient of some samples and applies everybody's."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        self.model, self.comm = copy.deepcopy(model), comm
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.samples: list[float] = []

    def backward(self, x: Any, y: Any) -> None:
        """This rank's gradient."""
        import torch

        torch.nn.functional.mse_loss(self.model(x), y).backward()

    def step(self, x: Any, y: Any) -> None:
        """A training step. Collective."""
        self.optimizer.zero_grad()
        self.backward(x, y)
        self.optimizer.step()

    def close(self) -> None:
        """Collective."""


class Ours(Method):
    """partialcoll.torch."""

    strategy: Any = None

    def __init__(self, model: Any, comm: Any) -> None:
        import partialcoll.torch as pct

        super().__init__(model, comm)
        self.optimizer = pct.DistributedOptimizer(
            self.optimizer, self.model.named_parameters(), strategy=self.strategy
        )

    def close(self) -> None:
        self.optimizer.close()


def block(method: Method, data: list[Any]) -> float:
    """Seconds of a step, on the slowest rank, one step after the other. Collective."""
    from mpi4py import MPI

    meet(method.comm)
    begin = time.perf_counter()
    for x, y in data:
        method.step(x, y)
    seconds: float = method.comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    return seconds / len(data)


def by_turns(methods: Sequence[Any], turns: int, warmup: int, draw: Callable[[], Any]) -> None:
    """Blocks of steps of all methods, one after the other; each keeps its `samples`. draw: the
    data of a turn. Collective."""
    for turn in range(-warmup, turns):
        data = draw()
        for method in methods:
            seconds = block(method, data)
            if turn >= 0:
                method.samples.append(seconds)


def network(layers: int, width: int) -> Any:
    """A perceptron, the same on all ranks."""
    import torch

    torch.manual_seed(0)
    inner = [torch.nn.Linear(width, width) for _ in range(layers)]
    return torch.nn.Sequential(*[m for one in inner for m in (one, torch.nn.ReLU())][:-1])
