# SPDX-License-Identifier: Apache-2.0
"""Departure: a rank whose program an exception (or sys.exit with an error) ends tells the others,
who would wait for it.

At the end of the interpreter, when MPI still runs, it sends the error's text to all of them. They
look for such a message whenever they begin something or wait (`waiting.look`), and raise then: so
whoever catches its own error and goes on has told nobody, and one that nobody catches ends all.
"""

from __future__ import annotations

from functools import partial

from ..errors import MismatchError
from . import finalize, waiting
from .failures import Peers, duplicate
from .mpi import MPI

_LONGEST = 1000  # bytes of a text: MPI sends so little though nobody receives it


class Departed(MismatchError):
    """A rank's program has ended."""


class Departures:
    """Of the ranks of a finalize. Collective to make and to free."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = duplicate(comm)
        self._peers = Peers(self._comm)
        self._said = ""  # of the rank that was heard first
        self._sent: list[MPI.Request | None] = []
        finalize.watch_program()
        finalize.at_end(self._tell)
        waiting.watch(self._look)

    def _tell(self) -> None:
        """At the end: has an exception brought it about?"""
        waiting.no_watch(self._look)
        failure = finalize.program_failure()
        if failure is None or MPI.Is_finalized():
            return
        text = failure.encode(errors="replace")[:_LONGEST]
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                send = partial(self._comm.Isend, [text, MPI.BYTE], rank)
                self._sent.append(self._peers.call(send, None))

    def _look(self) -> None:
        """Departed when a rank has said something; once and for all. One that has died says
        nothing; what it leaves undone tells of it."""
        if not self._said and not MPI.Is_finalized():
            self._said = self._peers.call(self._receive, "")
        if self._said:
            raise Departed(self._said)

    def _receive(self) -> str:
        status = MPI.Status()
        message = self._comm.Improbe(status=status)
        if message is None:
            return ""
        text = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([text, MPI.BYTE])
        said = text.decode(errors="replace")
        return f"the program of rank {status.Get_source()} has ended: {said}"

    def ignore(self) -> None:
        """This rank waits for the others no more, who may wait for it. Local, idempotent."""
        waiting.no_watch(self._look)

    def free(self) -> None:
        finalize.not_at_end(self._tell)
        self.ignore()
        self._comm.Free()
