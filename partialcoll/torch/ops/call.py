# SPDX-License-Identifier: Apache-2.0
"""Work that has begun, for torch: waiting for it, its error, its future. A collective call: its
description for the other ranks, the steps of its data, and its state.

Callbacks of futures may make further collective calls, in the same order on all ranks. When a
callback runs depends on the rank: the future may be complete when something is chained to it, or a
thread completes it later, between other calls of the program. So the calls of callbacks have a
queue and a communicator of their own (../process_group.py), and the callbacks of a group run one at
a time, in the order in which the program chained them (`Line`). A callback that chains another one
waits for the future and runs that one at once. So all ranks make the calls of callbacks in the same
order. A callback that waits for a later one of its own line runs those before it where it waits,
which is at the same place on all ranks.

All ranks compare what each call is, in a round of the core (`Agreement`). If they differ, this call
fails on all ranks, with the text of each rank, and the queue continues. While a rank waits for the
calls of others it sleeps, and can name the missing ranks. The data of a small reduction goes with
the comparison, so such a call is one round. Other data moves after it, between ranks that agree. A
new handle for such data is created while its call is the first in the queue, so all ranks create
the same handles in the same order. Up to `window` calls are compared ahead, by as many agreements
in turn. Data goes with the comparison of a call that is not the first one only if the call says
that it may (`Call.apart`): an earlier call could still change it. Calls end in their order.

A rank that has joined does not know what the others call next, and says only that it has joined. If
the others agree on a call that allows it, the first of them tells what is reduced, and all reduce;
ranks that have joined contribute nothing.

A thread that waits for a call processes the calls before it and then this one. A worker thread may
process calls that no thread waits for yet. The thread that processes calls holds the lock `_turn`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable, Union

import torch
import torch.distributed as dist
from torch.compiler import disable

from ..._core import communicator, timeline, waiting
from ..._core.failures import Departed, is_rank_failure, told
from ..._core.mpi import MPI
from ..._core.settings import logger
from ..._core.worker import Worker
from ...collectives import state_exchange
from ...collectives.agreement import JOINED, OPEN, Agreement, Intent, complaint
from ...collectives.handle import AllreduceHandle
from ...errors import MismatchError, RankFailedError, StateError
from ...policy import Policy
from ...round import Result, Round
from .transfer import Handles, NeedsAll, Reduction, Steps, spread_buffers
from .wire import side_of

Move = Union[Callable[[Handles], Steps], Steps, "list[Reduction]", None]


class untraced:
    """Decorator that keeps torch's compiler from tracing a method. While a compiled program runs,
    torch traces each Python function that is called with tensors, also from C++, unless
    torch.compiler.disable has wrapped it. Wrapping loads the compiler, which takes a second, so a
    method is wrapped at its first use after the program has loaded the compiler."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self._method, self._left_alone = method, False

    def __get__(self, instance: Any, owner: type) -> Any:
        if not self._left_alone and "torch._dynamo" in sys.modules:
            self._method, self._left_alone = disable(self._method), True
        return self._method if instance is None else self._method.__get__(instance, owner)


_Future: Any = torch.futures.Future
_Error: Any = dist.DistBackendError
_Work: Any = dist.Work
_FOREVER = timedelta(0)  # torch's "no limit"
_lock = threading.Lock()  # protects _over, _ended and _future; held briefly


class _Here(threading.local):
    """Thread-local: whether the thread is in a callback, and the lines of its callbacks."""

    inside = False
    lines: tuple[Line, ...] = ()


here = _Here()


@contextlib.contextmanager
def _within(inside: bool, *lines: Line) -> Iterator[None]:
    before = here.inside, here.lines
    here.inside, here.lines = inside, (*here.lines, *lines)
    try:
        yield
    finally:
        here.inside, here.lines = before


