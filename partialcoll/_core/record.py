# SPDX-License-Identifier: Apache-2.0
"""A round as the core describes it."""

from __future__ import annotations

from .ffi import ffi


class Record:
    """Room for the description of a round of so many ranks: the struct, behind it three masks."""

    def __init__(self, ranks: int) -> None:
        struct = ffi.sizeof("pcoll_round")
        self._memory = ffi.new("char[]", struct + 3 * 8 * ((ranks + 63) // 64))
        self.view = ffi.buffer(self._memory)
        self.round = ffi.cast("pcoll_round *", self._memory)
        # One number of it, for those who look after each round.
        at = ffi.offsetof("pcoll_round", "failed")
        self.failed = memoryview(self.view)[at : at + 4].cast("I")
        # What the core's functions fill in.
        self.out = (self.round, ffi.cast("uint64_t *", self._memory + struct))
