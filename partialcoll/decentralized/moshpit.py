# SPDX-License-Identifier: Apache-2.0
"""Moshpit SGD: local steps, and now and then the average of a small group, another one each time.

Source: Ryabinin, Gorbunov, Plokhotnyuk, Pekhimenko, "Moshpit SGD: Communication-Efficient
Decentralized Training on Heterogeneous Unreliable Devices", NeurIPS 2021, Algorithm 2; for
pseudo-gradients section 4.3 and Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

The groups are lines of a grid, along one axis after the other: after as many rounds as there are
axes everybody's model is in everybody's. A group forms in the background while local steps are
taken. Who is away or silent is not waited for; a group that loses a member in the middle keeps what
it had (a void round), and meets others the next time.

With overlap a round begins at one boundary and its result is taken in at the next, as a difference:
x += mean - (x at the start). So no local step is lost, and the sum over the group changes by
updates only.

Whoever has missed many rounds (stopped, or much slower than the others) would pull its group back
to where the others were long ago. The paper has such a peer load the state of one that is up to
date (appendix F); here it does so by itself before it averages again, given a `StateExchange`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from .._core.settings import logger
from ..collectives.state_exchange import StateExchange
from .decoupled import Sharing
from .process import Array, GlobalSum, GroupReduction, JoinHook, Process, Steps, check_like, drive
from .strategy import LocalStrategy, Setup, over

_CATCH_UP, _NAP = 0.1, 1e-3  # seconds that an agent gets to hear where the others are


@dataclass(frozen=True)
class Moshpit(LocalStrategy):
    """Moshpit SGD: local steps, then the average of a small group, another one each time. The only
    strategy with `leave` and `rejoin`. Source: Ryabinin et al., NeurIPS 2021, Algorithm 2.

    `grid` (tuple of int or "auto"): sides of the grid whose lines are the groups; see
    `partialcoll.GroupAllreduce_init`. `local_steps`: tau, local steps between two averages of the
    group. The step that ends with an average is called a boundary. `rounds`: rounds at a boundary,
    one after the other. As many rounds as the grid has axes give the exact average of a full grid.
    1 with overlap. `overlap`: add the change by one boundary's average at the next boundary.

    `average`: "parameters", the model becomes the average, or "pseudo-gradients": the anchor (the
    model after the last averaging) minus the average is the gradient of an outer step from the
    anchor. Ranks exchange parameters in both cases, because averaging only changes would never
    remove differences that exist already. `outer_learning_rate`, `outer_momentum` (float): rate and
    momentum of the outer step: u = momentum·u + pseudo-gradient, x = anchor - rate·u. With 1 and 0
    the model becomes the average.

    `timeout` (float or None): seconds after which a silent rank is not waited for any more.
    `stale_after` (int or None): number of missed rounds after which the rank takes a peer's state
    and drops its own steps, before it averages again. None: it averages its own model. `bandwidth`
    (float, "measured" or None): speed of this rank's link, in any unit. Give it on all ranks or on
    none. `clip_norm`: as for `GossipStrategy`. `on_failure`: of the groups, see
    `partialcoll.GroupAllreduce_init`; and as for `GossipStrategy`.
    """

    grid: Any = "auto"
    local_steps: int = 1
    average: str = "parameters"
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    rounds: int = 1
    overlap: bool = False
    timeout: float | None = None
    stale_after: int | None = 10
    bandwidth: Any = field(default=None, repr=False)
    clip_norm: float | None = None
    on_failure: str = field(default="raise", repr=False)

    threaded: ClassVar[bool] = False

    @property
    def rests(self) -> bool:
        """Return False with overlap, where a round is always in progress."""
        return not self.overlap

    def check_values(self) -> None:
        checks.count("local_steps", self.local_steps)
        checks.count("rounds", self.rounds)
        if self.overlap and self.rounds > 1:
            raise ValueError(f"rounds: expected 1 with overlap, got {self.rounds}")
        checks.one_of("average", self.average, ("parameters", "pseudo-gradients"))
        if self.stale_after is not None:
            checks.count("stale_after", self.stale_after)
        checks.number("outer_learning_rate", self.outer_learning_rate, 0)
        checks.number("outer_momentum", self.outer_momentum, 0, 1)
        outer = (self.outer_learning_rate, self.outer_momentum)
        if self.average == "parameters" and outer != (1.0, 0.0):
            raise ValueError(
                "outer_learning_rate, outer_momentum: expected average='pseudo-gradients' with "
                f"them, got {self.average!r}"
            )

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        names = ("grid", "bandwidth", "timeout", "on_failure")
        groups = over(comm).groups(x, **{name: getattr(self, name) for name in names})
        process = MoshpitProcess(x, groups, **common, **vars(self))
        return Setup(process, GroupJoin(common["total"], process), [groups])


class MoshpitProcess(Sharing):
    """One rank of Moshpit SGD.

    `x`: see `Process`. `handle`: ``GroupAllreduce_init(comm, np.empty_like(x), np.empty_like(x),
    grid=...)``. `exchange`, a `StateExchange` or None, serves this rank's state at every step, and
    gets that of a peer in `rejoin` and `resync`, and when `stale_after` says so. `common`:
    ``learning_rate`` and ``total``, see `Process`, and the options of `Moshpit`.

    ``stats``: `communications` are rounds that were not void, `skipped` void ones, `received`
    models of others that are in the averages, `resyncs` states taken for having missed too much.
    Memory: one more vector for pseudo-gradients, two with momentum.
    """

    options_type = Moshpit

    def __init__(
        self, x: Array, handle: GroupReduction, exchange: StateExchange | None = None, **common: Any
    ) -> None:
        super().__init__(x, **common)
        check_like("handle: expected a send_buffer", handle.send_buffer, self._x)
        check_like("handle: expected a recv_buffer", handle.recv_buffer, self._x)
        if np.shares_memory(handle.send_buffer, handle.recv_buffer):
            raise ValueError("handle: expected two buffers, got one (MPI.IN_PLACE)")
        self._handle, own = handle, self._options
        self._states = exchange
        self._anchor: Array | None = None  # where the last averaging ended
        self._slow: Array | None = None  # u
        if own.average == "pseudo-gradients":
            self._anchor = self._x.copy()
            self._slow = np.zeros_like(self._x) if own.outer_momentum else None
        self._under_way = False  # has a round been started and not been taken in?
        self._stale_after: int | None = own.stale_after
        self._seen: int | None = None  # rounds up to the last one of this rank; None: up to date
        self._boundary_at = time.monotonic()  # the last one

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        if self._handle.away:
            return
        with self._exposed():
            if self._counts.steps % self._options.local_steps == 0:
                yield from self._boundary()
            self.serve()

    def _boundary(self) -> Steps[None]:
        yield from self._finishing()
        self.catch_up()
        if self._options.overlap:
            self._begin()
            return
        averaged = False
        for _ in range(self._options.rounds):
            self._begin()
            averaged |= yield from self._waiting()
            np.copyto(self._x, self._handle.recv_buffer)
        if averaged:
            np.copyto(self._x, self._outer(self._x))

    def _begin(self) -> None:
        np.copyto(self._handle.send_buffer, self._x)
        self._handle.Start()
        self._under_way = True

    def _waiting(self) -> Steps[bool]:
        """Wait for the round and count it. False: it was void; the result is this rank's model."""
        yield self._handle
        self._under_way = False
        rnd = self._handle.last_round
        self._seen = rnd.index + 1
        self._counts.skipped += bool(rnd.void)
        self._counts.communications += not rnd.void
        self._counts.received += 0 if rnd.void else rnd.active - 1
        return not rnd.void

    def _finishing(self) -> Steps[None]:
        """With overlap: add the change by the round in progress, if there is one."""
        if self._under_way and (yield from self._waiting()):
            change = self._outer(self._handle.recv_buffer) - self._handle.send_buffer
            self._x += change

    def _outer(self, mean: Array) -> Array:
        if self._anchor is None:
            return mean
        step = self._anchor - mean
        if self._slow is not None:
            self._slow *= self._options.outer_momentum
            self._slow += step
            np.copyto(step, self._slow)
        step *= self._options.outer_learning_rate
        self._anchor -= step
        return self._anchor

    # Coming and going

    def _missed(self) -> int:
        """Return how many rounds the others are known to have made since this rank's last one."""
        return 0 if self._seen is None else self._handle.round - self._seen

    def _is_stale(self) -> bool:
        """Return whether this rank has missed `stale_after` rounds. After a pause in which the
        others may have given it up, wait up to 0.1 s for the agent to learn their round."""
        if self._stale_after is None or self._states is None or self._handle.away:
            return False
        now, paused = time.monotonic(), self._boundary_at
        self._boundary_at = now
        while now - paused > self._handle.timeout / 2 and self._missed() < self._stale_after:
            time.sleep(_NAP)
            if time.monotonic() - now > _CATCH_UP:
                break
        return self._missed() >= self._stale_after

    def catch_up(self) -> None:
        """Take the state of a peer if this rank has missed too much. Not collective. May wait 0.1
        s, and for the peer's state."""
        self._settle()
        if not self._is_stale():
            return
        missed, least = self._missed(), max(self._handle.round - (self._stale_after or 0), 0)
        self._handle.leave()  # no rank waits for this one meanwhile
        try:
            self._take(self.load_state_dict, self.others() or None, least_round=least)
            self._counts.resyncs += 1
            logger.warning(
                "this rank missed %d rounds: it goes on from the state of another rank, and what "
                "it did meanwhile is dropped",
                missed,
            )
        except TimeoutError as error:
            logger.warning(
                "this rank missed %d rounds, and averages all the same: %s", missed, error
            )
            self._seen = None
        self.come_back()
        self._boundary_at = time.monotonic()

    def leave(self) -> None:
        """Finish a round under way; then step alone, without delaying other ranks. Local."""
        self._settle()
        self._handle.leave()

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the state of a peer that stayed; without an `exchange`, or if no
        other rank is live, with this rank's own model. `timeout`: seconds for `StateExchange.ask`.
        Local. TimeoutError if no peer had a state; this rank is then still away."""
        if self._states is not None and self.others():
            self.resync(timeout)
        self._seen = None
        self.come_back()

    def come_back(self) -> None:
        """Take part again, with this rank's own model. Local."""
        self._handle.rejoin()

    def resync(self, timeout: float | None = None) -> int:
        """Replace model, outer momentum and number of steps by a peer's, for a rank that has missed
        many rounds. Return the peer's round. Not collective: the peer continues at once.
        `timeout`: seconds for `StateExchange.ask`. StateError without an `exchange`; TimeoutError
        if no peer had a state."""
        self._settle()
        return self._take(self.load_state_dict, self.others() or None, timeout=timeout)

    def serve(self) -> bool:
        """See `Threaded.serve`."""
        if self._states is None:
            return False
        return self._serve(self._handle.round if self._seen is None else self._seen, self.snapshot)

    def others(self) -> list[int]:
        """Return the live ranks, from the next one on: ranks that come back ask different ones."""
        own = self._handle.rank
        live = [rank for rank in self._handle.live if rank != own]
        return [r for r in live if r > own] + [r for r in live if r < own]

    @property
    def round(self) -> int:
        """The number of the next round."""
        return self._handle.round

    @property
    def away(self) -> bool:
        """Whether this rank has left."""
        return self._handle.away

    def snapshot(self) -> dict[str, Any]:
        """Return `state_dict` without copies; the sender makes a copy."""
        return {"model": self._x, "steps": self._counts.steps, **self._kept()}

    def _averaging(self, total: GlobalSum) -> Steps[Array]:
        yield from self._finishing()
        return (yield from super()._averaging(total))

    def _settle(self) -> None:
        if self._under_way:  # with overlap, between two boundaries
            drive(self._finishing())

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        self._seen = None
        if self._anchor is not None:
            np.copyto(self._anchor, model)

    def begin_anew(self, model: Array) -> None:
        """See `Process.begin_anew`; without momentum."""
        super().begin_anew(model)
        if self._slow is not None:
            self._slow.fill(0)

    def _kept(self) -> dict[str, Array]:
        parts = {"anchor": self._anchor, "slow": self._slow}
        return {name: part for name, part in parts.items() if part is not None}

    def Free(self) -> None:
        """Take in the round under way; see `Process.Free`."""
        if not self._freed:
            self._settle()
        super().Free()


class GroupJoin(JoinHook):
    """The join of Moshpit's ranks, for `process`: a rank that has joined is away, which delays no
    other rank, until all have met in `total`."""

    def __init__(self, total: GlobalSum, process: MoshpitProcess) -> None:
        self._total, self._process = total, process

    def join(self, process: Process) -> None:
        """Wait until all have joined; a rank that was away before is so afterwards."""
        away = self._process.away
        if not away:  # what it misses from here on is for want of data
            self._process.catch_up()
            self._process.leave()
        self._total.meet()
        if not away:
            self._process.come_back()
