# SPDX-License-Identifier: Apache-2.0
"""The choice of averaging partners. Only `Available` communicates, over a Board.

`random`, `bipartite` and `hops` need no other rank: every rank draws for itself. `available` pairs
ranks that are free at the same time, first in first out, as A2CiD2 does (Nabli et al., NeurIPS
2023, section 4.1), but without a coordinator. Its protocol:

The board is an array of n words and a counter, at one rank, changed by atomic operations only.
Word i is 0, or the ticket with which rank i waits. Tickets are 1, 2, 3, ..., the counter's.

Who writes what. Rank i alone makes its word not 0, and only while it is 0 (`_post`). Anybody may
make it 0, and only by compare-and-swap against a ticket that was read: its owner to withdraw, a
neighbor to take it. So each time that i waits ends exactly once: the one whose swap succeeds
learns from it what happened, and the others learn that they were late.

A rank that becomes free reads the board and takes the waiting neighbor with the oldest ticket.
If none waits it draws a ticket, posts it, and reads again, now and in every later poll. If it
finds its word 0, it was taken. If it finds a neighbor with an *older* ticket, it withdraws (if
that fails, it was taken) and takes that one.

Invariant: a rank takes another only while its own word is 0, and a rank whose word is 0 cannot be
taken. So nobody both takes and is taken, and nobody is taken by two.

Nobody waits for ever beside a waiting neighbor: of two that wait, the younger one's next poll
sees the older and takes it. It must look in every poll, not only once after posting: a ticket is
drawn before it is posted, so the older one may be posted last, after the other has looked; and it
would not take a younger one. (That both look, and only for older ones, is what keeps them from
withdrawing at the same time, for ever.)

A stale read is harmless: words may be read one by one, at different times, and be old when they
are used. A ticket that is gone, or was replaced by a newer one, makes the swap fail. One that was
withdrawn and posted again in the meantime means what it meant: that rank waits. A rank draws a new
ticket only after it has found somebody, was taken, or left, so one that withdrew in vain keeps its
place. Words need to become visible some time, in no order among each other.

Nobody blocks: a poll makes at most 4 reads and 8 other operations, whatever the others do. A rank
that has gone away holds nothing that others need: a ticket drawn and not posted is waited for by
nobody, and a posted one is taken once.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Protocol, Union, cast

import numpy as np
import numpy.typing as npt

from .._core import checks
from .topology import Topology


class Pairing(ABC):
    """Chooses whom this rank averages with, one call after the other. The edges of `topology` may
    be used; call t uses those of round t if it is time-varying. `rank` is the caller's. Two runs
    with the same `seed` (an int) make the same choices on every rank."""

    name: ClassVar[str]

    def __init__(self, topology: Topology, rank: int, *, seed: int = 0) -> None:
        self.topology = checks.instance("topology", topology, Topology, "a Topology")
        self.rank = checks.integer("rank", rank, 0, topology.n - 1)
        try:
            self.seed = checks.integer("seed", seed, 0)
        except TypeError as error:
            raise ValueError(*error.args) from None
        self._draws = np.random.default_rng([self.seed, self.rank])
        self._calls = 0

    @abstractmethod
    def next_peer(self) -> int | None:
        """Return the rank to average with now; None: continue without averaging."""


class Random(Pairing):
    """Draws a neighbor by weight, uniformly where all weights are 1. Parameters as of `Pairing`.
    Source: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML
    2018, algorithm 1."""

    name = "random"

    def next_peer(self) -> int | None:
        """Return a neighbor; None if there is none."""
        self._calls += 1
        return self.topology.choose(self.rank, self._draws.random(), round=self._calls - 1)


class Bipartite(Random):
    """Active ranks choose among passive neighbors; passive ones never choose. Where both sides of
    an averaging take part this keeps them from waiting for each other in a circle; averaging over
    RMA does not need it: it is here for comparison. Parameters as of `Pairing`. The topology must
    be bipartite; rank 0 is active. Source: ICML 2018 (see `Random`), section 3.3.1."""

    name = "bipartite"

    def __init__(self, topology: Topology, rank: int, *, seed: int = 0) -> None:
        super().__init__(topology, rank, seed=seed)
        self._whole = topology
        self._chooses = topology.side(rank) == 0

    @property
    def active(self) -> bool:
        """Whether this rank chooses partners. A passive rank does, too, once ranks have died and an
        edge leads from it to another passive rank: otherwise no rank would use that edge."""
        if self._chooses or self.topology is self._whole:
            return self._chooses
        return any(self._whole.side(peer) for peer in self.topology.neighbors(self.rank))

    def next_peer(self) -> int | None:
        """Return a passive neighbor; None on passive ranks."""
        return super().next_peer() if self.active else None


class Hops(Pairing):
    """Call t: the rank that is 2^k further on the ring, k = t mod ceil(log2 n). Parameters as of
    `Pairing`: a topology with these edges, as `exponential` and `complete` have them, else
    ValueError; the seed makes no difference. Source: ICML 2018 (see `Random`), section 3.3.2, where
    it makes log n steps from any rank to any other."""

    name = "hops"

    def __init__(self, topology: Topology, rank: int, *, seed: int = 0) -> None:
        super().__init__(topology, rank, seed=seed)
        n = topology.n
        self._peers = [(self.rank + (1 << k)) % n for k in range((n - 1).bit_length())]
        if not all(topology.has_edge(self.rank, peer) for peer in self._peers):
            raise ValueError(
                "topology: expected one with edges of 2^k hops on the ring (exponential, "
                f"complete), got {topology!r}"
            )

    def next_peer(self) -> int | None:
        """Return the next hop's rank; None for one rank alone. Hops to ranks that have died are
        left out; without any other a neighbor is drawn."""
        for _ in self._peers:
            self._calls += 1
            peer = self._peers[(self._calls - 1) % len(self._peers)]
            if self.topology.has_edge(self.rank, peer):
                return peer
        return self.topology.choose(self.rank, self._draws.random()) if self._peers else None


class Board(Protocol):
    """The shared memory of `Available`: n words and a counter that all ranks share, 0 at first.
    Every operation must be atomic on each word that it touches; no more is required."""

    def read_all(self) -> npt.NDArray[Any]:
        """Return a copy of the n words; the words may be read at different times."""

    def compare_and_swap(self, index: int, expected: int, desired: int) -> int:
        """Make word `index` `desired` if it is `expected`. Return what it was."""

    def fetch_add(self, delta: int) -> int:
        """Add `delta` to the counter. Return what it was."""


class Taken(enum.Enum):
    """The type of `TAKEN`."""

    TAKEN = "taken"


TAKEN = Taken.TAKEN
"""Another rank took this rank and averages with it; this rank has nothing left to do."""


# An operation on the board: the name of the method, and its arguments.
Operation = tuple[Any, ...]
Outcome = Union[int, Taken, None]
Steps = Generator[Operation, Any, Outcome]


class Available(Pairing):
    """Chooses the free neighbor that waits longest; first in, first out. The head of the file says
    how. Call `poll` when the rank is free and has averagings to make, again and again until it
    answers; `leave` when it has none left.

    `topology`, `rank`, `seed`: see `Pairing`; the seed makes no difference. `board`: a `Board` that
    all ranks share. Attributes: `waiting`, whether it has a ticket on the board, as far as it
    knows; `taken`, how often somebody else took this rank.
    """

    name = "available"
    _SCANS: ClassVar[int] = 4

    def __init__(self, topology: Topology, rank: int, board: Board, *, seed: int = 0) -> None:
        super().__init__(topology, rank, seed=seed)
        self._board = board
        self._ticket = 0  # 0: not drawn since it last found a partner
        self.waiting = False
        self.taken = 0

    def next_peer(self) -> int | None:
        """`poll`, for callers that need not know whether they were taken (`taken` counts that)."""
        outcome = self.poll()
        return outcome if isinstance(outcome, int) else None

    def poll(self) -> Outcome:
        """Return a rank to average with, TAKEN if another rank does with this one, else None."""
        return self._run(self.steps())

    def leave(self) -> Outcome:
        """Stop waiting. Return TAKEN if a rank took this one before that, else None."""
        return self._run(self.leaving())

    def _run(self, steps: Steps) -> Outcome:
        try:
            method, *arguments = next(steps)
            while True:
                result = getattr(self._board, method)(*arguments)
                method, *arguments = steps.send(result)
        except StopIteration as end:
            return cast("Outcome", end.value)

    def steps(self) -> Steps:
        """`poll` as a generator that yields operations and is sent their results."""
        for _ in range(self._SCANS):
            words = yield ("read_all",)
            if self.waiting and not words[self.rank]:
                return self._end(TAKEN)
            target = self._oldest(words)
            if target is None:
                if self.waiting:
                    return None
                yield from self._post()
                continue
            if self.waiting and not (yield from self._withdraw()):
                return self._end(TAKEN)
            ticket = int(words[target])
            if (yield "compare_and_swap", target, ticket, 0) == ticket:
                return self._end(target)
        # Others were quicker each time: wait for the next poll, on the board.
        if not self.waiting:
            yield from self._post()
        return None

    def leaving(self) -> Steps:
        """`leave` as a generator."""
        if self.waiting and not (yield from self._withdraw()):
            return self._end(TAKEN)
        return self._end(None)

    def _oldest(self, words: npt.NDArray[Any]) -> int | None:
        """The neighbor that waits longest; while this rank waits, one that waits longer."""
        limit = self._ticket if self.waiting else 0
        waiting = sorted((int(words[i]), int(i)) for i in np.flatnonzero(words))
        for ticket, i in waiting:
            if limit and ticket >= limit:
                return None
            if i != self.rank and self._may_meet(i):
                return i
        return None

    def _may_meet(self, other: int) -> bool:
        return self.topology.has_edge(self.rank, other) or self.topology.has_edge(other, self.rank)

    def _post(self) -> Generator[Operation, Any, None]:
        if not self._ticket:
            self._ticket = (yield "fetch_add", 1) + 1
        yield "compare_and_swap", self.rank, 0, self._ticket
        self.waiting = True

    # False if another rank has taken this rank.
    def _withdraw(self) -> Generator[Operation, Any, bool]:
        own: bool = (yield "compare_and_swap", self.rank, self._ticket, 0) == self._ticket
        self.waiting = False
        return own

    def _end(self, outcome: Outcome) -> Outcome:
        self._ticket, self.waiting = 0, False
        self.taken += outcome is TAKEN
        return outcome


NAMES = ("random", "bipartite", "hops", "available")


def make(
    name: str, topology: Topology, rank: int, *, seed: int = 0, board: Board | None = None
) -> Pairing:
    """Return the pairing of that `name`, one of `NAMES`, for one rank. `topology`, `rank` and
    `seed` as of `Pairing`. `board` is needed for "available", and shared by all ranks. Raises
    ValueError, naming ``pairing``, for any other name."""
    simple: dict[str, type[Pairing]] = {kind.name: kind for kind in (Random, Bipartite, Hops)}
    if name in simple:
        return simple[name](topology, rank, seed=seed)
    if name != "available":
        raise ValueError(f"pairing: expected one of {', '.join(NAMES)}, got {name!r}")
    if board is None:
        raise ValueError("board: expected one for the pairing 'available', got None")
    return Available(topology, rank, board, seed=seed)
