# SPDX-License-Identifier: Apache-2.0
"""The collective calls of this rank on tensors: which handle serves which, and in what order.

Calls without a name are matched by their order, like MPI's: the n-th call of every rank belongs
together. They take turns on `WINDOW` channels, so that so many of them can be in flight. A
synchronous call agrees on the channel whose turn it is, and takes its data's handle from a
common store. An asynchronous call with a name has a channel of that name, whatever the order;
a name is new to all ranks in the same turn.

A channel carries one call at a time. A call first announces what it is (`Agreement`), and its
data leaves at once if the channel has a handle for such data already. A new handle is made only
after the ranks have agreed, so all ranks have the same handles on every channel.

Ranks that turn out to have announced different things all fail this call, and nobody waits for
anybody: a rank deposits nothing on the handles that others have started, and the rounds are
collected when the channel is used again. So whatever a rank waits for, all ranks are on their way
to it, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Callable, NoReturn

import numpy as np
from mpi4py import MPI

from .._buffers import Array
from .._errors import MismatchError
from .._handle import AllreduceHandle
from .._round import Round
from ..allreduce import Allreduce_init
from ..policy import Policy
from ._agreement import Agreement, Intent, Key, complaint

WINDOW = 8
_KEPT = 32  # handles for different data that a channel keeps
_OPS = {
    "sum": MPI.SUM,
    "product": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
    "and": MPI.LAND,
    "or": MPI.LOR,
    "bits": MPI.BOR,
}


class Call:
    """A collective call that has begun; what the asynchronous functions return.

    Pass it to `poll` and `synchronize`. After `synchronize`, `round` is the `partialcoll.Round`
    that brought the result.
    """

    def __init__(
        self,
        intent: Intent,
        deposit: Callable[[Array], None] = lambda array: None,
        take: Callable[[Array], Any] = lambda array: None,
    ) -> None:
        self._intent = intent
        self._deposit = deposit
        self._take = take
        self._channel: Channel | PartialChannel | None = None
        self._handle: AllreduceHandle | None = None
        self._agreed = False
        self._error: Exception | None = None
        self._output: Any = None
        self.round: Round | None = None

    def _start(self, handle: AllreduceHandle) -> None:
        self._handle = handle
        self._deposit(handle.send_buffer)
        handle.Start()

    def _end(self, rnd: Round) -> None:
        assert self._handle is not None
        self.round = rnd
        self._output = self._take(self._handle.result)
        self._leave()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._leave()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.current = None
        self._channel = self._handle = None

    @property
    def _over(self) -> bool:
        return self._channel is None

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._output


class Handles:
    """Handles for data of different kinds, the latest used; the same on all ranks."""

    def __init__(self, comm: MPI.Intracomm, name: str, quorum: Policy | str = "full") -> None:
        self._comm, self._name, self._quorum = comm, name, quorum
        self._of: dict[Key, AllreduceHandle] = {}

    def get(self, key: Key) -> AllreduceHandle | None:
        """The one for such data, if there is one."""
        return self._of.get(key)

    def make(self, key: Key) -> AllreduceHandle:
        """The one for such data, new if there is none. Collective if so."""
        handle = self._of.pop(key, None)
        if handle is None:
            dtype, count, op = key
            like = np.zeros(count, np.dtype(dtype))
            if len(self._of) >= _KEPT:
                self._of.pop(next(iter(self._of))).Free()
            handle = Allreduce_init(
                self._comm, None, None, _OPS[op], like=like, quorum=self._quorum, name=self._name
            )
        self._of[key] = handle
        return handle

    def free(self) -> None:
        """Collective."""
        for handle in self._of.values():
            handle.Free()
        self._of.clear()


class Channel:
    """What asynchronous calls take turns on. Made collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self._agreement = Agreement(comm, f"partialcoll.torch: {name}")
        self._handles = Handles(comm, f"partialcoll.torch: data of {name}")
        self._owed: list[AllreduceHandle] = []  # started, for a call that failed
        self.current: Call | None = None

    def _announce(self, call: Call) -> None:
        """The channel's earlier calls end first."""
        if self.current is not None:
            self.finish(self.current)
        for handle in self._owed:
            handle.Wait()
        self._owed.clear()
        call._channel, self.current = self, call
        self._agreement.announce(call._intent)

    def begin(self, call: Call) -> None:
        """Announce it; send its data, or wait for the others if there is no handle for it."""
        self._announce(call)
        key = call._intent.key
        handle = None if key is None else self._handles.get(key)
        if handle is not None:
            call._start(handle)
        else:
            self._settle(call)

    def agree(self, call: Call) -> None:
        """A call without asynchronous data: over when all ranks have announced it, or other
        things."""
        self._announce(call)
        self._settle(call)

    def refuse(self, call: Call) -> None:
        """Let the others know, and go on. What they have announced is for later. Local."""
        self._announce(call)

    def _settle(self, call: Call, waited: bool = False) -> None:
        """Wait until all ranks have made this call; from then on its data is under way."""
        if call._agreed or call._over:
            return
        heard = self._agreement.settle(waited)
        if heard or call._intent.refused:
            self._level(call, {intent.key for intent in heard if intent.key is not None})
            call._fail(MismatchError(complaint(heard)))
            return
        call._agreed = True
        if call._intent.key is None:
            call._leave()
            return
        handle = self._handles.make(call._intent.key)
        if call._handle is None:
            call._start(handle)

    def _level(self, call: Call, keys: Iterable[Key]) -> None:
        """Ranks have started different handles: start those that others have."""
        for key in sorted(keys):
            handle = self._handles.get(key)
            if handle is None:
                continue
            if handle is not call._handle:
                handle.send_buffer[:] = 0
                handle.Start()
            self._owed.append(handle)

    def finish(self, call: Call) -> None:
        """Wait until it is over."""
        self._settle(call)
        if not call._over and call._handle is not None:
            call._end(call._handle.Wait())

    def look(self, call: Call) -> bool:
        """Is it over? Never blocks."""
        if not call._agreed:
            if not self._agreement.arrived():
                return False
            self._settle(call, waited=True)
        if not call._over and call._handle is not None:
            rnd = call._handle.Test()
            if rnd is not None:
                call._end(rnd)
        return call._over

    def free(self) -> None:
        """Bring what is under way to its end. Collective."""
        self.agree(Call(Intent("shutdown")))  # ends what is under way here
        self._handles.free()
        self._agreement.free()


