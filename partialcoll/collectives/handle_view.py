# SPDX-License-Identifier: Apache-2.0
"""What a persistent allreduce tells of itself: its counts, and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import numpy.typing as npt

from .._core import pure
from .._core.ffi import answer_record, answer_text, ffi, lib
from .._core.mpi import MPI
from .._core.object import CoreObject
from .._core.settings import ALGORITHMS
from ..errors import StateError
from ..policy import Policy
from .growth import Membership

_DOMAINS = {pure.lib.PCOLL_DOMAIN_NODE: "node", pure.lib.PCOLL_DOMAIN_RANK: "rank"}


@dataclass(frozen=True)
class Stats:
    """Counts since the handle was made, of this rank.

    ``calls`` deposits; ``rounds`` complete, ``delivered`` to the application, ``lost`` to it;
    deposits that ``arrived`` at their round, were ``stored`` for the next one, were
    ``dropped`` (late="drop"); rounds that ``included`` this rank's data;
    ``activations_dropped`` (duplicates and late ones: harmless), ``activations_early`` (kept
    for the next round); rounds ``redone`` since a rank had died in them.
    """

    calls: int
    rounds: int
    delivered: int
    lost: int
    arrived: int
    stored: int
    dropped: int
    included: int
    activations_dropped: int
    activations_early: int
    redone: int


class ScheduleView:
    """The DAG of operations that this rank executes in a round; for looking at. A handle makes it
    (`AllreduceHandle.schedule`); `core` finds the handle's part in the core."""

    def __init__(self, core: Callable[[], Any]) -> None:
        self._core = core

    def _render(self, form: str) -> str:
        return answer_text(lib.pcoll_handle_schedule, self._core(), form.encode())

    def to_dot(self) -> str:
        """The schedule in Graphviz DOT."""
        return self._render("dot")

    def to_goal(self, *, ns_per_byte: float = 0.0) -> str:
        """The schedule in GOAL, for simulators of LogGOPSim's family: the block of this rank.

        Parameters
        ----------
        ns_per_byte : float
            What a byte that is copied or reduced takes, in nanoseconds.

        A whole file, where `comm` is the handle's communicator (collective)::

            f"num_ranks {comm.size}\\n" + "".join(comm.allgather(h.schedule.to_goal()))

        GOAL knows no gates of k of n predecessors: it describes a round that begins when all
        ranks have arrived. Local.
        """
        return answer_text(lib.pcoll_handle_goal, self._core(), ns_per_byte)

    def __str__(self) -> str:
        return self._render("text")


class HandleView(CoreObject):
    """What a handle tells of itself."""

    _kind = "handle"
    policy: Policy
    _one: bool
    _memory: int
    _membership: Membership | None = None  # with on_failure="continue"

    @property
    def memory(self) -> int:
        """Bytes that the handle holds on this rank, as of `memory_estimate`."""
        return self._memory

    @property
    def stats(self) -> Stats:
        """Counts of this rank so far."""
        return answer_record(Stats, "pcoll_stats", lib.pcoll_handle_stats, self._core())

    @property
    def algorithm(self) -> str:
        """How the data is reduced: "recdbl", "rabenseifner", "ring" or "native"."""
        return ALGORITHMS[self._answer("int32_t", "algorithm")]

    def _placed(self) -> tuple[str, int]:
        domain = ffi.new("int32_t *")
        counts = ffi.new("uint32_t[2]")
        self._call("domain", domain, counts, counts + 1)
        return _DOMAINS[domain[0]], int(counts[0])

    @property
    def domain(self) -> str:
        """ "node": ranks that share memory reduce there, and only one of them talks to others;
        "rank": messages only, which is also what "node" comes to where no two ranks share a
        node. The same on all ranks."""
        return self._placed()[0]

    @property
    def domains(self) -> int:
        """How many domains the ranks form: as many as there are ranks with "rank", with "node"
        as many as there are nodes, or more if their size is limited."""
        return self._placed()[1]

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """The ranks that have died, with ``on_failure="continue"``: bool, shape (ranks,)."""
        return self._set_of_ranks("failed", self._size)

    @property
    def comm(self) -> MPI.Intracomm:
        """A communicator of the ranks that live, in their order, for the program's own traffic:
        the one that the handle was made on until somebody dies, then the library's (do not free
        it), until the next death, which revokes it: take it anew. StateError without
        ``on_failure="continue"``."""
        if self._membership is None:
            raise StateError('comm: the handle was made with on_failure="raise"')
        return self._membership.comm(self)

    @property
    def schedule(self) -> ScheduleView:
        """The schedule that this rank executes in each round."""
        return ScheduleView(self._core)

    def __repr__(self) -> str:
        state = "freed" if self._is_freed() else f"{self._size} ranks"
        deliver = "one" if self._one else "all"
        return f"<partial allreduce, quorum={self.policy}, deliver={deliver!r}, {state}>"
