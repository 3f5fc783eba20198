# SPDX-License-Identifier: Apache-2.0
"""What becomes of the ranks' values, by Horovod's names."""

from __future__ import annotations

import enum


class Reduction(enum.Enum):
    """See `allreduce` and `DistributedOptimizer`."""

    Average = "average"
    Sum = "sum"
    Min = "min"
    Max = "max"
    Product = "product"
    Adasum = "adasum"


Average = Reduction.Average
Sum = Reduction.Sum
Min = Reduction.Min
Max = Reduction.Max
Product = Reduction.Product
Adasum = Reduction.Adasum
