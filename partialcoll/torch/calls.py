# SPDX-License-Identifier: Apache-2.0
"""The calls of this rank under Horovod's names: which of them belong together, across the ranks.

Calls that are waited for at once, and calls without a name, are matched by their order, like MPI's:
the n-th call of every rank belongs together, whatever it is. Asynchronous calls with a name are
matched by it (`names`). With a quorum ranks need not make each call together, so only the first of
a name is compared.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, NoReturn

import numpy as np

from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.settings import logger
from .._core.survivors import duplicate
from ..collectives.agreement import JOINED
from ..errors import MismatchError, RankFailedError
from ..policy import Policy
from .names import Names
from .ops import transfer
from .ops.call import Call, Steps
from .ops.handles import Handles
from .ops.queue import Queue

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
