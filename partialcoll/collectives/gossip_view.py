# SPDX-License-Identifier: Apache-2.0
"""What a gossip buffer tells: its counts, and the board that its ranks share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._core.buffers import Array
from .._core.object import CoreObject


@dataclass(frozen=True)
class GossipStats:
    """What a `GossipBuffer` has done on this rank since it was made.

    ``publishes``, ``reads`` (of others), ``averages``: operations. ``skipped``: averages that were
    not made, because the peer had not collected. ``collected``: deltas taken from others.
    ``retries``, ``torn``: chunks read again because their owner had published meanwhile, given up.
    ``pushed``, ``drained``: messages; ``queue_full``: not sent for want of room.
    ``decode_failures``: messages thrown away because they did not decode with the key.
    ``fallbacks``: blocks that were read again with more bits. ``bytes_read``,
    ``bytes_written``: of the memory of others, and of the own queue. ``orphaned``: deltas of and
    for ranks that have died, which this one took over.
    """

    publishes: int
    reads: int
    averages: int
    skipped: int
    collected: int
    retries: int
    torn: int
    pushed: int
    drained: int
    queue_full: int
    decode_failures: int
    fallbacks: int
    bytes_read: int
    bytes_written: int
    orphaned: int


class Board:
    """The words that all ranks of a buffer share, at rank 0; see `pairing.Board`."""

    def __init__(self, buffer: CoreObject) -> None:
        self._buffer = buffer

    def read_all(self) -> Array:
        """A copy of the words, one for each rank. One-sided."""
        words = np.empty(self._buffer.size, np.int64)
        self._buffer._call("board_read", words)
        return words

    def compare_and_swap(self, index: int, expected: int, desired: int) -> int:
        """Word `index` becomes `desired` if it is `expected`; what it was. One-sided."""
        return int(self._buffer._answer("int64_t", "board_swap", index, expected, desired))

    def fetch_add(self, delta: int) -> int:
        """Add to the counter; what it was. One-sided."""
        return int(self._buffer._answer("int64_t", "board_count", delta))
