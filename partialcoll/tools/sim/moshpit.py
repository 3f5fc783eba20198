# SPDX-License-Identifier: Apache-2.0
"""Rounds of averaging one number per peer, where each peer fails now and then: how many rounds does
grouped averaging take, and what it is compared with?

With ``losses="void"`` a peer is lost in mid-round, and its whole group keeps its values,
as in the real implementation. With ``losses="absent"`` the others average without it.

Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, section 4.1 and table 4. By default the squared
distance to the true mean counts. ``--paper-compat`` is what the printed table was made with; see
docs/groups.md for the differences.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...grid import Grid
from .. import environment, plots, report

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Sources = list[tuple[Numbers, Numbers]]


class Averager:
    """One method on all peers; `values` holds the number of each peer."""

    step: Callable[[Mask, int], None]  # who is there, and the round

    def __init__(self, values: Values) -> None:
        self.values = values

    def mean(self) -> float:
        """Return the mean of all values, which must not change."""
        return float(self.values.mean())


def group_means(values: Values, groups: Numbers, there: Mask, losses: str) -> Values:
    """Return the values after each peer has averaged within its group. `groups` gives the number of
    each peer's group. A group with an absent peer is void, or averages without it."""
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
    """Return each key as a consecutive number, its position among equal ones, and their number."""
    _, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    positions = np.empty_like(numbers)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    positions[np.argsort(keys, kind="stable")] = np.arange(len(keys)) - starts
    return numbers, positions, counts[numbers]


class Split:
    """Peers by lines: the group of each, its position in it by number, and its size. A line with
    more than `most` peers splits into full groups and a rest, as if the first to come were taken
    until a group is full; who comes late is drawn."""

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


class GridGroups(Averager):
    """Groups are the lines of the grid along the axis of the round. With static keys peers keep
    their cells. With dynamic keys the peers of a group that was not void move on. `random` has a
    method shuffle."""

    def __init__(
        self, values: Values, grid: Grid, cells: Numbers, keys: str, losses: str, random: Any
    ) -> None:
        super().__init__(values)
        self.cells = cells
        self._grid, self._keys, self._losses, self._random = grid, keys, losses, random
        self._lines: dict[int, Numbers] = {}

    def step(self, there: Mask, round: int) -> None:
        axis = self._grid.axis(round)
        if self._keys == "static":
            if axis not in self._lines:
                self._lines[axis] = self._grid.line(self.cells, axis)
            groups = self._lines[axis]
            self.values = group_means(self.values, groups, there, self._losses)
            return
        members = np.arange(len(there)) if self._losses == "void" else np.nonzero(there)[0]
        lines = self._grid.line(self.cells[members], axis)
        split = Split(lines, self._grid.sides[axis], self._random)
        present = there[members]
        self.values[members] = group_means(
            self.values[members], split.groups, present, self._losses
        )
        void = np.bincount(split.groups, weights=~present) > 0
        moving = np.nonzero(~void[split.groups])[0]
        chunks = self._grid.chunks(
            round, lines[moving], split.positions[moving], split.sizes[moving]
        )
        who = members[moving]
        self.cells[who] = self._grid.move(self.cells[who], axis, chunks)


class RandomGroups(Averager):
    """Groups drawn in each round, of one size or slightly more. `random` has a method shuffle."""

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


class RestartedAllreduce(Averager):
    """An allreduce of all peers; if one fails, all start again in the next round."""

    def step(self, there: Mask, round: int) -> None:
        if there.all():
            self.values = np.full_like(self.values, self.values.mean())


class RingGossip(Averager):
    """Averages on a ring: a third of each neighbor that is present. A peer keeps what an absent
    neighbor would have given."""

    def step(self, there: Mask, round: int) -> None:
        change = np.zeros_like(self.values)
        for shift in (-1, 1):
            both = there & np.roll(there, shift)
            change += np.where(both, np.roll(self.values, shift) - self.values, 0) / 3
        self.values = self.values + change


class PushSum(Averager):
    """Half of value and weight goes to the peer 2^k ahead, k in turn, unless that peer fails."""

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
    """The paper's code: the mean of a peer and its sources, of those that are present. There are no
    weights, so the mean of all may drift if peers fail. `sources` returns pairs of arrays from the
    number of peers and the round: who takes, and from whom."""

    def __init__(self, values: Values, sources: Callable[[int, int], Sources]) -> None:
        super().__init__(values)
        self._sources = sources

    def step(self, there: Mask, round: int) -> None:
        held, peers = self.values * there, len(there)
        sums, counts = held.copy(), there.astype(float)
        for to, source in self._sources(peers, round):
            sums += np.bincount(to, held[source], peers)
            counts += np.bincount(to, there[source], peers)
        self.values = np.where(there, sums / np.maximum(counts, 1), self.values)


