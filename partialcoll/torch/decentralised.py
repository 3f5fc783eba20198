# SPDX-License-Identifier: Apache-2.0
"""Strategies whose ranks have models of their own: local steps, and averages of models.

They hold options. What they stand for are the processes of `partialcoll.processes`, which say more
about each option; `docs/pytorch.md` says which is for what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ClassVar

import numpy as np
from mpi4py import MPI

from .. import _comm, processes
from .. import pairing as pairings
from .._buffers import Array
from .._errors import StateError
from ..allreduce import Allreduce_init
from ..gossip import GossipBuffer
from ..group import GroupAllreduce_init
from ..processes._process import check_count, check_number
from ..quantize import Lattice
from ..topology import Topology
from ._attendance import Attendance, Boundaries, Neighbours, Passing
from .strategies import Strategy, check_clip_norm


@dataclass
class Ground:
    """What a strategy builds on: the ranks, the first model, what is collective, and the inner
    optimizer's learning rate."""

    comm: MPI.Intracomm
    x: Array
    total: processes.Total
    learning_rate: Callable[[int], float]


@dataclass
class Built:
    """A process, how its ranks join, and what has to be freed after it, in order."""

    process: processes.Process
    attendance: Attendance
    owned: list[Any] = field(default_factory=list)
    gossip: processes.Threaded | None = None
    groups: processes.Moshpit | None = None


