# SPDX-License-Identifier: Apache-2.0
"""The operations of one process group: one after the other, in the order of the calls.

An operation has two halves. First it is *announced*: all ranks compare what they are about to do
(`Agreement`), so ranks that differ all fail this operation, by name, and the group goes on; and
while ranks wait for others, they sleep, and can tell who is missing. Then its *data* moves, which
waits for nobody who is not on the way. So whatever this rank does on the group, the others do as
well, in the same order.

Up to `WINDOW` operations are announced ahead, their data moves in turn. Whoever waits for an
operation carries out what is before it and then it; for operations that nobody waits for yet
there is a thread. There is only one at a time (`_turn`).
"""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, NoReturn

import torch
import torch.distributed as dist
from mpi4py import MPI

from .._errors import MismatchError, StateError
from ._agreement import Agreement, Intent, complaint

WINDOW = 3
_Error: Any = dist.DistBackendError
_Work: Any = dist.Work
_FOREVER = timedelta(0)  # torch's "no limit"


class GroupTimeout(_Error, TimeoutError):
    """An operation of a process group has taken too long; says who is missing."""


class _Stopped(StateError):
    """The group ends while an operation waits."""


class Work(_Work):
    """An operation that has begun; what the collectives of torch.distributed return.

    Parameters
    ----------
    tensors : list of torch.Tensor
        What the operation fills; the value of its future.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._future: Any = None
        self._lock = threading.Lock()

    def _carry_out(self) -> None:
        """What who waits for it can do for it."""

    def _ensure(self) -> None:
        """See to it that it goes on though nobody waits for it, or not in a way to drive it."""

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Until it is over. GroupTimeout after `timeout`, and it can be waited for again."""
        if timeout <= _FOREVER:
            self._carry_out()
        if not self._over.is_set():
            self._ensure()
        if not self._over.wait(None if timeout <= _FOREVER else timeout.total_seconds()):
            raise GroupTimeout(f"{self} was not over after {timeout.total_seconds()} s; wait again")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._over.is_set():
            self._ensure()
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        """A torch.futures.Future of the list of tensors."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._over.is_set():
                    self._resolve()
        if not self._over.is_set():
            self._ensure()
        return self._future

    def _resolve(self) -> None:
        if self._error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(self._error)

    def _end(self, error: BaseException | None = None) -> None:
        """It is over. What waits for the future runs here: never within a lock of the group's."""
        self._error = error
        with self._lock:
            self._over.set()
            known = self._future is not None
        if known:
            self._resolve()


class Operation(Work):
    """A collective operation. move: its data, once all ranks agree; None: there is none."""

    def __init__(
        self,
        queue: Queue,
        intent: Intent,
        move: Callable[[], None] | None,
        tensors: list[torch.Tensor],
        timeout: float,
    ) -> None:
        super().__init__(tensors)
        self._queue = queue
        self.intent, self.move, self.timeout = intent, move, timeout
        self.deadline = time.monotonic() + timeout
        self.agreement: Agreement | None = None
        self.outcome: BaseException | None = None

    def _ensure(self) -> None:
        self._queue.wake()

    def _carry_out(self) -> None:
        self._queue.drive(self)

    def __str__(self) -> str:
        return self.intent.text


