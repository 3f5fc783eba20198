# SPDX-License-Identifier: Apache-2.0
"""Decentralized optimization in virtual time: the classes of `partialcoll.decentralized`, as they
are, on any number of simulated ranks.

Time is counted in gradient steps of an ordinary rank. Sources of the methods: see their modules;
of the comparison of A²CiD² with its baseline on a ring, Nabli et al., NeurIPS 2023, section 4.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable, cast

import numpy as np
from numpy.typing import NDArray

from ...codec import Lattice
from ...decentralized import AllreduceSGD, GlobalSum, GossipStrategy, LocalStrategy, SlowMo
from ...decentralized.process import Process, Steps
from ...decentralized.strategies import NAMED
from ...topology import Topology, pairing
from .. import plots, report
from ..bench.train.strategies import SIMULATED
from .simulated import (
    Events,
    SimulatedBuffer,
    buffers,
    group_reductions,
    latencies,
    neighbor_exchanges,
    reductions,
)

Floats = NDArray[np.float64]


class SimulatedTask:
    """The mean over the ranks of f_i. They are 0 here: ranks begin apart, N(0, 1) in each
    coordinate, and only have to agree."""

    optimum: Floats | None = None
    least: float | None = None  # the mean of the f_i at the optimum

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first: Floats = random.standard_normal((ranks, dim))

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        return np.zeros(len(x))

    def loss(self, x: Any) -> float | None:
        """Return the mean of all f_i at x; None if there is nothing to optimize."""
        return None


class Quadratic(SimulatedTask):
    """f_i(x) = sum_k a_ik (x_k - b_ik)^2 / 2 with a from 0.2 to 1 and b ~ N(0, 1), each rank its
    own; gradients have noise N(0, noise^2) in each coordinate. All begin at 0."""

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = np.zeros((ranks, dim))
        self._a = random.uniform(0.2, 1.0, (ranks, dim))
        self._b = random.standard_normal((ranks, dim))
        self._noise = noise
        self.optimum = (self._a * self._b).sum(axis=0) / self._a.sum(axis=0)
        self.least = self.loss(self.optimum)

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        exact: Floats = self._a[rank] * (x - self._b[rank])
        return exact + self._noise * random.standard_normal(len(x)) if self._noise else exact

    def loss(self, x: Any) -> float:
        return float(0.5 * np.mean(np.sum(self._a * (x - self._b) ** 2, axis=1)))


class Logistic(SimulatedTask):
    """Logistic regression, regularized: each rank has 64 samples, their classes and centers
    different from rank to rank; gradients are of 8 drawn samples (all of them without noise).
    All begin at 0."""

    SAMPLES, BATCH, RIDGE = 64, 8, 1e-2

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = np.zeros((ranks, dim))
        center = 0.5 * random.standard_normal((ranks, 1, dim))
        self._inputs = center + random.standard_normal((ranks, self.SAMPLES, dim))
        truth = random.standard_normal(dim) / np.sqrt(dim)
        shift = 0.5 * random.standard_normal((ranks, 1))
        odds = self._inputs @ truth * 2 + shift
        self._signs = np.where(random.random(odds.shape) < 1 / (1 + np.exp(-odds)), 1.0, -1.0)
        self._whole = noise == 0
        self.optimum = self._newton(dim)
        self.least = self.loss(self.optimum)

    @staticmethod
    def _slope(margins: Floats) -> Floats:
        """Return minus the derivative of log(1 + exp(-margin))."""
        result: Floats = 0.5 * (1 - np.tanh(margins / 2))
        return result

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        inputs, signs = self._inputs[rank], self._signs[rank]
        if not self._whole:
            batch = random.integers(self.SAMPLES, size=self.BATCH)
            inputs, signs = inputs[batch], signs[batch]
        weights = signs * self._slope(signs * (inputs @ x))
        return np.asarray(self.RIDGE * x - weights @ inputs / len(signs), np.float64)

    def loss(self, x: Any) -> float:
        margins = self._signs * (self._inputs @ x)
        return float(np.mean(np.logaddexp(0, -margins)) + 0.5 * self.RIDGE * (x @ x))

    def _newton(self, dim: int) -> Floats:
        """Return the optimum by Newton's method, halving steps that do not descend."""
        x = np.zeros(dim)
        inputs, signs = self._inputs.reshape(-1, dim), self._signs.ravel()
        for _ in range(100):
            slope = self._slope(signs * (inputs @ x))
            gradient = self.RIDGE * x - (signs * slope) @ inputs / len(signs)
            if np.linalg.norm(gradient) < 1e-13:
                break
            curvature = (inputs.T * (slope * (1 - slope))) @ inputs / len(signs)
            step = np.linalg.solve(curvature + self.RIDGE * np.eye(dim), gradient)
            scale = 1.0
            while self.loss(x - scale * step) > self.loss(x) and scale > 1e-6:
                scale /= 2
            x = x - scale * step
        return x


