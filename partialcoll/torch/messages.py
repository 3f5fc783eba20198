# SPDX-License-Identifier: Apache-2.0
"""Messages from one rank of a process group to another: send, recv, and their asynchronous forms.

A message is a non-blocking MPI message. Whoever waits for it looks at it now and then; for those
that nobody waits for yet a thread does, so that they are delivered meanwhile. Both nap between two
looks, the longer the longer there is nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable

import torch

from .._core import communicator, waiting
from .._core.failures import alone, failed_ranks, goes_on, told_by
from .._core.mpi import MPI
from .._core.worker import Worker
from ..errors import Error, RankFailedError, StateError
from .ops.call import GroupTimeout, Work
from .ops.transfer import Memory, one_message
from .ops.wire import side_of

_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 5e-3  # seconds


def _nap(waited: float) -> None:
    """A part of what has been waited for."""
    time.sleep(min(_LONGEST_NAP, max(_SHORTEST_NAP, waited / 8)))


class Message(Work):
    def __init__(
        self, messages: Messages, text: str, tensor: torch.Tensor, timeout: float, written: bool
    ) -> None:
        super().__init__([tensor])
        self._messages, self._text = messages, text
        self._memory, self._side = Memory(tensor, written), side_of([tensor])
        self._begin, self._timeout = time.monotonic(), timeout
        self._looking = threading.Lock()
        self._given_up = False  # it will be over, in error
        self._request: MPI.Request = MPI.REQUEST_NULL
        self._source = -1 if written else None  # of one that is received; -1: not known yet

    def __str__(self) -> str:
        return self._text

    def look(self) -> bool:
        """Is it over, well or badly?"""
        with self._looking:
            if self._over or self._given_up:
                return self._over
            try:
                over = self._arrived()
                error: Exception | None = None
            except Exception as raised:
                over, error = True, raised
        if over:
            self._end(error)
        return over

    def _arrived(self) -> bool:
        status = MPI.Status()
        try:
            with told_by(self._messages.comm):
                over = alone(lambda: self._request.Test(status))
        except MPI.Exception as error:
            raise Error(f"{self}: {error.Get_error_string()}") from error
        if over:
            self._land(status)
            return True
        try:
            if lost := self._messages.lost():
                raise RankFailedError(lost, f"{self}: the messages of its group end")
            if time.monotonic() - self._begin >= self._timeout:
                raise GroupTimeout(f"{self} was not over after its timeout of {self._timeout:g} s")
            waiting.look()
        except Exception:
            self._give_up()
            raise
        return False

    def _land(self, status: MPI.Status) -> None:
        if self._source is None:
            return
        self._source = status.Get_source()
        come, expected = status.Get_elements(MPI.BYTE), self._memory.bytes.size
        if come != expected:
            raise Error(f"{self}: expected {expected} bytes, got {come}")
        with self._side:
            self._memory.land()
        self._side.settle()

    def _give_up(self) -> None:
        """Keep the memory that MPI still reads or writes."""
        self._given_up, over = True, False
        if self._source is not None:
            with contextlib.suppress(MPI.Exception):  # a rank has died
                self._request.Cancel()
                over = self._request.Test()
        if not over:
            _unfinished.append(self)

    def end(self) -> None:
        """The group ends."""
        with self._looking:
            if self._over or self._given_up:
                return
            self._give_up()
            error = StateError(f"the group was destroyed before {self}")
        self._end(error)

    def _carry_out(self) -> None:
        begin = time.monotonic()
        while not self.look():
            _nap(time.monotonic() - begin)

    def _ensure(self) -> None:
        self._messages.wake()

    def _aside(self) -> Any:
        return self._messages.aside()

    def source_rank(self) -> int:
        """Return the rank that has sent this message."""
        assert self._source is not None
        return self._source

    _source_rank = source_rank


class Messages:
    """The messages of one group. comm: of the group's ranks, for this only. on_failure: "raise":
    all end when a rank of the group dies; else those with that rank."""

    def __init__(self, comm: MPI.Intracomm, on_failure: str) -> None:
        self.comm = comm
        self._ends = on_failure == "raise" and goes_on()
        highest = comm.Get_attr(MPI.TAG_UB)
        self._highest_tag = 32767 if highest is None else int(highest)
        self._under_way: list[Message] = []
        self._lock = threading.Lock()
        self._worker = Worker("partialcoll messages", self._work_off, self._fail)
        self.aside, self.wake = self._worker.aside, self._worker.wake
        self.halt, self.join = self._worker.halt, self._worker.join

    def lost(self) -> list[int]:
        """Ranks that have died, and whose death ends what is under way, whoever it is with."""
        return failed_ranks(self.comm) if self._ends else []

    def send(self, tensor: torch.Tensor, to: int, tag: int, timeout: float) -> Message:
        message = Message(self, f"send to rank {to}, tag {tag}", tensor, timeout, written=False)
        return self._begin(message, self.comm.Isend, to, tag)

    def recv(self, tensor: torch.Tensor, source: int | None, tag: int, timeout: float) -> Message:
        """Begin to receive; None: from any rank."""
        where = "any rank" if source is None else f"rank {source}"
        message = Message(self, f"recv from {where}, tag {tag}", tensor, timeout, written=True)
        return self._begin(
            message, self.comm.Irecv, MPI.ANY_SOURCE if source is None else source, tag
        )

    def _begin(self, message: Message, begin: Callable[..., Any], peer: int, tag: int) -> Message:
        """Raise ValueError if MPI has no such tag, StateError when it has ended."""
        communicator.check_running("torch.distributed")
        if not 0 <= tag <= self._highest_tag:
            raise ValueError(f"tag: expected 0 to {self._highest_tag}, got {tag}")
        with told_by(self.comm), one_message(message._memory.bytes) as room:
            message._request = begin(room, peer, tag)
        if not message.look():
            with self._lock:
                if self._worker.stopping:
                    raise StateError("the group has been destroyed")
                self._under_way.append(message)
            self.wake()
        return message

    def _work_off(self) -> None:
        begin = time.monotonic()
        while self._under_way and not self._worker.stopping:
            # Who waits looks more often; the thread is for the others.
            _nap(max(time.monotonic() - begin, 8e-3))
            over = [message for message in self._under_way if message.look()]
            with self._lock:
                self._under_way = [one for one in self._under_way if one not in over]
            if over:
                begin = time.monotonic()

    def _fail(self) -> None:
        with self._lock:
            rest, self._under_way = self._under_way, []
        if MPI.Is_initialized() and not MPI.Is_finalized():
            for message in rest:
                message.end()


_unfinished: list[Message] = []
