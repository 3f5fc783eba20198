# SPDX-License-Identifier: Apache-2.0
"""Collective calls, one after the other, in the order in which the program makes them.

A call has two halves. First it is *announced*: all ranks compare what they are about to do
(`Agreement`). If they differ, this call fails on all ranks, with the text of each rank, and the
queue continues. While a rank waits for the announcements of others it sleeps, and can name the
missing ranks. Then the *data* of the call moves, between ranks that have all announced it. So all
ranks process the same calls in the same order.

`window` channels are used in turn, so up to `window` calls are announced ahead; their data moves
one call after the other. The data of a call starts together with its announcement if the handle for
it exists and no earlier call can use that handle. Each channel has private handles for such calls;
waiting for a later call does not wait for data in flight on another channel's private handle. Ranks
whose announcements differ may have started different handles: each rank then starts the handles of
the others as well, with zeros, and these rounds are completed before the handles are used again. A
new handle is created only after the ranks have agreed, while its call is the first in the queue, so
all ranks create the same handles. If some ranks have joined, the call continues without them
(`joined`).

A thread that waits for a call processes the calls before it and then this one. A worker thread may
process calls that no thread waits for yet. One thread at a time processes calls: it holds the lock
`_turn`.
"""

from __future__ import annotations

import collections
import functools
import math
import threading
import time
from typing import Any, Callable

from ..._core import communicator
from ..._core.departure import Departed
from ..._core.failures import told_by
from ..._core.mpi import MPI
from ..._core.settings import logger
from ..._core.worker import Worker
from ...collectives.agreement import Agreement, Intent, complaint
from ...errors import MismatchError, RankFailedError, StateError
from ...policy import Policy
from . import joined
from .call import Call, Channel, complete
from .handles import Handles, NeedsAll
from .work import GroupTimeout


def follow_up(broken: BaseException, text: str) -> Exception:
    """Return the error for a call after the queue has failed."""
    if isinstance(broken, RankFailedError):
        return RankFailedError(broken.ranks, text)
    return StateError(text)


class _Stopped(StateError):
    """Raised in a call that waits while the queue ends."""


