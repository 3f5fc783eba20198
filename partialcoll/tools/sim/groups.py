# SPDX-License-Identifier: Apache-2.0
"""A grouped allreduce in virtual time, for Moshpit SGD: the same grid, static keys.

A group meets under its key, the round and the line of the grid. It is complete when all live ranks
of the line have come, or a window after the first one; who comes later finds it gone and goes on
to the round after. The average takes two latencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...decentralized.exchange import Array
from ...errors import StateError
from ...grid import Grid
from .collectives import Later
from .events import Events


@dataclass(frozen=True)
class SimulatedRound:
    """What a group's round was: who averaged, nobody if it was void."""

    index: int
    group: tuple[int, ...]
    missed: int

    @property
    def active(self) -> int:
        """How many are in the average."""
        return len(self.group)

    @property
    def void(self) -> bool:
        """Has everybody kept its own?"""
        return not self.group


class _World:
    """What all handles share."""

    def __init__(
        self, grid: Grid, events: Events, latency: Callable[[], float], window: float
    ) -> None:
        self.grid, self.events, self.latency, self.window = grid, events, latency, window
        self.handles: list[SimulatedGroups] = []
        ranks = np.arange(grid.peers)
        self._line = [grid.line(ranks, axis).tolist() for axis in range(grid.axes)]
        self._members: dict[tuple[int, int], list[int]] = {}  # of axis and line
        for axis, lines in enumerate(self._line):
            for rank, line in enumerate(lines):
                self._members.setdefault((axis, line), []).append(rank)
        self._come: dict[tuple[int, int], list[SimulatedGroups]] = {}  # to round and line
        self._gone: set[tuple[int, int]] = set()

    def key(self, rank: int, round: int) -> tuple[int, int]:
        return round, self._line[self.grid.axis(round)][rank]

    def is_gone(self, key: tuple[int, int]) -> bool:
        return key in self._gone

    def come(self, handle: SimulatedGroups, key: tuple[int, int]) -> None:
        group = self._come.setdefault(key, [])
        group.append(handle)
        if len(group) == 1:
            self.events.after(self.window, lambda: self.close(key))
        self.look(key)

    def look(self, key: tuple[int, int]) -> None:
        """Is everybody here who may come?"""
        round, line = key
        here = {member.rank for member in self._come[key]}
        line_of = self._members[self.grid.axis(round), line]
        if all(rank in here or self.handles[rank].away for rank in line_of):
            self.close(key)

    def look_at_all(self) -> None:
        """Somebody has left."""
        for key in tuple(self._come):
            self.look(key)

    def close(self, key: tuple[int, int]) -> None:
        """Average over those who have come, if that has not been done."""
        if key in self._gone:
            return
        self._gone.add(key)
        members = sorted(self._come.pop(key), key=lambda member: member.rank)
        mean = np.mean([member.send_buffer for member in members], axis=0)
        ranks = tuple(member.rank for member in members)
        delay = self.latency() + self.latency()
        for member in members:
            self.events.after(delay, lambda m=member: m.deliver(mean, ranks))  # type: ignore[misc]


class SimulatedGroups(Later):
    """One rank's handle of a grouped allreduce; made by `group_reductions`."""

    def __init__(self, rank: int, like: Array, world: _World) -> None:
        super().__init__()
        self.rank, self.round, self.away = rank, 0, False
        self.send_buffer = np.zeros_like(like)
        self.recv_buffer = np.zeros_like(like)
        self.last_round = SimulatedRound(-1, (), 0)
        self._world = world
        self._missed = 0

    @property
    def live(self) -> Sequence[int]:
        """Who takes part."""
        return [handle.rank for handle in self._world.handles if not handle.away]

    def Start(self) -> None:
        """Hand in the send buffer for the first round that is not gone."""
        if self.away:
            raise StateError("this rank has left")
        self._begin()
        first = self.round
        while self._world.is_gone(key := self._world.key(self.rank, self.round)):
            self.round += 1
        self._missed = self.round - first
        self.round += 1
        self._world.come(self, key)

    def deliver(self, mean: Array, ranks: tuple[int, ...]) -> None:
        """The average has come; of nobody, the round is void."""
        np.copyto(self.recv_buffer, mean if ranks else self.send_buffer)
        self.last_round = SimulatedRound(self.round - 1, ranks, self._missed)
        self._end()

    def leave(self) -> None:
        """From now on nobody waits for this rank."""
        self.away = True
        self._world.look_at_all()

    def rejoin(self) -> None:
        """Take part again, from where the others are."""
        self.away = False
        self.round = max(self.round, *(handle.round for handle in self._world.handles))

    def Free(self) -> None:
        """There is nothing to free."""


def group_reductions(
    ranks: int,
    grid: Sequence[int] | str,
    like: Array,
    events: Events,
    latency: Callable[[], float],
    window: float,
) -> list[SimulatedGroups]:
    """The handles of all ranks. `window`: how long a group waits, in virtual time."""
    world = _World(Grid(grid, ranks), events, latency, window)
    world.handles = [SimulatedGroups(rank, like, world) for rank in range(ranks)]
    return world.handles