class Line:
    """The callbacks that the program has chained to the futures of one group. The thread that
    completes a future, runs the callback before it, or chains it runs a callback."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._waiting: collections.deque[tuple[Future, Callable[[], None]]] = collections.deque()
        self._busy = False

    def add(self, future: Future, run: Callable[[], None]) -> None:
        """Append a callback, which never raises."""
        with self._lock:
            self._waiting.append((future, run))
        self.go_on()

    def go_on(self) -> None:
        """Run the callbacks that can run, unless a thread does so already."""
        while True:
            with self._lock:
                if self._busy or not self._waiting or not self._waiting[0][0].done():
                    return
                self._busy = True
                run = self._waiting.popleft()[1]
            try:
                with _within(True, self):
                    run()
            finally:
                self._busy = False

    def run_until(self, future: Future) -> None:
        """Run callbacks until the future is complete, in a callback of this line that waits."""
        while not future.done() and self._waiting:
            first, run = self._waiting.popleft()
            with contextlib.suppress(Exception):  # the callback sees it
                first.wait()
            with _within(True, self):
                run()


class _Failure(Exception):
    """The error of a future, in place of its value. torch's DDP takes it for a value, and pickles
    it to look for tensors; then it raises the error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error


class Future(_Future):
    """A torch.futures.Future whose callbacks stand in line. What C++ chains to it (DDP,
    `torch.futures.collect_all`) runs when it is completed. devices: of the tensors in its value,
    whose streams a wait waits on. line: None: callbacks run when it is complete."""

    def __init__(self, devices: Iterable[torch.device], line: Line | None = None) -> None:
        self._devices = sorted({*devices} - {torch.device("cpu")}, key=str)
        super().__init__(devices=self._devices)
        self._line, self._inside = line, here.inside
        self._source: Future | None = None  # whose callback gives its value

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Return the future of what the callback returns, which is given this one."""
        chained = Future(self._devices, self._line)
        chained._source = self

        def run() -> None:
            try:
                chained.set_result(callback(self))
            except Exception as error:
                chained.set_exception(error)

        self._chain(run)
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Do what torch's method does; an error of the callback is logged."""

        def run(future: Any) -> None:
            try:
                callback(future)
            except Exception:
                logger.exception("a callback of a future failed")

        self.then(run)

    def _chain(self, run: Callable[[], None]) -> None:
        if self._line is None:

            def run_there(_: Any) -> None:
                with _within(True):
                    run()

            super().add_done_callback(run_there)
        elif here.inside:
            with contextlib.suppress(Exception):  # the callback sees it
                self.wait()
            run()
        else:
            self._line.add(self, run)

    def set_result(self, result: Any) -> None:
        with _within(self._inside):
            super().set_result(result)
        if self._line is not None:
            self._line.go_on()

    def set_exception(self, error: BaseException) -> None:
        super().set_exception(_Failure(error))

    def wait(self) -> Any:
        if not self.done() and self._source is not None and here.lines:
            if self._line in here.lines:
                self._line.run_until(self)
            else:
                with contextlib.suppress(Exception):
                    self._source.wait()
        with _as_it_was():
            return super().wait()

    def value(self) -> Any:
        with _as_it_was():
            return super().value()


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    try:
        yield
    except _Failure as failure:
        raise failure.error from None


class GroupTimeout(_Error, TimeoutError):
    """An operation of a process group has taken too long; says who is missing."""