def _one_of(argument: str, value: Any, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{argument}: expected one of {', '.join(choices)}, got {value!r}")


def _progress(value: Any) -> None:
    if value is not None:
        _one_of("progress", value, _comm.PROGRESS)


def _connected(topology: Any, ranks: int) -> Topology:
    graph = Topology.make(topology, ranks)
    if not graph.is_connected:
        raise ValueError(
            f"topology: expected a connected graph, got {graph!r}: what is not connected never "
            "agrees"
        )
    return graph


def _alone(ground: Ground) -> Built:
    """One rank has nobody to average with: its own steps, to the bit."""
    process = processes.Alone(ground.x, learning_rate=ground.learning_rate, total=ground.total)
    return Built(process, Attendance(ground.total))


class LocalStrategy(Strategy):
    """A strategy whose ranks step by themselves; what travels are models."""

    threaded: ClassVar[bool] = True  # is there a communication thread?

    @property
    def rests(self) -> bool:
        """Is nothing under way between two steps, so that checkpoints can be made there?"""
        return not self.threaded

    def check(self, comm: MPI.Intracomm) -> None:
        """Raises what is wrong with the options on these ranks. Local."""
        check_clip_norm(self.clip_norm)
        if self.threaded and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise StateError(
                f"{type(self).__name__}: its communication thread needs MPI_THREAD_MULTIPLE, and "
                "MPI was initialised with less"
            )
        self._check(comm)

    def _check(self, comm: MPI.Intracomm) -> None:
        raise NotImplementedError

    def build(self, ground: Ground) -> Built:
        """The process and what belongs to it. Collective."""
        raise NotImplementedError

    def describe(self, ranks: int) -> str:
        """All options, in words that are the same on all ranks."""
        topology = getattr(self, "topology", None)
        if topology is None:
            return repr(self)
        graph = Topology.make(topology, ranks)
        named: Any = replace(self, topology=f"{graph} {graph.fingerprint:x}")  # type: ignore[type-var]
        return repr(named)


class _Gossip(LocalStrategy):
    """Ranks that average in pairs over a `GossipBuffer`."""

    topology: Any
    pairing: str
    seed: int
    max_uncollected: int
    progress: str | None
    codec: Lattice | None = None

    def _check(self, comm: MPI.Intracomm) -> None:
        graph = _connected(self.topology, comm.size)
        if graph.directed:
            raise ValueError(f"topology: expected an undirected one, got {graph!r}")
        _one_of("pairing", self.pairing, pairings.NAMES)
        if self.pairing != "available":
            pairings.make(self.pairing, graph, comm.rank, seed=self.seed)
        check_count("max_uncollected", self.max_uncollected)
        _progress(self.progress)
        self._check_more()

    def _check_more(self) -> None:
        pass

    def _buffer(self, ground: Ground) -> GossipBuffer:
        return GossipBuffer(
            ground.comm,
            like=ground.x,
            topology=self.topology,
            codec=self.codec,
            max_uncollected=self.max_uncollected,
            progress=self.progress,
        )

    def _peers(self, buffer: GossipBuffer) -> pairings.Pairing:
        rank, graph = buffer.rank, buffer.topology
        return pairings.make(self.pairing, graph, rank, seed=self.seed, board=buffer.board)

    def build(self, ground: Ground) -> Built:
        """Collective."""
        if ground.comm.size == 1:
            return _alone(ground)
        buffer = self._buffer(ground)
        process = self._process(ground, buffer, self._peers(buffer))
        return Built(process, Attendance(ground.total), [buffer], process)

    def _process(
        self, ground: Ground, buffer: GossipBuffer, peers: pairings.Pairing
    ) -> processes.Threaded:
        raise NotImplementedError


@dataclass(frozen=True)
class ADPSGD(_Gossip):
    """AD-PSGD: each rank steps by itself, and averages with one other rank at a time.

    Parameters
    ----------
    topology : str, networkx graph or Topology
        Who may average with whom; see `partialcoll.Topology.make`.
    rate : float or None
        Averagings per own step that a rank takes part in. None: one after the other without
        pause, which keeps a core busy.
    pairing : "random", "bipartite", "hops" or "available"
        How a rank finds the next one; see `partialcoll.pairing`.
    max_uncollected : int
        Averagings with a rank that it has not taken in yet; more are refused.
    progress : str or None
        Of the buffer, see `partialcoll.GossipBuffer`.
    seed : int
        Of the draws of peers; they differ between ranks.
    clip_norm : float or None
        The local gradient is scaled so that its 2-norm over all parameters is at most this.

    Source: Lian et al., ICML 2018, Algorithm 1.
    """

    topology: Any = "complete"
    rate: float | None = 2.0
    pairing: str = "random"
    max_uncollected: int = 2
    progress: str | None = None
    seed: int = 0
    clip_norm: float | None = None

    def _check_more(self) -> None:
        if self.rate is not None:
            check_number("rate", self.rate, 0)

    def _process(
        self, ground: Ground, buffer: GossipBuffer, peers: pairings.Pairing
    ) -> processes.Threaded:
        return processes.ADPSGD(
            ground.x,
            buffer,
            peers,
            rate=self.rate,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )


@dataclass(frozen=True)
class A2CiD2(_Gossip):
    """A²CiD²: pairwise averages, accelerated by a second model that each rank keeps.

    Parameters
    ----------
    topology : str, networkx graph or Topology
        Who may average with whom. The worse connected it is, the more there is to gain.
    rate : float
        Averagings per own step that a rank takes part in, on average.
    accelerated : bool
        False: the paper's asynchronous baseline.
    poisson : bool
        A Poisson number of averagings for each step, as in the paper; else always the same.
    unit : float or None
        Seconds of a gradient step of an average rank. None: the running mean of the own ones; give
        one if ranks differ much in speed.
    pairing, max_uncollected, progress, seed, clip_norm
        As for `ADPSGD`.

    The second model receives the very step that the inner optimizer made, whatever it is.
    Source: Nabli, Belilovsky, Oyallon, NeurIPS 2023, Algorithm 1.
    """

    topology: Any = "ring"
    rate: float = 1.0
    accelerated: bool = True
    poisson: bool = True
    pairing: str = "random"
    unit: float | None = None
    max_uncollected: int = 2
    progress: str | None = None
    seed: int = 0
    clip_norm: float | None = None

    def _check_more(self) -> None:
        check_number("rate", self.rate, 0)
        if self.unit is not None:
            check_number("unit", self.unit, 0)
            if not self.unit > 0:
                raise ValueError(f"unit: expected seconds above 0, got {self.unit}")

    def _process(
        self, ground: Ground, buffer: GossipBuffer, peers: pairings.Pairing
    ) -> processes.Threaded:
        return processes.A2CiD2(
            ground.x,
            buffer,
            peers,
            accelerated=self.accelerated,
            rate=self.rate,
            poisson=self.poisson,
            unit=self.unit,
            seed=self.seed,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )


@dataclass(frozen=True)
class Swarm(_Gossip):
    """SwarmSGD: local steps, and now and then an average with one other rank, not disturbed.

    Parameters
    ----------
    topology : str, networkx graph or Topology
        Who may average with whom.
    local_steps : int
        H, the steps between two averages.
    geometric : bool
        Draw their number each time, geometric with mean H, as the analysis does.
    variant : "queue" or "registers"
        Differences, of which none is lost, or Algorithm 1 as printed, which loses what two ranks
        write at once.
    codec : partialcoll.Lattice or None
        With one, models travel in few bits: ``pc.Lattice(bits=8)``. What does not decode at these
        bits is read again with more; ``metrics().fallbacks`` counts.
    max_uncollected, progress, seed, clip_norm
        As for `ADPSGD`.

    Source: Nadiradze et al., NeurIPS 2021, Algorithm 1.
    """

    topology: Any = "complete"
    local_steps: int = 4
    geometric: bool = False
    variant: str = "queue"
    codec: Lattice | None = None
    max_uncollected: int = 2
    progress: str | None = None
    seed: int = 0
    clip_norm: float | None = None

    @property
    def pairing(self) -> str:  # type: ignore[override]
        """An interaction needs nobody who is free."""
        return "random"

    def _check_more(self) -> None:
        check_count("local_steps", self.local_steps)
        _one_of("variant", self.variant, ("queue", "registers"))
        if self.codec is not None and not isinstance(self.codec, Lattice):
            raise TypeError(f"codec: expected a Lattice or None, got {self.codec!r}")

    def _process(
        self, ground: Ground, buffer: GossipBuffer, peers: pairings.Pairing
    ) -> processes.Threaded:
        return processes.Swarm(
            ground.x,
            buffer,
            peers,
            local_steps=self.local_steps,
            geometric=self.geometric,
            variant=self.variant,
            seed=self.seed,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )


@dataclass(frozen=True)
class SGP(LocalStrategy):
    """Stochastic gradient push: push-sum over the time-varying directed exponential graph.

    Parameters
    ----------
    rate : float
        Pushes per own step.
    progress, clip_norm
        As for `ADPSGD`.

    Nobody waits: it is the paper's algorithm without lock-step. Source: Assran et al., ICML 2019,
    Algorithm 1.
    """

    rate: float = 1.0
    progress: str | None = None
    clip_norm: float | None = None

    def _check(self, comm: MPI.Intracomm) -> None:
        check_number("rate", self.rate, 0)
        _progress(self.progress)

    def build(self, ground: Ground) -> Built:
        """Collective."""
        if ground.comm.size == 1:
            return _alone(ground)
        buffer = GossipBuffer(
            ground.comm,
            like=processes.SGP.message(ground.x),
            topology="exponential",  # the same edges in both directions
            progress=self.progress,
        )
        process = processes.SGP(
            ground.x,
            buffer,
            rate=self.rate,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )
        return Built(process, Attendance(ground.total), [buffer], process)


@dataclass(frozen=True)
class DPSGD(LocalStrategy):
    """D-PSGD: in lock-step with the neighbours, whose models go into a weighted mean each step.

    Parameters
    ----------
    topology : str, networkx graph or Topology
        Who is whose neighbour. Weights are Metropolis', for any graph.
    clip_norm : float or None
        Of the local gradient.

    The models are sent by `zero_grad`, before forward and backward. Source: Lian et al., NeurIPS
    2017, Algorithm 1.
    """

    topology: Any = "ring"
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    def _check(self, comm: MPI.Intracomm) -> None:
        graph = _connected(self.topology, comm.size)
        if graph.directed or graph.period > 1:
            raise ValueError(
                f"topology: expected an undirected one, always the same, got {graph!r}"
            )

    def build(self, ground: Ground) -> Built:
        """Collective."""
        comm, x = ground.comm, ground.x
        if comm.size == 1:
            return _alone(ground)
        graph = Topology.make(self.topology, comm.size)
        around = [graph.neighbours(rank) for rank in range(comm.size)]
        mine = around[comm.rank]
        models = processes.NeighbourExchange(comm, x, mine)
        flags = processes.NeighbourExchange(comm, np.zeros(1), mine)
        process = processes.DPSGD(
            x,
            models,
            processes.metropolis(around, comm.rank),
            comm.rank,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )
        attendance = Neighbours(ground.total, flags, comm.size)
        return Built(process, attendance, [models, flags])


@dataclass(frozen=True)
class LocalSGD(LocalStrategy):
    """Local SGD: every rank by itself, and the mean of all models every H steps.

    Parameters
    ----------
    local_steps : int
        H.
    clip_norm : float or None
        Of the local gradient.

    Source: Stich, ICLR 2019, Algorithm 1.
    """

    local_steps: int = 4
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    def _check(self, comm: MPI.Intracomm) -> None:
        check_count("local_steps", self.local_steps)

    def build(self, ground: Ground) -> Built:
        """Collective."""
        handle = Allreduce_init(ground.comm, None, None, like=ground.x, quorum="full", history=1)
        process = processes.LocalSGD(
            ground.x,
            handle,
            local_steps=self.local_steps,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )
        attendance = Boundaries(ground.total, self.local_steps, ground.comm.size)
        return Built(process, attendance, [handle])


@dataclass(frozen=True)
class Moshpit(LocalStrategy):
    """Moshpit SGD: local steps, then the average of a small group, another one each time.

    Parameters
    ----------
    grid : tuple of int or "auto"
        Sides of the grid whose lines are the groups; see `partialcoll.GroupAllreduce_init`.
    local_steps : int
        The period: every so many steps the group's average is taken.
    average : "parameters" or "pseudo-gradients"
        What becomes of the average; see `partialcoll.processes.Moshpit`.
    outer_learning_rate, outer_momentum : float
        With "pseudo-gradients", of the step that is made of the average.
    rounds : int
        Averages, along one axis after the other, at each boundary.
    overlap : bool
        Take an average in at the boundary after the one at which it began.
    timeout : float or None
        Seconds after which a silent rank is not waited for any more.
    bandwidth : float, "measured" or None
        Of this rank's link; may differ between ranks.
    clip_norm : float or None
        Of the local gradient.

    The only one with `leave` and `rejoin`. Source: Ryabinin et al., NeurIPS 2021, Algorithm 2.
    """

    grid: Any = "auto"
    local_steps: int = 1
    average: str = "parameters"
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    rounds: int = 1
    overlap: bool = False
    timeout: float | None = None
    bandwidth: Any = field(default=None, repr=False)
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    @property
    def rests(self) -> bool:
        """Not with overlap, where a round is under way."""
        return not self.overlap

    def _check(self, comm: MPI.Intracomm) -> None:
        check_count("local_steps", self.local_steps)
        check_count("rounds", self.rounds)
        if self.overlap and self.rounds > 1:
            raise ValueError(f"rounds: expected 1 with overlap, got {self.rounds}")
        _one_of("average", self.average, ("parameters", "pseudo-gradients"))
        check_number("outer_learning_rate", self.outer_learning_rate, 0)
        check_number("outer_momentum", self.outer_momentum, 0, 1)
        outer = (self.outer_learning_rate, self.outer_momentum)
        if self.average == "parameters" and outer != (1.0, 0.0):
            raise ValueError(
                "outer_learning_rate, outer_momentum: expected average='pseudo-gradients' with them"
            )

    def build(self, ground: Ground) -> Built:
        """Collective."""
        groups = GroupAllreduce_init(
            ground.comm,
            np.empty_like(ground.x),
            np.empty_like(ground.x),
            grid=self.grid,
            bandwidth=self.bandwidth,
            timeout=self.timeout,
        )
        process = processes.Moshpit(
            ground.x,
            groups,
            local_steps=self.local_steps,
            average=self.average,
            outer_learning_rate=self.outer_learning_rate,
            outer_momentum=self.outer_momentum,
            rounds=self.rounds,
            overlap=self.overlap,
            learning_rate=ground.learning_rate,
            total=ground.total,
        )
        return Built(process, Passing(ground.total, process), [groups], groups=process)


@dataclass(frozen=True)
class SlowMo(LocalStrategy):
    """Slow momentum around any of these: every tau steps the exact average of all ranks' models,
    and an outer step with momentum from where the last one ended.

    Parameters
    ----------
    inner : LocalStrategy
        `LocalSGD(...)`, `SGP()`, ...
    tau : int
        Steps between two outer ones, each of which waits for all ranks.
    beta : float
        Slow momentum, from 0 to 1.
    alpha : float
        Slow learning rate; the paper's experiments have 1.

    The learning rate in the algorithm is that of the inner optimizer's first group. Source: Wang
    et al., ICLR 2020, Algorithm 1.
    """

    inner: LocalStrategy
    tau: int = 12
    beta: float = 0.7
    alpha: float = 1.0

    @property
    def clip_norm(self) -> float | None:  # type: ignore[override]
        """The inner strategy's."""
        return self.inner.clip_norm

    @property
    def threaded(self) -> bool:  # type: ignore[override]
        """Has the inner strategy a communication thread?"""
        return self.inner.threaded

    @property
    def rests(self) -> bool:
        """As the inner strategy."""
        return self.inner.rests

    def __post_init__(self) -> None:
        if not isinstance(self.inner, LocalStrategy) or isinstance(self.inner, SlowMo):
            raise TypeError(
                "inner: expected one of the decentralised strategies, such as LocalSGD() or SGP(), "
                f"got {self.inner!r}"
            )

    def describe(self, ranks: int) -> str:
        """With the inner strategy's."""
        return f"SlowMo({self.inner.describe(ranks)}, {self.tau}, {self.beta}, {self.alpha})"

    def _check(self, comm: MPI.Intracomm) -> None:
        self.inner.check(comm)
        check_count("tau", self.tau)
        check_number("beta", self.beta, 0, 1)
        check_number("alpha", self.alpha, 0)

    def build(self, ground: Ground) -> Built:
        """Collective."""
        built = self.inner.build(ground)
        process = processes.SlowMo(built.process, tau=self.tau, beta=self.beta, alpha=self.alpha)
        attendance = Boundaries(ground.total, self.tau, ground.comm.size)
        return Built(process, attendance, built.owned, built.gossip)
