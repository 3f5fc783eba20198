# SPDX-License-Identifier: Apache-2.0
"""Processes whose steps never wait: a training thread and a communication thread share the model x.

The training thread adds updates and takes the newest model (`SharedModel`). The communication
thread owns x: it applies the updates and exchanges x with other ranks, event by event (`_event`),
under a lock that the averages over all ranks take to stop communication; no step takes it."""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable

import numpy as np

from .._core import checks, finalize
from .._core.settings import logger
from ..collectives.resync import Replica
from ..collectives.state_exchange import StateExchange
from ..errors import RankFailedError, StateError
from .process import Array, Counts, Exchange, GlobalSum, PeerSource, Process, Steps


class StepTime:
    """Running mean of the seconds between the gradient steps of this rank."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0: not measured yet
        self._last: float | None = None
        self._steps = 0

    def stepped(self, now: float) -> None:
        """Note the end of a gradient step."""
        if self._last is not None:
            took = now - self._last
            if self._steps >= 10:  # an evaluation between two steps is no long step
                took = min(took, 10 * self.mean)
            self._steps += 1
            self.mean += (took - self.mean) / min(self._steps, 100)  # of the last hundred or so
        self._last = now

    def pause(self) -> None:
        """Do not count the time until the next step."""
        self._last = None


# Detects that this process was suspended (SIGSTOP, a suspended machine, memory swapped out) while
# the others continued: the communication thread, which wakes several times a second whatever the
# training thread does, has not run for as long as many steps take. An event of that thread may take
# long, too: during one only the steps of the training thread count.
#
# The communication thread writes `_looked` and `_busy`, the training thread `_stepped`. Each reads
# the other's, because after a suspension either may be the first to run. Either sets `noticed`; the
# training thread clears it.

# Shorter suspensions do little harm, and occur on a busy machine.
_STEPS, _LEAST = 20, 3.0  # steps, seconds
_WARM_UP = 3  # first steps, which take longer


class Standstill:
    """Detects suspensions of one process with a communication thread."""

    def __init__(self) -> None:
        self.noticed = False
        self._step_time = StepTime()
        self._steps = 0
        self._stepped = 0.0  # time of the last step
        self._looked: float | None = None  # time of the last wake-up; None: not yet
        self._busy = False  # in an event

    def begin(self) -> None:
        """Prepare for the start of the communication thread."""
        self._looked, self._busy = None, False

    def stepped(self) -> None:
        """Training thread: note the end of a gradient step."""
        self._stepped = time.monotonic()
        self._steps += 1
        if self._steps > _WARM_UP:
            self._step_time.stepped(self._stepped)

    def look(self, busy: bool = False) -> bool:
        """Communication thread, before and after an event (and, `busy`, where one begins): return
        whether a suspension has been noticed and not handled."""
        self.check()
        self._busy, self._looked = busy, time.monotonic()
        return self.noticed

    def check(self) -> bool:
        """Either thread: return the same as `look`, for the time until now."""
        alive, usual = self._looked, self._step_time.mean
        if alive is not None and usual:
            if self._busy:
                alive = max(alive, self._stepped)
            self.noticed |= time.monotonic() - alive > max(_LEAST, _STEPS * usual)
        return self.noticed

    @property
    def patience(self) -> float:
        """Seconds within which a running peer ends a step."""
        return 1.0 + 10 * self._step_time.mean

    def over(self) -> None:
        """Training thread: forget the suspension, which has been handled."""
        self._looked, self.noticed = time.monotonic(), False


class Pace:
    """Draws the number of events for each gradient step: `rate` on average, Poisson numbers with
    `poisson`, else the same for every step but for rounding. `seed`: of the draws, an int or
    several.

    Events wait if communication does not keep up. After a gap it pays to make up for some of them,
    but not for all: a burst of averagings soon averages models that agree already, and never ends
    if more are asked for than can be made. So the events of the last `LATEST` steps may wait, and
    older ones are given up.
    """

    LATEST = 64

    def __init__(self, rate: float, poisson: bool, seed: object = 0) -> None:
        self.rate = checks.number("rate", rate, 0, what="events per gradient step")
        self.most = math.ceil(self.LATEST * self.rate)  # events that may wait
        self._poisson = poisson
        self._random = np.random.default_rng(seed)  # type: ignore[arg-type]
        self._left_over = 0.0

    def draw(self) -> int:
        """Return the number of events for the next gradient step."""
        if self._poisson:
            return int(self._random.poisson(self.rate))
        whole = math.floor(self._left_over + self.rate + 1e-9)
        self._left_over += self.rate - whole
        return whole


class Sharing(Process):
    """A process that hands its state to a peer that needs one, and takes that of a peer."""

    _states: StateExchange | None = None
    _companion: Replica | None = None

    def share_state(self, exchange: StateExchange, companion: Replica) -> None:
        """Use this `exchange` from now on. `companion`: state that is saved and restored with the
        model, such as that of the optimizer that makes the steps. Local."""
        self._states, self._companion = exchange, companion

    def _serve(self, round: int, state: Callable[[], dict[str, Any]]) -> bool:
        """Send the state to the ranks that have asked, if it is of the round they want. Local."""

        def complete() -> dict[str, Any]:
            more = {} if self._companion is None else {"companion": self._companion.capture()}
            return {**state(), **more}

        return self._states is not None and self._states.serve(round, complete)

    def _take(
        self, load: Callable[[dict[str, Any]], None], peers: Any = None, **options: Any
    ) -> int:
        """Load the state of a peer; return its round. See `StateExchange.ask`."""
        if self._states is None:
            raise StateError("exchange: expected a StateExchange for a peer's state, got None")
        round, state = self._states.ask(peers, **options)
        companion = state.pop("companion", None)
        load(state)
        if self._companion is not None:
            self._companion.restore(companion)
        return round


# The communication thread owns the model x. The training thread computes at a private view, which
# no other thread changes. Under one short lock:
#
# - `_waiting` is written by the training thread (`add`) and taken by the communication thread
#   (`take`), which leaves a zeroed vector in its place;
# - `_taken` holds the updates that it took: they are in x, but in no visible snapshot yet;
# - `_shown` is the newest snapshot of x, swapped in by the communication thread (`show`).
#
# Invariant: every update is in exactly one of `_waiting`, `_taken` and `_shown`. So shown + taken +
# waiting is the newest model with all of this rank's own updates; the view has this value. x is not
# copied under the lock; the additions of the training thread are made under it.
#
# A view that was lent is changed in place. `_before`, which only the training thread uses, is the
# view after the last addition: the difference to the view is the update.


class SharedModel:
    """The model, shared by the two threads. Holds five vectors of the model's size."""

    def __init__(self, x: Array) -> None:
        self._lock = threading.Lock()
        self.view = x.copy()  # at which the training thread computes gradients
        self._shown = x.copy()
        self._next = x.copy()  # only the communication thread uses it, until `show` swaps it in
        self._waiting = np.zeros_like(x)
        self._taken = np.zeros_like(x)
        self._any_waiting = self._any_taken = self._is_new = False
        self._before: Array | None = None

    def lend(self) -> None:
        """Training thread: prepare for changes of the view in place."""
        if self._before is None:
            self._before = self.view.copy()

    def add(self, update: Array) -> None:
        """Training thread: add an update to the view, which takes the newest snapshot, too."""
        with self._lock:
            if not self._hand_over(update):
                self.view += update
        self._note_view()

    def has_changed(self) -> bool:
        """Training thread: return whether a lent view has changed since the last addition."""
        return self._before is not None and not np.array_equal(self.view, self._before)

    def add_what_changed(self) -> None:
        """Training thread: add the change of a lent view as an update."""
        if self._before is None:
            raise StateError("apply_in_place: the model has not been lent")
        update = np.subtract(self.view, self._before, out=self._before)
        with self._lock:
            self._hand_over(update)
        self._note_view()

    def _hand_over(self, update: Array) -> bool:
        """Under the lock, add to `_waiting`; return whether the view is now up to date."""
        self._waiting += update
        self._any_waiting = True
        if not self._is_new:
            return False
        self._is_new = False
        np.add(self._shown, self._waiting, out=self.view)
        if self._any_taken:
            self.view += self._taken
        return True

    def _note_view(self) -> None:
        if self._before is not None:
            np.copyto(self._before, self.view)

    def take(self) -> Array | None:
        """Communication thread: return the updates since the last call, or None. The caller adds
        them to x and calls `show`; until then they are valid."""
        with self._lock:
            if not self._any_waiting:
                return None
            self._waiting, self._taken = self._taken, self._waiting
            self._any_waiting, self._any_taken = False, True
        return self._taken

    def show(self, x: Array) -> None:
        """Communication thread: make x the newest snapshot."""
        np.copyto(self._next, x)
        with self._lock:
            self._shown, self._next = self._next, self._shown
            self._is_new = True
            taken, self._any_taken = self._any_taken, False
        if taken:
            self._taken.fill(0)

    def reset(self, x: Array) -> None:
        """Start again with x. Both threads must be stopped."""
        with self._lock:
            for vector in (self.view, self._shown):
                np.copyto(vector, x)
            self._waiting.fill(0)
            self._taken.fill(0)
            self._any_waiting = self._any_taken = self._is_new = False
        self._note_view()


