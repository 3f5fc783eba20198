# SPDX-License-Identifier: Apache-2.0
"""Collective calls, one after the other, in the order in which the program makes them.

All ranks compare what each call is, in a round of the core (`Agreement`). If they differ, this call
fails on all ranks, with the text of each rank, and the queue continues. While a rank waits for the
calls of others it sleeps, and can name the missing ranks. The data of a small reduction goes with
the comparison, so such a call is one round. Other data moves after it, between ranks that agree. A
new handle for such data is created while its call is the first in the queue, so all ranks create
the same handles in the same order. Up to `window` calls are compared ahead, by as
many agreements in turn. Data goes with the comparison of a call that is not the first one only if
the call says that it may (`Call.apart`): an earlier call could still change it. Calls end in their
order.

A rank that has joined does not know what the others call next, and says only that it has joined. If
the others agree on a call that allows it, the first of them tells what is reduced, and all reduce;
ranks that have joined contribute nothing.

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
from ..._core.failures import Departed, is_rank_failure, told
from ..._core.mpi import MPI
from ..._core.settings import logger
from ..._core.worker import Worker
from ...collectives import state_exchange
from ...collectives.agreement import JOINED, OPEN, Agreement, complaint
from ...errors import MismatchError, RankFailedError, StateError
from ...policy import Policy
from .call import Call, GroupTimeout, Steps, complete
from .handles import Handles, NeedsAll, Reduction
from .transfer import spread_buffers


def follow_up(broken: BaseException, text: str) -> Exception:
    """Return the error for a call after the queue has failed."""
    if isinstance(broken, RankFailedError):
        return RankFailedError(broken.ranks, text)
    return StateError(text)


class _Stopped(StateError):
    """Raised in a call that waits while the queue ends."""


class Queue:
    """The calls of one communicator, matched by their order. Created collectively.

    comm: its traffic is ordered by its user. name, owner, remedy: for messages; remedy: what helps
    after an error. window: calls that are compared ahead. quorum: None: all ranks make each call
    together; else there is nothing to compare. on_failure: "continue": calls are among the ranks
    that live. Who has died is the same for all ranks in each round of a handle, so all go on alike.
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
        self.comm, self._name, self._window, self._owner = comm, name, window, owner
        self.ranks: int = comm.size
        self._remedy, self._on_failure = remedy, on_failure
        title = f"{owner}: data of {name}"
        self.handles = Handles(comm, title, self._patient, quorum or "full", on_failure)
        numbers = range(window if quorum is None else 0)
        self._agreements = [self._agreement(number) for number in numbers]
        self._lock = threading.Lock()  # of what is waiting, and of the thread
        self._waiting: collections.deque[Call] = collections.deque()
        self._announced: collections.deque[Call] = collections.deque()
        self._count = 0
        goes_on = on_failure == "continue"
        self._alike = (MismatchError, RankFailedError, NeedsAll) if goes_on else (MismatchError,)
        self._turn = threading.Lock()  # of what is announced, and of all handles
        self._head: Call | None = None  # that is being processed
        self._broken: BaseException | None = None
        worker = self._worker = Worker(f"partialcoll {name}", self._work_off, self._fail)
        self.aside, self.wake, self.stop = worker.aside, worker.wake, worker.stop
        self.halt, self.join = worker.halt, worker.join

    def _agreement(self, number: int) -> Agreement:
        made = Agreement(self.comm, f"{self._owner}: {self._name}, {number}", self._on_failure)
        made.while_waiting(
            functools.partial(self._patient, made.missing),
            functools.partial(self._report, made.missing),
        )
        return made

    # By whoever makes a call

    def submit(self, call: Call, background: bool = False) -> Call:
        """Append a call. background: the worker thread may complete it."""
        with self._lock:
            if self._broken is not None or self._worker.stopping or MPI.Is_finalized():
                self._check()
            call._queue = self
            self._waiting.append(call)
        if background:
            call.in_background = True
            self.wake()
        return call

    def begin(self, call: Call, background: bool = True) -> Call:
        """Append a call, and start its data if that needs no waiting. background: the worker
        thread completes it. Otherwise whoever waits for it does, if it is a reduction; other calls
        are completed here."""
        self.submit(call)
        if self._turn.acquire(blocking=False):
            try:
                self._announce()
            finally:
                self._turn.release()
        if background:
            if not call.begun:
                call.in_background = True
                self.wake()
            return call
        while not (call.announced or call._over):  # until earlier calls have made room
            with self._turn:
                self._announce()
                before = self._announced[0] if self._announced else None
            if before is not None and not call.announced:
                self._complete(before)
        if call._first is None:
            self._complete(call)
        return call

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
        while not call._over:
            first = next(iter(self._announced), None)
            left_to_thread = first is not None and first.in_background
            if left_to_thread or not self._turn.acquire(blocking=False):
                break
            if not self._next(wait=False):
                break
        return call._over

    # By whoever's turn it is

    def drive(self, until: Call) -> None:
        """Carry out calls up to this one, unless others are at it."""
        while not until._over:
            if not self._turn.acquire(blocking=False):
                self.wake()  # whoever is at it may stop before this one
                return
            self._next()

    def _next(self, wait: bool = True) -> bool:
        """Complete the first call and release the turn. Return False if there is none or, with
        wait=False, if it is incomplete."""
        ended: list[Call] = []
        try:
            self._announce()
            head = self._head = self._announced[0] if self._announced else None
            if head is None:
                return False
            if head._outcome is None and not self._carry_out(head, wait):
                return False
            ended = self._after(head)
        finally:
            self._head = None
            self._turn.release()
            for call in ended:
                call._end(call._outcome)
        return True

    def _announce(self) -> None:
        """Announce waiting calls, while the window has room, and start what can be started."""
        if self._announced:
            self._start(self._announced[0])
        while self._waiting and len(self._announced) < self._window:
            with self._lock:
                call = self._waiting.popleft()
                self._announced.append(call)
            if self._agreements:
                call.agreement = self._agreements[self._count % self._window]
            call.announced = True
            self._count += 1
            self._start(call)
            if call._outcome is not None:
                return

    def _start(self, call: Call) -> None:
        """Start the comparison of a call, with its data if that is small; where nothing is
        compared, start the data. A call that is not apart may have to wait for earlier ones."""
        if call.started:
            return
        agreement, first = call.agreement, call._first
        small = first is not None and agreement is not None and first.fits(agreement)
        if small and not (call.apart or call is self._announced[0]):
            return
        call.started = True
        try:
            if first is not None and agreement is not None and small:
                with call.side:
                    first.begin_with(agreement, call._intent)
            elif agreement is not None and call.compared:
                call.agreement = None
            elif agreement is not None:
                agreement.start(call._intent)
            elif first is not None and first.key is not None:
                handle = self.handles.get(first.key)
                if handle is not None:
                    with call.side:
                        first.begin(handle)
        except Exception as error:  # on this rank only: raise it where the call is waited for
            call._outcome = self._broken = error

    def _carry_out(self, head: Call, wait: bool) -> bool:
        """Advance the call: wait for the calls of the others, then move the data. Return False if
        it is incomplete. An interrupted wait can be resumed. An error is stored as its outcome. It
        ends the queue, unless all ranks have the same error at the same point."""
        try:
            if head._steps is None and not self._settle(head, wait):
                return False
            while not head._moved:
                if head._step is not None:
                    came = complete(head._step, wait, self._patient)
                    if came is None:
                        return False
                    head.described = came or head.described
                self._advance(head)
        except Exception as error:
            outcome = told(error, self.comm) if is_rank_failure(error) else error
            head._outcome = outcome
            if isinstance(outcome, Departed) or not isinstance(outcome, self._alike):
                self._broken = outcome
                if isinstance(outcome, RankFailedError):
                    self.comm.Revoke()  # who waits for this rank is told
        return True

    def _settle(self, head: Call, wait: bool) -> bool:
        """Wait until all ranks have made a call, and find out how this one continues. Return False
        if incomplete."""
        agreement = head.agreement
        agree: bool | None = True
        if agreement is not None:
            agree = agreement.settle(wait)
            if agree is None:
                return False
        head._agreed_at, first = time.monotonic(), head._first
        if agreement is not None and (not agree or head._intent.refused):
            head._steps = self._differ(head, agreement)
        else:
            if first is not None and agreement is not None and first.begun is agreement:
                head.described = agreement.describe()
            head._steps = self._data(head)
        return True

    def _data(self, head: Call) -> Steps:
        """Return the steps that move the data after the comparison."""
        move = head._move
        return move(self.handles) if callable(move) else iter(move or ())

    def _differ(self, head: Call, agreement: Agreement) -> Steps:
        """Find out what all ranks call. Raises MismatchError on all of them, unless the only
        difference is that some have joined, or that the data of some is on a device and could not
        go with the comparison."""
        if head._first is not None:
            head._first.begun = None  # what went with the comparison was not reduced
        agreement.start_texts(head._intent)
        yield agreement
        heard = agreement.texts()
        if len(set(heard.values())) == 1 and not head._intent.refused:
            yield from self._data(head)
            return
        rest = [rank for rank, one in heard.items() if one.role != JOINED]
        said = {heard[rank] for rank in rest}
        if len(said) != 1 or len(rest) == len(heard) or said.pop().role != OPEN:
            raise MismatchError(complaint(heard))
        head.without, reductions = True, head.reductions
        own = [one.blank() for one in reductions] if self.comm.rank == rest[0] else None
        blanks = [] if own is None else state_exchange.pack(own)
        yield from spread_buffers(self.handles, blanks, rest[0])
        if head._intent.role == JOINED:
            reductions = [Reduction.without_values(*one) for one in state_exchange.unpack(blanks)]
        for one in reductions:
            yield from one.steps(self.handles)

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

    def _work_off(self) -> None:
        while not self._worker.stopping and (self._announced or self._waiting):
            self._turn.acquire()
            self._next()

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
        for agreement in self._agreements:
            agreement.free()
