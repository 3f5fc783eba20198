# SPDX-License-Identifier: Apache-2.0
"""Gradients go while backward still computes others: a bucket of them as soon as it is full.

What has gone belongs to the library until the round is over. So whatever changes a gradient has to
come before, in the backward pass, or after the sum (`clip_norm`): a gradient that is changed in
between is found by the version that torch counts of its memory, and refused.
"""

from __future__ import annotations

import torch

from .._errors import StateError
from ._rounds import Rounds, Slot

_TOO_LATE = (
    "after it had been sent (overlap=True): change gradients in hooks of their parameters, clip "
    "with clip_norm=, or take Allreduce() without overlap"
)


class Early:
    """Sends buckets of a step's slot. factor: what gradients are multiplied by before that."""

    def __init__(self, rounds: Rounds, names: list[str], factor: float) -> None:
        self._rounds, self._factor, self._names = rounds, factor, names
        self._bucket = [rounds.layout.bucket(i) for i in range(len(names))]
        self._sizes = [self._bucket.count(b) for b in range(len(rounds.layout.counts))]

    def begin(self, slot: Slot) -> None:
        """The backward passes to come fill this one."""
        self._slot = slot
        self._missing = list(self._sizes)
        self._versions: dict[int, int] = {}  # of the buckets that have gone

    def filled(self, i: int) -> None:
        """Parameter i has its gradient. Called within backward."""
        bucket = self._bucket[i]
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._scale(bucket)
            self._rounds.send(self._slot, bucket)
            self._versions[bucket] = self._version(bucket)

    @torch.no_grad()
    def _scale(self, bucket: int) -> None:
        if self._factor != 1.0:
            self._slot.flats[bucket].mul_(self._factor)

    def _version(self, bucket: int) -> int:
        return int(self._slot.flats[bucket]._version)

    def check_waits(self, i: int) -> None:
        """StateError if the gradient of parameter i, which is about to be replaced, has gone."""
        if self._bucket[i] in self._versions:
            raise StateError(f"parameter {self._names[i]!r}: its gradient was replaced {_TOO_LATE}")

    def finish(self) -> None:
        """Before the rest goes. StateError if what has gone was changed."""
        for bucket, version in self._versions.items():
            if self._version(bucket) != version:
                name = self._names[self._bucket.index(bucket)]
                raise StateError(f"the gradient of {name!r}, or beside it, was changed {_TOO_LATE}")
        for bucket in range(len(self._sizes)):
            if bucket not in self._versions:
                self._scale(bucket)