# Seconds. The sleep doubles while there are no events: contributions of other ranks are found soon
# after a busy time, and an idle process costs less than a hundredth of a core.
_SHORTEST = 0.5e-3
LONGEST_NAP = 40e-3


class CommunicationThread:
    """Runs one `event` after the other. When `event` returns False, the thread sleeps until it is
    woken, but at most until the `next_event`, if there is one, and at most the seconds of
    `longest_nap`, since contributions of other ranks do not wake it."""

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
        return self._thread is not None

    def start(self) -> None:
        """Idempotent."""
        self.check()
        if self._thread is None:
            self._stopping, name = False, "partialcoll communication"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            finalize.at_end(self.stop)  # it must not be inside MPI then

    def wake(self) -> None:
        self._work.set()

    def stop(self) -> None:
        """End the thread after the current event. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            finalize.not_at_end(self.stop)
            self._stopping = True
            self.wake()
            thread.join()

    def check(self) -> None:
        """Raise StateError, from the thread's error, if the thread has failed. Only once."""
        error, self._error = self._error, None
        if error is not None:
            self.stop()
            raise StateError(f"the communication thread has ended: {error}") from error

    def _run(self) -> None:
        nap = _SHORTEST
        try:
            while not self._stopping:
                self._work.clear()
                busy = self._event() or self._work.wait(min(nap, self._next_event() or nap))
                nap = _SHORTEST if busy else max(_SHORTEST, min(2 * nap, self._longest_nap()))
        except BaseException as error:
            self._error = error


