# SPDX-License-Identifier: Apache-2.0
"""Departure: a rank whose program an exception (or sys.exit with an error) ends tells the others,
who would wait for it.

At the end of the interpreter, when MPI still runs, it sends the error's text to all of them. They
look for such a message whenever they begin something or wait (`waiting.look`), and raise then: so
whoever catches its own error and goes on has told nobody, and one that nobody catches ends all.
"""

from __future__ import annotations

import contextlib

from ..errors import MismatchError, RankFailedError
from . import finalize, program_end, waiting
from .mpi import MPI
from .rank_error import told_by
from .rank_failure import is_rank_failure
from .survivors import duplicate

_LONGEST = 1000  # bytes of a text: MPI sends so little though nobody receives it


class Departed(MismatchError):
    """A rank's program has ended."""


class Departures:
    """Of the ranks of a finalize. Collective to make and to free."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = duplicate(comm)
        self._said = ""  # of the rank that was heard first
        self._sent: list[MPI.Request] = []
        program_end.watch()
        finalize.at_end(self._tell)
        waiting.watch(self._look)

    def _tell(self) -> None:
        """At the end: has an exception brought it about?"""
        waiting.no_watch(self._look)
        failure = program_end.failure()
        if failure is None or MPI.Is_finalized():
            return
        text = failure.encode(errors="replace")[:_LONGEST]
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                with contextlib.suppress(RankFailedError), told_by(self._comm):
                    self._sent.append(self._comm.Isend([text, MPI.BYTE], rank))

    def _look(self) -> None:
        """Departed when a rank has said something; once and for all. One that has died says
        nothing; what it leaves undone tells of it."""
        if not self._said and not MPI.Is_finalized():
            status, message = MPI.Status(), None
            try:
                message = self._comm.Improbe(status=status)
            except MPI.Exception as error:
                if not is_rank_failure(error):
                    raise
                self._comm.Ack_failed()  # those who live may still say something
            if message is not None:
                text = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([text, MPI.BYTE])
                said = text.decode(errors="replace")
                self._said = f"the program of rank {status.Get_source()} has ended: {said}"
        if self._said:
            raise Departed(self._said)

    def ignore(self) -> None:
        """This rank waits for the others no more, who may wait for it. Local, idempotent."""
        waiting.no_watch(self._look)

    def free(self) -> None:
        """Nobody is waited for any more."""
        finalize.not_at_end(self._tell)
        self.ignore()
        self._comm.Free()
