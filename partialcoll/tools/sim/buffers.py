# SPDX-License-Identifier: Apache-2.0
"""Gossip buffers of simulated ranks, with the methods of `partialcoll.GossipBuffer`.

All ranks are in one process. What a rank publishes, gives to another or sends becomes visible after
a latency; everything else takes no time. Two publications of a rank, or two messages to it, may
overtake each other; of publications the newest that is visible counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ...decentralized.exchange import Array
from ...errors import Error, StateError
from .events import Events


@dataclass
class BufferCounts:
    """As those of the real one."""

    publishes: int = 0
    reads: int = 0
    averages: int = 0
    skipped: int = 0
    collected: int = 0
    pushed: int = 0
    drained: int = 0
    queue_full: int = 0
    decode_failures: int = 0


def _nobody() -> None:
    pass


class SimulatedBuffer:
    """The register, accumulator and queue of one rank; made by `buffers`."""

    def __init__(
        self,
        rank: int,
        everybody: Sequence[SimulatedBuffer],
        like: Array,
        events: Events,
        latency: Callable[[], float],
        topology: Any,
        codec: Any,
        queue_slots: int,
        max_uncollected: int,
    ) -> None:
        self.rank = rank
        self.shape, self.dtype = like.shape, like.dtype
        self.topology = topology
        self.stats = BufferCounts()
        self.on_arrival: Callable[[], None] = _nobody
        self._everybody = everybody
        self._events = events
        self._latency = latency
        self._codec = codec
        self._queue_slots = queue_slots
        self._max_uncollected = max_uncollected
        self._published: list[tuple[float, int, Array]] = []  # visible from when, version, model
        self._landed = np.zeros_like(like)
        self._deltas = 0  # landed
        self._uncollected = 0  # landed or on their way
        self._flying: dict[int, Array] = {}  # deltas on their way here
        self._queue: deque[tuple[int, Any]] = deque()
        self._coming: dict[int, Any] = {}  # messages on their way here
        self._number = 0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self._everybody)

    # Register

    def publish(self, x: Array) -> int:
        """Write the own register; its version."""
        self.stats.publishes += 1
        visible = self._events.now + self._latency()
        self._published.append((visible, self.stats.publishes, x.copy()))
        return self.stats.publishes

    def _visible(self) -> tuple[Array, int]:
        now = self._events.now
        newest = max((p[1] for p in self._published if p[0] <= now), default=0)
        if not newest:
            raise StateError(f"rank {self.rank} has published nothing yet")
        self._published = [p for p in self._published if p[1] >= newest]
        return self._published[0][2], newest

    def read(
        self, peer: int, *, key: Array | None = None, out: Array | None = None
    ) -> tuple[Array, int]:
        """A peer's register and its version."""
        model, version = self._everybody[peer]._visible()
        self.stats.reads += 1
        if self._codec is not None:
            payload = self._encode(model, key)
            model = self._codec.decode(payload, key)
        if out is None:
            return model.copy(), version
        np.copyto(out, model)
        return out, version

    def _encode(self, x: Array, key: Array | None) -> bytes:
        self._number += 1
        seed = self._number << 20 | self.rank
        encoded: bytes = self._codec.encode(x, key=key, seed=seed)
        return encoded

    # Accumulator

    def average(
        self,
        x: Array,
        peer: int,
        *,
        weight: float = 0.5,
        momentum: Array | None = None,
        ratio: float = 1.0,
    ) -> bool:
        """Average with a peer's register; False if too many deltas lie there uncollected."""
        other = self._everybody[peer]
        if other._uncollected >= self._max_uncollected:
            other._visible()
            self.stats.skipped += 1
            return False
        theirs, _ = self.read(peer, key=x)
        delta = weight * (x - theirs)
        x -= delta
        if momentum is not None:
            momentum -= ratio * delta
        other._expect(delta)
        self.stats.averages += 1
        return True

    def _expect(self, delta: Array) -> None:
        self._number += 1
        self._uncollected += 1
        self._flying[self._number] = delta
        number = self._number
        self._events.after(self._latency(), lambda: self._land(number))

    def _land(self, number: int) -> None:
        self._landed += self._flying.pop(number)
        self._deltas += 1
        self.on_arrival()

    def collect(self, x: Array, *, momentum: Array | None = None, ratio: float = 1.0) -> int:
        """Add what others accumulated here; how many deltas that were."""
        deltas, self._deltas = self._deltas, 0
        if deltas:
            x += self._landed
            if momentum is not None:
                momentum += ratio * self._landed
            self._landed.fill(0)
        self._uncollected -= deltas
        self.stats.collected += deltas
        return deltas

    def pending(self) -> Array:
        """A copy of what lies uncollected here."""
        return self._landed.copy()

    def on_the_way(self) -> Array:
        """The sum of the deltas that have not landed here yet."""
        return sum(self._flying.values(), np.zeros_like(self._landed))

    # Queue

    def push(
        self, peer: int, x: Array, *, key: Array | None = None, sent: Array | None = None
    ) -> bool:
        """Append to the peer's queue; False if it is full."""
        other = self._everybody[peer]
        if len(other._queue) + len(other._coming) >= self._queue_slots:
            self.stats.queue_full += 1
            return False
        message: Any = x.copy()
        if self._codec is not None:
            message = self._encode(x, key)
        if sent is not None:
            np.copyto(sent, self._decoded(message, key))
        other._await(self.rank, message)
        self.stats.pushed += 1
        return True

    def _await(self, source: int, message: Any) -> None:
        self._number += 1
        number = self._number
        self._coming[number] = (source, message)
        self._events.after(self._latency(), lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        self._queue.append(self._coming.pop(number))
        self.on_arrival()

    def _decoded(self, message: Any, key: Array | None) -> Array:
        """Raises Error if it does not decode."""
        if self._codec is None:
            return np.array(message)
        decoded: Array = self._codec.decode(message, key)
        return decoded

    def drain(self, *, key: Array | None = None) -> list[tuple[int, Array]]:
        """Take all messages out of the own queue."""
        messages = []
        while self._queue:
            source, message = self._queue.popleft()
            try:
                messages.append((source, self._decoded(message, key)))
            except Error:  # DecodeError, of a Lattice
                self.stats.decode_failures += 1
        self.stats.drained += len(messages)
        return messages

    def peek(
        self, peer: int, *, key: Array | None = None, out: Array | None = None
    ) -> tuple[Array, int] | None:
        """The newest message in a peer's queue, left there."""
        for source, message in reversed(self._everybody[peer]._queue):
            try:
                decoded = self._decoded(message, key)
            except Error:  # DecodeError, of a Lattice
                self.stats.decode_failures += 1
                continue
            if out is not None:
                np.copyto(out, decoded)
                decoded = out
            return decoded, source
        return None

    def undrained(self) -> list[Array]:
        """Copies of all messages in the queue or on their way to it; without a codec."""
        return [np.array(message) for _, message in [*self._queue, *self._coming.values()]]

    def Free(self) -> None:
        """There is nothing to free."""


def buffers(
    like: Array,
    topology: Any,
    events: Events,
    latency: Callable[[], float],
    *,
    codec: Any = None,
    queue_slots: int = 4,
    max_uncollected: int = 2,
) -> list[SimulatedBuffer]:
    """Those of all ranks of a topology.

    `codec`, if given, has the `encode` and `decode` of `partialcoll.Lattice`. A register is encoded
    for the reader's key when it is read, so every read decodes.
    """
    everybody: list[SimulatedBuffer] = []
    for rank in range(topology.n):
        everybody.append(
            SimulatedBuffer(
                rank,
                everybody,
                like,
                events,
                latency,
                topology,
                codec,
                queue_slots,
                max_uncollected,
            )
        )
    return everybody
