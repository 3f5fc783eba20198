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
from typing import Any

import torch

from .._core import communicator, waiting
from .._core.failures import alone, failed_ranks, goes_on, told_by
from .._core.mpi import MPI
from .._core.worker import Worker
from ..errors import Error, RankFailedError, StateError
from .ops import pieces
from .ops.call import GroupTimeout, Work
from .ops.side_stream import side_of
from .ops.transfer import Memory

_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 5e-3  # seconds


def _nap(waited: float) -> None:
    """A part of what has been waited for."""
    time.sleep(min(_LONGEST_NAP, max(_SHORTEST_NAP, waited / 8)))


class Message(Work):
    """One that is under way."""

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

    def room(self) -> contextlib.AbstractContextManager[list[Any]]:
        """For MPI, which begins to use it within the block."""
        return pieces.message(self._memory.bytes)

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
        lost = [] if over else self._messages.lost()
        if over:
            self._land(status)
        elif lost:
            self._give_up()
            raise RankFailedError(lost, f"{self}: the messages of its group end")
        elif time.monotonic() - self._begin >= self._timeout:
            self._give_up()
            raise GroupTimeout(f"{self} was not over after its timeout of {self._timeout:g} s")
        else:
            self._look_for_departures()
        return over

    def _look_for_departures(self) -> None:
        try:
            waiting.look()
        except Exception:
            self._give_up()
            raise

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
        """What MPI goes on reading, or writing to where it has come half the way, is kept."""
        self._given_up = True
        if self._source is None or not self._is_canceled():
            _unfinished.append(self)

    def _is_canceled(self) -> bool:
        try:
            self._request.Cancel()
            over: bool = self._request.Test()
        except MPI.Exception:  # somebody has died
            return False
        return over

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

    def _source_rank(self) -> int:
        assert self._source is not None
        return self._source

    source_rank = _source_rank


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
        self.aside, self.halt, self.join = self._worker.aside, self._worker.halt, self._worker.join

    def lost(self) -> list[int]:
        """Ranks that have died, and whose death ends what is under way, whoever it is with."""
        return failed_ranks(self.comm) if self._ends else []

    def check_tag(self, tag: int) -> int:
        """Raises ValueError if MPI has no such tag, StateError when it has ended."""
        communicator.check_running("torch.distributed")
        if not 0 <= tag <= self._highest_tag:
            raise ValueError(f"tag: expected 0 to {self._highest_tag}, got {tag}")
        return tag

    def send(self, tensor: torch.Tensor, to: int, tag: int, timeout: float) -> Message:
        """Begin to send."""
        message = Message(self, f"send to rank {to}, tag {tag}", tensor, timeout, written=False)
        with told_by(self.comm), message.room() as room:
            message._request = self.comm.Isend(room, to, self.check_tag(tag))
        return self._begin(message)

    def recv(self, tensor: torch.Tensor, source: int | None, tag: int, timeout: float) -> Message:
        """Begin to receive; None: from any rank."""
        where = "any rank" if source is None else f"rank {source}"
        message = Message(self, f"recv from {where}, tag {tag}", tensor, timeout, written=True)
        origin = MPI.ANY_SOURCE if source is None else source
        with told_by(self.comm), message.room() as room:
            message._request = self.comm.Irecv(room, origin, self.check_tag(tag))
        return self._begin(message)

    def _begin(self, message: Message) -> Message:
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

    def wake(self) -> None:
        """Let the thread look at what is under way."""
        self._worker.wake()

    def _fail(self) -> None:
        with self._lock:
            rest, self._under_way = self._under_way, []
        if MPI.Is_initialized() and not MPI.Is_finalized():
            for message in rest:
                message.end()


_unfinished: list[Message] = []