class Work(_Work):
    """The return value of the collectives of torch.distributed. tensors: the outputs, which are the
    value of its future. queue: executes it: `drive` in the thread that waits, a separate thread
    after `wake`, which steps `aside` for code that may wait for other works."""

    _over = False
    _ended: threading.Event | None = None  # for a thread that waits for another to end it
    _error: BaseException | None = None
    _future: Future | None = None
    line: Line | None = None  # of the callbacks of its future

    def __init__(self, tensors: list[torch.Tensor], queue: Any = None) -> None:
        super().__init__()
        self._tensors, self._queue = tensors, queue

    @untraced
    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Until it is over. GroupTimeout after `timeout`, and it can be waited for again."""
        endless = timeout is _FOREVER or timeout <= _FOREVER
        seconds = None if endless else timeout.total_seconds()
        if endless:
            self._queue.drive(self)
        if not self._over:
            self._queue.wake()
            if not self._wait_for_others(seconds):
                raise GroupTimeout(f"{self} was not over after {seconds} s; wait again")
        if self._error is not None:
            raise self._error
        return True

    def _wait_for_others(self, seconds: float | None = None) -> bool:
        """Until another thread has ended it."""
        with _lock:
            if self._over:
                return True
            if self._ended is None:
                self._ended = threading.Event()
        return self._ended.wait(seconds)

    synchronize = wait

    def is_completed(self) -> bool:
        if not self._over:
            self._queue.wake()
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    @untraced
    def get_future(self) -> Future:
        """Return the future of the list of tensors."""
        with _lock:
            late = self._over and self._future is None
            if self._future is None:
                self._future = Future((one.device for one in self._tensors), self.line)
        if late:  # not within the lock: callbacks may run here
            self._resolve()
        elif not self._over:
            self._queue.wake()
        return self._future

    def _resolve(self) -> None:
        assert self._future is not None
        with self._queue.aside():
            if self._error is None:
                self._future.set_result(self._tensors)
            else:
                self._future.set_exception(self._error)

    def _end(self, error: BaseException | None = None) -> None:
        """It is over. What waits for the future runs here: never within a lock of the queue's."""
        self._error = error
        with _lock:
            self._over = True
            ended, known = self._ended, self._future is not None
        if ended is not None:
            ended.set()
        if known:
            self._resolve()


class Call(Work):
    """A collective call in progress, which the asynchronous functions return.

    Pass it to `poll` and `synchronize`. After `synchronize`, `round` is the `partialcoll.Round`
    that delivered the result.

    Only the library creates calls. `text`: what all ranks compare. `move`: the steps of the data
    after the comparison: an iterator, a function that returns one for given handles, a list of
    reductions, or None. `tensors`: what the call fills; `read`: further ones that may be on a
    device. `apart`: the data may begin to move before earlier calls are complete. `timeout`: in
    seconds. `refused`: this rank's arguments are wrong. `role`: of the intent.
    """

    warned = 0.0  # time of the last warning that it has no place in an order
    _agreement: Agreement | None = None  # with which it is compared
    _agreed_at: float | None = None  # time at which its comparison was complete
    _steps: Steps = iter(())  # of its data
    _step: Any = None  # the step that it waits for
    with_data = False  # its data goes with the comparison
    started = False  # its comparison, or its data if nothing is compared
    in_background = False  # the worker thread completes it
    without = False  # it continues without ranks that have joined
    _outcome: BaseException | None = None
    described: bytes | Round | None = None  # the round that delivered the result
    quorum: Policy | None = None  # None: all ranks make it
    land: Callable[[], Any] | None = None  # makes the result of what has arrived

    def __init__(
        self,
        text: str,
        move: Move = None,
        tensors: Sequence[torch.Tensor] = (),
        *,
        apart: bool = False,
        timeout: float = math.inf,
        refused: bool = False,
        read: Sequence[torch.Tensor] = (),
        role: str = "",
    ) -> None:
        super().__init__(list(tensors))
        self.side = side_of([*tensors, *read])
        self.reductions: list[Reduction] = move if isinstance(move, list) else []
        # A single reduction, which may begin early.
        self._first = self.reductions[0] if len(self.reductions) == 1 else None
        self._move = None if self.reductions else move
        self._intent, self.apart = Intent(text, refused, role), apart
        self.began = time.monotonic()
        self._timeout = timeout
        self._result: Any = tensors[0] if tensors else None

    @property
    def round(self) -> Round | None:
        """The round that delivered the result, if there was one."""
        if isinstance(self.described, bytes):
            self.described = Round(Result(self.described, self._queue.ranks, []))
        return self.described

    def poll(self) -> bool:
        """Advance without blocking; return whether the call has ended, with or without an error."""
        return bool(self._queue.poll(self))

    def _end(self, error: BaseException | None = None) -> None:
        if timeline.recorder is not None:
            timeline.recorder.call(str(self), self.began, self._agreed_at)
        self._move, self._first, self._steps = None, None, iter(())  # they hold tensors
        self.reductions = []
        super()._end(error)

    def __str__(self) -> str:
        return self._intent.text