class PartialChannel:
    """Calls of one name with a quorum: ranks need not make each of them together, so nothing is
    compared but at the first. Made collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str, quorum: Policy, text: str, key: Key) -> None:
        self._text, self._quorum, self._name = text, quorum, name
        self._handles = Handles(comm, f"partialcoll.torch: {name}", quorum)
        self._handle = self._handles.make(key)
        self.current: Call | None = None

    def check(self, text: str) -> None:
        """Raises ValueError if the name stands for something else."""
        if text != self._text:
            raise ValueError(
                f"name: {self._name!r} stands for {self._text}, got {text}; with a quorum a name "
                "keeps its shape, dtype and options: take another one"
            )

    def begin(self, call: Call) -> None:
        """Its data is under way, once the call before is over."""
        if self.current is not None:
            self.finish(self.current)
        call._channel, self.current = self, call
        call._start(self._handle)

    def finish(self, call: Call) -> None:
        """Wait until its round is over."""
        call._end(self._handle.Wait())

    def look(self, call: Call) -> bool:
        """Is its round over? Never blocks."""
        rnd = self._handle.Test()
        if rnd is not None:
            call._end(rnd)
        return call._over

    def free(self) -> None:
        """Collective."""
        self._handles.free()


class Calls:
    """All of this rank's calls on one communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._count = 0
        self._turns: list[Channel] = []
        self._store = Handles(comm, "partialcoll.torch: synchronous data")
        self._named: dict[str, Channel] = {}
        self._partial: dict[str, PartialChannel] = {}

    def _turn(self) -> Channel:
        """The channel whose turn it is."""
        number = self._count % WINDOW
        if number == len(self._turns):
            self._turns.append(Channel(self.comm, f"call {number} of {WINDOW}"))
        self._count += 1
        return self._turns[number]

    def agree(self, text: str) -> None:
        """Wait for all ranks. Raises MismatchError, on all, if they make different calls."""
        call = Call(Intent(text))
        self._turn().agree(call)
        call._outcome()

    def refuse(self, error: Exception, name: str | None = None) -> NoReturn:
        """This rank's arguments are wrong: tell those who wait for it, and raise. name: of an
        asynchronous call."""
        call = Call(Intent(f"{type(error).__name__}: {error}", refused=True))
        channel = None if name is None else self._named.get(name)
        (self._turn() if channel is None else channel).refuse(call)
        raise error

    def carry_out(self, call: Call) -> Any:
        """A synchronous call from its beginning to its end."""
        key = call._intent.key
        assert key is not None
        self.agree(call._intent.text)
        call._start(self._store.make(key))
        assert call._handle is not None
        call._end(call._handle.Wait())
        return call._outcome()

    def begin(self, call: Call, name: str | None) -> Call:
        """An asynchronous call. The first of a name, and of other data, waits for all ranks."""
        call._intent = replace(call._intent, text=f"asynchronous {call._intent.text}")
        (self._turn() if name is None else self._channel(name)).begin(call)
        return call

    def _channel(self, name: str) -> Channel:
        if name not in self._named:
            self.agree(f"the first asynchronous call of the name {name!r}")
            self._named[name] = Channel(self.comm, f"{name!r}")
        return self._named[name]

    def begin_partial(self, call: Call, name: str, quorum: Policy) -> Call:
        """A call with a quorum. The first of a name waits for all ranks."""
        key, text = call._intent.key, f"{call._intent.text}, quorum={quorum}"
        assert key is not None
        if name not in self._partial:
            self.agree(f"the first call of the name {name!r}: {text}")
            self._partial[name] = PartialChannel(self.comm, name, quorum, text, key)
        channel = self._partial[name]
        channel.check(text)
        channel.begin(call)
        return call

    def knows(self, name: str) -> bool:
        """Has there been a call with a quorum of this name?"""
        return name in self._partial

    def free(self) -> None:
        """Bring everything to its end. Collective."""
        for channel in (*self._turns, *self._named.values()):
            channel.free()
        for partial in self._partial.values():
            partial.free()
        self._store.free()


def finish(call: Call) -> Any:
    """Wait until it is over; its result, or its error."""
    if call._channel is not None:
        call._channel.finish(call)
    return call._outcome()


def look(call: Call) -> bool:
    """Is it over, well or badly?"""
    return call._channel is None or call._channel.look(call)
