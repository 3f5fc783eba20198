# SPDX-License-Identifier: Apache-2.0
"""The calls of this rank under Horovod's names: which of them belong together, across the ranks.

Calls without a name are matched by their order, like MPI's: the n-th call of every rank belongs
together. An asynchronous call with a name has a queue of that name, whatever the order; a name is
new to all ranks in the same turn. With a quorum ranks need not make each call together, so only the
first of a name is compared.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mpi4py import MPI

from ..policy import Policy
from .ops.call import Call
from .ops.queue import Queue

WINDOW = 8  # calls without a name that can be under way
_ROWS_WINDOW = 4  # of those, that share the first dimension out


class Partial:
    """Calls of one name with a quorum. Made collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str, quorum: Policy, call: Call) -> None:
        self._name, self._text = name, str(call)
        self.queue = Queue(comm, repr(name), 1, quorum=quorum)
        assert call.key is not None
        self.queue.handles.make(call.key, call.result()[0].device)

    def begin(self, call: Call) -> None:
        """Raises ValueError if the name stands for something else."""
        if str(call) != self._text:
            raise ValueError(
                f"name: {self._name!r} stands for {self._text}, got {call}; with a quorum a name "
                "keeps its shape, dtype and options: take another one"
            )
        self.queue.begin(call)


class Calls:
    """All of this rank's calls on one communicator. Made collectively."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._in_order = Queue(comm, "calls in order", WINDOW)
        self._rows: tuple[MPI.Intracomm, Queue] | None = None
        self._named: dict[str, Queue] = {}
        self._partial: dict[str, Partial] = {}

    def agree(self, text: str) -> None:
        """Wait for all ranks. Raises MismatchError, on all, if they make different calls."""
        self._in_order.run(Call(text))

    def run(self, call: Call) -> Call:
        """A synchronous call from its beginning to its end."""
        return self._in_order.run(call)

    def refuse(self, error: Exception, name: str | None = None) -> NoReturn:
        """This rank's arguments are wrong: tell those who wait for it, and raise. name: of an
        asynchronous call."""
        named = None if name is None else self._named.get(name)
        (named or self._in_order).refuse(error)
        raise error

    def rows(self) -> tuple[MPI.Intracomm, Queue]:
        """For calls that share the first dimension out, in their order, and the communicator on
        which their data moves, since a thread may see to it. The first time it waits for all
        ranks."""
        if self._rows is None:
            self.agree("the first call of allgather, alltoall, reducescatter")
            comm = self.comm.Dup()
            self._rows = comm, Queue(comm, "calls by rows", _ROWS_WINDOW).open()
        return self._rows

    def begin(self, call: Call, name: str | None) -> Call:
        """An asynchronous call. The first of a name, and of other data, waits for all ranks."""
        if name is None:
            return self._in_order.begin(call)
        if name not in self._named:
            self.agree(f"the first asynchronous call of the name {name!r}")
            self._named[name] = Queue(self.comm, repr(name), 1)
        return self._named[name].begin(call)

    def begin_partial(self, call: Call, name: str, quorum: Policy) -> Call:
        """A call with a quorum. The first of a name waits for all ranks."""
        if name not in self._partial:
            self.agree(f"the first call of the name {name!r}: {call}")
            self._partial[name] = Partial(self.comm, name, quorum, call)
        self._partial[name].begin(call)
        return call

    def knows(self, name: Any) -> bool:
        """Has there been a call with a quorum of this name?"""
        return isinstance(name, str) and name in self._partial

    def free(self) -> None:
        """Bring everything to its end. Collective; MismatchError, on all ranks, and nothing is
        freed, if some do something else."""
        self.agree("shutdown")
        for queue in (*self._named.values(), *([self._rows[1]] if self._rows else [])):
            queue.begin(Call("shutdown")).wait()
        for queue in (*self._named.values(), *(one.queue for one in self._partial.values())):
            queue.free()
        self._in_order.free()
        if self._rows is not None:
            self._rows[1].free()
            self._rows[1].stop()
            self._rows[0].Free()