class Queue:
    """The calls of one communicator, matched by their order. Created collectively.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of the ranks, whose traffic is ordered by what uses it.
    name : str
        For messages.
    window : int
        Calls that are announced ahead.
    owner, remedy : str
        Whose it is, and what helps after an error; for messages.
    quorum : policy or None
        None: all ranks make each call together. Else there is nothing to compare.
    on_failure : str
        "continue": calls are among the ranks that live. Who has died is the same for all ranks in
        each round of a handle, so all go on alike.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        window: int,
        *,
        owner: str = "partialcoll.torch",
        remedy: str = "shutdown() and init() again",
        quorum: Policy | None = None,
        on_failure: str = "raise",
    ) -> None:
        self._comm, self._name, self._window, self._owner = comm, name, window, owner
        self._quorum, self._remedy, self._on_failure = quorum, remedy, on_failure
        self.handles = self._handles()  # for calls that are not apart
        self._channels = [self._channel(number) for number in range(window)]
        self._lock = threading.Lock()  # of what is waiting, and of the thread
        self._waiting: collections.deque[Call] = collections.deque()
        self._announced: collections.deque[Call] = collections.deque()
        self._count = 0
        goes_on = on_failure == "continue"
        self._alike = (MismatchError, RankFailedError, NeedsAll) if goes_on else (MismatchError,)
        self._turn = threading.Lock()  # of what is announced, and of all handles
        self._head: Call | None = None  # that is being carried out
        self._broken: BaseException | None = None
        self._worker = Worker(f"partialcoll {name}", self._work_off, self._fail)
        self.aside, self.halt, self.join = self._worker.aside, self._worker.halt, self._worker.join

    def _handles(self) -> Handles:
        title = f"{self._owner}: data of {self._name}"
        quorum = self._quorum or "full"
        return Handles(self._comm, title, self._patient, quorum, self._on_failure)

    def _channel(self, number: int) -> Channel:
        agreement = None
        if self._quorum is None:
            title = f"{self._owner}: {self._name}, {number}"
            agreement = Agreement(self._comm, title, self._on_failure)
            patient = functools.partial(self._patient, agreement.missing)
            report = functools.partial(self._report, agreement.missing)
            agreement.while_waiting(patient, report)
        return Channel(agreement, self._handles())

    # By whoever makes a call

    def submit(self, call: Call, background: bool = False) -> Call:
        """Append a call. background: the worker thread may complete it."""
        with self._lock:
            self._check()
            call._queue = self
            self._waiting.append(call)
        if background:
            self._leave_to_thread(call)
        return call

    def _leave_to_thread(self, call: Call) -> None:
        call.in_background = True
        self.wake()

    def begin(self, call: Call, background: bool = True) -> Call:
        """Append a call, and start its data if that needs no waiting. background: the worker
        thread completes it; otherwise complete it here."""
        self.submit(call)
        if self._turn.acquire(blocking=False):
            try:
                self._announce()
            finally:
                self._turn.release()
        if not background:
            self._make_room(call)
        if call._channel is None or not (call.begun or call._intent.refused):
            self._leave_to_thread(call) if background else self._complete(call)
        return call

    def _make_room(self, call: Call) -> None:
        """Complete earlier calls until the call has a channel."""
        while call._channel is None and not call._over:
            before = self._channels[self._count % self._window].call
            if before is not None:
                self._complete(before)
            with self._turn:
                self._announce()

    def _complete(self, call: Call) -> None:
        self.drive(call)
        call._wait_for_others()

    def run(self, call: Call) -> Call:
        """The next call, from its beginning to its end; raises its error."""
        self.submit(call).wait()
        return call

    def refuse(self, error: Exception, timeout: float = math.inf, background: bool = False) -> Any:
        """This rank's arguments are wrong: let the others know, and raise."""
        text = f"{type(error).__name__}: {error}"
        self.begin(Call(text, timeout=timeout, refused=True), background)
        raise error

    def _check(self) -> None:
        communicator.check_running(self._name)
        if self._broken is not None:
            text = f"{self._name} has ended with an error: {self._broken}; {self._remedy}"
            raise follow_up(self._broken, text)
        if self._worker.stopping:
            raise StateError(f"{self._name} has been destroyed")

    def poll(self, call: Call) -> bool:
        """Advance without blocking; return whether the call has ended, with or without an error.
        Calls that may have to create a handle are left to the worker thread."""
        while not (call._over or call.in_background) and self._turn.acquire(blocking=False):
            if not self._next(call, wait=False):
                break
        return call._over

    # By whoever's turn it is

    def drive(self, until: Call) -> None:
        """Carry out calls up to this one, unless others are at it."""
        while not until._over:
            if not self._turn.acquire(blocking=False):
                self.wake()  # whoever is at it may stop before this one
                return
            self._next(until)

    def _next(self, until: Call | None = None, wait: bool = True) -> bool:
        """Advance the first due call and release the turn. Return False if there is none or, with
        wait=False, if it is incomplete."""
        ended: list[Call] = []
        try:
            self._announce()
            head = self._head = self._first_due(until)
            if head is None:
                return False
            if head._outcome is None and not self._carry_out(head, until, wait):
                return False
            if head._outcome is not None or head._moved:
                ended = self._after(head)
        finally:
            self._head = None
            self._turn.release()
            for call in ended:
                call._end(call._outcome)
        return True

    def _first_due(self, until: Call | None) -> Call | None:
        """Return the next call to complete. Skips calls whose data is in flight on a private
        handle: they end when a caller or their channel waits for them."""
        for call in self._announced:
            if call is until or not (call._agreed and call.on_its_way):
                return call
        wanted = until is None or until._channel is None
        return self._announced[0] if self._announced and wanted else None

    def _announce(self) -> None:
        """Announce waiting calls while a channel is free."""
        while self._waiting:
            channel = self._channels[self._count % self._window]
            if channel.call is not None:
                return
            with self._lock:
                call = self._waiting.popleft()
                self._announced.append(call)
            call._channel, channel.call = channel, call
            self._count += 1
            try:
                if channel.agreement is not None and not call.compared:
                    channel.agreement.announce(call._intent)
                self._start_early(call)
            except Exception as error:  # on this rank only: raise it where the call is waited for
                call._outcome = self._broken = error
                return

    def _start_early(self, call: Call) -> None:
        """Start the data with the announcement if no earlier call can use the same handle: if the
        handle is private to the channel, or the call is the next one to complete."""
        key, apart = call._intent.key, call._intent.apart
        if key is None or not (apart or self._first_due(call) is call):
            return
        handle = self._handles_of(call).get(key)
        if handle is not None:
            assert call._first is not None
            with call.side:
                call._first.begin(handle)

    def _handles_of(self, call: Call) -> Handles:
        assert call._channel is not None
        return call._channel.own if call._intent.apart else self.handles

    def _carry_out(self, head: Call, until: Call | None, wait: bool) -> bool:
        """Advance the call; return False if it is incomplete. An error is stored as its outcome.
        It ends the queue, unless all ranks have the same error at the same point."""
        try:
            with told_by(self._comm):
                return self._move(head, until, wait)
        except Exception as error:
            head._outcome = error
            if isinstance(error, Departed) or not isinstance(error, self._alike):
                self._broken = error
                if isinstance(error, RankFailedError):
                    self._comm.Revoke()  # who waits for this rank is told
        return True

    def _move(self, head: Call, until: Call | None, wait: bool) -> bool:
        """Wait for the announcements of the others, then move the data, unless it is in flight and
        `until` is another call. Return False if incomplete. An interrupted wait can be resumed."""
        if not head._agreed:
            if not self._settle(head, wait):
                return False
            if head.on_its_way and head is not until:
                return True
        while not head._moved:
            if head._step is not None:
                came = complete(head._step, wait, self._patient)
                if came is None:
                    return False
                head.round = came or head.round
            self._advance(head)
        return True

    def _settle(self, head: Call, wait: bool) -> bool:
        """Return True once all ranks have announced a call. Raises MismatchError on all ranks if
        they differ otherwise than that some have joined."""
        assert head._channel is not None
        agreement = head._channel.agreement
        if agreement is not None and not head.compared:
            if not wait and not agreement.arrived():
                return False
            heard = agreement.settle(waited=not wait)
            if heard or head._intent.refused:
                first = joined.first_of_the_rest(heard)
                if first is None:
                    self._level(head, heard)
                    raise MismatchError(complaint(heard))
                head.without, head._agreed_at = True, time.monotonic()
                handles = head._channel.own if heard[first].apart else self.handles
                head._steps = joined.steps(head, first, handles)
                return True
        move = head._move
        head._agreed_at = time.monotonic()
        head._steps = move(self._handles_of(head)) if callable(move) else iter(move or ())
        return True

    def _level(self, head: Call, heard: dict[int, Intent]) -> None:
        """Start every handle that another rank has started, with zeros, so that rounds stay
        matched."""
        assert head._channel is not None
        begun = None if head._first is None else head._first.begun
        for handles, apart in ((self.handles, False), (head._channel.own, True)):
            keys = [one.key for one in heard.values() if one.key is not None and one.apart == apart]
            handles.level(keys, begun if head._intent.apart == apart else None)

    def _advance(self, head: Call) -> None:
        """Run the call's steps up to the next one that has to wait."""
        assert head._steps is not None
        head._step = None
        try:
            with head.side:
                head._step = next(head._steps, None)
            if head._step is None:
                head.side.settle()
        except Exception:
            raise
        except BaseException as error:  # what was interrupted there cannot go on
            head._outcome = self._broken = error
        head._moved = head._step is None

    def _after(self, head: Call) -> list[Call]:
        """Return the calls that have ended: this one, and all if the queue is broken."""
        self._announced.remove(head)
        assert head._channel is not None
        head._channel.call = None
        if self._broken is None:
            return [head]
        rest = self._take_all()
        for call in rest:
            text = f"an earlier operation failed: {self._broken}"
            call._outcome = call._outcome or follow_up(self._broken, text)
        return [head, *rest]

    def _take_all(self) -> list[Call]:
        with self._lock:
            rest = [*self._announced, *self._waiting]
            self._announced.clear()
            self._waiting.clear()
        return rest

    def _report(self, missing: Callable[[], str], waited: float) -> None:
        """Warn that the current call has waited long."""
        who = missing()
        if who:
            logger.warning("waiting for %.1f s in %s: %s: %s", waited, self._owner, self._head, who)

    def _patient(self, missing: Callable[[], str] = str) -> bool:
        """Called while the current call waits: raise when its timeout has passed. missing: names
        the ranks that it waits for."""
        head = self._head
        if head is None:  # the queue is being freed
            return False
        if self._worker.stopping:
            raise _Stopped(f"{self._name} ended while {head} was under way")
        if time.monotonic() >= head._deadline:
            who = missing()
            raise GroupTimeout(
                f"{head} in {self._name} was not over after its timeout of {head._timeout:g} s"
                + (f": {who}" if who else "")
            )
        return False

    # The thread

    def wake(self) -> None:
        """Wake the worker thread."""
        self._worker.wake()

    def _work_off(self) -> None:
        while not self._worker.stopping and (self._announced or self._waiting):
            self._turn.acquire()
            self._next()

    def stop(self) -> None:
        """End the worker thread; calls in progress fail. Local, idempotent."""
        self._worker.stop()

    def _fail(self) -> None:
        with self._turn:
            rest = self._take_all()
        for call in rest:
            call._end(StateError(f"{self._name} was destroyed before {call}"))

    @property
    def broken(self) -> bool:
        """Return whether a call has failed on this rank, so that the ranks may be at different
        calls."""
        return self._broken is not None

    def complete(self) -> None:
        """Complete all announced calls."""
        while self._announced:
            self._complete(self._announced[0])

    def free(self) -> None:
        """Free everything. Collective, by ranks that are at the same call or know of a death."""
        self.complete()
        self.stop()
        self.handles.free()
        for channel in self._channels:
            channel.own.free()
            if channel.agreement is not None:
                channel.agreement.free()
