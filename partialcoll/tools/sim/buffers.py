# SPDX-License-Identifier: Apache-2.0
"""Gossip buffers of simulated ranks: `partialcoll.GossipBuffer` as it is, over the simulator's
windows, which are all in this process.

What a rank publishes, gives to another or sends is there after a latency; everything else takes no
time. Two messages to a rank may overtake each other. A publication that is overtaken by a newer
one comes with it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable

from ..._core.simulator import simulator
from ...collectives.gossip import GossipBuffer
from ...decentralized.exchange import Array
from .events import Events

_ffi, _lib = simulator.ffi, simulator.lib


def _nobody() -> None:
    pass


class _Ranks:
    """What the buffers of all ranks share; the simulator's part goes with the last of them."""

    def __init__(self, events: Events, latency: Callable[[], float]) -> None:
        self.events, self.latency = events, latency
        self.buffers: list[SimulatedBuffer] = []
        self.core: Any = None

    def create(self, options: Any) -> None:
        ranks, create = len(self.buffers), _lib.pcoll_sim_gossip_create
        core = simulator.answer("pcoll_sim_gossip *", create, ranks, options)
        self.core = _ffi.gc(core, _free)


def _free(core: Any) -> None:
    _lib.pcoll_sim_gossip_free(_ffi.new("pcoll_sim_gossip **", core))


class SimulatedBuffer(GossipBuffer):
    """That of one rank; made by `buffers`. There is nothing to free."""

    _library = simulator

    def __init__(self, rank: int, ranks: _Ranks, options: Any, like: Array, topology: Any) -> None:
        self._pointer = _ffi.new("pcoll_gossip **")
        self._rank, self._size = rank, topology.n
        self._ranks = ranks
        self._describe(options, like, topology)
        self._publications = 0
        self._unpublished: deque[tuple[int, Array]] = deque()
        self.on_arrival: Callable[[], None] = _nobody

    def enter(self) -> None:
        """The ranks are there: take this one's part."""
        simulator.call(_lib.pcoll_sim_gossip_rank, self._ranks.core, self._rank, self._pointer)

    def publish(self, x: Array) -> int:
        """As the real one does, after a latency."""
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
        """As the real one does; what the peer gains is on its way."""
        done = super().average(x, peer, **how)
        if done:
            self._send()
        return done

    def push(self, peer: int, x: Any, **how: Any) -> bool:
        """As the real one does; the message is on its way."""
        done = super().push(peer, x, **how)
        if done:
            self._send()
        return done

    def _send(self) -> Any:
        """What was just given or sent lands after a latency."""
        core = self._ranks.core
        parcel = simulator.answer("void *", _lib.pcoll_sim_gossip_sent, core, self._rank)
        self._ranks.events.after(self._ranks.latency(), lambda: self._land(parcel))
        return parcel

    def _land(self, parcel: Any) -> None:
        core = self._ranks.core
        rank = simulator.answer("uint32_t", _lib.pcoll_sim_gossip_land, core, parcel)
        self._ranks.buffers[rank].on_arrival()

    def Free(self, timeout: float | None = None) -> None:
        """Nothing."""


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
    """Those of all ranks of a topology, with the arguments of `GossipBuffer`."""
    ranks = _Ranks(events, latency)
    options = _ffi.new("pcoll_gossip_options *")
    everybody = [kind(rank, ranks, options, like, topology) for rank in range(topology.n)]
    everybody[0]._choose(options, codec, queue_slots, max_uncollected, "manual")
    ranks.buffers = everybody
    ranks.create(options)
    for buffer in everybody:
        buffer.enter()
    return everybody