TASKS: dict[str, Any] = {"consensus": SimulatedTask, "quadratic": Quadratic, "logistic": Logistic}


# The communication thread polls for events and contributions after this time.
NAP = 0.01


class SimulatedRank:
    """One rank that takes gradient steps without end. The process is not started: its communication
    events are called for here. `step_time` draws how long the next gradient takes, `transfer` how
    long a communication event takes."""

    def __init__(
        self,
        rank: int,
        process: Process,
        task: SimulatedTask,
        events: Events,
        step_time: Callable[[], float],
        transfer: Callable[[], float],
        random: np.random.Generator,
    ) -> None:
        self.process = process
        self._rank, self._task, self._events = rank, task, events
        self._step_time, self._transfer, self._random = step_time, transfer, random
        self._looks = False  # a poll of the communication thread is scheduled,
        self._look_at = 0.0  # at this time
        self.still = (0.0, 0.0)  # when it is suspended, from and until

    def _put_off(self, action: Callable[[], None]) -> bool:
        """Return whether this rank is suspended; if so, run the action afterwards."""
        begin, end = self.still
        still = begin <= self._events.now < end
        if still:
            self._events.after(end - self._events.now, action)
        return still

    def begin(self) -> None:
        self._events.after(self._step_time(), self._finish)

    def _finish(self) -> None:
        if self._put_off(self._finish):
            return
        gradient = self._task.gradient(self._rank, self.process.model, self._random)
        update = (-self.process.learning_rate * gradient).astype(self.process.model.dtype)
        self._advance(self.process.advancing(update))

    def _advance(self, steps: Steps[None]) -> None:
        """Run to the next wait, and continue when what it waits for is complete."""
        try:
            awaited = next(steps)
        except StopIteration:
            self.look()
            self.begin()
            return
        awaited.then(lambda: self._advance(steps))

    def look(self, delay: float = NAP) -> None:
        """Let the communication thread run soon, as there may be work for it."""
        at = self._events.now + delay
        if not self._looks or at < self._look_at:
            self._looks, self._look_at = True, at
            self._events.after(delay, self._communicate)

    def _communicate(self) -> None:
        if not self._looks or self._events.now < self._look_at:
            return  # a later call of look() has polled already
        if self._put_off(self._communicate):
            return
        self._looks = False
        did = self.process.communicate()
        due = self.process.next_event()
        if due is not None:
            self.look(due + (self._transfer() if did else 0) or NAP)


COLUMNS = report.columns(
    "method topology ranks rate seed time communications consensus loss excess steps steps_slow "
    "skipped"
)


class Scarce:
    """A peer source that finds a peer only in a part of the calls, which may change over time. It
    has no `poll`: a rank that waits to be found is another case."""

    def __init__(
        self, peers: pairing.Pairing, part: Callable[[], float], random: np.random.Generator
    ) -> None:
        self._peers, self._part, self._random = peers, part, random

    @property
    def active(self) -> float:
        """Return how many of its averagings this rank begins, as `Decoupled` does."""
        return float(getattr(self._peers, "active", 0.5))

    def next_peer(self) -> int | None:
        peer = self._peers.next_peer()
        return peer if self._random.random() < self._part() else None