class Queue:
    """The operations of one group. Made collectively, by all ranks of `comm`."""

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self._name = name
        self._agreements = [
            Agreement(comm, f"torch.distributed: group {name}, {i}") for i in range(WINDOW)
        ]
        for agreement in self._agreements:
            agreement.while_waiting(functools.partial(self.patient, agreement.missing))
        self._lock = threading.Lock()  # of what is waiting, and of the thread
        self._waiting: collections.deque[Operation] = collections.deque()
        self._announced: collections.deque[Operation] = collections.deque()
        self._count = 0
        self._turn = threading.Lock()  # of what is announced, and of all handles
        self._head: Operation | None = None  # that is being carried out
        self._broken: BaseException | None = None
        self._stopping = False
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        _queues.add(self)

    # By whoever calls a collective

    def submit(
        self,
        intent: Intent,
        move: Callable[[], None] | None,
        tensors: list[torch.Tensor],
        timeout: float,
        asynchronous: bool,
    ) -> Operation:
        """The next operation of this group. asynchronous: nobody need wait for it."""
        with self._lock:
            self._check()
            operation = Operation(self, intent, move, tensors, timeout)
            self._waiting.append(operation)
        if asynchronous:
            self.wake()
        return operation

    def refuse(self, error: Exception, timeout: float) -> NoReturn:
        """This rank's arguments are wrong: let the others know, and raise."""
        text = f"{type(error).__name__}: {error}"
        self.submit(Intent(text, refused=True), None, [], timeout, True)
        raise error

    def _check(self) -> None:
        if self._broken is not None:
            raise StateError(
                f"group {self._name} has ended with an error: {self._broken}; "
                "destroy_process_group() and make it anew"
            )
        if self._stopping:
            raise StateError(f"group {self._name} has been destroyed")

    # By whoever's turn it is

    def drive(self, until: Operation) -> None:
        """Carry out operations up to this one, unless others are at it."""
        while not until._over.is_set():
            if not self._turn.acquire(blocking=False):
                self.wake()  # whoever is at it may stop before this one
                return
            self._next()

    def _next(self) -> bool:
        """Carry out the oldest operation; frees the turn. False if there is none."""
        ended: list[Operation] = []
        try:
            self._announce()
            if not self._announced:
                return False
            head = self._head = self._announced[0]
            self._outcome_of(head)
            ended = self._after(head)
        finally:
            self._head = None
            self._turn.release()
            for operation in ended:
                operation._end(operation.outcome)
        return True

    def _announce(self) -> None:
        while len(self._announced) < WINDOW:
            with self._lock:
                if not self._waiting:
                    return
                operation = self._waiting.popleft()
                self._announced.append(operation)
            operation.agreement = self._agreements[self._count % WINDOW]
            self._count += 1
            operation.agreement.announce(operation.intent)

    def _outcome_of(self, head: Operation) -> None:
        """Wait for the others, then move its data. An interrupted wait can be taken up again, data
        that has been interrupted cannot."""
        assert head.agreement is not None
        try:
            heard = head.agreement.settle()
        except Exception as error:
            head.outcome = self._broken = error
            return
        if heard or head.intent.refused:
            head.outcome = MismatchError(complaint(heard))
            return
        try:
            if head.move is not None:
                head.move()
        except MismatchError as error:  # all ranks have it, and nothing has moved
            head.outcome = error
        except BaseException as error:
            head.outcome = self._broken = error

    def _after(self, head: Operation) -> list[Operation]:
        """Those that are over: this one, and if the group is broken, all."""
        self._announced.popleft()
        if self._broken is None:
            return [head]
        with self._lock:
            rest = [*self._announced, *self._waiting]
            self._announced.clear()
            self._waiting.clear()
        for operation in rest:
            operation.outcome = StateError(f"an earlier operation failed: {self._broken}")
        return [head, *rest]

    def patient(self, missing: Callable[[], str] = str) -> bool:
        """Called while the operation under way waits: raises when it has waited enough. missing:
        tells for whom."""
        head = self._head
        if head is None:  # the group is being freed
            return False
        if self._stopping:
            raise _Stopped(f"group {self._name} ended while {head} was under way")
        if time.monotonic() >= head.deadline:
            who = missing()
            raise GroupTimeout(
                f"{head} in group {self._name} was not over after {head.timeout:g} s"
                + (f": {who}" if who else "")
            )
        return False

    # The thread

    def wake(self) -> None:
        """Let the thread see to what is waiting."""
        self._work.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopping:
                    self._thread = threading.Thread(
                        target=self._run, name=f"partialcoll group {self._name}", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait()
            self._work.clear()
            while not self._stopping and (self._announced or self._waiting):
                self._turn.acquire()
                self._next()

    def stop(self) -> None:
        """End the thread; what is under way fails. Local, idempotent."""
        self._stopping = True
        self._work.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._turn:
            rest = [*self._announced, *self._waiting]
            self._announced.clear()
            self._waiting.clear()
        for operation in rest:
            operation._end(StateError(f"group {self._name} was destroyed before {operation}"))

    @property
    def broken(self) -> bool:
        """Has an operation failed on this rank, so that the ranks are no longer together?"""
        return self._broken is not None

    def free(self) -> None:
        """Collective; after `stop`, by ranks that are all together."""
        for agreement in self._agreements:
            agreement.free()


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that is alive when the interpreter ends would abort the program."""
    for queue in list(_queues):
        queue.stop()
