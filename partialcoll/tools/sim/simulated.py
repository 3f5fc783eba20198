# SPDX-License-Identifier: Apache-2.0
"""Virtual time and what simulated ranks communicate with: gossip buffers, a full allreduce, the
messages of a neighbor exchange, and grouped averaging.

`partialcoll.GossipBuffer` and `partialcoll.GroupAllreduce` run unchanged, over the simulator's
windows and messages, all in this process. The simulator plays the rounds of a full allreduce; a
neighbor exchange has no protocol. What a rank publishes, gives to another or sends is there after a
latency; everything else takes no time. Two messages to a rank may overtake each other. A
publication that is overtaken by a newer one comes with it.

Nobody can wait in virtual time: `then` says what to do when something is complete, and ``Wait``
insists that it is. A second of a group's time is a unit of virtual time, a gradient step.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

from ..._core import buffers as arrays
from ..._core.pure import simulator
from ...collectives.gossip import GossipBuffer
from ...collectives.group import GroupAllreduce, GroupRound
from ...decentralized.process import Array
from ...errors import StateError
from ...grid import Grid
from .. import environment

_ffi, _lib = simulator.ffi, simulator.lib
_NANOSECONDS = 1e9  # of a unit of virtual time


def _owned(core: Any, kind: str, free: Callable[[Any], None]) -> Any:
    return _ffi.gc(core, lambda it: free(_ffi.new(kind, it)))


class Events:
    """Events in the order of their times, then in the order in which they were asked for."""

    def __init__(self) -> None:
        self.sources: list[_GroupRanks] = []
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()
        self.now = 0.0

    def after(self, delay: float, action: Callable[[], Any]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), action))

    def step(self, until: float = math.inf) -> bool:
        due = min(until, self._heap[0][0] if self._heap else math.inf)
        for source in self.sources:
            happened = source.run(due) if due < math.inf or source.waits else None
            if happened is not None:
                self.now = max(self.now, happened[0])
                happened[1]()
                return True
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True

    def run(self, until: float) -> None:
        while self.step(until):
            pass
        self.now = until


def latencies(mean: float, seed: object) -> Callable[[], float]:
    """Return a function that draws exponential latencies; always 0 with a mean of 0."""
    random = np.random.default_rng(seed)  # type: ignore[arg-type]
    return lambda: float(random.exponential(mean)) if mean else 0.0


class SimulatedBuffer(GossipBuffer):
    """The buffer of one rank, made by `buffers`. Free does nothing."""

    _library = simulator

    def __init__(self, rank: int, ranks: Any, options: Any, like: Array, topology: Any) -> None:
        self._pointer = _ffi.new("pcoll_gossip **")
        self._rank, self._size = rank, topology.n
        self._ranks = ranks
        self._describe(options, like, topology)
        self._publications = 0
        self._unpublished: deque[tuple[int, Array]] = deque()
        self.on_arrival: Callable[[], Any] = lambda: None

    def clock(self) -> float:
        return float(self._ranks.events.now)

    def publish(self, x: Array) -> int:
        self._publications += 1
        self._moved = False
        number, delay = self._publications, self._ranks.latency()
        self._unpublished.append((number, x.copy() if delay else x))
        if delay:
            self._ranks.events.after(delay, lambda: self._publish_up_to(number))
        else:
            self._publish_up_to(number)
        return number

    def _publish_up_to(self, number: int) -> None:
        moved = self._moved
        while self._unpublished and self._unpublished[0][0] <= number:
            super().publish(self._unpublished.popleft()[1])
        self._moved = moved  # since it was asked for

    def average(self, x: Any, peer: int, **how: Any) -> bool:
        return super().average(x, peer, **how) and bool(self._send())

    def push(self, peer: int, x: Any, **how: Any) -> bool:
        return super().push(peer, x, **how) and bool(self._send())

    def _send(self) -> Any:
        """Deliver what was just given or sent, after a latency; return what is on its way."""
        core = self._ranks.core
        parcel = simulator.answer("void *", _lib.pcoll_sim_gossip_sent, core, self._rank)
        self._ranks.events.after(self._ranks.latency(), lambda: self._land(parcel))
        return parcel

    def _land(self, parcel: Any) -> None:
        core = self._ranks.core
        rank = simulator.answer("uint32_t", _lib.pcoll_sim_gossip_land, core, parcel)
        self._ranks.buffers[rank].on_arrival()

    def Free(self, timeout: float | None = None) -> None:
        pass


def buffers(
    like: Array,
    topology: Any,
    events: Events,
    latency: Callable[[], float],
    *,
    codec: Any = None,
    queue_slots: int = 4,
    max_uncollected: int = 2,
    kind: type[SimulatedBuffer] = SimulatedBuffer,
) -> list[SimulatedBuffer]:
    """Return the buffers of all ranks of a topology, with the arguments of `GossipBuffer`."""
    # State that all ranks share. The simulator's object is freed with the last buffer.
    ranks = SimpleNamespace(events=events, latency=latency, buffers=[], core=None)
    options = _ffi.new("pcoll_gossip_options *")
    everybody = [kind(rank, ranks, options, like, topology) for rank in range(topology.n)]
    everybody[0]._choose(options, codec, queue_slots, max_uncollected, "manual")
    ranks.buffers, create = everybody, _lib.pcoll_sim_gossip_create
    core = simulator.answer("pcoll_sim_gossip *", create, len(everybody), options)
    ranks.core = _owned(core, "pcoll_sim_gossip **", _lib.pcoll_sim_gossip_free)
    for rank, buffer in enumerate(everybody):
        simulator.call(_lib.pcoll_sim_gossip_rank, ranks.core, rank, buffer._pointer)
    return everybody


class Later:
    """Something that completes at some time after its start. Free does nothing."""

    waits = False  # has it been started, and is not complete?
    _then: Callable[[], Any] | None = None

    def then(self, action: Callable[[], Any]) -> None:
        """Run the action on completion, or now unless it waits for that."""
        if self.waits:
            self._then = action
        else:
            action()

    def _begin(self) -> None:
        if self.waits:
            raise StateError("the last start is not complete")
        self.waits = True

    def _end(self) -> None:
        self.waits = False
        action, self._then = self._then, None
        if action is not None:
            action()

    def Wait(self, timeout: float | None = None, stream: Any = None) -> Any:
        if self.waits:
            raise StateError("nobody can wait in virtual time: use `then`")

    def Free(self, timeout: float | None = None) -> None:
        pass


class _Meeting:
    """The rounds of one allreduce, which all its ranks share. No part of a full round completes
    before the last rank has come, so the simulator plays the round then."""

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
        self._core = _owned(core, "pcoll_skew_run **", _lib.pcoll_skew_free)

    def arrive(self, member: SimulatedReduction) -> None:
        self._arrived.append((member, self._events.now))
        if len(self._arrived) < len(self.members):
            return
        arrived, self._arrived = self._arrived, []
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


class SimulatedReduction(Later):
    """One rank's handle of a full allreduce (SUM), made by `reductions`."""

    def __init__(self, meeting: _Meeting, like: Array) -> None:
        self._meeting = meeting
        self.send_buffer = np.zeros_like(like)
        self.result = np.zeros_like(like)
        self.last_round = SimpleNamespace(active=0)

    def Start(self) -> None:
        self._begin()
        self._meeting.arrive(self)

    def deliver(self, total: Array) -> None:
        self.result = total
        self.last_round = SimpleNamespace(active=len(self._meeting.members))
        self._end()


