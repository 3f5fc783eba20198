# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks, by Horovod's name."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import Sum
from .verbs import allgather, allreduce
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
        try:
            self._check_input_dim(input)
        except Exception as error:
            calls_of(self._process_set).refuse(error)
        differentiable: Any = _Normalized.apply
        output, mean, variance, count = differentiable(
            input, self.weight, self.bias, self.eps, self._process_set
        )
        if self.track_running_stats:
            self._follow(mean, variance * count / (count - 1).clamp(min=1))
        normalized: torch.Tensor = output
        return normalized

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked += 1
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _beside(vector: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """One number for each channel, in a shape that goes with the batch's."""
    return vector.to(batch.dtype).view(1, -1, *(1,) * (batch.dim() - 2))


def _statistics(batch: torch.Tensor, process_set: OptionalSet) -> tuple[torch.Tensor, ...]:
    """Mean and variance of each channel over all ranks, and how many numbers that were. In
    float64."""
    channels = batch.transpose(0, 1).flatten(1).double()
    count = channels.new_tensor([channels.shape[1]])
    mean = channels.sum(1) / count.clamp(min=1)
    square = (channels - mean[:, None]).square().sum(1)
    rows = allgather(torch.cat([count, mean, square])[None], process_set=process_set)
    counts = rows[:, :1]
    means, squares = rows[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, variance, total


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, eps: float, process_set: Any) -> Any:
        batch = _wide(input)
        mean, variance, count = _statistics(batch, process_set)
        scale = (variance + eps).rsqrt()
        normal = (batch - _beside(mean, batch)) * _beside(scale, batch)
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.process_set = process_set
        ctx.mark_non_differentiable(mean, variance, count)
        output = normal
        if weight is not None:
            output = normal * _beside(weight, batch) + _beside(bias, batch)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        normal, weight, scale, count = ctx.saved_tensors
        gradient = _wide(gradients[0])
        others = [0, *range(2, gradient.dim())]
        sums = torch.stack([gradient.sum(others), (gradient * normal).sum(others)])
        of_input = None
        if ctx.needs_input_grad[0]:
            bias, slope = allreduce(sums.double(), op=Sum, process_set=ctx.process_set) / count
            apart = gradient - _beside(bias, gradient) - normal * _beside(slope, gradient)
            factor = scale if weight is None else scale * weight
            of_input = (apart * _beside(factor, gradient)).to(gradients[0].dtype)
        if weight is None:
            return of_input, None, None, None, None
        return of_input, sums[1].to(weight.dtype), sums[0].to(weight.dtype), None, None
