# SPDX-License-Identifier: Apache-2.0
"""Processes whose steps never wait: a training thread and a communication thread around x.

The training thread adds updates and takes the newest model (`SharedModel`); the communication
thread owns x, applies the updates to it and exchanges it. Subclasses say what an event is. An event
runs under a lock, so that the averages over all ranks can bring communication to rest; the training
thread never takes that lock in a step."""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from .._core import checks, finalize
from .._core.settings import logger
from ..collectives.resync import Replica
from ..collectives.state_exchange import StateExchange
from ..errors import RankFailedError, StateError
from .process import Array, Counts, Exchange, GlobalSum, LearningRate, PeerSource, Process, Steps

# How long a gradient step of this rank takes.


class StepTime:
    """Running mean of the seconds between steps."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0 as long as there is no measure
        self._last: float | None = None
        self._steps = 0

    def stepped(self, now: float) -> None:
        """A gradient step has been made."""
        if self._last is not None:
            took = now - self._last
            if self._steps >= 10:  # who evaluates in between makes no long step
                took = min(took, 10 * self.mean)
            self._steps += 1
            # A plain mean at first, then one of the last hundred or so.
            self.mean += (took - self.mean) / min(self._steps, 100)
        self._last = now

    def pause(self) -> None:
        """What comes before the next step is none."""
        self._last = None


# Has this process stood still (SIGSTOP, a suspended machine, memory swapped out) while the other
# ranks went on?
#
# Its communication thread looks around some times a second, whatever training does. If it has not
# for as long as many steps take, the process has stood still, and its model is from before what the
# others have learned since.
#
# An event of that thread may take long, too: then what counts is whether training makes steps.
#
# `_looked` and `_busy` are the communication thread's, `_stepped` the training thread's; each reads
# the others', since after a standstill either may be the first to run. `noticed` is set by either,
# cleared by the training thread.

# Steps, seconds: shorter ones do little harm, and a busy machine has them.
_STEPS, _LEAST = 20, 3.0
_WARM_UP = 3  # steps that take longer than the others


class Standstill:
    """Of one process with a communication thread."""

    def __init__(self) -> None:
        self.noticed = False
        self._step_time = StepTime()
        self._steps = 0
        self._stepped = 0.0  # when, the last time
        self._looked: float | None = None  # when, the last time; None: not yet
        self._busy = False  # in an event

    def begin(self) -> None:
        """The communication thread is about to be started."""
        self._looked, self._busy = None, False

    def stepped(self) -> None:
        """Training thread: a gradient step has been made."""
        self._stepped = time.monotonic()
        self._steps += 1
        if self._steps > _WARM_UP:
            self._step_time.stepped(self._stepped)

    def look(self) -> bool:
        """Communication thread, before an event: is there a standstill that training has not made
        up for?"""
        self.check()
        self._looked = time.monotonic()
        return self.noticed

    def event(self, begins: bool) -> None:
        """Communication thread: begins, or has ended."""
        self.check()
        self._busy, self._looked = begins, time.monotonic()

    def check(self) -> bool:
        """Either thread: as `look`, of the time until now."""
        alive, usual = self._looked, self._step_time.mean
        if alive is not None and usual:
            if self._busy:
                alive = max(alive, self._stepped)
            self.noticed |= time.monotonic() - alive > max(_LEAST, _STEPS * usual)
        return self.noticed

    @property
    def patience(self) -> float:
        """Seconds in which a peer that goes on comes to the end of a step."""
        return 1.0 + 10 * self._step_time.mean

    def over(self) -> None:
        """Training thread: it is made up for."""
        self._looked, self.noticed = time.monotonic(), False


# How many communication events belong to a gradient step, and what if there are fewer.


class Pace:
    """Draws the number of events for one gradient step after the other.

    Where communication does not keep up, events wait. They are worth making up for after a gap,
    but no more of them than there is disagreement: a burst of averagings without a step in between
    soon finds models that agree, and where more is asked for than can be made it never ends. So
    those of the last `LATEST` steps may wait, and older ones are given up.

    Parameters
    ----------
    rate : float
        Events per gradient step, on average.
    poisson : bool
        Poisson numbers; else the same for every step, but for rounding.
    seed : int or sequence of int
        Of the draws.
    """

    LATEST = 64

    def __init__(self, rate: float, poisson: bool, seed: object = 0) -> None:
        self.rate = checks.number("rate", rate, 0, what="events per gradient step")
        self.most = math.ceil(self.LATEST * self.rate)  # that may wait
        self._poisson = poisson
        self._random = np.random.default_rng(seed)  # type: ignore[arg-type]
        self._left_over = 0.0

    def draw(self) -> int:
        """Events for the next gradient step."""
        if self._poisson:
            return int(self._random.poisson(self.rate))
        whole = math.floor(self._left_over + self.rate + 1e-9)
        self._left_over += self.rate - whole
        return whole


class Shortfall:
    """Says so, once, when clearly fewer events are made than the steps ask for."""

    _EVENTS, _STEPS = 64, 16  # to judge by: events of the last step need not have come yet
    _ENOUGH = 0.75

    def __init__(self) -> None:
        self._since = Counts()
        self._said = False

    def look(self, counts: Counts) -> None:
        """After a step."""
        since = self._since
        asked = counts.asked - since.asked
        if self._said or asked < self._EVENTS or counts.steps - since.steps < self._STEPS:
            return
        achieved = counts.achieved - since.achieved
        self._since = Counts(**vars(counts))
        if achieved < self._ENOUGH * asked:
            self._said = True
            logger.warning(
                "rate: of %d averagings or messages that the last %d steps asked for, %d were made "
                "(%d are waiting, %d were refused): the ranks agree less than this rate would have "
                "them; ask for fewer, or see what holds communication up",
                asked,
                counts.steps - since.steps,
                achieved,
                counts.backlog,
                counts.skipped - since.skipped,
            )


# From a peer source to averagings: who begins how many of them, and when one is settled.
#
# An averaging has two ranks, of which one begins it. Where all choose, each begins half of those
# that it takes part in. Where only some do (a source with ``active``, as `pairing.Bipartite`) these
# begin all of theirs. Where two free ranks find each other (a source with ``poll`` and ``leave``,
# as `pairing.Available`) the averaging settles one of each, whoever begins it, and a rank that
# finds nobody keeps its turn.


class Partners:
    """A peer source, as the processes use it, for one rank of `size`.

    Attributes
    ----------
    meet : bool
        Do free ranks find each other? An averaging that is settled with nobody to begin it with
        has then been begun by the other.
    """

    def __init__(self, source: PeerSource, size: int) -> None:
        if not callable(getattr(source, "next_peer", None)):
            raise TypeError(
                f"peers: expected something with next_peer(), got {type(source).__name__}"
            )
        self._source: Any = source
        self._size = size
        self.meet = hasattr(source, "poll")

    def share(self) -> float:
        """Of the averagings that this rank takes part in: for how many it asks for a peer."""
        if self.meet:
            return 1.0
        active = getattr(self._source, "active", None)
        return 0.5 if active is None else float(active)

    def next(self) -> tuple[bool, int | None]:
        """Is one averaging of this rank settled, and with whom has this rank to begin it?"""
        if not self.meet:
            return True, self._checked(self._source.next_peer())
        outcome = self._source.poll()
        if isinstance(outcome, int):
            return True, self._checked(outcome)
        return outcome is not None, None

    def rest(self) -> bool:
        """Be free no longer; was this rank taken before that?"""
        return self.meet and self._source.leave() is not None

    def _checked(self, peer: Any) -> int | None:
        if peer is not None and not 0 <= peer < self._size:
            raise ValueError(f"peers: expected a rank from 0 to {self._size - 1}, got {peer!r}")
        return None if peer is None else int(peer)

    def bury(self, exchange: Exchange, peer: int) -> None:
        """As the function."""
        bury(self._source, exchange, peer)


def bury(source: Any, exchange: Exchange, peer: int) -> None:
    """A call about this peer has raised RankFailedError, which is being handled: do the others go
    on without it? Then no dead rank is chosen again, else it is raised."""
    if not exchange.failed[peer]:
        raise
    if hasattr(source, "topology"):
        source.topology = exchange.topology


# This rank's state for peers that need it, and theirs for this rank: the process's, and with it
# that of whatever makes its steps.


class PeerState:
    """Over an exchange. `passenger`: what a state is not complete without, an optimizer's."""

    def __init__(self, exchange: StateExchange, passenger: Replica | None = None) -> None:
        self._exchange, self._passenger = exchange, passenger

    def serve(self, round: int, state: Callable[[], dict[str, Any]]) -> bool:
        """Send it to those who have asked, if it is of the round they want. Local."""

        def complete() -> dict[str, Any]:
            more = {} if self._passenger is None else {"passenger": self._passenger.capture()}
            return {**state(), **more}

        return self._exchange.serve(round, complete)

    def take(
        self,
        peers: Iterable[int] | None,
        load: Callable[[dict[str, Any]], None],
        *,
        least_round: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Load that of a peer, whose round is returned. TimeoutError if nobody had one. Local."""
        round, state = self._exchange.ask(peers, least_round=least_round, timeout=timeout)
        passenger = state.pop("passenger", None)
        load(state)
        if self._passenger is not None:
            self._passenger.restore(passenger)
        return round


# Between the training thread and the communication thread: updates one way, models the other.
#
# The communication thread owns the model x. The training thread computes at a view of its own,
# which nobody changes under it. Under one short lock:
#
# - `_waiting` is written by the training thread (`add`) and taken by the communication thread
#   (`take`), which leaves a zeroed vector in its place;
# - `_taken` is what it took: in x, but not in a snapshot that the training thread can see;
# - `_shown` is the newest snapshot of x, swapped in by the communication thread (`show`).
#
# Invariant: every update is in exactly one of `_waiting`, `_taken` and `_shown`. So shown + taken +
# waiting is the newest model with all of this rank's own updates in it, and that is what the view
# is. No copy of x is made under the lock; the training thread's additions are.
#
# A view that was lent is changed in place. `_before`, the training thread's alone, is what the view
# was after the last addition: the difference is the update, which the view has already.


class SharedModel:
    """Made with the first model; holds five vectors of its size."""

    def __init__(self, x: Array) -> None:
        self._lock = threading.Lock()
        self._view = x.copy()
        self._shown = x.copy()
        self._next = x.copy()  # the communication thread's alone, until `show` swaps it in
        self._waiting = np.zeros_like(x)
        self._taken = np.zeros_like(x)
        self._any_waiting = self._any_taken = self._is_new = False
        self._before: Array | None = None

    @property
    def view(self) -> Array:
        """The model that the training thread computes at."""
        return self._view

    def lend(self) -> None:
        """Training thread: the view will be changed in place."""
        if self._before is None:
            self._before = self._view.copy()

    def add(self, update: Array) -> None:
        """Training thread: an update is finished. The view then has it, and what is new of x."""
        with self._lock:
            if not self._hand_over(update):
                self._view += update
        self._note_view()

    def has_changed(self) -> bool:
        """Training thread: has the view, lent, been changed in place since the last addition?"""
        return self._before is not None and not np.array_equal(self._view, self._before)

    def add_what_changed(self) -> None:
        """Training thread: as `add`, of what the view, lent, was changed by since the last time."""
        if self._before is None:
            raise StateError("apply_in_place: the model has not been lent")
        update = np.subtract(self._view, self._before, out=self._before)
        with self._lock:
            self._hand_over(update)
        self._note_view()

    def _hand_over(self, update: Array) -> bool:
        """Under the lock. Was there something new of x? Then it is in the view, as all updates."""
        self._waiting += update
        self._any_waiting = True
        if not self._is_new:
            return False
        self._is_new = False
        np.add(self._shown, self._waiting, out=self._view)
        if self._any_taken:
            self._view += self._taken
        return True

    def _note_view(self) -> None:
        if self._before is not None:
            np.copyto(self._before, self._view)

    def take(self) -> Array | None:
        """Communication thread: the updates since the last time, to be added to x now; None if
        there are none. Good until `show`, which has to follow."""
        with self._lock:
            if not self._any_waiting:
                return None
            self._waiting, self._taken = self._taken, self._waiting
            self._any_waiting, self._any_taken = False, True
        return self._taken

    def show(self, x: Array) -> None:
        """Communication thread: x is the newest model."""
        np.copyto(self._next, x)
        with self._lock:
            self._shown, self._next = self._next, self._shown
            self._is_new = True
            taken, self._any_taken = self._any_taken, False
        if taken:
            self._taken.fill(0)

    def reset(self, x: Array) -> None:
        """Both threads at rest: forget everything, begin with x."""
        with self._lock:
            for vector in (self._view, self._shown):
                np.copyto(vector, x)
            self._waiting.fill(0)
            self._taken.fill(0)
            self._any_waiting = self._any_taken = self._is_new = False
        self._note_view()


# The communication thread: does one event after the other, and naps when there is none.

# Seconds. A nap doubles while nothing happens: what others leave here is found soon after a busy
# time, and an idle process costs less than a hundredth of a core.
_SHORTEST = 0.5e-3
LONGEST_NAP = 40e-3


class CommunicationThread:
    """Calls `event` until told to stop.

    Parameters
    ----------
    event : callable
        One communication event; False if there was nothing to do.
    next_event : callable
        Seconds until there will be something, or None.
    longest_nap : callable
        Seconds after which it looks for what others have left here, at most.
    """

    def __init__(
        self,
        event: Callable[[], bool],
        next_event: Callable[[], float | None],
        longest_nap: Callable[[], float] = lambda: LONGEST_NAP,
    ) -> None:
        self._event = event
        self._next_event = next_event
        self._longest_nap = longest_nap
        self._work = threading.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Has it been started and not stopped?"""
        return self._thread is not None

    def start(self) -> None:
        """Idempotent."""
        self.check()
        if self._thread is None:
            self._stopping = False
            name = "partialcoll communication"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            finalize.at_end(self.stop)  # inside MPI it must not be then

    def wake(self) -> None:
        """There is something to do."""
        self._work.set()

    def stop(self) -> None:
        """End it after the event under way. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            finalize.not_at_end(self.stop)
            self._stopping = True
            self._work.set()
            thread.join()

    def check(self) -> None:
        """Raises StateError, from the thread's error, if it has failed. Once."""
        error, self._error = self._error, None
        if error is not None:
            self.stop()
            raise StateError(f"the communication thread has ended: {error}") from error

    def _until(self, nap: float) -> float:
        """A nap, but for what is to come earlier."""
        known = self._next_event()
        return nap if not known else min(nap, known)

    def _run(self) -> None:
        nap = _SHORTEST
        try:
            while not self._stopping:
                self._work.clear()
                busy = self._event() or self._work.wait(self._until(nap))
                nap = _SHORTEST if busy else max(_SHORTEST, min(2 * nap, self._longest_nap()))
        except BaseException as error:
            self._error = error


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
