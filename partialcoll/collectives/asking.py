# SPDX-License-Identifier: Apache-2.0
"""Whom a rank that needs a state asks next, and when: no I/O, times are given. See `resync`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .._core import checks

_AGAIN = 10e-3  # seconds until a peer that had nothing is asked again


@dataclass
class Question:
    """Of this rank: whom to ask next, and who has not answered."""

    number: int
    order: deque[int]
    patience: float
    progress: float  # when something of a state came last, or it was asked
    open: set[int] = field(default_factory=set)  # asked, and nothing has come
    coming: set[int] = field(default_factory=set)  # their states are on the way
    asked: dict[int, float] = field(default_factory=dict)  # all, and when last
    next_at: float = 0.0

    def next_peer(self, now: float) -> int | None:
        """The next one in turn who owes nothing and has not just been asked, if it is time."""
        if now < self.next_at:
            return None
        for _ in range(len(self.order)):
            peer = self.order[0]
            self.order.rotate(-1)
            free = peer not in self.open and peer not in self.coming
            if free and now >= self.asked.get(peer, -_AGAIN) + _AGAIN:
                self.open.add(peer)
                self.asked[peer] = now
                self.next_at = now + self.patience
                return peer
        return None

    def answered(self, peer: int, has_state: bool, now: float) -> None:
        """It has something: no reason to ask another. It has nothing: the next one at once."""
        self.open.discard(peer)
        if has_state:
            self.coming.add(peer)
            self.comes(now)
        else:
            self.next_at = now

    def lost(self, peer: int, now: float) -> None:
        """The peer has died: ask the next one at once."""
        if peer in self.order:
            self.order.remove(peer)
        self.open.discard(peer)
        self.coming.discard(peer)
        self.next_at = now

    def comes(self, now: float) -> None:
        self.progress = now
        self.next_at = now + self.patience

    def complaint(self, rank: int, limit: float) -> str:
        """What to say when patience is over."""
        if not self.order:
            return f"rank {rank} asked for a state, and all ranks that it could ask have died"
        asked = ", ".join(map(str, self.asked))
        silent = ", ".join(map(str, sorted(self.open))) or "none of them"
        return (
            f"rank {rank} asked for a state and nothing came for {limit:g} s: asked ranks {asked}; "
            f"without an answer: {silent}. Who has one must call serve at its step boundaries"
        )


def check_peers(peers: Iterable[int] | None, rank: int, size: int) -> list[int]:
    """Each once, in their order; all others, beginning with the next one, for None."""
    if peers is None:
        peers = [(rank + i) % size for i in range(1, size)]
    given = checks.several("peers", peers, what="ranks or None")
    order = list(dict.fromkeys(checks.integer("peers", peer, what="ranks") for peer in given))
    for peer in order:
        if not 0 <= peer < size or peer == rank:
            raise ValueError(
                f"peers: expected ranks from 0 to {size - 1} other than {rank}, the own one, "
                f"got {peer}"
            )
    if not order:
        raise ValueError("peers: expected at least one rank, got none")
    return [int(peer) for peer in order]