def _ring(peers: int, round: int) -> Sources:
    """The paper's gossip: both neighbors on a ring."""
    return [(np.arange(peers), np.roll(np.arange(peers), shift)) for shift in (-1, 1)]


def _hops(peers: int, round: int) -> Sources:
    """The paper's push-sum: the peers 2^k and 2^(k+1) ahead, k in turn. Its matrices are shifted as
    one long row of numbers, so an entry that passes the end of its row comes to the next row. With
    rows shifted one by one the results differ from the paper's figures."""
    hops = max(1, int(np.floor(np.log2(max(2, peers - 1)))))
    entries = (
        np.arange(peers) * (peers + 1) + hop for hop in (1 << round % hops, 2 << round % hops)
    )
    return [divmod(each % peers**2, peers) for each in entries]


COLUMNS = report.columns(
    "peers p grid method keys losses rounds_to_1e-9 rounds_to_1e-4 finished rate mean_error seconds"
)
MOST_PEERS = 1 << 28
BYTES_PER_PEER = 240  # values, cells, lines, an order and what sorting and counting need
TARGETS = {"rounds_to_1e-9": 1e-9, "rounds_to_1e-4": 1e-4}


@dataclass(frozen=True)
class Case:
    grid: Grid
    p: float
    method: str
    keys: str | None  # of moshpit
    losses: str | None  # of moshpit and random


class Draws:
    """The random numbers of one restart: the same values and failures for all methods.

    The paper's code draws everything from one generator seeded with the restart's number, except
    the placement, which has no seed.
    """

    def __init__(self, compat: bool, seed: int, restart: int) -> None:
        some: list[Any] = [np.random.default_rng((seed, k, restart)) for k in (1, 2, 3, 4)]
        self.values, self.failures, self.placement, self.method = some
        if compat:
            one: Any = np.random.RandomState((seed + restart) % (1 << 32))
            self.values = self.failures = self.method = one


def make(case: Case, compat: bool, draws: Draws) -> Averager:
    peers = case.grid.peers
    values = draws.values.normal(0, 1, peers)
    if case.method == "moshpit":
        cells = np.arange(peers)
        if compat:
            cells = draws.placement.permutation(case.grid.cells)[:peers]
        keys, losses = case.keys or "static", case.losses or "void"
        return GridGroups(values, case.grid, cells, keys, losses, draws.method)
    if case.method == "random":
        size = min(peers, max(case.grid.sides))
        return RandomGroups(values, size, case.losses or "void", draws.method)
    if case.method == "allreduce":
        return RestartedAllreduce(values)
    if case.method == "gossip":
        return Means(values, _ring) if compat else RingGossip(values)
    return Means(values, _hops) if compat else PushSum(values)


def follow(case: Case, options: SimpleNamespace, restart: int) -> tuple[list[float], float]:
    """Return the errors before and after each round, and how much the mean has changed."""
    compat = options.paper_compat
    draws = Draws(compat, options.seed, restart)
    averager = make(case, compat, draws)
    peers, mean = case.grid.peers, averager.mean()

    def error() -> float:
        center = averager.values.mean() if compat else mean
        return float(np.mean((averager.values - center) ** 2))

    errors = [error()]
    for round in range(options.rounds):
        if errors[-1] < options.until:
            break
        there = draws.failures.uniform(0, 1, peers) >= case.p
        averager.step(there, round + 1 if compat else round)
        errors.append(error())
    return errors, abs(averager.mean() - mean)


def rounds_to(errors: list[float], target: float, most: int) -> int:
    """Return the first round after which the error is below the target, else `most`."""
    return next((i for i, error in enumerate(errors) if error < target), most)


def cases(options: SimpleNamespace) -> list[Case]:
    keys, losses = options.keys or ["static", "dynamic"], options.losses or "void"
    if options.paper_compat:
        keys, losses = ["static"], "absent"
        if options.losses == "void":
            raise ValueError("--losses: expected absent with --paper-compat, got void")
        if options.keys not in (None, keys):
            raise ValueError(
                f"--keys: expected static with --paper-compat, got {','.join(options.keys)}"
            )
    environment.check_memory("--peers", options.peers, BYTES_PER_PEER.__mul__, MOST_PEERS)
    found = []
    for peers in options.peers:
        for grid in (Grid(sides, peers) for sides in options.grid):
            if options.paper_compat and "moshpit" in options.methods and grid.cells > MOST_PEERS:
                raise ValueError(
                    f"--grid: expected at most {MOST_PEERS} cells with --paper-compat, got {grid}"
                )
            for p, method in itertools.product(options.p, options.methods):
                how = losses if method in ("moshpit", "random") else None
                some = keys if method == "moshpit" else [None]
                found += [Case(grid, p, method, key, how) for key in some]
    return found


