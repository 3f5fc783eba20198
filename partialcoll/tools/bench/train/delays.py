# SPDX-License-Identifier: Apache-2.0
"""Patterns of delays in training steps, and the speed that they allow: pure functions of seed,
step and rank, and limits by arithmetic. This module uses neither clocks nor MPI.

A step of a rank takes ``compute x factor + delay`` seconds. The speed of a strategy depends on the
ranks that a rank waits for. `Waits` names the cases that have a closed formula. `Meetings`
describes strategies whose ranks meet some of the others at some of their steps: neighbors in every
step, all ranks in every H-th, a group. The limit of a strategy is how many times as fast a rank's
own steps are as those of ranks that all wait for all.

Source: Li et al., PPoPP 2020, section 6.2 (the injected delays); the limits are ours.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....grid import Grid

Seconds = npt.NDArray[np.float64]

PATTERNS = "none, one-random, all-shifted, one-slow:K, kill:S"
_FACTORS = {"one-slow": 1.0, "kill": 0.01}  # the least of those that have one


class Waits(enum.Enum):
    """The ranks that a rank waits for in a step."""

    ALL = "all ranks"
    DRAWN = "one rank, drawn anew for each step"
    FIRST = "nobody, but nobody may lag behind for ever"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Pattern:
    """The delays of steps. "one-random": one rank, drawn for each step, by the delay;
    "all-shifted": rank i in step t by (1 + (i+t) mod P) / P of it; "one-slow": rank 0's step takes
    `factor` (at least 1) times as long; "kill": no rank is late, but one more is killed each
    `factor` seconds, at least 0.01."""

    name: str = "none"
    factor: float = 1.0

    @staticmethod
    def parse(text: str) -> Pattern:
        name, colon, argument = text.partition(":")
        if name in ("none", "one-random", "all-shifted") and not colon:
            return Pattern(name)
        try:
            factor = float(argument)
        except ValueError:
            factor = math.nan
        if name not in _FACTORS or not _FACTORS[name] <= factor < math.inf:
            raise ValueError(
                f"expected {PATTERNS} with K of at least 1, S of at least 0.01; got {text!r}"
            )
        return Pattern(name, factor)

    def __str__(self) -> str:
        return f"{self.name}:{self.factor:g}" if self.name in _FACTORS else self.name

    @property
    def kills(self) -> bool:
        return self.name == "kill"

    def lifetimes(self, seed: int, ranks: int) -> Seconds:
        """Return the seconds after which each rank is killed, shape (ranks,), in a drawn order. The
        first and the last rank survive."""
        last = np.full(ranks, math.inf)
        if self.kills:
            order = np.random.default_rng((seed, 0xDEAD)).permutation(np.arange(1, ranks - 1))
            last[order] = self.factor * np.arange(1, len(order) + 1)
        return last

    def times(self, rank: int) -> float:
        """Return how many times as long the computation of this rank takes."""
        return self.factor if self.name == "one-slow" and rank == 0 else 1.0

    def delays(self, seed: int, step: int, ranks: int, delay: float) -> Seconds:
        """Return the seconds by which each rank is late, shape (ranks,), at most `delay`."""
        late = np.zeros(ranks)
        if self.name == "one-random":
            late[chosen(seed, step, ranks)] = delay
        elif self.name == "all-shifted":
            late = (1 + (np.arange(ranks) + step) % ranks) * delay / ranks
        return late

    def vectors(self, ranks: int, delay: float) -> Seconds:
        """Return all ranks' delays in a step in equally likely cases, shape (cases, ranks)."""
        if self.name == "one-random":
            return np.eye(ranks) * delay
        if self.name == "all-shifted":
            return np.array([self.delays(0, step, ranks, delay) for step in range(ranks)])
        return np.zeros((1, ranks))


def chosen(seed: int, step: int, ranks: int) -> int:
    return int(np.random.default_rng((seed, step, 0xDE1A)).integers(ranks))


