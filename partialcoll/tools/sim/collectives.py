# SPDX-License-Identifier: Apache-2.0
"""What synchronous processes wait for, in virtual time: a full allreduce, which the simulator
plays, and the messages of a neighbor exchange, which has no protocol.

Nobody can wait in virtual time. `then` says what to do when it is complete, and `Wait` insists
that it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ..._core.simulator import simulator
from ...decentralized.exchange import Array
from ...errors import StateError
from .events import Events

_ffi, _lib = simulator.ffi, simulator.lib
_NANOSECONDS = 1e9  # of a unit of virtual time


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
    """The rounds of one allreduce, which all its ranks share. Nothing of a full round is over
    before the last rank has come, so that is when the simulator plays it."""

    def __init__(self, ranks: int, like: Array, events: Events, latency: float, seed: int) -> None:
        self._events = events
        self._arrived: list[tuple[SimulatedReduction, float]] = []
        self.members = [SimulatedReduction(self, like) for _ in range(ranks)]
        skew = _ffi.new("pcoll_skew *")
        skew.ranks, skew.count, skew.seed = ranks, like.size, seed
        skew.dtype = _lib.PCOLL_FLOAT64 if like.dtype == np.float64 else _lib.PCOLL_FLOAT32
        skew.network.L = latency * _NANOSECONDS
        skew.network.latency = _lib.PCOLL_LATENCY_EXPONENTIAL
        options = _ffi.new("pcoll_options *")
        simulator.check(_lib.pcoll_policy_parse(b"full", _ffi.addressof(options, "policy")))
        options.history, options.domain = 1, _lib.PCOLL_DOMAIN_RANK
        core = simulator.answer("pcoll_skew_run *", _lib.pcoll_skew_create, skew, options)
        self._core = _ffi.gc(core, _free)

    def arrive(self, member: SimulatedReduction) -> None:
        self._arrived.append((member, self._events.now))
        if len(self._arrived) == len(self.members):
            arrived, self._arrived = self._arrived, []
            self._play(arrived)

    def _play(self, arrived: list[tuple[SimulatedReduction, float]]) -> None:
        first, now = arrived[0][1], self._events.now
        place = {id(member): i for i, member in enumerate(self.members)}
        starts, took = np.zeros(len(arrived)), np.zeros(len(arrived))
        for member, time in arrived:
            starts[place[id(member)]] = (time - first) * _NANOSECONDS
        data = np.array([member.send_buffer for member in self.members])
        simulator.call(_lib.pcoll_skew_reduce, self._core, starts, data, took)
        for member, over, row in zip(self.members, (starts + took) / _NANOSECONDS, data):
            delay = max(0.0, first + float(over) - now)
            self._events.after(delay, lambda m=member, row=row: m.deliver(row))  # type: ignore[misc]


def _free(core: Any) -> None:
    _lib.pcoll_skew_free(_ffi.new("pcoll_skew_run **", core))


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
    ranks: int, like: Array, events: Events, latency: float, seed: int = 0
) -> list[SimulatedReduction]:
    """The handles of all ranks: the endpoints of csrc/allreduce, over messages that take an
    exponential latency of this mean."""
    return _Meeting(ranks, like, events, latency, seed).members


class SimulatedNeighbors(Later):
    """One rank's exchange with its neighbors; made by `neighbor_exchanges`."""

    def __init__(
        self,
        rank: int,
        everybody: list[SimulatedNeighbors],
        neighbors: Iterable[int],
        like: Array,
        events: Events,
        latency: Callable[[], float],
    ) -> None:
        super().__init__()
        self._rank, self._everybody = rank, everybody
        self._events, self._latency = events, latency
        self.send_buffer = np.zeros_like(like)
        self._inbox: dict[int, deque[Array]] = {j: deque() for j in neighbors}
        self._last_arrival = dict.fromkeys(self._inbox, 0.0)  # messages do not overtake
        self._received: dict[int, Array] = {}

    @property
    def received(self) -> Mapping[int, Array]:
        """What came from each neighbor."""
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


def neighbor_exchanges(
    topology: Any, like: Array, events: Events, latency: Callable[[], float]
) -> list[SimulatedNeighbors]:
    """Those of all ranks of a topology."""
    everybody: list[SimulatedNeighbors] = []
    for rank in range(topology.n):
        neighbors = topology.neighbors(rank)
        everybody.append(SimulatedNeighbors(rank, everybody, neighbors, like, events, latency))
    return everybody
