# SPDX-License-Identifier: Apache-2.0
"""What synchronous processes wait for, in virtual time: a full allreduce, a neighbour exchange.

Nobody can wait in virtual time. `then` says what to do when it is complete, and `Wait` insists
that it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ...decentralized.exchange import Array
from ...errors import StateError
from .events import Events


class Later:
    """Something that is complete at some time."""

    def __init__(self) -> None:
        self._started = self._complete = False
        self._then: Callable[[], Any] | None = None

    def then(self, action: Callable[[], Any]) -> None:
        """Do this when it is complete, or now if it is."""
        if self._complete:
            action()
        else:
            self._then = action

    def _begin(self) -> None:
        if self._started and not self._complete:
            raise StateError("the last start is not complete")
        self._started, self._complete = True, False

    def _end(self) -> None:
        self._complete = True
        action, self._then = self._then, None
        if action is not None:
            action()

    def Wait(self, timeout: float | None = None) -> Any:
        """StateError unless it is complete."""
        if not self._complete:
            raise StateError("nobody can wait in virtual time: use `then`")


@dataclass(frozen=True)
class _Round:
    active: int


class _Meeting:
    """The rounds of one allreduce, which all its ranks share."""

    def __init__(self, events: Events, latency: Callable[[], float]) -> None:
        self.events, self.latency = events, latency
        self.members: list[SimulatedReduction] = []
        self._arrived: list[SimulatedReduction] = []

    def arrive(self, member: SimulatedReduction) -> None:
        self._arrived.append(member)
        if len(self._arrived) < len(self.members):
            return
        self._arrived = []
        total = sum((m.send_buffer for m in self.members[1:]), self.members[0].send_buffer.copy())
        hops = (len(self.members) - 1).bit_length()
        delay = sum(self.latency() for _ in range(hops))
        for m in self.members:
            self.events.after(delay, lambda m=m: m.deliver(total))  # type: ignore[misc]


class SimulatedReduction(Later):
    """One rank's handle of a full allreduce (SUM); made by `reductions`."""

    def __init__(self, meeting: _Meeting, like: Array) -> None:
        super().__init__()
        self._meeting = meeting
        self.send_buffer = np.zeros_like(like)
        self.result = np.zeros_like(like)
        self.last_round = _Round(0)

    def Start(self) -> None:
        """Hand in the send buffer."""
        self._begin()
        self._meeting.arrive(self)

    def deliver(self, total: Array) -> None:
        """The round is complete for this rank."""
        self.result = total
        self.last_round = _Round(len(self._meeting.members))
        self._end()

    def Free(self) -> None:
        """There is nothing to free."""


def reductions(
    ranks: int, like: Array, events: Events, latency: Callable[[], float]
) -> list[SimulatedReduction]:
    """The handles of all ranks. A round takes ceil(log2 P) latencies after the last has come."""
    meeting = _Meeting(events, latency)
    meeting.members = [SimulatedReduction(meeting, like) for _ in range(ranks)]
    return meeting.members


class SimulatedNeighbours(Later):
    """One rank's exchange with its neighbours; made by `neighbour_exchanges`."""

    def __init__(
        self,
        rank: int,
        everybody: list[SimulatedNeighbours],
        neighbours: Iterable[int],
        like: Array,
        events: Events,
        latency: Callable[[], float],
    ) -> None:
        super().__init__()
        self._rank, self._everybody = rank, everybody
        self._events, self._latency = events, latency
        self.send_buffer = np.zeros_like(like)
        self._inbox: dict[int, deque[Array]] = {j: deque() for j in neighbours}
        self._last_arrival = dict.fromkeys(self._inbox, 0.0)  # messages do not overtake
        self._received: dict[int, Array] = {}

    @property
    def received(self) -> Mapping[int, Array]:
        """What came from each neighbour."""
        return self._received or {j: self.send_buffer for j in self._inbox}

    def Start(self) -> None:
        """Send, and begin to receive."""
        self._begin()
        for j in self._inbox:
            self._everybody[j]._expect(self._rank, self.send_buffer.copy())
        self._look()

    def _expect(self, source: int, model: Array) -> None:
        due = max(self._events.now + self._latency(), self._last_arrival[source])
        self._last_arrival[source] = due
        self._events.after(due - self._events.now, lambda: self._arrive(source, model))

    def _arrive(self, source: int, model: Array) -> None:
        self._inbox[source].append(model)
        self._look()

    def _look(self) -> None:
        if self._started and not self._complete and all(self._inbox.values()):
            self._received = {j: models.popleft() for j, models in self._inbox.items()}
            self._end()

    def Free(self) -> None:
        """There is nothing to free."""


def neighbour_exchanges(
    topology: Any, like: Array, events: Events, latency: Callable[[], float]
) -> list[SimulatedNeighbours]:
    """Those of all ranks of a topology."""
    everybody: list[SimulatedNeighbours] = []
    for rank in range(topology.n):
        neighbours = topology.neighbors(rank)
        everybody.append(SimulatedNeighbours(rank, everybody, neighbours, like, events, latency))
    return everybody
