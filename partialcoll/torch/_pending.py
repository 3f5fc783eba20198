# SPDX-License-Identifier: Apache-2.0
"""Deposits of this rank that no round has brought yet, for checkpoints: they are in the handle, and
would be lost with it."""

from __future__ import annotations

import torch

from .flat import Layout


class PendingDeposits:
    """How many are `outstanding`, with copies of them if wanted, and what was pending in the
    checkpoint that training began with (`carried`, in the layout of what is saved).

    One copy for each: a rank that lags has several under way, in rounds of their own, and when one
    of them has arrived the others have not.
    """

    def __init__(self, layout: Layout, saved: Layout, copied: bool) -> None:
        self.outstanding = 0
        self._layout, self._saved, self._copied = layout, saved, copied
        self._carried: list[torch.Tensor] | None = None
        self._owed: set[int] = set()  # buffers to which `_carried` is still to be added
        self._copies: list[list[torch.Tensor]] = []  # oldest first
        self._spare: list[list[torch.Tensor]] = []

    def carry(self, carried: list[torch.Tensor] | None) -> None:
        """What is to be added to the next deposit."""
        self._carried, self._owed = carried, set(range(len(self._layout.counts)))

    @torch.no_grad()
    def add_carried(self, flats: list[torch.Tensor], buffer: int) -> None:
        """To one buffer of a deposit, once."""
        if self._carried is not None and buffer in self._owed:
            self._owed.discard(buffer)
            for i in range(len(self._layout)):
                if self._layout.bucket(i) == buffer:
                    self._layout.part(flats, i).add_(self._saved.part(self._carried, i))

    def add_rest(self, flats: list[torch.Tensor]) -> bool:
        """To the other buffers; was there anything?"""
        if self._carried is None:
            return False
        for buffer in tuple(self._owed):
            self.add_carried(flats, buffer)
        self._carried = None
        return True

    def deposit(self, flats: list[torch.Tensor]) -> None:
        """One more."""
        if self._copied:
            arrived = len(self._copies) - self.outstanding
            self._spare = [*self._copies[:arrived], *self._spare][:2]
            del self._copies[:arrived]
            copy = self._spare.pop() if self._spare else self._layout.new()
            for kept, flat in zip(copy, flats):
                kept.copy_(flat)
            self._copies.append(copy)
        self.outstanding += 1

    def total(self) -> list[torch.Tensor] | None:
        """All of them added up, in the order in which they are added to each other while they
        wait; None: there are none."""
        if not self.outstanding or not self._copied:
            return self._carried
        first, *others = self._copies[-self.outstanding :]
        total = [flat.clone() for flat in first]
        for copy in others:
            for flat, kept in zip(total, copy):
                flat.add_(kept)
        return total
