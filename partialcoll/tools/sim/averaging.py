# SPDX-License-Identifier: Apache-2.0
"""Averaging one number per peer, round by round, where each peer fails now and then.

Grouped averaging as `partialcoll.group` does it, on the very same grid code, and what the paper
compares it with. Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, section 4.1.

A peer that fails comes back in the next round. What its failure costs the others is up to the
method: with ``losses="void"`` it is lost in the middle of a round, and its whole group keeps its
values, as the real thing does; with ``losses="absent"`` it does not come to the round, and the
others average without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...grid import Grid

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

KEYS = ("static", "dynamic")
LOSSES = ("void", "absent")


class Averager:
    """One method on all peers; `values` is what each has."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def step(self, there: Mask, round: int) -> None:
        """One round, of the peers that do not fail."""
        raise NotImplementedError

    def mean(self) -> float:
        """Of all that there is: what must not change."""
        return float(self.values.mean())


def group_means(values: Values, groups: Numbers, there: Mask, losses: str) -> Values:
    """The values after each peer has averaged within its group, given by a number; groups of which
    one is not there are void, or do without it."""
    if losses == "void":
        void = np.bincount(groups, weights=~there) > 0
        sums = np.bincount(groups, weights=values)
        takes_part = ~void[groups]
    else:
        sums = np.bincount(groups, weights=values * there)
        takes_part = there
    counts = np.bincount(groups, weights=there)
    means: Values = np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)
    return np.where(takes_part, means[groups], values)


