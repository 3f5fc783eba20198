# SPDX-License-Identifier: Apache-2.0
"""The limit of a strategy whose ranks meet some of the others at some of their steps: neighbors in
every step, all ranks in every H-th, a group. When each rank ends each of its steps follows from the
steps' durations alone, one after the other; nothing here knows of clocks or of MPI.

Where one closed formula says it, `delays` has that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .delays import Pattern, Seconds

if TYPE_CHECKING:
    from ....grid import Grid

Mask = npt.NDArray[np.bool_]

STEPS = 2000  # looked at


@dataclass(frozen=True)
class Meetings:
    """Whom a rank waits for.

    Parameters
    ----------
    whom : callable
        Of the number of a step, from 0: a mask of shape (ranks, ranks), whether the one of the row
        waits for the one of the column at the end of this step; None: nobody waits. Called with
        0, 1, 2 ... in this order.
    early : bool
        What is waited for is there when the other one begins the same step, since it is what came
        out of the step before; else when the other one ends it.
    """

    whom: Callable[[int], Mask | None]
    early: bool = False


def neighbors(of: Sequence[Sequence[int]]) -> Meetings:
    """D-PSGD: in every step the neighbors' models of the step before."""
    mask = np.zeros((len(of), len(of)), bool)
    for rank, others in enumerate(of):
        mask[rank, list(others)] = True
    return Meetings(lambda step: mask, early=True)


def everybody(ranks: int, *periods: int) -> Meetings:
    """All ranks at the end of each step whose number, from 1, is a multiple of a period."""
    mask = np.ones((ranks, ranks), bool)

    def whom(step: int) -> Mask | None:
        return mask if any((step + 1) % period == 0 for period in periods) else None

    return Meetings(whom)


def groups(grid: Grid, period: int) -> Meetings:
    """Moshpit: at the end of each step whose number is a multiple of the period, the others of this
    rank's group; one axis after the other. Cells move where ranks do not fill the grid."""
    cells = np.arange(grid.peers)

    def whom(step: int) -> Mask | None:
        nonlocal cells
        if (step + 1) % period:
            return None
        round = (step + 1) // period - 1
        axis = grid.axis(round)
        lines = grid.line(cells, axis)
        mask: Mask = lines[:, None] == lines[None, :]
        if not grid.full:
            places = np.tril(mask, -1).sum(axis=1)
            cells = grid.move(cells, axis, grid.chunks(round, lines, places, mask.sum(axis=1)))
        return mask

    return Meetings(whom)


def drawn(pattern: Pattern, ranks: int, compute: Seconds, delay: float, count: int) -> Seconds:
    """Seconds that consecutive steps take on each rank, shape (count, ranks).

    Parameters
    ----------
    compute : array of shape (n, ranks)
        Seconds of computation of all ranks in n equally likely steps, without the pattern.
    delay : float
        Seconds, of the pattern.
    """
    which = np.random.default_rng(0).integers(len(compute), size=count)
    times = np.array([pattern.times(rank) for rank in range(ranks)])
    late = np.array([pattern.delays(0, step, ranks, delay) for step in range(count)])
    return np.asarray(compute[which] * times + late, dtype=np.float64)


def meeting_seconds(meetings: Meetings, durations: Seconds) -> float:
    """Mean seconds between two steps of a rank, the median over ranks, if nothing else took
    time."""
    now = np.zeros(durations.shape[1])
    for step, own in enumerate(durations):
        ready = now + own
        mask = meetings.whom(step)
        if mask is not None:
            there = np.where(mask, now if meetings.early else ready, 0.0)
            ready = np.maximum(ready, there.max(axis=1))
        now = ready
    return float(1 / np.median(len(durations) / now))


def meeting_limit(meetings: Meetings, durations: Seconds) -> float | None:
    """How many times as many steps per second as if all waited for all in each of these steps; None
    where steps take no time of which anything is known."""
    own = meeting_seconds(meetings, durations) if durations.any() else 0.0
    return float(durations.max(axis=1).mean()) / own if own > 0 else None
