# SPDX-License-Identifier: Apache-2.0
"""Calls that are matched by their names, in whatever order each rank makes them.

Each rank tells rank 0 the names of its calls. When all ranks have told a name, rank 0 gives it a
place in an order, which it tells all of them; in this order the calls go into a `Queue` on a
communicator of their own. So a call is in the queue only when every rank has made it: to carry it
out waits for nobody's program, and the order is the same everywhere. A name that not all have told
holds up nothing but itself. That is why this cannot block, whatever the ranks' orders are.

With a name goes a digest of what the rank is about to do. Where all of them are the same, all ranks
are told so with the place, and the queue does not compare again.

A thread of each rank sends and receives as long as a call of this rank has no place yet, with naps
in between; rank 0 need not listen while all names that it has told have theirs.

A rank that has joined has told `JOINED`, and until all have, no name waits for it.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .._core import waiting
from .._core.attendance import name_ranks
from .._core.mpi import MPI
from .._core.rank_error import told_by
from .._core.settings import logger, stall_warning
from .._core.worker import Worker
from ..collectives import agreement
from ..collectives.name_order import ENDED, JOINED, Name, Order, Place
from ..errors import RankFailedError, StateError
from .ops.call import Call
from .ops.queue import Queue, follow_up

_NAMES, _MISSING = 1, 2  # tags: names that are told, or have a place; who has not told one


@dataclass
class _Waiting:
    """A call without a place. asked: rank 0 does not know yet that this rank asks who is missing,
    or does not listen."""

    call: Call
    asked: bool = False
    since: float = field(default_factory=time.monotonic)
    warn_at: float = field(default_factory=lambda: time.monotonic() + stall_warning())


class Names:
    """This rank's calls with names on one communicator. Made collectively; needs threads.

    The lock is of what is waiting and untold, which any thread adds to; all the rest belongs to the
    thread.
    """

    def __init__(self, comm: MPI.Intracomm, window: int) -> None:
        self._comm, self._window = comm.Dup(), window
        self._lock = threading.Lock()
        self._waiting: dict[Name, collections.deque[_Waiting]] = {}
        self._untold: list[tuple[Name, bytes]] = []
        self._latest: weakref.WeakValueDictionary[Name, Call] = weakref.WeakValueDictionary()
        self._order = Order(self._comm.size)
        self._sends: list[MPI.Request] = []
        self.queue: Queue | None = None  # made with the first name that has a place
        self._worker = Worker("partialcoll calls by name", self._work_off, self._fail)
        self.wake, self.aside = self._worker.wake, self._worker.aside
        self._error: Exception | None = None

    # By whoever makes a call

    def begin(self, call: Call, name: Name) -> Call:
        """Raises ValueError if one of this name is under way on this rank."""
        before = self._latest.get(name)
        if before is not None and not before.poll():
            raise ValueError(
                f"name: expected one of which no call is under way on this rank, got {name!r}: "
                f"{before}; synchronize that one first"
            )
        if self._error is not None:
            raise follow_up(self._error, f"calls by name have ended with an error: {self._error}")
        call._queue = self
        if not call._intent.refused:  # who has been refused may make the call again
            self._latest[name] = call
        with self._lock:
            self._waiting.setdefault(name, collections.deque()).append(_Waiting(call))
            self._untold.append((name, call._intent.digest(self._comm.rank)))
        self.wake()
        return call

    def join(self) -> Call:
        """Names do not wait for this rank until the call that this returns is over: when all ranks
        have joined."""
        before = self._latest.get(JOINED)  # of a join that was interrupted
        return self.begin(Call("join"), JOINED) if before is None or before._over else before

    def drive(self, call: Call) -> None:
        """As far as who waits for it can."""
        if call._queue is not self:
            call._queue.drive(call)

    def poll(self, call: Call) -> bool:
        """Is it over?"""
        return call._over if call._queue is self else bool(call._queue.poll(call))

    # The thread

    def _work_off(self) -> None:
        nap = waiting.naps()
        try:
            while self._waiting and not self._worker.stopping:
                waiting.look()
                with told_by(self._comm):
                    came = self._step()
                if came:
                    nap = waiting.naps()
                time.sleep(next(nap))
        except Exception as error:  # MPI's, or another rank's program has ended
            self._error = error
            self._end_all(error)

    def _step(self) -> bool:
        """Tell and hear what there is, without waiting; False: nothing."""
        with self._lock:
            told, self._untold = self._untold, []
        order = (self._follow if self._comm.rank else self._lead)(told)
        for place in order:
            self._enqueue(*place)
        self._warn()
        self._sends = [one for one in self._sends if not one.Test()]
        return bool(told or order)

    def _lead(self, own: list[tuple[Name, bytes]]) -> list[Place]:
        told = [(0, *one) for one in own]
        told += [(rank, *one) for rank, some in self._receive(_NAMES) for one in some]
        order = [place for one in told for place in self._order.tell(*one)]
        for rank in range(1, self._comm.size if order else 0):
            self._send(order, rank, _NAMES)
        for rank, name in self._receive(_MISSING):
            self._send((name, self._order.missing(name)), rank, _MISSING)
        return order

    def _follow(self, own: list[tuple[Name, bytes]]) -> list[Place]:
        if own:
            self._send(own, 0, _NAMES)
        for _, (name, missing) in self._receive(_MISSING):
            self._report(name, missing)
        return [place for _, places in self._receive(_NAMES) for place in places]

    def _send(self, said: Any, rank: int, tag: int) -> None:
        self._sends.append(self._comm.isend(said, rank, tag))

    def _receive(self, tag: int) -> Iterator[tuple[int, Any]]:
        """What has come, and from whom."""
        status = MPI.Status()
        while (message := self._comm.improbe(tag=tag, status=status)) is not None:
            yield status.Get_source(), message.recv()

    def _enqueue(self, name: Name, compared: bool) -> None:
        """The next of all ranks."""
        if self.queue is None:
            self.queue = Queue(self._comm, "calls by name", self._window)
        with self._lock:
            own = self._waiting.get(name)  # none: this rank has joined
            call = own.popleft().call if own else Call("join", role=agreement.JOINED)
            if not own:
                self._waiting.pop(name, None)
        call.compared = compared
        try:
            self.queue.submit(call, background=True)
        except (StateError, RankFailedError) as error:  # an earlier call has failed
            call._end(error)

    # Who is missing

    def _warn(self) -> None:
        """Only rank 0 knows. If it does not answer, it has not come itself."""
        now = time.monotonic()
        with self._lock:
            late = [(name, many[0]) for name, many in self._waiting.items() if name not in (0, 1)]
        for name, one in late:
            if now < one.warn_at:
                continue
            one.warn_at = now + stall_warning() / 2
            if self._comm.rank == 0 or one.asked:
                self._report(name, self._order.missing(name) if self._comm.rank == 0 else [0])
            else:
                one.asked = True
                self._send(name, 0, _MISSING)

    def _report(self, name: Name, missing: list[int]) -> None:
        """The lowest rank that is there speaks for all."""
        own = self._waiting.get(name)
        if not own:
            return
        one = own[0]
        one.asked, one.warn_at = False, time.monotonic() + stall_warning()
        present = [rank for rank in range(self._comm.size) if rank not in missing]
        if missing == [0] or (missing and present[:1] == [self._comm.rank]):
            verb = "has" if len(missing) == 1 else "have"
            logger.warning(
                "waiting for %.1f s in partialcoll.torch: %s: %s %s not called it",
                time.monotonic() - one.since,
                one.call,
                name_ranks(missing),
                verb,
            )

    # The end

    def _fail(self) -> None:
        self._end_all(None)

    def _end_all(self, error: Exception | None) -> None:
        with self._lock:
            rest = [one.call for many in self._waiting.values() for one in many]
            self._waiting.clear()
        for call in rest:
            why = f"{call}: shutdown before all ranks had called it"
            call._end(StateError(why) if error is None else error)

    def finish(self) -> None:
        """What all ranks have called is brought to its end, the rest fails. Collective, by ranks
        that are all together."""
        self.begin(Call("shutdown"), ENDED).wait()

    def free(self) -> None:
        """After `finish`. Collective."""
        self._worker.stop()
        if self.queue is not None:
            self.queue.free()
        self._comm.Free()