@dataclass
class SimulatedRanks:
    """The communication of one rank's simulated process, with the methods of
    `decentralized.strategy.Ranks`. The first rank that asks for an object creates it for all."""

    options: SimpleNamespace
    topology: Topology
    rate: float
    seed: int
    events: Events
    latency: Callable[[], float]
    rank: int = 0
    created: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size, self._asked = self.topology.n, 0

    def _own(self, create: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if len(self.created) == self._asked:
            self.created.append(create(*arguments, **named))
        self._asked += 1
        return self.created[self._asked - 1][self.rank]

    def gossip(self, like: Any, *, queue_slots: int = 4, **options: Any) -> Any:
        given = {"bits": self.options.codec_bits, "margin": self.options.codec_margin}
        known: Any = {name: value for name, value in given.items() if value is not None}
        codec = Lattice(**known) if "bits" in known and "codec" in options else None
        where = (self.topology, self.events, self.latency)
        return self._own(buffers, like, *where, codec=codec, queue_slots=queue_slots)

    def peers(self, name: str, buffer: SimulatedBuffer, seed: int | None = None) -> Any:
        """Return the peers; drawn ones for pushes on a topology that is not exponential."""
        if seed is None:
            try:
                return pairing.Hops(self.topology, self.rank)
            except ValueError:
                return pairing.Random(self.topology, self.rank, seed=self.seed)
        peers = pairing.make(name, self.topology, self.rank, seed=seed, board=buffer.board)
        parts, time = self.options.achieved, max(self.options.time, 1e-300)
        if min(parts) == 1:
            return peers

        def achieved() -> float:
            """Return which part of the averagings that are asked for happens now."""
            return float(parts[min(len(parts) - 1, int(self.events.now / time * len(parts)))])

        return Scarce(peers, achieved, np.random.default_rng((seed, 6, self.rank)))

    def neighbors(self, like: Any, ranks: Any) -> Any:
        return self._own(neighbor_exchanges, self.topology, like, self.events, self.latency)

    def reduction(self, like: Any) -> Any:
        return self._own(reductions, self.size, like, self.events, self.options.latency, self.seed)

    def groups(self, like: Any, *, grid: Any, **options: Any) -> Any:
        how = (self.events, self.options.latency, self.options.window, self.seed)
        return self._own(group_reductions, self.size, grid, like, *how)

    def strategy(self, method: str) -> LocalStrategy:
        options, make = self.options, NAMED[SIMULATED[method]]
        # Steps between two interactions that a rank begins; the rate counts all that it is in.
        steps = options.local_steps or max(1, round(2 / self.rate))
        given = {"topology": self.topology, "rate": self.rate, "seed": self.seed, "unit": 1.0}
        given.update(pairing=options.pairing, grid=options.grid, local_steps=steps)
        default: Any = make()
        known = {field.name for field in fields(getattr(default, "inner", default))}
        strategy = make(**{name: value for name, value in given.items() if name in known})
        return replace(strategy, tau=4 * steps) if isinstance(strategy, SlowMo) else strategy

    def build(self, strategy: LocalStrategy | None, x: Any) -> Process:
        rate, ranks = self.options.learning_rate, cast("Any", self)
        if strategy is None:
            return AllreduceSGD(x, self.reduction(x), learning_rate=rate)
        total: Any = None
        if isinstance(strategy, SlowMo):
            total = GlobalSum(self.reduction(np.zeros(x.size + 1)))
        return strategy.build(x, ranks, learning_rate=rate, total=total).process


class GossipRun:
    def __init__(
        self, options: SimpleNamespace, method: str, topology: Topology, rate: float, seed: int
    ) -> None:
        ranks = topology.n
        # The task is the same for all methods. The other draws differ between methods, except that
        # both variants of A²CiD² and their baseline share them: these differ in nothing else.
        same = {"a2cid2-paper": "a2cid2", "baseline": "a2cid2"}
        name = zlib.crc32(same.get(method, method).encode())
        self.task: SimulatedTask = TASKS[options.task](
            ranks, options.dim, options.noise, np.random.default_rng((seed, 1))
        )
        self.events = Events()
        latency = latencies(options.latency, (seed, 2, name))
        self._options, self._method = options, method
        self._topology, self._rate, self._seed = topology, rate, seed
        self._buffers: list[SimulatedBuffer] = []
        world = SimulatedRanks(options, topology, rate, seed, self.events, latency)
        strategy = None if method == "allreduce" else world.strategy(method)
        # Ranks that a communication counts for.
        self._weight = 2 if isinstance(strategy, GossipStrategy) else 1
        self.processes = [
            replace(world, rank=rank).build(strategy, x) for rank, x in enumerate(self.task.first)
        ]
        phases = np.random.default_rng((seed, 3)).random(ranks)
        self.ranks = []
        for i, (process, phase) in enumerate(zip(self.processes, phases)):
            random = np.random.default_rng((seed, 4, i, name))
            mean = options.slow if i == 0 else 1.0
            step_time = partial(float, mean)
            if options.step_times == "exponential":
                step_time = partial(np.random.default_rng((seed, 5, i)).exponential, mean)
            rank = SimulatedRank(i, process, self.task, self.events, step_time, latency, random)
            exchange = getattr(process, "_exchange", None)
            if isinstance(exchange, SimulatedBuffer):
                exchange.on_arrival = rank.look
                self._buffers.append(exchange)
            self.events.after(float(phase), rank.begin)
            self.ranks.append(rank)
        self.ranks[0].still = options.time / 3, options.time / 3 + options.stopped

    def row(self) -> report.Row:
        models = np.array([process.model for process in self.processes])
        mean = models.mean(axis=0)
        counts = [process.stats for process in self.processes]
        steps = [count.steps for count in counts]

        def average(name: str) -> float:
            return float(np.mean([getattr(count, name) for count in counts]))

        some = models[:: max(1, len(models) // 16)]
        losses = [self.task.loss(x) for x in some]
        loss = None if self.task.least is None else float(np.mean([x for x in losses if x]))
        least = self.task.least
        # Blocks that were read, and those that did not decode at the codec's bits.
        stats = [each.stats for each in self._buffers]
        blocks = sum(each.reads + each.averages for each in stats)
        blocks *= math.ceil(self.task.first.shape[1] / Lattice.BLOCK)
        again = sum(each.fallbacks for each in stats)
        return {
            "method": self._method,
            "topology": self._topology.text,
            "ranks": self._topology.n,
            "rate": self._rate,
            "communications": self._weight * average("communications"),
            "consensus": float(np.sqrt(np.mean(np.sum((models - mean) ** 2, axis=1)))),
            "loss": loss,
            "excess": None if loss is None or least is None else loss - least,
            "loss_of_mean": self.task.loss(mean),
            "time": self.events.now,
            "steps": float(np.median(steps[1:] or steps)),
            "steps_slow": steps[0],
            "skipped": average("skipped"),
            **{n: self._weight * average(n) for n in ("asked", "achieved", "given_up")},
            "task": self._options.task,
            "slow": self._options.slow,
            "codec_bits": self._options.codec_bits,
            "read_again": again / blocks if self._options.codec_bits and blocks else None,
            "seed": self._seed,
        }

    def rows(self) -> list[report.Row]:
        rows = [self.row()]
        for until in np.linspace(0, self._options.time, self._options.samples + 1)[1:]:
            self.events.run(float(until))
            rows.append(self.row())
        return rows


def run(options: SimpleNamespace) -> list[report.Row]:
    if options.pairing == "available" and min(options.achieved) < 1:
        raise ValueError("--achieved: not with the pairing available, got both")
    topologies = [Topology.make(text, options.ranks) for text in options.topology]
    for topology in topologies:
        if not topology.is_connected:
            raise ValueError(f"--topology: expected a connected one, got {topology.text}")
    runs = [
        (method, topology, rate, seed)
        for topology in topologies
        for rate in options.rate
        for seed in range(options.seed, options.seed + options.seeds)
        for method in options.methods
    ]
    rows = []
    for method, topology, rate, seed in report.progress(runs, True, "sim gossip"):
        rows += GossipRun(options, method, topology, rate, seed).rows()
    return rows


def last(rows: list[report.Row]) -> list[report.Row]:
    ends = {(row["method"], row["topology"], row["rate"], row["seed"]): row for row in rows}
    return list(ends.values())


_NAMES = {
    "time": "time (gradient steps of an ordinary rank)",
    "communications": "communications per rank",
    "consensus": "consensus distance",
    "excess": "loss above the least, mean over ranks",
}


def plot(rows: list[report.Row], path: str, title: str) -> None:
    """Draw consensus distance over time and over communications, and the loss where there is one;
    the geometric mean over the seeds."""
    # The runs under their names in the picture, one run for each seed.
    several = {key for key in ("topology", "rate") if len({row[key] for row in rows}) > 1}
    curves: dict[str, dict[int, list[report.Row]]] = {}
    for row in rows:
        label = row["method"] + (f", {row['topology']}" if "topology" in several else "")
        label += f", rate {row['rate']:g}" if "rate" in several else ""
        curves.setdefault(label, {}).setdefault(row["seed"], []).append(row)
    axes_of = [("time", "consensus"), ("communications", "consensus")]
    if any(row["excess"] is not None for row in rows):
        axes_of.append(("time", "excess"))
    size = 4.4 * len(axes_of), 3.8
    with plots.picture(path, title, columns=len(axes_of), size=size) as panels:
        for axes, (x, y) in zip(panels.flat, axes_of):
            rounding = 1e-9 * max(row[y] for row in rows)
            for label, seeds in curves.items():
                runs = seeds.values()
                along, values = ([[row[name] for row in run] for run in runs] for name in (x, y))
                plots.course(axes, along, values, rounding, label=label)
            axes.set_xlabel(_NAMES[x])
            axes.set_ylabel(_NAMES[y])
        plots.legend_below(panels, 6)


def title(options: SimpleNamespace, rows: list[report.Row]) -> str:
    slow = f", one {options.slow:g} times slower" if options.slow != 1 else ""
    return f"{options.ranks} ranks{slow}, {', '.join(options.topology)}: {options.task}"
