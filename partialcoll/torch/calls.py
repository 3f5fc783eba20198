# SPDX-License-Identifier: Apache-2.0
"""The calls of this rank under Horovod's names: which of them belong together, across the ranks.

Calls that are waited for at once, and calls without a name, are matched by their order, like MPI's:
the n-th call of every rank belongs together, whatever it is. Asynchronous calls with a name are
matched by it (`Names`). With a quorum ranks need not make each call together, so only the first of
a name is compared.
"""

from __future__ import annotations

import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, NoReturn, Union

import numpy as np

from .._core import waiting
from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.rank_error import told_by
from .._core.settings import logger, stall_warning
from .._core.survivors import duplicate
from .._core.worker import Worker
from ..collectives.agreement import JOINED
from ..errors import MismatchError, RankFailedError, StateError
from ..policy import Policy
from .ops import transfer
from .ops.call import Call, Steps
from .ops.handles import Handles
from .ops.queue import Queue, follow_up

Name = Union[str, int]
Place = tuple[Name, bool]  # of a name; have all ranks told the same of it?
JOIN, END = 0, 1  # names of the library's own calls


class Order:
    """Rank 0's: what the ranks have told, and what has its place."""

    def __init__(self, ranks: int) -> None:
        self._ranks = range(ranks)
        self._told: dict[Name, list[deque[bytes]]] = {}  # by each rank, without a place

    def tell(self, rank: int, name: Name, digest: bytes = b"") -> list[Place]:
        """A rank has made a call, of which this tells what it is; what has its place now, in this
        order."""
        self._told.setdefault(name, [deque() for _ in self._ranks])[rank].append(digest)
        concerned = sorted(self._told, key=lambda one: one == JOIN) if name == JOIN else [name]
        return [place for one in concerned for place in self._places(one)]

    def _places(self, name: Name) -> Iterator[Place]:
        while name in self._told and not self.missing(name):
            told = self._told[name]
            said = [one.popleft() for one in told if one]
            if not any(told):  # a rank may repeat what it has been refused
                del self._told[name]
            yield name, len(said) == len(told) and len(set(said)) == 1

    def missing(self, name: Name) -> list[int]:
        """The ranks for which it waits."""
        there = [self._told.get(name), self._told.get(JOIN) if isinstance(name, str) else None]
        return [rank for rank in self._ranks if not any(told and told[rank] for told in there)]


_NAMES, _MISSING = 1, 2  # tags: names that are told, or have a place; who has not told one


@dataclass
class _Unplaced:
    """A call without a place. asked: rank 0 does not know yet that this rank asks who is missing,
    or does not listen."""

    call: Call
    asked: bool = False
    since: float = field(default_factory=time.monotonic)
    warn_at: float = field(default_factory=lambda: time.monotonic() + stall_warning())


class Names:
    """This rank's calls with names on one communicator, in whatever order each rank makes them.
    Made collectively; needs threads.

    Each rank tells rank 0 the names of its calls. When all ranks have told a name, rank 0 gives it
    a place in an order, which it tells all of them; in this order the calls go into a `Queue` on a
    communicator of their own. So a call is in the queue only when every rank has made it: to carry
    it out waits for nobody's program, and the order is the same everywhere. A name that not all
    have told holds up nothing but itself. That is why this cannot block, whatever the ranks' orders
    are.

    With a name goes a digest of what the rank is about to do. Where all of them are the same, all
    ranks are told so with the place, and the queue does not compare again.

    A thread of each rank sends and receives as long as a call of this rank has no place yet, with
    naps in between; rank 0 need not listen while all names that it has told have theirs.

    A rank that has joined has told `JOIN`, and until all have, no name waits for it.

    The lock is of what is waiting and untold, which any thread adds to; all the rest belongs to the
    thread.
    """

    def __init__(self, comm: MPI.Intracomm, window: int) -> None:
        self._comm, self._window = comm.Dup(), window
        self._lock = threading.Lock()
        self._waiting: dict[Name, deque[_Unplaced]] = {}
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
            self._waiting.setdefault(name, deque()).append(_Unplaced(call))
            self._untold.append((name, call._intent.digest(self._comm.rank)))
        self.wake()
        return call

    def join(self) -> Call:
        """Names do not wait for this rank until the call that this returns is over: when all ranks
        have joined."""
        before = self._latest.get(JOIN)  # of a join that was interrupted
        return self.begin(Call("join"), JOIN) if before is None or before._over else before

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
            call = own.popleft().call if own else Call("join", role=JOINED)
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
        self.begin(Call("shutdown"), END).wait()

    def free(self) -> None:
        """After `finish`. Collective."""
        self._worker.stop()
        if self.queue is not None:
            self.queue.free()
        self._comm.Free()


WINDOW = 8  # calls that can be under way; more wait for their turn


