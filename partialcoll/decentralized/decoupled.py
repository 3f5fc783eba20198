# SPDX-License-Identifier: Apache-2.0
"""Processes whose steps never wait: a training thread and a communication thread around x.

The training thread adds updates and takes the newest model (`SharedModel`); the communication
thread owns x, applies the updates to it and exchanges it. Subclasses say what an event is. An event
runs under a lock, so that the averages over all ranks can bring communication to rest; the training
thread never takes that lock in a step.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from .._core.settings import logger
from ..collectives.resync import Replica
from ..collectives.state_exchange import StateExchange
from ..errors import RankFailedError, StateError
from .base import LearningRate, Process
from .exchange import Array, Exchange, PeerSource, Steps
from .global_sum import GlobalSum
from .pace import Pace, Shortfall
from .partners import Partners
from .peer_state import PeerState
from .shared_model import SharedModel
from .standstill import Standstill
from .thread import LONGEST_NAP, CommunicationThread

_IN_THE_MIDDLE = 0.2  # seconds: of an exchange, on a busy machine


class Threaded(Process):
    """A process with a communication thread, that calls `_event` under a lock. Parameters as of
    `Decoupled`.

    With `share_state`, a rank whose process has stood still takes the model of another one before
    it communicates again, and drops what it has and what lies uncollected here: it would pull the
    others back. (The sum over the ranks changes by that.)
    """

    _beside_x = 0  # elements that are exchanged with x

    def __init__(
        self, x: Array, exchange: Exchange, *, learning_rate: LearningRate, total: GlobalSum | None
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        self._check_exchange(exchange)
        self._exchange = exchange
        self._communicating = threading.Lock()
        self._rest_wanted = False
        self._exchange_stats = exchange.stats
        self._states: PeerState | None = None
        self._standstill = Standstill()
        self._thread = CommunicationThread(
            self.communicate, self.next_event, lambda: self._longest_nap()
        )

    def _check_exchange(self, exchange: Exchange) -> None:
        shape, dtype = (self._x.size + self._beside_x,), self._x.dtype
        if (exchange.shape, exchange.dtype) != (shape, dtype):
            more = f" and {self._beside_x} more" if self._beside_x else ""
            raise ValueError(
                f"exchange: expected shape {shape} ({self._x.size} parameters{more}) and {dtype}, "
                f"got {exchange.shape} and {exchange.dtype}"
            )

    def communicate(self) -> bool:
        """One communication event, which waits for nobody; False if there was nothing to do, or
        communication is at rest.

        The communication thread calls it in a loop; without one (`start`) call it yourself.
        """
        if self._states is not None and self._standstill.look():
            return False
        if self._rest_wanted or not self._communicating.acquire(blocking=False):
            return False
        self._standstill.event(begins=True)
        try:
            busy = self._event()
            if busy:
                self._exchange_stats = self._exchange.stats
            return busy
        finally:
            self._standstill.event(begins=False)
            self._communicating.release()

    # A peer's state

    def share_state(self, exchange: StateExchange, passenger: Replica) -> None:
        """From now on have this `exchange` for a standstill, and a `passenger`, something else that
        a state is not complete without: an optimizer's that makes the steps. Local."""
        self._states = PeerState(exchange, passenger)

    def serve(self) -> bool:
        """Send this rank's model to those who have asked for one. Local; `step` does it, too."""
        if self._states is None or self._standstill.noticed:
            return False
        return self._states.serve(self._counts.steps, lambda: {"model": self.model})

    def _is_old(self) -> bool:
        """Communication thread, within an event: has it stood still since that began?"""
        return self._states is not None and self._standstill.check()

    def _catch_up(self) -> bool:
        """Training thread: after a standstill, take the model of a peer. Has it been done?"""
        if self._states is None or not self._standstill.check():
            return False
        try:
            self._states.take(
                None,
                lambda state: self._take_over(state["model"]),
                timeout=self._standstill.patience,
            )
            self._counts.resyncs += 1
            logger.warning(
                "this rank has stood still: it goes on from the model of another rank, and what it "
                "had is dropped"
            )
            return True
        except TimeoutError as error:
            logger.warning("this rank has stood still, and averages all the same: %s", error)
            return False
        finally:
            self._standstill.over()

    def _take_over(self, model: Array) -> None:
        """Others see the model before there is room for what they give: what they could still have
        read before would draw them back. Who was in the middle of that has ended it by then."""
        with self._at_rest():
            if not self._beside_x:
                self._exchange.publish(model)
                time.sleep(_IN_THE_MIDDLE)
            self._settle()
            self._adopt(model)

    def _adopt(self, model: Array) -> None:
        """As `_reset`, of this rank alone."""
        self._reset(model)

    @property
    def exchange_stats(self) -> Any:
        """The exchange's counts, after the last event. Any thread may ask."""
        return self._exchange_stats

    def _event(self) -> bool:
        raise NotImplementedError

    def _longest_nap(self) -> float:
        """Seconds for which what others have left here may lie unseen."""
        return LONGEST_NAP

    def start(self) -> None:
        """Start the communication thread. Local; idempotent."""
        if self._freed:
            raise StateError("the process has been freed")
        if not self._thread.running:
            self._standstill.begin()
        self._thread.start()

    def stop(self) -> None:
        """Stop the communication thread after the event under way. Local; idempotent."""
        self._thread.stop()

    def _gathering(self, total: GlobalSum) -> Steps[None]:
        """Who is at rest takes nothing from the others, so it is not as long as they go on."""
        self._catch_up()
        yield from total.meeting()
        self._catch_up()  # in the average's own meeting the others serve

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        self._rest_wanted = True  # a thread that never pauses would take the lock again and again
        try:
            with self._communicating:
                yield
        finally:
            self._rest_wanted = False
        self._thread.wake()

    def Free(self) -> None:
        """Stop. The buffers that the process was given are not freed. Idempotent."""
        super().Free()
        self._thread.check()


