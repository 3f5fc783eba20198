# SPDX-License-Identifier: Apache-2.0
"""A strategy: a dataclass of options that checks them and builds the process over the ranks of a
communicator. Each algorithm's strategy is beside its process, and `strategies` lists them all.

docs/decentralized.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from .._core import checks, communicator
from .._core.mpi import MPI
from ..collectives.allreduce import Allreduce_init
from ..collectives.gossip import GossipBuffer
from ..collectives.group import GroupAllreduce_init
from ..errors import StateError
from ..topology import pairing as pairings
from ..topology.topology import Topology, connected
from .decoupled import Threaded
from .process import (
    Alone,
    Array,
    GlobalSum,
    GroupReduction,
    JoinHook,
    LearningRate,
    NeighborExchange,
    Process,
    Reduction,
)


@dataclass
class Setup:
    """A `process`, the `join` of its ranks, and what is `owned`: freed after it, the last first."""

    process: Process
    join: JoinHook = field(default_factory=JoinHook)
    owned: list[Any] = field(default_factory=list)


class Strategy:
    """Base of what `partialcoll.torch.DistributedOptimizer` takes as strategy. A strategy holds
    options, nothing else: one may serve many optimizers."""

    clip_norm: float | None
    """The largest 2-norm over all parameters of a gradient: a longer one is scaled."""

    on_failure: str = "raise"

    non_finite: ClassVar[str] = "propagate"
    """The default treatment of a local gradient with NaN or infinities."""

    @property
    def takes_sparse(self) -> bool:
        """Whether embedding gradients may be sparse without ``sparse_as_dense=True``."""
        return False

    def check(self, comm: MPI.Intracomm) -> None:
        """Raise if an option is wrong on the ranks of `comm`. Local."""

    def describe(self, ranks: int) -> str:
        """Return all options as a text that is the same on all of `ranks` ranks."""
        return repr(self)


class LocalStrategy(Strategy):
    """Base of the strategies whose ranks step by themselves, each with a model; they exchange
    models. A subclass is a frozen dataclass of options, with ``clip_norm``, and builds its process
    (`build`). Its ``repr`` is compared between ranks and kept in checkpoints."""

    non_finite: ClassVar[str] = "skip"  # other ranks' models would keep it

    threaded: ClassVar[bool] = True
    """Whether the process has a communication thread."""

    @property
    def rests(self) -> bool:
        """Whether all communication ends before a step returns, so that checkpoints can be made."""
        return not self.threaded

    def check(self, comm: MPI.Intracomm) -> None:
        check_clip_norm(self.clip_norm)
        if self.threaded and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise StateError(
                f"{type(self).__name__}: its communication thread needs MPI_THREAD_MULTIPLE, and "
                "MPI was initialized with less"
            )
        self.check_values()

    def check_values(self) -> None:
        """Raise if an option is wrong on any ranks. Local."""

    def build(
        self, x: Array, comm: MPI.Intracomm, *, learning_rate: LearningRate, total: GlobalSum
    ) -> Setup:
        """Return the process that starts with `x`, on the ranks of `comm` (`Ranks`, or simulated
        ones), and what belongs to it. The ``common`` options `learning_rate` and `total`: see
        `Process`. Collective, after `check`."""
        raise NotImplementedError

    def describe(self, ranks: int) -> str:
        topology = getattr(self, "topology", None)
        if topology is None:
            return repr(self)
        graph = Topology.make(topology, ranks)
        named: Any = replace(self, topology=f"{graph} {graph.fingerprint:x}")  # type: ignore[type-var]
        return repr(named)


def check_clip_norm(clip_norm: Any) -> None:
    if clip_norm is None:
        return
    if not checks.real("clip_norm", clip_norm, what="a number or None") > 0:
        raise ValueError(f"clip_norm: expected a norm above 0, got {clip_norm}")


class Ranks:
    """The communication of processes under MPI. The simulator has one with the same methods."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm

    def gossip(self, like: Array, **options: Any) -> GossipBuffer:
        """Create a `GossipBuffer`. Collective, as the other methods."""
        return GossipBuffer(self.comm, like=like, **options)

    def peers(self, name: str, buffer: GossipBuffer, seed: int = 0) -> pairings.Pairing:
        """Return the pairing of this name for the ranks of a buffer. Local."""
        graph, rank = buffer.topology, buffer.rank
        return pairings.make(name, graph, rank, seed=seed, board=buffer.board)

    def neighbors(self, like: Array, ranks: Iterable[int]) -> NeighborExchange:
        """Create an exchange with these neighbors."""
        return NeighborExchange(self.comm, like, ranks)

    def reduction(self, like: Array) -> Reduction:
        """Create a full allreduce."""
        return Allreduce_init(self.comm, None, None, like=like, quorum="full", history=1)

    def groups(self, like: Array, **options: Any) -> GroupReduction:
        """Create a grouped allreduce."""
        buffers = np.empty_like(like), np.empty_like(like)
        return GroupAllreduce_init(self.comm, *buffers, **options)