_IN_THE_MIDDLE = 0.2  # seconds that a peer may spend inside an exchange on a busy machine


class Threaded(Sharing):
    """A process with a communication thread, which calls `_event` under a lock. Parameters: see
    `Decoupled`.

    With `share_state`, a rank whose process was suspended takes the model of another rank before it
    communicates again, and drops its own model and its uncollected contributions, which would pull
    the others back. (This changes the sum over the ranks.)
    """

    _beside_x = 0  # further elements that are exchanged together with x

    def __init__(self, x: Array, exchange: Exchange, **common: Any) -> None:
        super().__init__(x, **common)
        shape, dtype = (self._x.size + self._beside_x,), self._x.dtype
        if (exchange.shape, exchange.dtype) != (shape, dtype):
            more = f" and {self._beside_x} more" if self._beside_x else ""
            raise ValueError(
                f"exchange: expected shape {shape} ({self._x.size} parameters{more}) and {dtype}, "
                f"got {exchange.shape} and {exchange.dtype}"
            )
        self._exchange = exchange
        self._communicating = threading.Lock()
        self._rest_wanted = False
        self._exchange_stats = exchange.stats
        self._standstill = Standstill()
        self._thread = CommunicationThread(self.communicate, self.next_event, self._longest_nap)

    def communicate(self) -> bool:
        if self._states is not None and self._standstill.look():
            return False
        if self._rest_wanted or not self._communicating.acquire(blocking=False):
            return False
        self._standstill.look(busy=True)
        try:
            busy = self._event()
            if busy:
                self._exchange_stats = self._exchange.stats
            return busy
        finally:
            self._standstill.look()
            self._communicating.release()

    def serve(self) -> bool:
        """Send this rank's model to the ranks that have asked. Local. `step` does it, too."""
        if self._standstill.noticed:
            return False
        return self._serve(self._counts.steps, lambda: {"model": self.model})

    def _is_old(self) -> bool:
        """Communication thread: return whether the process was suspended during this event."""
        return self._states is not None and self._standstill.check()

    def _catch_up(self) -> bool:
        """Training thread: take the model of a peer after a suspension. Return whether it did."""
        if self._states is None or not self._standstill.check():
            return False
        try:
            patience = self._standstill.patience
            self._take(lambda state: self._take_over(state["model"]), timeout=patience)
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
        """Replace the model. It is published, and exchanges that are under way with the old one get
        time to end, before contributions are accepted: they would pull this rank back."""
        with self._at_rest():
            if not self._beside_x:
                self._exchange.publish(model)
                time.sleep(_IN_THE_MIDDLE)
            self._settle()
            self._adopt(model)

    def _adopt(self, model: Array) -> None:  # `_reset` on this rank alone
        self._reset(model)

    @property
    def exchange_stats(self) -> Any:
        return self._exchange_stats

    def _event(self) -> bool:
        raise NotImplementedError

    def _attempt(self, source: Any, peer: int, communicate: Callable[[], bool]) -> bool:
        """Return what `communicate`, with a peer that the source has chosen, returns; False if that
        has not published yet, or has died. If the other ranks go on without the dead, the source
        chooses them no more; else raise."""
        try:
            return not self._is_old() and communicate()
        except StateError:
            return False
        except RankFailedError:
            if not self._exchange.failed[peer]:
                raise
            if hasattr(source, "topology"):
                source.topology = self._exchange.topology
            return False

    def _longest_nap(self) -> float:
        """Seconds for which contributions of other ranks may lie unseen."""
        return LONGEST_NAP

    def start(self) -> None:
        self._check_usable()
        if not self._thread.running:
            self._standstill.begin()
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _gathering(self, total: GlobalSum) -> Steps[None]:
        """Wait for the others before communication stops: from then on this rank takes nothing."""
        self._catch_up()
        yield from total.meeting()
        self._catch_up()  # in the average's own meeting the others serve

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        self._rest_wanted = True  # otherwise a busy thread takes the lock again and again
        try:
            with self._communicating:
                yield
        finally:
            self._rest_wanted = False
        self._thread.wake()

    def Free(self) -> None:
        super().Free()
        self._thread.check()


