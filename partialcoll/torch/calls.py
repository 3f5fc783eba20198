# SPDX-License-Identifier: Apache-2.0
"""The calls of this rank under Horovod's names, and how they are matched with those of other ranks.

Synchronous calls, and calls without a name, are matched by their order, like MPI's collectives: the
n-th call of a rank belongs to the n-th call of each other rank. Asynchronous calls with a name are
matched by the name (`Names`). With a quorum, ranks need not make each call together, so only the
first call of a name is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, NoReturn

import numpy as np

from .._core import waiting
from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.failures import duplicate, told_by
from .._core.mpi import MPI
from .._core.settings import logger, stall_warning
from .._core.worker import Worker
from ..collectives.agreement import JOINED
from ..collectives.allreduce import Allreduce_init
from ..errors import MismatchError, RankFailedError, StateError
from .ops import transfer
from .ops.call import Call, Queue, follow_up

JOIN, END = 1, 2  # names of the library's own calls


class Order:
    """Computes the order of the calls that are matched by their names. Each rank may tell its names
    in another order; all ranks compute the same order from what all have told."""

    def __init__(self, ranks: int) -> None:
        self._none = np.zeros(ranks, int)
        self._told: dict[Any, Array] = {}  # calls of each rank without a place, by name

    def tell(self, rank: int, name: Any) -> list[Any]:
        """Note a call of this name on a rank; return the names that have their place now."""
        self._told.setdefault(name, self._none.copy())[rank] += 1
        places = []
        for one in sorted(self._told, key=lambda one: one == JOIN) if name == JOIN else [name]:
            while one in self._told and not self.missing(one):
                told = self._told[one]
                told[told > 0] -= 1
                if not told.any():  # a rank may repeat what it has been refused
                    del self._told[one]
                places.append(one)
        return places

    def missing(self, name: Any) -> list[int]:
        """Return the ranks for which a name waits. It does not wait for ranks that have joined."""
        told = self._told.get(name, self._none)
        joined = self._none if name in (JOIN, END) else self._told.get(JOIN, self._none)
        return list(map(int, np.flatnonzero(told + joined == 0)))


class Names:
    """This rank's calls with names on one communicator, in whatever order each rank makes them.
    Made collectively; needs threads.

    As long as a call of a rank has no place yet, a thread of that rank takes part in rounds of a
    full allreduce, in which every rank tells up to `TOLD` names that it has not told yet. So all
    ranks know the same (`Order`), and a name that all ranks have told gets its place on all of them
    in the same round. In this order the calls go into a `Queue` on a communicator of their own.

    This cannot block, whatever the ranks' orders are: a call is in the queue only when every rank
    has made it. A name that not all ranks have told holds up nothing but itself: a rank that could
    bring about a place has a call without one, and therefore takes part in the next round. If in a
    round no rank has anything new to tell, each rank waits a little before the next one, or until
    its program makes a call.

    A rank that has joined has told `JOIN`, and until all have, no name waits for it.

    The lock guards the calls without a place, which any thread adds to; all else is the thread's.
    """

    TOLD = 8

    def __init__(self, comm: MPI.Intracomm, window: int) -> None:
        self._comm, self._window = comm.Dup(), window
        self._lock = threading.Condition()
        self._unplaced: dict[int, deque[Call]] = {}
        self._untold: deque[int] = deque()
        self._latest: weakref.WeakValueDictionary[int, Call] = weakref.WeakValueDictionary()
        self._order = Order(self._comm.size)
        rows = np.zeros((self._comm.size, self.TOLD), np.uint64)
        self._rounds = Allreduce_init(
            self._comm, None, None, MPI.BOR, like=rows, quorum="full", name="calls by name"
        )
        self._rounds._while_waiting = self._look_around
        self._rounds._report_stall = lambda waited: None  # type: ignore[method-assign]
        self.queue: Queue | None = None  # made with the first name that has a place
        self._worker = Worker("partialcoll calls by name", self._work_off, self._end_all)
        self.wake, self.aside = self._worker.wake, self._worker.aside
        self._error: Exception | None = None
        self._ended = False

    def begin(self, call: Call, name: str | int) -> Call:
        """Raise ValueError if a call of this name is under way on this rank."""
        hashed = hashlib.blake2b(str(name).encode(), digest_size=8).digest()
        key = name if isinstance(name, int) else int.from_bytes(hashed, "big") | 4
        before = self._latest.get(key)
        if before is not None and not before.poll():
            raise ValueError(
                f"name: expected one of which no call is under way on this rank, got {name!r}: "
                f"{before}; synchronize that one first"
            )
        if self._error is not None:
            raise follow_up(self._error, f"calls by name have ended with an error: {self._error}")
        call._queue = self
        if not call._intent.refused:  # a refused call may be made again
            self._latest[key] = call
        with self._lock:
            self._unplaced.setdefault(key, deque()).append(call)
            self._untold.append(key)
            self._lock.notify()
        self.wake()
        return call

    def join(self) -> Call:
        """Return a call that ends when all ranks have joined. Until then no name waits for this."""
        before = self._latest.get(JOIN)  # of a join that was interrupted
        return self.begin(Call("join"), JOIN) if before is None or before._over else before

    def drive(self, call: Call) -> None:
        """Do nothing: the call has no place in the order yet. With its place it gets the queue."""

    def poll(self, call: Call) -> bool:
        return call._over

    def _work_off(self) -> None:
        naps = waiting.naps()
        try:
            while self._unplaced and not (self._worker.stopping or self._ended):
                with told_by(self._comm):
                    told = self._take_round()
                if told:
                    naps = waiting.naps()
                    continue
                with self._lock:
                    self._untold or self._lock.wait(next(naps))
                self._warn()
        except Exception as error:  # MPI's, or another rank's program has ended
            self._error = error
            self._end_all(error)

    def _take_round(self) -> bool:
        """Tell names, enqueue calls that have their place; return whether any rank told a name."""
        with self._lock:
            own = [self._untold.popleft() for _ in range(min(self.TOLD, len(self._untold)))]
        rows = self._rounds.send_buffer
        rows[:] = 0
        rows[self._comm.rank, : len(own)] = np.array(own, np.uint64)
        self._rounds.Start()
        self._rounds.Wait()
        result: Array = self._rounds.result
        for rank, i in np.argwhere(result):
            for name in self._order.tell(rank, int(result[rank, i])):
                self._enqueue(name)
        return bool(result.any())

    def _enqueue(self, name: int) -> None:
        """Append the call of this name, which is the next one on all ranks, to the queue."""
        self.queue = self.queue or Queue(self._comm, "calls by name", self._window)
        with self._lock:
            own = self._unplaced.get(name)
            call = own.popleft() if own else Call("join", role=JOINED)  # this rank has joined
            if not own:
                self._unplaced.pop(name, None)
        self._ended |= name == END
        try:
            self.queue.submit(call, background=True)
        except (StateError, RankFailedError) as error:  # an earlier call has failed
            call._end(error)

    def _look_around(self) -> bool:
        """Called while a round waits for ranks that have no calls without a place."""
        if self._worker.stopping:
            raise StateError("calls by name: shutdown before all ranks had called them")
        self._warn(in_round=True)
        return False

    def _warn(self, in_round: bool = False) -> None:
        """Log calls that have waited long. in_round: ranks are missing in the round. Otherwise the
        lowest rank that is not missing speaks for all."""
        now, patience = time.monotonic(), stall_warning()
        with self._lock:
            late = [(name, many[0]) for name, many in self._unplaced.items()]
        for name, call in late:
            if now - max(call.began, call.warned) < patience or name in (JOIN, END):
                continue
            call.warned, who = now, ""
            ranks = self._order.missing(name)
            present = [rank for rank in range(self._comm.size) if rank not in ranks]
            if in_round:
                who, said, _rest = self._rounds._missing().partition(": ")[2].partition(" arrived")
                who = f"{who} called it" if said else who
            elif ranks and present[:1] == [self._comm.rank]:
                who = f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} not called it"
            if who:
                what = f"partialcoll.torch: {call}"
                logger.warning("waiting for %.1f s in %s: %s", now - call.began, what, who)

    def _end_all(self, error: Exception | None = None) -> None:
        with self._lock:
            rest = [call for many in self._unplaced.values() for call in many]
            self._unplaced.clear()
        for call in rest:
            why = f"{call}: shutdown before all ranks had called it"
            call._end(StateError(why) if error is None else error)

    def free(self) -> None:
        """Free everything, when all ranks have ended their calls. Collective."""
        self._worker.stop()
        if self.queue is not None:
            self.queue.free()
        self._rounds._while_waiting = None
        self._rounds.Free()
        self._comm.Free()


WINDOW = 8  # calls that can be under way; more wait for their turn


class Calls:
    """All of this rank's calls on one communicator. Created collectively.

    Where MPI allows no threads, the thread that waits for a call also processes it, and names do
    not order calls: they are only compared. The same holds with on_failure="continue".
    """

    def __init__(self, comm: MPI.Intracomm, on_failure: str = "raise") -> None:
        self.comm = duplicate(comm)  # on which data moves, by threads also
        self._on_failure = on_failure
        self._threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._in_order = Queue(self.comm, "calls in order", WINDOW, on_failure=on_failure)
        self.run = self._in_order.run
        by_name = self._threads and on_failure == "raise"
        self._names = Names(comm, WINDOW) if by_name else None
        self._partial: dict[str, tuple[Queue, str]] = {}  # by name, with the text of its calls
        self._joining: tuple[Call, Array] | None = None  # is still there after an interruption

    def agree(self, text: str) -> None:
        """Wait for all ranks. Raises MismatchError, on all, if they make different calls."""
        self.run(Call(text))

    def allgather(self, value: Any, text: str = "a comparison of arguments") -> list[Any]:
        """Return the values of all live ranks in their order. They are pickled. Collective."""
        with self.checking():
            data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        come: list[Any] = []
        self.run(Call(text, lambda to: transfer.gather_buffers(to, data, come)))
        return [pickle.loads(one.data) for one in come]

    def start(self, call: Call, name: Any, later: bool) -> None:
        """Begin a call, and complete it unless `later`."""
        if call.quorum is not None:
            self._start_partial(call, name)
        elif later:
            self.begin(call, name)
        else:
            self.run(call)

    def _start_partial(self, call: Call, name: str) -> None:
        """Begin a call with a quorum, after the one before it; ValueError if it differs."""
        if name not in self._partial:
            self.agree(f"the first call of the name {name!r}: {call}")
            how: Any = {"quorum": call.quorum, "on_failure": self._on_failure}
            queue, text = Queue(self.comm, repr(name), 1, **how), str(call)
            if call._first is not None:
                call._first.prepare(queue.handles)
            self._partial[name] = queue, text
        queue, text = self._partial[name]
        if str(call) != text:
            raise ValueError(
                f"name: {name!r} stands for {text}, got {call}; with a quorum a name keeps its "
                "shape, dtype and options: take another one"
            )
        queue.complete()
        queue.begin(call, background=False)

    def begin(self, call: Call, name: str | None) -> Call:
        if name is None or self._names is None:
            return self._in_order.begin(call, background=self._threads)
        return self._names.begin(call, name)

    def refuse(
        self, error: Exception, name: Any = None, by_name: bool = False, partial: bool = False
    ) -> NoReturn:
        """Raise an error about this rank's arguments, and report it to the ranks that wait for the
        call: under its `name`, or in the order of calls. With a quorum only the first one waits."""
        known = name if isinstance(name, str) else None
        if not (partial and known in self._partial):
            text = f"{type(error).__name__}: {error}"
            self.begin(Call(text, refused=True), known if by_name else None)
        raise error

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Within this an error, which is about this rank's arguments, is reported to all ranks."""
        try:
            yield
        except Exception as error:
            self.refuse(error)

    def join_partial(self) -> list[Callable[[], None]]:
        """Return functions that join the names with a quorum. Call them at the time of `join`."""

        def join(queue: Queue) -> None:
            queue.complete()
            queue.handles.join()

        return [partial(join, queue) for queue, _ in self._partial.values()]

    def join(self, came: float) -> int:
        """Contribute nothing to the sums of other ranks until all have joined. Return the rank that
        joined last, by the times given as `came`."""
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
        """Return the next call, and the times at which the ranks came, once all have joined."""
        own, times = np.array([came]).view(np.uint8), np.empty(self.comm.size)
        room, sizes = times.view(np.uint8), [own.size] * self.comm.size
        call = Call("join", lambda to: transfer.share(to, own, room, sizes), role=JOINED)
        return self._in_order.submit(call), times

    def free(self) -> None:
        """Complete all calls and free everything. Collective; local after a death with
        on_failure="raise". MismatchError on all ranks, and nothing is freed, if calls differ."""
        with contextlib.suppress(RankFailedError):
            self.agree("shutdown")
            if self._names is not None:  # which completes what all ranks have called
                self._names.begin(Call("shutdown"), END).wait()
        if self._names is not None:
            self._names.free()
        for queue in [*(queue for queue, _ in self._partial.values()), self._in_order]:
            queue.free()
        self.comm.Free()