def reductions(
    ranks: int, like: Array, events: Events, latency: float, seed: int = 0
) -> list[SimulatedReduction]:
    """Return all ranks' handles, over messages with an exponential latency of this mean."""
    return _Meeting(ranks, like, events, latency, seed).members


class SimulatedNeighbors(Later):
    """One rank's exchange with its neighbors, made by `neighbor_exchanges`."""

    def __init__(
        self,
        rank: int,
        everybody: list[SimulatedNeighbors],
        neighbors: Iterable[int],
        like: Array,
        events: Events,
        latency: Callable[[], float],
    ) -> None:
        self._rank, self._everybody = rank, everybody
        self._events, self._latency = events, latency
        self.send_buffer = np.zeros_like(like)
        self._inbox: dict[int, deque[Array]] = {j: deque() for j in neighbors}
        self._last_arrival = dict.fromkeys(self._inbox, 0.0)  # messages do not overtake
        self._received: dict[int, Array] = {}

    @property
    def received(self) -> Mapping[int, Array]:
        return self._received or {j: self.send_buffer for j in self._inbox}

    def Start(self) -> None:
        self._begin()
        for j in self._inbox:
            self._everybody[j].expect(self._rank, self.send_buffer.copy())
        self._look()

    def expect(self, source: int, model: Array) -> None:
        def arrive() -> None:
            self._inbox[source].append(model)
            self._look()

        due = max(self._events.now + self._latency(), self._last_arrival[source])
        self._last_arrival[source] = due
        self._events.after(due - self._events.now, arrive)

    def _look(self) -> None:
        if self.waits and all(self._inbox.values()):
            self._received = {j: models.popleft() for j, models in self._inbox.items()}
            self._end()