def over(comm: Any) -> Any:
    """Return the `Ranks` of a communicator; simulated ranks as they are."""
    return comm if hasattr(comm, "gossip") else Ranks(comm)  # loads no MPI for these


def check_progress(progress: Any) -> None:
    if progress is not None:
        checks.one_of("progress", progress, communicator.PROGRESS)


@dataclass(frozen=True)
class GossipStrategy(LocalStrategy):
    """Base of the strategies whose ranks average in pairs over a `GossipBuffer`, with the options
    that these have in common.

    `topology` (str, networkx graph or Topology): who may average with whom; see
    `partialcoll.Topology.make`. `seed`: of what a rank draws, such as its peers; the draws differ
    between ranks. `max_uncollected`: averagings with a rank that it has not taken in yet; more are
    refused. `clip_norm` (float or None): the local gradient is scaled so that its 2-norm over all
    parameters is at most this. `progress`, `on_failure`, `on_disconnect`: of the buffer, see
    `partialcoll.GossipBuffer`. With "continue" steps go on when a rank dies; averages over all
    ranks, and joining, go on if the `GlobalSum` does.
    """

    topology: Any = "complete"
    max_uncollected: int = 2
    progress: str | None = None
    seed: int = 0
    clip_norm: float | None = None
    on_failure: str = field(default="raise", repr=False)
    on_disconnect: str = field(default="raise", repr=False)

    def check(self, comm: MPI.Intracomm) -> None:
        super().check(comm)
        graph = connected(self.topology, comm.size)
        if graph.directed:
            raise ValueError(f"topology: expected an undirected one, got {graph!r}")
        pairing = checks.one_of("pairing", self._pairing(), pairings.NAMES)
        if pairing != "available":
            pairings.make(pairing, graph, comm.rank, seed=self.seed)
        checks.count("max_uncollected", self.max_uncollected)
        check_progress(self.progress)

    def _pairing(self) -> str:
        return getattr(self, "pairing", "random")

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        if comm.size == 1:
            return Setup(Alone(x, **common))
        ranks, names = over(comm), ("max_uncollected", "progress", "on_failure", "on_disconnect")
        options = {name: getattr(self, name) for name in names}
        codec = getattr(self, "codec", None)
        buffer = ranks.gossip(x, topology=self.topology, codec=codec, **options)
        peers = ranks.peers(self._pairing(), buffer, self.seed)
        return Setup(self.process(x, buffer, peers, **common), owned=[buffer])

    def process(
        self, x: Array, exchange: GossipBuffer, peers: pairings.Pairing, **common: Any
    ) -> Threaded:
        """Return the process that starts with `x`, over the buffer `exchange` with these `peers`;
        `common` are ``learning_rate`` and ``total``. See `Decoupled`."""
        raise NotImplementedError
