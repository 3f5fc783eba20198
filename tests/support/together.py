# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks that run together, for tests of partialcoll.decentralized."""

import numpy as np

from partialcoll.decentralized import GlobalSum
from partialcoll.tools.sim.simulated import Events, SimulatedBuffer, buffers, latencies, reductions
from partialcoll.topology import Topology


class Uniform:
    """A peer source that draws all neighbors equally often."""

    def __init__(self, topology, rank, seed=0):
        self._around = topology.neighbors(rank)
        self._random = np.random.default_rng((seed, rank))

    def next_peer(self):
        return int(self._random.choice(self._around)) if self._around else None


class Fixed:
    """A peer source that always returns the same rank."""

    def __init__(self, peer):
        self.next_peer = lambda: peer


class Watched(SimulatedBuffer):
    """A buffer that records its parcels, from its users' view."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._sent = {}  # parcel -> peer, data, is it a message
        self._coming, self._queue = [], []  # parcels for this rank

    def average(self, x, peer, **how):
        before = x.copy()
        self._sending = lambda: (peer, before - x, False)
        return super().average(x, peer, **how)

    def push(self, peer, x, **how):
        self._sending = lambda: (peer, x.copy(), True)
        return super().push(peer, x, **how)

    def _send(self):
        parcel = super()._send()
        entry = self._sent[parcel] = self._sending()
        self._ranks.buffers[entry[0]]._coming.append(entry)
        return parcel

    def _land(self, parcel):
        peer, what, is_message = entry = self._sent.pop(parcel)
        other = self._ranks.buffers[peer]
        other._coming = [coming for coming in other._coming if coming is not entry]
        if is_message:
            other._queue.append((self.rank, what))
        super()._land(parcel)

    def drain(self, **how):
        messages = super().drain(**how)
        for source, model in messages:
            at = next(
                i
                for i, (sender, sent) in enumerate(self._queue)
                if sender == source and (how or np.array_equal(sent, model))
            )
            del self._queue[at]
        return messages

    def on_the_way(self):
        """Return the sum of the deltas that have not landed here yet."""
        deltas = [what for _, what, is_message in self._coming if not is_message]
        return sum(deltas, np.zeros(self.shape))

    def undrained(self):
        """Return the messages in the queue or on their way to it."""
        coming = [what for _, what, is_message in self._coming if is_message]
        return [what for _, what in self._queue] + coming


class World:
    """Buffers, handles and totals of some ranks in virtual time."""

    def __init__(self, topology, ranks, dim, latency=0.0, seed=0, dtype=np.float64, **how):
        self.topology = Topology.make(topology, ranks)
        self.ranks, self.dim, self.events = ranks, dim, Events()
        self.mean_latency, self.latency = latency, latencies(latency, (seed, 99))
        self.like = np.zeros(dim, dtype)
        self.how = how

    def buffers(self, like=None):
        like = self.like if like is None else like
        how = {"kind": Watched, **self.how}
        return buffers(like, self.topology, self.events, self.latency, **how)

    def peers(self, seed=0):
        return [Uniform(self.topology, rank, seed) for rank in range(self.ranks)]

    def handles(self, size=None, dtype=None):
        like = np.zeros(size or self.dim, dtype or self.like.dtype)
        return reductions(self.ranks, like, self.events, self.mean_latency)

    def totals(self):
        return [GlobalSum(handle) for handle in self.handles(self.dim + 1, np.float64)]

    def settle(self):
        """Let everything in flight arrive."""
        while self.events.step():
            pass

    def carry_out(self, generators):
        """Run all ranks' generators to their ends. Return their results."""
        results = [None] * len(generators)

        def advance(rank):
            try:
                awaited = next(generators[rank])
            except StopIteration as end:
                results[rank] = end.value
                return
            awaited.then(lambda: advance(rank))

        for rank in range(len(generators)):
            advance(rank)
        self.settle()
        return results

    def step(self, processes, updates):
        """Make one step of all ranks, with the communication of synchronous strategies."""
        self.carry_out([p.advancing(u) for p, u in zip(processes, updates)])