class Decoupled(Threaded):
    """A process whose updates go to x through a `SharedModel`, with a number of events for each
    step. Subclasses define an event (`_event`), and how x is updated (`_renew`).

    `x`: see `Process`. `exchange`: a `partialcoll.GossipBuffer` of the same shape and dtype.
    `peers` chooses the peers: an object with ``next_peer() -> int | None``. `common`:
    ``learning_rate`` and ``total``, see `Process`, and the options: ``rate``, if wanted ``poisson``
    and ``seed``, see `Pace`. A rate of None: one event after the other without pause.

    One of the two ranks of an averaging begins it. If all ranks choose peers, each begins half of
    those in which it takes part; if only some choose (a source with ``active``, such as
    `pairing.Bipartite`), these begin all of theirs. If free ranks find each other (a source with
    ``poll`` and ``leave``, such as `pairing.Available`), the averaging settles one event of each
    rank, whichever begins it; the event of a rank that finds no peer stays due.

    The backlog, the events asked for and not made yet, is bounded: see `Pace`.
    """

    def __init__(self, x: Array, exchange: Exchange, peers: PeerSource, **common: Any) -> None:
        super().__init__(x, exchange, **common)
        if not callable(getattr(peers, "next_peer", None)):
            raise TypeError(
                f"peers: expected something with next_peer(), got {type(peers).__name__}"
            )
        self._peers: Any = peers
        # Do free ranks find each other? Then the other rank began an averaging without a peer here.
        self._meet = hasattr(peers, "poll")
        self._pace: Pace | None = None
        own = self._options
        if own.rate is not None:
            seed = getattr(own, "seed", 0), exchange.rank
            self._pace = Pace(own.rate * self._begun(), getattr(own, "poisson", False), seed)
        self._since, self._warned = Counts(), False  # see `_warn_of_few`
        self._shared = SharedModel(self._x)
        self._due: list[float] = []  # a heap: the times at which waiting events are due
        self._due_lock = threading.Lock()

    @property
    def model(self) -> Array:
        """See `Process.model`: the newest snapshot of x, with all of this rank's own updates."""
        return self._shared.view

    def lend(self) -> Array:
        """See `Process.lend`. Takes one more vector."""
        self._check_usable()
        self._shared.lend()
        return self.model

    def advancing(self, update: Array | None = None) -> Steps[None]:
        """See `Process.advancing`: waits for no other rank."""
        self._check_step(update)
        self._thread.check()
        with self._exposed():
            if not self._catch_up():  # otherwise the step belongs to a model that was replaced
                if update is None:
                    self._shared.add_what_changed()
                elif self._takes(update):
                    self._shared.add(update)
            self._stepped()
            self._standstill.stepped()
            self.serve()
        self._thread.wake()
        yield from ()

    def hand_over_changes(self) -> None:
        self._check_usable()
        if self._shared.has_changed():
            self._shared.add_what_changed()
            self._thread.wake()

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
        self._warn_of_few()

    def _warn_of_few(self) -> None:
        """Warn once if clearly fewer events are made than the steps ask for."""
        counts, since = self._counts, self._since
        asked, steps = counts.asked - since.asked, counts.steps - since.steps
        if self._warned or asked < 64 or steps < 16:  # events of the last step may still be waiting
            return
        achieved, self._since = counts.achieved - since.achieved, self.stats
        self._warned = achieved < 0.75 * asked
        if self._warned:
            logger.warning(
                "rate: of %d averagings or messages that the last %d steps asked for, %d were made "
                "(%d are waiting, %d were refused): the ranks agree less than this rate would have "
                "them; ask for fewer, or see what holds communication up",
                *(asked, steps, achieved, counts.backlog, counts.skipped - since.skipped),
            )

    def _times(self, events: int) -> Sequence[float]:
        """Return when the events of this step are due, by the clock `_now`. Here: at once."""
        return [0.0] * events

    def _now(self) -> float:
        return 0.0

    def _begun(self) -> float:
        """Return the fraction of the communications counted by `rate` that this rank begins."""
        active = getattr(self._peers, "active", None)
        return 1.0 if self._meet else 0.5 if active is None else float(active)

    def next_event(self) -> float | None:
        with self._due_lock:
            return max(0.0, self._due[0] - self._now()) if self._due else None

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        with self._due_lock:
            self._counts.given_up += len(self._due)
            self._due.clear()
            self._counts.backlog = 0
        self._shared.reset(model)

    def _renew(self) -> bool:
        """Add this rank's updates and what others gave to x; return whether there were any."""
        raise NotImplementedError

    def _show(self) -> None:
        self._shared.show(self._x)

    def _settle(self) -> None:
        self._renew()
        self._show()

    def _next_peer(self) -> int | None:
        """Return the peer for this event, or None if no event is due or no peer is free."""
        if self._pace is not None and self.next_event() != 0:
            return None
        outcome = self._peers.poll() if self._meet else self._peers.next_peer()
        found = isinstance(outcome, int) or not self._meet
        if found or outcome is not None:
            self._settle_one(begun_by_other=not found)
        return self._checked(outcome) if found else None

    def _checked(self, peer: Any) -> int | None:
        if peer is not None and not 0 <= peer < self._exchange.size:
            ranks = f"a rank from 0 to {self._exchange.size - 1}"
            raise ValueError(f"peers: expected {ranks}, got {peer!r}")
        return None if peer is None else int(peer)

    def _settle_one(self, *, begun_by_other: bool) -> None:
        self._counts.achieved += begun_by_other
        if self._pace is not None:
            with self._due_lock:
                heapq.heappop(self._due)
                self._counts.backlog = len(self._due)

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        with super()._at_rest():
            if self._meet and self._peers.leave() is not None:  # another rank has chosen this one
                self._settle_one(begun_by_other=True)
            yield

    def _average(self, peer: int, **how: Any) -> bool:
        """Average x with a peer's model. Return whether the peer had room for a contribution."""
        average = partial(self._exchange.average, self._x, peer, **how)
        return self._count(self._attempt(self._peers, peer, average))

    def _count(self, went_through: bool) -> bool:
        self._counts.communications += went_through
        self._counts.achieved += went_through
        self._counts.skipped += not went_through
        return went_through
