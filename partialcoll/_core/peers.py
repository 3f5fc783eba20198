# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks of which some may die, by a program that goes on without the dead.

Where ranks may die, every MPI call that sends, receives, probes or tests needs two precautions.

- It must not overlap an agreement of the library's core (see `alone`).
- It fails for two reasons: its own peer has died, or some rank has died whose death this process
  has not acknowledged on this communicator. The second reason concerns receives and probes from
  any source only. After `Ack_failed` such a call works again, until the next death.
"""

from __future__ import annotations

from typing import Callable, TypeVar

from .alone import alone
from .mpi import MPI
from .rank_failure import failed_ranks, is_rank_failure
from .survivors import goes_on

T = TypeVar("T")


class Peers:
    """The ranks of `comm`, a communicator of the caller's own.

    Attributes
    ----------
    dead : set of int
        Ranks of `comm` whose death this process has acknowledged.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.dead: set[int] = set()
        self._comm, self._goes_on = comm, goes_on()

    def call(self, call: Callable[[], T], otherwise: T) -> T:
        """Return what `call`, a short MPI call on the communicator, returns. If it fails because
        ranks have died, acknowledge their deaths and return `otherwise`."""
        if not self._goes_on:
            return call()
        try:
            return alone(call)
        except MPI.Exception as error:
            if not is_rank_failure(error):
                raise
            alone(self._comm.Ack_failed)
            self.dead.update(alone(lambda: failed_ranks(self._comm)))
            return otherwise
