# SPDX-License-Identifier: Apache-2.0
"""What a persistent allreduce tells of itself: its counts, and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from .._core.ffi import answer_text, lib


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
    """The DAG of operations that this rank executes in a round; for looking at."""

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