def run(options: SimpleNamespace) -> list[report.Row]:
    rows = []
    for case in report.progress(cases(options), True, "sim moshpit"):
        began = time.perf_counter()
        followed = [follow(case, options, restart) for restart in range(options.restarts)]
        courses, changes = zip(*followed)
        longest = max(map(len, courses))
        # Restarts that have ended keep their last error.
        errors = np.mean([c + [c[-1]] * (longest - len(c)) for c in courses], axis=0).tolist()
        # The factor of a round, while no restart is below 1e-9; none if one round is enough.
        rounds = min(rounds_to(c, 1e-9, len(c)) for c in courses) - 1
        shrinks = rounds >= 1 and errors[0] > 0
        reached = {
            name: float(np.mean([rounds_to(c, target, options.rounds) for c in courses]))
            for name, target in TARGETS.items()
        }
        rows.append(
            {
                "peers": case.grid.peers,
                "p": case.p,
                "grid": str(case.grid),
                "method": case.method,
                "keys": case.keys,
                "losses": case.losses,
                **reached,
                "finished": float(np.mean([c[-1] < 1e-9 for c in courses])),
                "rate": (errors[rounds] / errors[0]) ** (1 / rounds) if shrinks else None,
                "mean_error": max(changes),
                "errors": errors,
                "restarts": len(courses),
                "most_rounds": options.rounds,
                "paper_compat": options.paper_compat,
                "seed": options.seed,
                "seconds": time.perf_counter() - began,
            }
        )
    return rows


# In the order of their colors, which are the same in every picture of one grid.
NAMES = {
    ("moshpit", "static"): "Moshpit",
    ("moshpit", "dynamic"): "Moshpit",
    ("allreduce", None): "all-reduce with restarts",
    ("gossip", None): "gossip, ring",
    ("pushsum", None): "push-sum",
    ("random", None): "random groups",
}


def _short(grid: str) -> str:
    """Return 4x4x4x4 as 4^4."""
    sides = grid.split("x")
    return f"{sides[0]}^{len(sides)}" if len(sides) > 2 and len(set(sides)) == 1 else grid


def _panel(axes: Any, rows: list[report.Row], every: list[report.Row]) -> None:
    several = len({row["grid"] for row in every}) > 1
    both = len({row["keys"] for row in every if row["keys"]}) > 1
    for row in rows:
        label = NAMES[row["method"], row["keys"]]
        label += f", {row['keys']} keys" if both and row["keys"] else ""
        label += f", {_short(row['grid'])}" if several else ""
        errors = np.maximum(row["errors"], 1e-16)
        how: dict[str, Any] = {"marker": ".", "markersize": 4, "label": label}
        how["linestyle"] = "-" if row["method"] == "moshpit" else "--"
        if not several:
            how["color"] = f"C{list(NAMES).index((row['method'], row['keys']))}"
        plots.course(axes, [range(len(errors))], [errors], **how)
    axes.set_title(f"{rows[0]['peers']} peers, p = {rows[0]['p']:g}", fontsize=9)
    axes.label_outer()


def plot(rows: list[report.Row], path: str, title: str) -> None:
    """Draw the mean squared error over the rounds: a panel for each number of peers and each p."""
    together: dict[tuple[int, float], list[report.Row]] = {}
    for row in rows:
        together.setdefault((row["peers"], row["p"]), []).append(row)
    chances = len({p for _, p in together})
    sizes = len(together) // chances
    how: dict[str, Any] = {"sharex": True, "sharey": True, "dpi": 130 if len(together) < 8 else 90}
    size = 1.2 + 3.2 * chances, 1.4 + 2.5 * sizes
    with plots.picture(path, title, sizes, chances, size, **how) as panels:
        for axes, here in zip(panels.flat, together.values()):
            _panel(axes, here, rows)
        panels[-1][0].set_xlabel("rounds")
        panels[-1][0].set_ylabel("variance" if rows[0]["paper_compat"] else "squared error")
        plots.legend_below(panels, max(2, chances))


def title(options: SimpleNamespace, rows: list[report.Row]) -> str:
    grids = ", ".join(dict.fromkeys(_short(row["grid"]) for row in rows))
    times = "1 restart" if options.restarts == 1 else f"{options.restarts} restarts"
    return f"grid {grids}, {times}{', as the paper counts' if options.paper_compat else ''}"