def neighbor_exchanges(
    topology: Any, like: Array, events: Events, latency: Callable[[], float]
) -> list[SimulatedNeighbors]:
    everybody: list[SimulatedNeighbors] = []
    for rank in range(topology.n):
        neighbors = topology.neighbors(rank)
        everybody.append(SimulatedNeighbors(rank, everybody, neighbors, like, events, latency))
    return everybody


_END_OF_TIME = (1 << 63) - 1
_BYTES_PER_PAIR, _BYTES_PER_RANK = 192, 1 << 19  # what each rank knows of each; what it has
_MOST_RANKS = 1 << 16
# A group waits for this many latencies at the least, since a message that takes longer than a
# timeout is one that is lost.
_LATENCIES = 20


class _GroupRanks:
    """State that the handles of all ranks share: their messages and the times of arrival."""

    def __init__(self, options: Any, ranks: int, latency: float, seed: int) -> None:
        network = {"L": latency * _NANOSECONDS, "latency": _lib.PCOLL_LATENCY_EXPONENTIAL}
        given = (ranks, seed, _ffi.new("pcoll_network *", network), options)
        core = simulator.answer("pcoll_sim_group *", _lib.pcoll_sim_group_create, *given)
        self.core = _owned(core, "pcoll_sim_group **", _lib.pcoll_sim_group_free)
        self.handles: list[SimulatedGroups] = []
        self._rank, self._time = _ffi.new("uint32_t *"), _ffi.new("int64_t *")

    @property
    def waits(self) -> bool:
        return any(handle.waits for handle in self.handles)

    def run(self, until: float) -> tuple[float, Callable[[], None]] | None:
        """Advance to this time, or to an event of others: return its time and what to do."""
        limit = int(min(until * _NANOSECONDS, _END_OF_TIME))
        simulator.check(_lib.pcoll_sim_group_run(self.core, limit, self._rank, self._time))
        if self._rank[0] == len(self.handles):
            return None
        return self._time[0] / _NANOSECONDS, self.handles[self._rank[0]].complete


class SimulatedGroups(Later, GroupAllreduce):
    """The handle of one rank, made by `group_reductions`."""

    _library = simulator

    def __init__(self, rank: int, ranks: _GroupRanks, like: Array, size: int) -> None:
        self._pointer = _ffi.new("pcoll_group **")
        simulator.call(_lib.pcoll_sim_group_rank, ranks.core, rank, self._pointer)
        self._rank, self._size, self._ranks_together = rank, size, ranks
        self._send = arrays.as_floats("sendbuf", np.zeros_like(like), writable=False)
        self._recv = arrays.as_floats("recvbuf", np.zeros_like(like), writable=True)
        self._prepare()
        self._still = False

    def Start(self, stream: Any = None) -> None:
        super().Start(stream)
        self.waits = True
        self._wake()

    def complete(self) -> None:
        self.Test()
        self._end()

    def Wait(self, timeout: float | None = None, stream: Any = None) -> GroupRound:
        super().Wait()
        return self.last_round

    def leave(self) -> None:
        super().leave()
        self._wake()

    def rejoin(self) -> None:
        super().rejoin()
        self._wake()

    def stand(self, still: bool) -> None:
        self._still = still
        self._wake()

    def _wake(self) -> None:
        core, wake = self._ranks_together.core, _lib.pcoll_sim_group_wake
        simulator.call(wake, core, self._rank, self._still)


def group_reductions(
    ranks: int,
    grid: Sequence[int] | str,
    like: Array,
    events: Events,
    latency: float,
    window: float,
    seed: int = 0,
) -> list[SimulatedGroups]:
    """Return the handles of all ranks. `latency` is the mean, in virtual time; `window` is how long
    a group waits for a member that does not come."""
    each = _BYTES_PER_RANK + 4 * like.nbytes
    environment.check_memory(
        "--ranks", [ranks], lambda n: n * (each + _BYTES_PER_PAIR * n), _MOST_RANKS, " with moshpit"
    )
    made, options = Grid(grid, ranks), _ffi.new("pcoll_group_options *")
    options.count, options.dtype = like.size, arrays.as_floats("like", like, False).dtype
    options.axes = made.axes
    options.side[0 : made.axes] = list(made.sides)
    # A member whose application does not come has half of the timeout.
    options.timeout_us = max(1, int(2e6 * max(window, _LATENCIES * latency)))
    options.every = 1
    together = _GroupRanks(options, ranks, latency, seed)
    together.handles = [SimulatedGroups(rank, together, like, ranks) for rank in range(ranks)]
    events.sources.append(together)
    return together.handles