class Decoupled(Threaded):
    """A process whose updates go to x through a `SharedModel`, some events to each step. Subclasses
    say what an event is (`_event`), and how x gets what is new (`_renew`).

    Parameters
    ----------
    x, learning_rate, total
        See `Process`.
    exchange : Exchange
        A `partialcoll.GossipBuffer` of the same shape and dtype.
    peers : PeerSource
        Whom to communicate with; anything with ``next_peer() -> int | None``.
    rate, poisson, seed
        Of the events, see `Pace`; None: one after the other without pause.

    Events that were asked for and did not come yet are the backlog. It is bounded by what belongs
    to `Pace.LATEST` steps; what was due first is given up.
    """

    def __init__(
        self,
        x: Array,
        exchange: Exchange,
        peers: PeerSource,
        *,
        rate: float | None,
        poisson: bool = False,
        seed: int = 0,
        learning_rate: LearningRate,
        total: GlobalSum | None,
    ) -> None:
        super().__init__(x, exchange, learning_rate=learning_rate, total=total)
        self._partners = Partners(peers, exchange.size)
        self._pace: Pace | None = None
        if rate is not None:
            self._pace = Pace(rate * self._begun(), poisson, (seed, exchange.rank))
        self._shortfall = Shortfall()
        self._shared = SharedModel(self._x)
        self._due: list[float] = []  # a heap: when events that are still to come are due
        self._due_lock = threading.Lock()

    @property
    def model(self) -> Array:
        """What the next gradient is to be taken at: the newest snapshot of x, with all of this
        rank's own updates. Nobody changes it until the next step, and you must not either,
        unless it was lent (`lend`)."""
        return self._shared.view

    def lend(self) -> Array:
        """See `Process.lend`. Takes one more vector."""
        self._check_usable()
        self._shared.lend()
        return self.model

    def advancing(self, update: Array) -> Steps[None]:
        """`apply`: there is nothing that it waits for."""
        self._check_update("update", update)
        yield from self._stepping(lambda: self._add(update))

    def advancing_in_place(self) -> Steps[None]:
        """`apply_in_place`: there is nothing that it waits for."""
        self._check_usable()
        yield from self._stepping(self._shared.add_what_changed)

    def hand_over_changes(self) -> None:
        """See `Process.hand_over_changes`."""
        self._check_usable()
        if self._shared.has_changed():
            self._shared.add_what_changed()
            self._thread.wake()

    def _add(self, update: Array) -> None:
        if self._takes(update):
            self._shared.add(update)

    def _stepping(self, add: Callable[[], None]) -> Steps[None]:
        self._thread.check()
        with self._exposed():
            if not self._catch_up():  # else the step was made at a model that is gone
                add()
            self._stepped()
            self._standstill.stepped()
            self.serve()
        self._thread.wake()
        yield from ()

    def _stepped(self) -> None:
        self._counts.steps += 1
        if self._pace is None:
            return
        times = self._times(self._pace.draw())
        with self._due_lock:
            for when in times:
                heapq.heappush(self._due, when)
            self._counts.asked += len(times)
            while len(self._due) > self._pace.most:
                heapq.heappop(self._due)
                self._counts.given_up += 1
            self._counts.backlog = len(self._due)
        self._shortfall.look(self._counts)

    def _times(self, events: int) -> Sequence[float]:
        """When the events of this step are to come, by `_now`. At once."""
        return [0.0] * events

    def _now(self) -> float:
        return 0.0

    def _begun(self) -> float:
        """Of the communications that `rate` counts: how many this rank begins."""
        return self._partners.share()

    def next_event(self) -> float | None:
        """Seconds until the next communication event that the steps so far have called for; None
        if there is none, or always the next one, without pause."""
        with self._due_lock:
            return max(0.0, self._due[0] - self._now()) if self._due else None

    def _reset(self, model: Array) -> None:
        """Events that were still to come are of a time before."""
        super()._reset(model)
        with self._due_lock:
            self._counts.given_up += len(self._due)
            self._due.clear()
            self._counts.backlog = 0
        self._shared.reset(model)

    def _renew(self) -> bool:
        """x gets the updates of this rank and what has come of others; was there anything?"""
        raise NotImplementedError

    def _show(self) -> None:
        self._shared.show(self._x)

    def _settle(self) -> None:
        self._renew()
        self._show()

    def _next_peer(self) -> int | None:
        """The peer for this event, if one is due and there is somebody."""
        if self._pace is not None and self.next_event() != 0:
            return None
        settled, peer = self._partners.next()
        if settled:
            self._settle_one(begun_by_other=peer is None and self._partners.meet)
        return peer

    def _settle_one(self, *, begun_by_other: bool) -> None:
        self._counts.achieved += begun_by_other
        if self._pace is not None:
            with self._due_lock:
                heapq.heappop(self._due)
                self._counts.backlog = len(self._due)

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        with super()._at_rest():
            if self._partners.rest():
                self._settle_one(begun_by_other=True)
            yield

    def _average(self, peer: int, **how: Any) -> bool:
        """Average x with a peer's; it may have too much uncollected, or not be there yet. Did it
        go through?"""
        try:
            went_through = not self._is_old() and self._exchange.average(self._x, peer, **how)
        except StateError:
            went_through = False
        except RankFailedError:
            self._partners.bury(self._exchange, peer)
            went_through = False
        self._count(went_through)
        return went_through

    def _count(self, went_through: bool) -> None:
        """Of one that was asked for."""
        if went_through:
            self._counts.communications += 1
            self._counts.achieved += 1
        else:
            self._counts.skipped += 1