def durations(pattern: Pattern, ranks: int, compute: Seconds, delay: float) -> Seconds:
    """Return the seconds of a step of each rank before it arrives, in equally likely cases, shape
    (cases, ranks): each case of `compute`, shape (n, ranks), with each of the pattern."""
    times = np.array([pattern.times(rank) for rank in range(ranks)])
    both = pattern.vectors(ranks, delay)[:, None, :] + (compute * times)[None, :, :]
    return np.asarray(both.reshape(-1, ranks), dtype=np.float64)


def step_seconds(waits: Waits, cases: Seconds) -> float:
    """Mean seconds between two steps of a rank, the median over ranks, if nothing else took time.

    ALL: the longest of a step. NOBODY: a rank's own, so that the median counts. FIRST: a rank's own
    as well, but who is ahead waits in the end for the one that is slowest on average. DRAWN: the
    longer of one's own and the drawn one's, any rank as likely as another, as if all had begun
    together; and never less than with FIRST.
    """
    own = cases.mean(axis=0)
    if waits is Waits.ALL:
        return float(cases.max(axis=1).mean())
    if waits is Waits.NOBODY:
        return float(1 / np.median(1 / own))
    if waits is Waits.FIRST:
        return float(own.max())
    # The k-th (from 1) of the sorted durations is the maximum of 2k-1 of all P*P pairs.
    ranks = cases.shape[1]
    pairs = 2 * np.arange(1, ranks + 1) - 1
    drawn = (np.sort(cases, axis=1) * pairs).sum(axis=1).mean() / ranks**2
    return float(max(drawn, own.max()))


def limit(waits: Waits, cases: Seconds) -> float | None:
    """Return the possible speedup over an allreduce; None if the time of a step is unknown."""
    own = step_seconds(waits, cases)
    return step_seconds(Waits.ALL, cases) / own if own > 0 else None


Mask = npt.NDArray[np.bool_]

STEPS = 2000  # looked at


@dataclass(frozen=True)
class Meetings:
    """The ranks that each rank waits for, by step.

    `whom` is called with the numbers of steps 0, 1, 2 ... in this order. It returns a mask of shape
    (ranks, ranks): at the end of this step the rank of a row waits for the rank of a column; or
    None if no rank waits. `early`: a rank needs what another one had before this step, so it waits
    until the other one begins the step. Otherwise it waits until the other one ends it."""

    whom: Callable[[int], Mask | None]
    early: bool = False


def neighbors(of: Sequence[Sequence[int]]) -> Meetings:
    """Return meetings in every step, where the neighbors' models of the step before are needed."""
    mask = np.zeros((len(of), len(of)), bool)
    for rank, others in enumerate(of):
        mask[rank, list(others)] = True
    return Meetings(lambda step: mask, early=True)


def everybody(ranks: int, *periods: int) -> Meetings:
    """Return meetings of all ranks after each step whose number is a multiple of a period."""
    mask = np.ones((ranks, ranks), bool)

    def whom(step: int) -> Mask | None:
        return mask if any((step + 1) % period == 0 for period in periods) else None

    return Meetings(whom)


def groups(grid: Grid, period: int) -> Meetings:
    """Return the meetings of Moshpit: after each step whose number is a multiple of the period, the
    members of a group, one axis after the other. Cells move if ranks do not fill the grid."""
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
    """Return the seconds of consecutive steps of each rank, shape (count, ranks)."""
    which = np.random.default_rng(0).integers(len(compute), size=count)
    times = np.array([pattern.times(rank) for rank in range(ranks)])
    late = np.array([pattern.delays(0, step, ranks, delay) for step in range(count)])
    return np.asarray(compute[which] * times + late, dtype=np.float64)


def meeting_seconds(meetings: Meetings, durations: Seconds) -> float:
    """Return the mean seconds between two steps of a rank, the median over ranks."""
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
    """Return the limit as `limit` does, for these steps one after the other."""
    own = meeting_seconds(meetings, durations) if durations.any() else 0.0
    return float(durations.max(axis=1).mean()) / own if own > 0 else None
