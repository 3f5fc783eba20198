# SPDX-License-Identifier: Apache-2.0
"""Gradients go while backward still computes others: a bucket of them as soon as it is full.

What has gone belongs to the library until the round is over. So whatever changes a gradient has to
come before, in the backward pass, or after the sum (`clip_norm`). A gradient that is changed in
between is found by the version that torch counts of its memory, and refused. Torch does not count
what is done to `grad.data`, to an array of numpy on it, or by some of its kernels: so every so many
rounds, and in the first one, the bits are compared as well.
"""

from __future__ import annotations

import weakref
from typing import Callable

import torch

from ..errors import StateError
from ._fingerprints import hash_tensors
from ._gradients import Slot
from .replicated import Replicated

_TOO_LATE = (
    "after it had been sent (overlap=True): change gradients in hooks of their parameters, clip "
    "with clip_norm=, or take Allreduce() without overlap"
)


# In these the library's deposit takes other bits; the others it only reads.
_WIDENED = (torch.float16, torch.bfloat16)


class Early:
    """Sends buckets of a step's slot. prepare: what is done to each before that; every: rounds
    after which the bits of what has gone are compared."""

    def __init__(
        self,
        rounds: Replicated,
        names: list[str],
        prepare: Callable[[torch.Tensor], None],
        every: int,
    ) -> None:
        self._rounds = weakref.ref(rounds)  # the parameters' hooks keep this object
        self._prepare, self._names, self._every = prepare, names, every
        self._bucket = [rounds.layout.bucket(i) for i in range(len(names))]
        self._sizes = [self._bucket.count(b) for b in range(len(rounds.layout.counts))]

    def begin(self, slot: Slot, version: int) -> None:
        """The backward passes to come fill this one; so many rounds have been seen."""
        self._slot, self._exact = slot, version % self._every == 0
        self._missing = list(self._sizes)
        self._prepared: set[int] = set()
        self._gone: dict[int, tuple[int, bytes]] = {}  # bucket -> what it was then

    def filled(self, i: int) -> None:
        """Parameter i has its gradient. Called within backward."""
        bucket, rounds = self._bucket[i], self._rounds()
        self._missing[bucket] -= 1
        if self._missing[bucket] or rounds is None:
            return
        rounds.check_waited("backward()")
        self._ready(bucket)
        rounds.add_carried(self._slot, bucket)
        self._gone[bucket] = self._look(bucket)
        rounds.send(bucket)

    def _ready(self, bucket: int) -> None:
        if bucket not in self._prepared:
            self._prepared.add(bucket)
            self._prepare(self._slot.flats[bucket])

    def _look(self, bucket: int) -> tuple[int, bytes]:
        flat = self._slot.flats[bucket]
        exact = self._exact and flat.dtype not in _WIDENED
        return int(flat._version), hash_tensors([flat]) if exact else b""

    def check_waits(self, i: int) -> None:
        """StateError if the gradient of parameter i, which is about to be replaced, has gone."""
        if self._bucket[i] in self._gone:
            raise StateError(f"parameter {self._names[i]!r}: its gradient was replaced {_TOO_LATE}")

    def finish(self) -> None:
        """Before the rest goes. StateError if what has gone was changed."""
        for bucket, then in self._gone.items():
            if self._look(bucket) != then:
                name = self._names[self._bucket.index(bucket)]
                raise StateError(f"the gradient of {name!r}, or beside it, was changed {_TOO_LATE}")
        for bucket in range(len(self._sizes)):
            if bucket not in self._gone:
                self._ready(bucket)