class Partial:
    """Calls of one name with a quorum. Made collectively."""

    def __init__(
        self, comm: MPI.Intracomm, name: str, quorum: Policy, call: Call, on_failure: str
    ) -> None:
        self._name, self._text = name, str(call)
        self.queue = Queue(comm, repr(name), 1, quorum=quorum, on_failure=on_failure)
        if call.key is not None:  # else there is nothing to move
            self.queue.handles.make(call.key, call.result()[0].device)

    def begin(self, call: Call) -> None:
        """Raises ValueError if the name stands for something else."""
        if str(call) != self._text:
            raise ValueError(
                f"name: {self._name!r} stands for {self._text}, got {call}; with a quorum a name "
                "keeps its shape, dtype and options: take another one"
            )
        self.queue.begin(call, background=False)

    def join(self) -> None:
        """Contribute nothing until all ranks have joined."""
        self.queue.complete()
        self.queue.handles.join()


class Calls:
    """All of this rank's calls on one communicator. Made collectively.

    Where MPI allows no threads, who waits for a call carries it out, and names are compared only;
    so they are with on_failure="continue", since a rank that gives them their order may die.
    """

    def __init__(self, comm: MPI.Intracomm, on_failure: str = "raise") -> None:
        self.comm = duplicate(comm)  # on which data moves, by threads also
        self._on_failure = on_failure
        self._threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._in_order = Queue(self.comm, "calls in order", WINDOW, on_failure=on_failure)
        by_name = self._threads and on_failure == "raise"
        self._names = Names(comm, WINDOW) if by_name else None
        self._partial: dict[str, Partial] = {}
        self._joining: tuple[Call, Array] | None = None  # is still there after an interruption

    def agree(self, text: str) -> None:
        """Wait for all ranks. Raises MismatchError, on all, if they make different calls."""
        self._in_order.run(Call(text))

    def gather(self, text: str, value: Any) -> list[Any]:
        """The values of all ranks (that live), in their order; they are pickled. Collective."""
        try:
            data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        except Exception as error:
            self.refuse(error)
        come: list[Any] = []
        self.run(Call(text, lambda to: transfer.gather_buffers(to, data, come)))
        return [pickle.loads(one.data) for one in come]

    def allgather(self, value: Any) -> list[Any]:
        """As a communicator's, for what compares with the others (`collectives.agreement`)."""
        return self.gather("a comparison of arguments", value)

    def run(self, call: Call) -> Call:
        """A synchronous call from its beginning to its end."""
        return self._in_order.run(call)

    def make(
        self, prepare: Callable[[], Call], name: Any, later: bool, partial: bool = False
    ) -> Call:
        """A call, which is over when this returns if it is not to be later. What prepare raises,
        the others hear of, where they wait: if it is partial, in the order of calls."""
        try:
            call = prepare()
        except Exception as error:
            if isinstance(name, str) and name in self._partial:
                raise  # nobody waits for it
            by_name = later and not partial and isinstance(name, str)
            self.refuse(error, name if by_name else None)
        if call.quorum is not None:
            return self._begin_partial(call, name, call.quorum)
        return self.begin(call, name) if later else self.run(call)

    def begin(self, call: Call, name: str | None) -> Call:
        """An asynchronous call."""
        if name is None or self._names is None:
            return self._in_order.begin(call, background=self._threads)
        return self._names.begin(call, name)

    def refuse(self, error: Exception, name: str | None = None) -> NoReturn:
        """This rank's arguments are wrong: tell those who wait for it, and raise. name: of an
        asynchronous call."""
        self.begin(Call(f"{type(error).__name__}: {error}", refused=True), name)
        raise error

    def _begin_partial(self, call: Call, name: str, quorum: Policy) -> Call:
        """A call with a quorum. The first of a name waits for all ranks."""
        if name not in self._partial:
            self.agree(f"the first call of the name {name!r}: {call}")
            self._partial[name] = Partial(self.comm, name, quorum, call, self._on_failure)
        self._partial[name].begin(call)
        return call

    def join_partial(self) -> list[Callable[[], None]]:
        """What joins the calls with a quorum, one for each name: at the same time as `join`."""
        return [one.join for one in self._partial.values()]

    def join(self, came: float) -> int:
        """Take part in the others' sums, with nothing, until all have joined; the rank that came
        last, by the times at which they came."""
        by_name = None if self._names is None else self._names.join()
        while True:
            call, times = self._joining = self._joining or self._join_in_order(came)
            try:
                call.wait()
            except MismatchError as error:  # the others have been told as well
                logger.warning("join: this rank waits on: %s", error)
            self._joining = None
            if call.is_success() and not call.without:
                break
        if by_name is not None:
            by_name.wait()
        return int(np.argmax(times))

    def _join_in_order(self, came: float) -> tuple[Call, Array]:
        """The next call; the times, once all have joined."""
        own, times = np.array([came]).view(np.uint8), np.empty(self.comm.size)
        sizes = [own.size] * self.comm.size

        def tell(to: Handles) -> Steps:
            yield from transfer.share(to, own, times.view(np.uint8), sizes)

        call = Call("join", tell, role=JOINED)
        return self._in_order.submit(call), times

    def free(self) -> None:
        """Bring everything to its end. Collective; MismatchError, on all ranks, and nothing is
        freed, if some do something else. If a rank has died, and it is "raise": local."""
        names: list[Any] = [] if self._names is None else [self._names]
        queues = [*(one.queue for one in self._partial.values()), self._in_order]
        try:
            self.agree("shutdown")
            for one in names:
                one.finish()
        except RankFailedError:
            pass
        for one in [*names, *queues]:
            one.free()
        self.comm.Free()
