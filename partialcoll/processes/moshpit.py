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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._errors import StateError
from ..resync import StateExchange
from ._exchange import Array, GroupReduction, Steps
from ._process import LearningRate, Process, check_count, check_number
from ._total import Total


def _check_buffers(handle: GroupReduction, x: Array) -> None:
    """One vector like x each, and not the same one."""
    for name in ("send_buffer", "recv_buffer"):
        buffer = getattr(handle, name)
        if buffer.shape != x.shape or buffer.dtype != x.dtype:
            raise ValueError(
                f"handle: expected a {name} of shape {x.shape} of {x.dtype} as the model's, got "
                f"shape {buffer.shape} of {buffer.dtype}"
            )
    if np.shares_memory(handle.send_buffer, handle.recv_buffer):
        raise ValueError("handle: expected two buffers, got one (MPI.IN_PLACE)")


class Moshpit(Process):
    """One rank of Moshpit SGD.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied. The same on all ranks, or
        made so by `synchronise`.
    handle : GroupReduction
        ``GroupAllreduce_init(comm, np.empty_like(x), np.empty_like(x), grid=...)``.
    local_steps : int
        tau. Every so many steps is a boundary, where the group's average is taken.
    average : "parameters" or "pseudo-gradients"
        What becomes of the average: it is the model; or the way to it from where the last
        averaging ended is a gradient, the pseudo-gradient, for an outer step from there. What
        travels are parameters in both: of changes alone, ranks that once differ never agree.
    outer_learning_rate, outer_momentum : float
        Of the outer step: u = momentum·u + pseudo-gradient, x = anchor - rate·u. With 1 and 0 it
        ends at the average.
    rounds : int
        Rounds at a boundary, one after the other: as many as the grid has axes make an exact
        average of a full grid. 1 with overlap.
    overlap : bool
        The average of one boundary is taken in at the next, as a difference.
    exchange : StateExchange or None
        Serves this rank's state at every step, and gets that of a peer in `rejoin` and `resync`.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    total : Total or None
        For what is collective: `averaged_model`, `synchronise`, `consensus_distance`.

    ``stats``: `communications` are rounds that were not void, `skipped` void ones, `received`
    models of others that are in the averages. Memory: one more vector for pseudo-gradients, two
    with momentum.
    """

    def __init__(
        self,
        x: Array,
        handle: GroupReduction,
        *,
        local_steps: int = 1,
        average: str = "parameters",
        outer_learning_rate: float = 1.0,
        outer_momentum: float = 0.0,
        rounds: int = 1,
        overlap: bool = False,
        exchange: StateExchange | None = None,
        learning_rate: LearningRate = 0.1,
        total: Total | None = None,
    ) -> None:
        super().__init__(x, learning_rate=learning_rate, total=total)
        _check_buffers(handle, self._x)
        if average not in ("parameters", "pseudo-gradients"):
            raise ValueError(
                f"average: expected 'parameters' or 'pseudo-gradients', got {average!r}"
            )
        self._handle = handle
        self._local_steps = check_count("local_steps", local_steps)
        self._rounds = check_count("rounds", rounds)
        if overlap and rounds > 1:
            raise ValueError(f"rounds: expected 1 with overlap, got {rounds}")
        self._overlap = bool(overlap)
        self._alpha = check_number("outer_learning_rate", outer_learning_rate, 0)
        self._beta = check_number("outer_momentum", outer_momentum, 0, 1)
        self._exchange = exchange
        self._anchor: Array | None = None  # where the last averaging ended
        self._slow: Array | None = None  # u
        if average == "pseudo-gradients":
            self._anchor = self._x.copy()
            self._slow = np.zeros_like(self._x) if self._beta else None
        elif (self._alpha, self._beta) != (1.0, 0.0):
            raise ValueError(
                "outer_learning_rate, outer_momentum: expected average='pseudo-gradients' with "
                f"them, got {average!r}"
            )
        self._under_way = False  # has a round been started and not been taken in?

    # Training

    def _advancing(self) -> Steps[None]:
        """Waits for the group if this is a boundary; with overlap, for the group of the last
        one."""
        self._counts.steps += 1
        if self._handle.away:
            return
        with self._exposed():
            if self._counts.steps % self._local_steps == 0:
                yield from self._boundary()
            if self._exchange is not None:
                self._exchange.serve(self.round, self.snapshot)

    def _boundary(self) -> Steps[None]:
        if self._overlap:
            yield from self._finishing()
            self._begin()
            return
        for _ in range(self._rounds):
            self._begin()
            yield from self._waiting()
            np.copyto(self._x, self._handle.recv_buffer)
        np.copyto(self._x, self._outer(self._x))

    def _begin(self) -> None:
        np.copyto(self._handle.send_buffer, self._x)
        self._handle.Start()
        self._under_way = True

    def _waiting(self) -> Steps[None]:
        """For the round under way; what it was is counted. Void, it gives the own model."""
        yield self._handle
        self._under_way = False
        rnd = self._handle.last_round
        self._counts.skipped += bool(rnd.void)
        self._counts.communications += not rnd.void
        self._counts.received += 0 if rnd.void else rnd.active - 1

    def _finishing(self) -> Steps[None]:
        """With overlap: take in the round under way, if there is one."""
        if self._under_way:
            yield from self._waiting()
            change = self._outer(self._handle.recv_buffer) - self._handle.send_buffer
            self._x += change

    def _outer(self, mean: Array) -> Array:
        """Where to go on from, given the average."""
        if self._anchor is None:
            return mean
        step = self._anchor - mean
        if self._slow is not None:
            self._slow *= self._beta
            self._slow += step
            np.copyto(step, self._slow)
        step *= self._alpha
        self._anchor -= step
        return self._anchor

    # Coming and going

    def leave(self) -> None:
        """From now on this rank takes no part and delays nobody; its steps are its own. A round
        under way is finished first. Local."""
        self._settle()
        self._handle.leave()

    def rejoin(self, timeout: float | None = None) -> None:
        """Take part again, with the state of a peer that did meanwhile. Local.

        Parameters
        ----------
        timeout : float or None
            Seconds for `StateExchange.ask`.

        Without an `exchange`, or when nobody else is live, it goes on from its own model.
        TimeoutError if nobody had a state; it is then still away.
        """
        if self._exchange is not None and self.others():
            self.resync(timeout)
        self._handle.rejoin()

    def resync(self, timeout: float | None = None) -> int:
        """Take model, outer momentum and number of steps of a peer, and nothing of the own: for
        one that has missed many rounds. The peer's round. Local: the peer goes on at once.

        StateError without an `exchange`; TimeoutError if nobody had a state.
        """
        if self._exchange is None:
            raise StateError("exchange: expected a StateExchange for a peer's state, got None")
        self._settle()
        round, state = self._exchange.ask(self.others() or None, timeout=timeout)
        self.load_state_dict(state)
        return round

    def others(self) -> list[int]:
        """Live ranks, from the next one on: so that those who come back ask different ones."""
        own = self._handle.rank
        live = [rank for rank in self._handle.live if rank != own]
        return [r for r in live if r > own] + [r for r in live if r < own]

    @property
    def round(self) -> int:
        """The number of the next round."""
        return self._handle.round

    @property
    def away(self) -> bool:
        """Has this rank left?"""
        return self._handle.away

    def snapshot(self) -> dict[str, Any]:
        """As `state_dict`, without copies: who sends it makes one."""
        return {"model": self._x, "steps": self._counts.steps, **self._parts()}

    # Averages over all ranks, state

    def _averaging(self, total: Total) -> Steps[Array]:
        yield from self._finishing()
        return (yield from super()._averaging(total))

    def _settle(self) -> None:
        if self._under_way:  # with overlap, between two boundaries
            self._drive_finishing()

    def _drive_finishing(self) -> None:
        for waitable in self._finishing():
            waitable.Wait()

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        if self._anchor is not None:
            np.copyto(self._anchor, model)

    def begin_anew(self, model: Array) -> None:
        """Without momentum, too. Collective."""
        super().begin_anew(model)
        if self._slow is not None:
            self._slow.fill(0)

    def _parts(self) -> dict[str, Array]:
        parts = {"anchor": self._anchor, "slow": self._slow}
        return {name: part for name, part in parts.items() if part is not None}

    def _more_state(self) -> dict[str, Any]:
        return {name: part.copy() for name, part in self._parts().items()}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts().items():
            np.copyto(part, state[name])

    def Free(self) -> None:
        """Take in the round under way; nothing is freed that it was given. Idempotent."""
        if not self._freed:
            self._settle()
        super().Free()
