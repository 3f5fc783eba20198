# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks, by Horovod's name."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import Sum
from .verbs import allreduce
from .world import OptionalSet, calls_of


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d` and its like as if one process had the batches of all ranks.

    While it trains, each forward pass and each backward pass waits for all ranks, which have to
    make as many of them, whatever the strategy of the optimizer. Batches may differ in size, and be
    empty. After `eval()` it communicates nothing, as torch's: without running statistics it then
    normalizes with those of this rank's batch.

    `num_features`, `eps`, `momentum`, `affine`, `track_running_stats`: as of
    `torch.nn.BatchNorm1d`. `process_set`: whose batches count; None: those of all ranks.

    Takes ``(N, C, ...)``; ValueError of fewer dimensions. The gradients of weight and bias are of
    this rank's batch, as other parameters' are; that of the input is of all ranks' losses.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: OptionalSet = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input: expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The batch `input`, normalized. Collective while it trains."""
        if not self.training or calls_of(self._process_set).comm.size == 1:
            alone: torch.Tensor = super().forward(input)
            return alone
        with calls_of(self._process_set).checking():
            self._check_input_dim(input)
        batch = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        others = [0, *range(2, batch.dim())]
        own = batch.numel() // self.num_features  # numbers of each channel

        def beside(vector: torch.Tensor) -> torch.Tensor:
            return vector.to(batch.dtype).view(1, -1, *(1,) * (batch.dim() - 2))

        # Sums of the powers 0 to 2, in float64, the last one by way of this rank's own mean.
        mean = batch.sum(others, dtype=torch.float64) / max(own, 1)
        square = (batch - beside(mean)).square().sum(others, dtype=torch.float64)
        powers = [torch.full_like(mean, own), own * mean, square + own * mean.square()]
        count, total, square = allreduce(torch.stack(powers), op=Sum, process_set=self._process_set)
        mean = total / count
        variance = (square / count - mean.square()).clamp(min=0)
        if self.track_running_stats:
            self._follow(mean, variance * count / (count - 1).clamp(min=1))
        output = (batch - beside(mean)) * beside((variance + self.eps).rsqrt())
        if self.affine:
            output = output * beside(self.weight) + beside(self.bias)
        return output.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked += 1
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)