def result_of(call: Call) -> Any:
    """Wait for the end of the call; return its result, or raise its error."""
    call.wait()
    if call.land is not None:
        call._result, call.land = call.land(), None
    return call._result


# The order of calls


def follow_up(broken: BaseException, text: str) -> Exception:
    """Return the error for a call after the queue has failed."""
    if isinstance(broken, RankFailedError):
        return RankFailedError(broken.ranks, text)
    return StateError(text)


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
        self._agreements: list[Agreement] = []
        for number in range(window if quorum is None else 0):
            made = Agreement(comm, f"{owner}: {name}, {number}", on_failure)
            waits = functools.partial(self._patient, made.missing)
            made.while_waiting(waits, functools.partial(self._report, made.missing))
            self._agreements.append(made)
        self._lanes = itertools.cycle(self._agreements)
        self._lock = threading.Lock()  # of what is waiting, and of the thread
        self._waiting: collections.deque[Call] = collections.deque()
        self._announced: collections.deque[Call] = collections.deque()
        goes_on = on_failure == "continue"
        self._alike = (MismatchError, RankFailedError, NeedsAll) if goes_on else (MismatchError,)
        self._turn = threading.Lock()  # of what is announced, and of all handles
        self._head: Call | None = None  # that is being processed
        # The error with which a call has failed on this rank, so that the ranks may be apart.
        self.broken: BaseException | None = None
        worker = self._worker = Worker(f"partialcoll {name}", self._work_off, self._fail)
        self.aside, self.wake, self.stop = worker.aside, worker.wake, worker.stop
        self.halt, self.join = worker.halt, worker.join

    # For the thread that makes a call

    def submit(self, call: Call, background: bool = False) -> Call:
        """Append a call. background: the worker thread may complete it."""
        with self._lock:
            if MPI.Is_finalized():
                communicator.check_running(self._name)
            if self.broken is not None:
                text = f"{self._name} has ended with an error: {self.broken}; {self._remedy}"
                raise follow_up(self.broken, text)
            if self._worker.stopping:
                raise StateError(f"{self._name} has been destroyed")
            call._queue = self
            self._waiting.append(call)
        if background:
            call.in_background = True
            self.wake()
        return call

    def begin(self, call: Call, background: bool) -> Call:
        """Append a call, and start its data if that needs no waiting. background: the worker
        thread completes it. Otherwise a reduction is completed by its waiter, and others here."""
        self.submit(call)
        if self._turn.acquire(blocking=not background):
            try:
                self._announce()
            finally:
                self._turn.release()
        if background and not (call.started and call.with_data):
            call.in_background = True
            self.wake()
        elif not background and call._first is None:
            self._complete(call)
        return call

    def _complete(self, call: Call) -> None:
        self.drive(call)
        call._wait_for_others()

    def run(self, call: Call) -> Call:
        """The next call, from its beginning to its end; raises its error."""
        self.submit(call).wait()
        return call

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

    # For the thread that holds the turn

    def drive(self, until: Call) -> None:
        """Execute calls up to this one, unless another thread does."""
        while not until._over:
            if not self._turn.acquire(blocking=False):
                self.wake()  # the thread that holds the turn may stop before this call
                return
            self._next()

    def _next(self, wait: bool = True) -> bool:
        """Complete the first call and release the turn. Return whether there was one that ended."""
        ended: list[Call] = []
        try:
            self._announce()
            head = self._head = self._announced[0] if self._announced else None
            if head is None:
                return False
            if head._outcome is None and not self._carry_out(head, wait):
                return False
            ended.append(head)
            self._announced.remove(head)
            if self.broken is not None:
                text = f"an earlier operation failed: {self.broken}"
                for call in self._take_all():
                    call._outcome = call._outcome or follow_up(self.broken, text)
                    ended.append(call)
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
            call._agreement, first = next(self._lanes, None), call._first
            if call._agreement is not None and first is not None:
                call.with_data = first.fits(call._agreement)
            self._start(call)
            if call._outcome is not None:
                return

    def _start(self, call: Call) -> None:
        """Start the comparison of a call, with its data if that is small; where nothing is
        compared, start the data. A call that is not apart may have to wait for earlier ones."""
        waits = call.with_data and not call.apart and call is not self._announced[0]
        if call.started or waits:
            return
        call.started = True
        try:
            with call.side:
                if not self._agreements:
                    call._agreed_at, call._steps = time.monotonic(), self._data(call)
                    call._step = next(call._steps, None)
                    return
                assert call._agreement is not None
                if call.with_data and call._first is not None:
                    call._first.begin_with(call._agreement, call._intent)
                else:
                    call._agreement.start(call._intent)
                call._step = call._agreement
        except BaseException as error:  # on this rank only: raise it where the call is waited for
            call._outcome = self.broken = error

    def _carry_out(self, head: Call, wait: bool) -> bool:
        """Advance the call. Return False if it is incomplete. An interrupted wait can be resumed.
        An error is stored as its outcome. It ends the queue, unless all ranks have it here."""
        try:
            while True:
                step, agreed = head._step, None
                if isinstance(step, Agreement):
                    agreed = step.settle(wait)
                    if agreed is None:
                        return False
                elif isinstance(step, AllreduceHandle):
                    described = step.Wait() if wait else step.Test()
                    if described is None:
                        return False
                    head.described = described
                elif step is not None and wait:
                    waiting.until(step.Test, self._patient)
                elif step is not None and not step.Test():
                    return False
                head._step = None
                with head.side:
                    if agreed is not None and head._agreed_at is None:
                        self._follow(head, step, agreed)
                    head._step = next(head._steps, None)
                if head._step is None:
                    head.side.settle()
                    return True
        except Exception as error:
            outcome = told(error, self.comm) if is_rank_failure(error) else error
            head._outcome = outcome
            if isinstance(outcome, Departed) or not isinstance(outcome, self._alike):
                self.broken = outcome
                if isinstance(outcome, RankFailedError):
                    self.comm.Revoke()  # who waits for this rank is told
        except BaseException as error:
            if head._step is not None:  # a wait, which can be resumed
                raise
            head._outcome = self.broken = error  # what was interrupted there cannot go on
        return True

    def _follow(self, head: Call, agreement: Agreement, agreed: bool) -> None:
        """Set the steps of a call after its comparison; take data that went with that."""
        head._agreed_at = time.monotonic()
        if not agreed or head._intent.refused:
            head._steps = self._differ(head, agreement)
        elif head.with_data and head._first is not None:
            head.described = agreement.describe()
            head._first.finish_with(agreement, self.handles.go_on)
        else:
            head._steps = self._data(head)

    def _data(self, head: Call) -> Steps:
        """Yield the steps that move the data after the comparison."""
        for one in head.reductions:
            yield from one.steps(self.handles)
        move = head._move
        yield from move(self.handles) if callable(move) else move or ()

    def _differ(self, head: Call, agreement: Agreement) -> Steps:
        """Find out what all ranks call. Raises MismatchError on all of them, unless the only
        difference is that some have joined, or that the data of some could not go with the
        comparison: on a device, or into an output with a conj or neg bit."""
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
            reductions = [
                Reduction(form, None, torch.empty(count, dtype=dtype), wanted=False, chunk=chunk)
                for form, dtype, count, chunk in state_exchange.unpack(blanks)
            ]
        for one in reductions:
            yield from one.steps(self.handles)

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
        """Raise when the timeout of the current call has passed. missing: names absent ranks."""
        head = self._head
        if head is None:  # the queue is being freed
            return False
        if self._worker.stopping:
            raise StateError(f"{self._name} ended while {head} was under way")
        if time.monotonic() >= head.began + head._timeout:
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