def _among_equals(keys: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The keys as numbers without gaps; the place of each among those of its key; how many those
    are."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.nonzero(first)[0]
    number = np.cumsum(first) - 1
    counts = np.diff(np.append(starts, len(keys)))
    found = np.empty((3, len(keys)), np.int64)
    found[:, order] = number, np.arange(len(keys)) - starts[number], counts[number]
    return found[0], found[1], found[2]


class Split:
    """Peers by lines: the group of each, its position in it by number, and its size. A line that
    holds more than `most` splits as it does where the first to come are taken until a group is
    full: into full ones and a rest, and who comes late is drawn."""

    def __init__(self, lines: Numbers, most: int, random: Any) -> None:
        self.groups, self.positions, self.sizes = _among_equals(lines)
        self.largest = int(self.sizes.max(initial=0))
        if self.largest <= most:
            return
        crowded = np.nonzero(self.sizes > most)[0]
        random.shuffle(crowded)
        part = np.zeros_like(self.groups)
        part[crowded] = _among_equals(lines[crowded])[1] // most
        parts = self.largest // most + 1
        self.groups, self.positions, self.sizes = _among_equals(self.groups * parts + part)


class Moshpit(Averager):
    """Groups are the lines of the grid along the axis of the round. Static keys: peers stay where
    they are. Dynamic ones: those of a group that was not void move on. `random` has a method
    shuffle."""

    def __init__(
        self, values: Values, grid: Grid, cells: Numbers, keys: str, losses: str, random: Any
    ) -> None:
        super().__init__(values)
        self.cells = cells
        self._grid, self._keys, self._losses, self._random = grid, keys, losses, random
        self._lines: dict[int, Numbers] = {}

    def _static_lines(self, axis: int) -> Numbers:
        if axis not in self._lines:
            self._lines[axis] = self._grid.line(self.cells, axis)
        return self._lines[axis]

    def step(self, there: Mask, round: int) -> None:
        axis = self._grid.axis(round)
        if self._keys == "static":
            groups = self._static_lines(axis)
            self.values = group_means(self.values, groups, there, self._losses)
            return
        members = np.arange(len(there)) if self._losses == "void" else np.nonzero(there)[0]
        lines = self._grid.line(self.cells[members], axis)
        split = Split(lines, self._grid.sides[axis], self._random)
        present = there[members]
        self.values[members] = group_means(
            self.values[members], split.groups, present, self._losses
        )
        moving = self._moving(split, present)
        chunks = self._grid.chunks(
            round, lines[moving], split.positions[moving], split.sizes[moving]
        )
        who = members[moving]
        self.cells[who] = self._grid.move(self.cells[who], axis, chunks)

    def _moving(self, split: Split, present: Mask) -> Numbers:
        """Who was in a round that was not void."""
        void = np.bincount(split.groups, weights=~present) > 0
        return np.nonzero(~void[split.groups])[0]


class RandomGroups(Averager):
    """Drawn anew each round, of one size or little more. `random` has a method shuffle."""

    def __init__(self, values: Values, size: int, losses: str, random: Any) -> None:
        super().__init__(values)
        self._size, self._losses, self._random = size, losses, random

    def step(self, there: Mask, round: int) -> None:
        members = np.arange(len(there)) if self._losses == "void" else np.nonzero(there)[0]
        self._random.shuffle(members)
        number = max(1, len(members) // self._size)
        places = np.arange(len(members))
        rest = places - number * self._size  # dealt out
        groups = np.where(rest < 0, places // self._size, rest % number)
        self.values[members] = group_means(
            self.values[members], groups, there[members], self._losses
        )


class Allreduce(Averager):
    """All at once; where one fails, all begin again in the next round."""

    def step(self, there: Mask, round: int) -> None:
        if there.all():
            self.values = np.full_like(self.values, self.values.mean())


class Gossip(Averager):
    """A ring: a third of each neighbor that is there. What a neighbor that is not would have
    given stays with oneself."""

    def step(self, there: Mask, round: int) -> None:
        change = np.zeros_like(self.values)
        for shift in (-1, 1):
            both = there & np.roll(there, shift)
            change += np.where(both, np.roll(self.values, shift) - self.values, 0) / 3
        self.values = self.values + change


class PushSum(Averager):
    """Half of value and weight to the peer that is 2^k ahead, k in turn; not to one that fails."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self._sums, self._weights = values, np.ones_like(values)
        self._hops = max(1, int(len(values) - 1).bit_length())

    def step(self, there: Mask, round: int) -> None:
        hop = 1 << round % self._hops
        sends = there & np.roll(there, -hop)

        def pushed(held: Values) -> Values:
            given = np.where(sends, held / 2, 0)
            return held - given + np.roll(given, hop)

        self._sums, self._weights = pushed(self._sums), pushed(self._weights)
        self.values = self._sums / self._weights

    def mean(self) -> float:
        return float(self._sums.mean())


class Means(Averager):
    """As the paper's code has it: the mean of oneself and of one's sources, of those that are
    there. No weights, so the mean of all may drift where some fail."""

    def sources(self, round: int) -> list[tuple[Numbers, Numbers]]:
        """Who takes from whom in the round."""
        raise NotImplementedError

    def step(self, there: Mask, round: int) -> None:
        held, peers = self.values * there, len(there)
        sums, counts = held.copy(), there.astype(float)
        for to, source in self.sources(round):
            sums += np.bincount(to, held[source], peers)
            counts += np.bincount(to, there[source], peers)
        self.values = np.where(there, sums / np.maximum(counts, 1), self.values)


class RingMeans(Means):
    """The paper's gossip: both neighbors on a ring."""

    def sources(self, round: int) -> list[tuple[Numbers, Numbers]]:
        peers = np.arange(len(self.values))
        return [(peers, np.roll(peers, shift)) for shift in (-1, 1)]


class HopMeans(Means):
    """The paper's push-sum: those 2^k and 2^(k+1) ahead, k in turn. Its matrices are shifted as one
    long row of numbers, so where an entry passes the end of its row it comes to the next one; with
    rows shifted one by one its figures do not come out."""

    def sources(self, round: int) -> list[tuple[Numbers, Numbers]]:
        peers = len(self.values)
        hops = max(1, int(np.floor(np.log2(max(2, peers - 1)))))
        found = []
        for hop in (1 << round % hops, 2 << round % hops):
            entries = (np.arange(peers) * (peers + 1) + hop) % peers**2
            found.append((entries // peers, entries % peers))
        return found
