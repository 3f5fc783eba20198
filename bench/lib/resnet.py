# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 (He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016, table
1): 11.7 million parameters in 62 tensors, most of them in the last layers, and 60 buffers."""

from __future__ import annotations

import torch
from torch import nn


def _normed(come: int, out: int, size: int, stride: int) -> nn.Sequential:
    """Return a convolution, and BatchNorm in place of its bias."""
    conv = nn.Conv2d(come, out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class Block(nn.Module):
    """Two convolutions and the path around them."""

    def __init__(self, come: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _normed(come, out, 3, stride), _normed(out, out, 3, 1)
        self.past = nn.Identity() if come == out else _normed(come, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x).relu())
        return (y + self.past(x)).relu()


def resnet18(classes: int = 1000) -> nn.Sequential:
    """Return ResNet-18 for images of 3 channels, of any size from 32 x 32."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for come, out in zip(widths, widths[1:])
        for block in (Block(come, out, 1 if come == out else 2), Block(out, out, 1))
    ]
    begin = (_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    return nn.Sequential(*begin, *blocks, *end)
