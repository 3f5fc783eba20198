# SPDX-License-Identifier: Apache-2.0
"""SwarmSGD: local steps, and now and then the average with one other rank, which is not disturbed.

Source: Nadiradze, Sabour, Davies, Li, Alistarh, "Asynchronous Decentralized SGD with Quantized and
Local Updates", NeurIPS 2021, Algorithm 1 and section 3.

Two variants of the communication. "registers" is the paper's Algorithm 1: rank i averages its own
current model with that of j and writes the mean into j's current register, over whatever another
rank has written there meanwhile, which is then lost. "queue" is the paper's remedy, as differences:
half of the difference goes to j's queue and exactly that is subtracted here, so nothing is lost and
the sum over the ranks is conserved, quantized or not; where the queue is full neither happens.

The training thread has the model to itself. At an activation it hands a copy to the communication
thread and goes on; what communication changed, a difference as well, it takes in with the first
step after that is known."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import checks
from ..codec import Lattice
from .decoupled import Threaded
from .process import Array, Exchange, PeerSource, Steps
from .strategy import GossipStrategy


@dataclass(frozen=True)
class Swarm(GossipStrategy):
    """SwarmSGD: local steps, and now and then an average with one other rank, not disturbed.
    Source: Nadiradze et al., NeurIPS 2021, Algorithm 1.

    `local_steps`: H, the steps between two averages. `geometric`: draw their number each time,
    geometric with mean H, as the analysis does. `variant`: "queue", differences, of which none is
    lost, or "registers", Algorithm 1 as printed, which loses what two ranks write at once. `codec`
    (partialcoll.Lattice or None): with one, models travel in few bits: ``pc.Lattice(bits=8)``. What
    does not decode at these bits is read again with more; ``metrics().fallbacks`` counts. The other
    options: see `GossipStrategy`.
    """

    local_steps: int = 4
    geometric: bool = False
    variant: str = "queue"
    codec: Lattice | None = None

    def check_values(self) -> None:
        checks.count("local_steps", self.local_steps)
        checks.one_of("variant", self.variant, ("queue", "registers"))
        if self.codec is not None:
            checks.instance("codec", self.codec, Lattice, "a Lattice or None")

    def process(self, x: Any, exchange: Any, peers: Any, **common: Any) -> SwarmProcess:
        return SwarmProcess(x, exchange, peers, **common, **vars(self))


class SwarmProcess(Threaded):
    """One rank of SwarmSGD. Parameters: see `Decoupled`; `common` has options of `Swarm`. `peers`
    choose for themselves, as `pairing.Random`. With a codec of the exchange models and differences
    are quantized; this rank's model is the key.

    Invariant of "queue": the sum over all ranks of the models, of what training has not taken in,
    and of the messages in the queues changes by updates only.
    """

    options_type = Swarm

    def __init__(self, x: Array, exchange: Exchange, peers: PeerSource, **common: Any) -> None:
        super().__init__(x, exchange, **common)
        variant, seed = self._options.variant, self._options.seed
        self._interact = self._queue if variant == "queue" else self._registers
        # With registers the next interaction looks at what others write here.
        self._take_in = self._add_messages if variant == "queue" else lambda: False
        self._peers = peers
        self._random = np.random.default_rng((seed, exchange.rank))
        self._until_activation = self._draw()
        # The training thread's: self._x, the model. Between the threads, under the lock:
        self._lock = threading.Lock()
        self._handed = self._x.copy()  # the model at the activation
        self._activated = False  # it is there, and not yet taken
        self._change: Array | None = None  # what communication changed, for training
        self._spare = [np.zeros_like(self._x), np.zeros_like(self._x)]  # for more of these
        # The communication thread's:
        self._own = self._x.copy()  # the model at the last activation, with changes since
        self._base = self._x.copy()  # X^: what this rank has written to its registers
        self._moved, self._sent, self._peer_model = (np.zeros_like(self._x) for _ in range(3))
        self._version = exchange.publish(self._own)

    # The training thread

    def _advancing(self) -> Steps[None]:
        self._thread.check()
        self._counts.steps += 1
        self._until_activation -= 1
        with self._exposed():
            self._catch_up()
            self._standstill.stepped()
            self.serve()
            if not self._activated:  # else the change belongs to the model that was handed over
                self._take_change()
                if self._until_activation <= 0:
                    # No other thread reads `_handed` while nothing is activated.
                    np.copyto(self._handed, self._x)
                    self._activated, self._until_activation = True, self._draw()
                    self._thread.wake()
        yield from ()

    def _draw(self) -> int:
        steps: int = self._options.local_steps
        return int(self._random.geometric(1 / steps)) if self._options.geometric else steps

    def _take_change(self) -> None:
        with self._lock:
            change, self._change = self._change, None
        if change is not None:
            self._x += change
            with self._lock:
                self._spare.append(change)

    def next_event(self) -> float | None:
        return 0.0 if self._activated else None

    # The communication thread

    def _event(self) -> bool:
        if not self._activated:
            return self._take_in()
        self._own, self._handed = self._handed, self._own
        if self._change is not None:  # not in what was handed over, and training leaves it there
            self._own += self._change
        self._activated = False
        peer = self._peers.next_peer()
        if peer is not None:
            went_through = self._attempt(self._peers, peer, lambda: self._interact(peer))
            self._counts.communications += went_through
            self._counts.skipped += not went_through
        return True

    def _alter(self, change: Array) -> None:
        """Add this to the model: to the model here now, to the training model at its next step."""
        self._own += change
        with self._lock:
            before, self._change = self._change, None
            after = self._spare.pop() if before is None else before
        if before is None:
            np.copyto(after, change)
        else:
            after += change
        with self._lock:
            self._change = after

    # Variant "queue"

    def _add_messages(self) -> bool:
        messages = self._exchange.drain()
        for _, difference in messages:
            self._alter(difference)
        self._counts.received += len(messages)
        if messages:
            self._exchange.publish(self._own)
        return bool(messages)

    def _queue(self, peer: int) -> bool:
        self._add_messages()
        self._exchange.read(peer, key=self._own, out=self._peer_model)
        np.subtract(self._own, self._peer_model, out=self._moved)
        self._moved *= 0.5
        pushed = not self._is_old() and self._exchange.push(peer, self._moved, sent=self._sent)
        if pushed:
            np.negative(self._sent, out=self._sent)
            self._alter(self._sent)
        self._exchange.publish(self._own)
        return pushed

    # Variant "registers": lines 8 to 14 of Algorithm 1; `_registers` is from line 9 on

    def _current(self) -> Array:
        """Line 8, Q(X_i): the newest that others have written to this rank's current register, else
        Q(X^_i). They have encoded it for the key that they could read, Q(X^_i), which with a codec
        is not X^_i: so this is what this rank reads of itself, too."""
        key, version = self._exchange.read(self._exchange.rank, key=self._base, out=self._sent)
        messages = self._exchange.drain(key=key)
        self._counts.received += len(messages)
        if messages:
            return messages[-1][1]
        return key if version == self._version else self._base  # others may not see the newest yet

    def _registers(self, peer: int) -> bool:
        outdated, _ = self._exchange.read(peer, key=self._base, out=self._peer_model)
        current = self._current()
        written = self._exchange.peek(peer, key=outdated)
        theirs = outdated if written is None else written[0]
        mean = np.add(current, theirs, out=self._moved)
        mean *= 0.5
        pushed = not self._is_old() and self._exchange.push(peer, mean, key=outdated)
        mean -= self._base  # X_i becomes the mean plus what training has done since X^_i
        self._alter(mean)
        self._write_both()
        return pushed

    def _write_both(self) -> None:
        """Line 13: both registers say what the model is now; the current one by being empty."""
        np.copyto(self._base, self._own)
        self._version = self._exchange.publish(self._own)

    def _settle(self) -> None:
        """Settle while communication rests. Runs in the training thread, whose model does not
        change until the next step: contributions that have arrived for it are in `_own`."""
        self._activated = False
        np.copyto(self._own, self._x)
        if self._change is not None:
            self._own += self._change
        self._take_in()

    def _settled(self) -> Array:
        return self._own

    def _reset(self, model: Array) -> None:
        self._take_change()
        super()._reset(model)
        self._activated = False
        np.copyto(self._own, self._x)
        if self._interact == self._registers:
            self._current()  # of the model before
        self._write_both()
