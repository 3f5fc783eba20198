# SPDX-License-Identifier: Apache-2.0
"""What `partialcoll.torch.DistributedOptimizer` adds to a step, beside the same handle by hand.

Both compute the same gradients into the handle's own memory, start, wait, divide, and let torch's
SGD update; they take turns, in blocks. One rank is enough: what Python adds does not depend on the
others. Outside of a job it starts one. Needs torch (exit status 2 without it).
"""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
from lib.job import count, experiment
from lib.training import PLAIN, Method, Ours, by_turns


class ByHand(Method):
    """The loop that a user would write on a handle."""

    def __init__(self, model: Any, comm: Any) -> None:
        import torch

        import partialcoll as pc

        super().__init__(model, comm, PLAIN)
        self.tensors = list(self.model)
        self.sizes = [p.numel() for p in self.tensors]
        self.mean = torch.zeros(sum(self.sizes))
        self.means = self.parts(self.mean)
        self.handle = pc.Allreduce_init(comm, None, None, like=self.mean, quorum="full")
        self.slots: dict[int, tuple[Any, Any]] = {}  # send buffers and their parts, by address

    def parts(self, flat: Any) -> list[Any]:
        return [part.view_as(p) for part, p in zip(flat.split(self.sizes), self.tensors)]

    def slot(self) -> tuple[Any, Any]:
        """Return the send buffer as a tensor, and its parts. Each start changes the buffer."""
        import torch

        array = self.handle.send_buffer
        address = array.ctypes.data
        if address not in self.slots:
            flat = torch.from_numpy(array)
            self.slots[address] = flat, self.parts(flat)
        return self.slots[address]

    def step(self, x: Any, y: Any) -> None:
        flat, parts = self.slot()
        flat.zero_()
        for parameter, part in zip(self.tensors, parts):
            parameter.grad = part
        loss(self.tensors, x).backward()
        self.handle.Start()
        self.handle.Wait()
        np.divide(self.handle.result, np.float32(self.comm.size), out=self.mean.numpy())
        for parameter, part in zip(self.tensors, self.means):
            parameter.grad = part
        self.optimizer.step()

    def close(self) -> None:
        self.slots.clear()
        self.handle.Free()


class Adapter(Ours):
    def backward(self, x: Any, y: Any) -> None:
        loss(list(self.model), x).backward()


def loss(parameters: list[Any], x: Any) -> Any:
    """Return something with a gradient everywhere."""
    return sum((p * x).sum() for p in parameters)


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    import torch

    import partialcoll.torch as pct

    torch.set_num_threads(1)
    pct.init()
    torch.manual_seed(0)  # the same parameters on all ranks, in tensors of about one size
    model = torch.nn.ParameterList(torch.randn(options.parameters).chunk(options.tensors))
    some: dict[str, Any] = {
        "by hand": ByHand(model, comm),
        "Allreduce": Adapter(model, comm, pct.Allreduce(), PLAIN),
        "Eager full": Adapter(model, comm, pct.Eager("full"), PLAIN),
    }
    by_turns(
        list(some.values()),
        options.iters,
        2,
        lambda: [(torch.randn(()), None) for _ in range(options.steps)],
    )
    hand = some["by hand"]
    for method in some.values():
        assert torch.equal(method.parameters(), hand.parameters()), "not the same parameters"
    rows = []
    for name, method in some.items():
        # What comes from the rest of the machine falls on neighbors alike: pairs of one turn.
        added = statistics.median(a - b for a, b in zip(method.samples, hand.samples))
        rows.append(
            {
                "method": name,
                "ranks": comm.size,
                "parameters": options.parameters,
                "tensors": len(hand.tensors),
                "step_ms": statistics.median(method.samples) * 1e3,
                "added_us": added * 1e6,
                "percent_of_10_ms": added / 10e-3 * 100,
            }
        )
        method.close()
    pct.shutdown()
    return rows


command = experiment(
    "adapter",
    run,
    count("--parameters", 1_000_000, "of the model"),
    count("--tensors", 40, "they lie in"),
    count("--steps", 20, "of a turn"),
    count("--iters", 25, "turns"),
    about=__doc__,
    ranks=1,
)
