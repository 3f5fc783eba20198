# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks, as the core has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def bits(words: Any, ranks: int) -> npt.NDArray[np.bool_]:
    """A set of ranks, as the core has it: bool, shape (ranks,)."""
    raw = np.frombuffer(words, np.uint8)
    return np.unpackbits(raw, count=ranks, bitorder="little").astype(bool)
