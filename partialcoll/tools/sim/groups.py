# SPDX-License-Identifier: Apache-2.0
"""Grouped averaging of simulated ranks: `partialcoll.GroupAllreduce` as it is, over the simulator's
messages, each of which takes a latency. What is in memory is there at once.

A second of the groups' time is a unit of virtual time, a gradient step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ..._core import buffers
from ..._core.simulator import simulator
from ...collectives.group import GroupAllreduce
from ...collectives.group_view import GroupRound
from ...decentralized.exchange import Array
from ...errors import StateError
from ...grid import Grid
from .. import memory
from .events import Events

_ffi, _lib = simulator.ffi, simulator.lib
_NANOSECONDS = 1e9
_END_OF_TIME = (1 << 63) - 1
_BYTES_PER_PAIR, _BYTES_PER_RANK = 192, 1 << 19  # what each rank knows of each; what it has
_MOST_RANKS = 1 << 16
# A group waits for this many latencies at the least, since a message that takes longer than a
# timeout is one that is lost.
_LATENCIES = 20


def _free(core: Any) -> None:
    _lib.pcoll_sim_group_free(_ffi.new("pcoll_sim_group **", core))


class _Ranks:
    """What the handles of all ranks share: their messages, and the time of these."""

    def __init__(self, options: Any, ranks: int, latency: float, seed: int) -> None:
        network = {"L": latency * _NANOSECONDS, "latency": _lib.PCOLL_LATENCY_EXPONENTIAL}
        given = (ranks, seed, _ffi.new("pcoll_network *", network), options)
        core = simulator.answer("pcoll_sim_group *", _lib.pcoll_sim_group_create, *given)
        self.core = _ffi.gc(core, _free)
        self.handles: list[SimulatedGroups] = []
        self._rank, self._time = _ffi.new("uint32_t *"), _ffi.new("int64_t *")

    @property
    def waits(self) -> bool:
        """Is somebody in a round?"""
        return any(handle.waits for handle in self.handles)

    def run(self, until: float) -> tuple[float, Callable[[], None]] | None:
        """See `events.Source`."""
        limit = int(min(until * _NANOSECONDS, _END_OF_TIME))
        simulator.check(_lib.pcoll_sim_group_run(self.core, limit, self._rank, self._time))
        if self._rank[0] == len(self.handles):
            return None
        return self._time[0] / _NANOSECONDS, self.handles[self._rank[0]].complete


class SimulatedGroups(GroupAllreduce):
    """That of one rank; made by `group_reductions`. Nobody can wait in virtual time: `then` says
    what to do when a round is over, and ``Wait`` insists that it is. There is nothing to free."""

    _library = simulator

    def __init__(self, rank: int, ranks: _Ranks, like: Array, size: int) -> None:
        self._pointer = _ffi.new("pcoll_group **")
        simulator.call(_lib.pcoll_sim_group_rank, ranks.core, rank, self._pointer)
        self._rank, self._size, self._ranks_together = rank, size, ranks
        self._send = buffers.as_floats("sendbuf", np.zeros_like(like), writable=False)
        self._recv = buffers.as_floats("recvbuf", np.zeros_like(like), writable=True)
        self._prepare()
        self._then: Callable[[], Any] | None = None
        self.waits = False  # for a round that it has started
        self._still = False

    def Start(self, stream: Any = None) -> None:
        """As the real one does."""
        super().Start(stream)
        self.waits = True
        self._wake()

    def then(self, action: Callable[[], Any]) -> None:
        """Do this when the round is over, or now if it is."""
        if self.waits:
            self._then = action
        else:
            action()

    def complete(self) -> None:
        """The round is over."""
        self.Test()
        self.waits = False
        action, self._then = self._then, None
        if action is not None:
            action()

    def Wait(self, timeout: float | None = None, stream: Any = None) -> GroupRound:
        """StateError unless the round is over."""
        if self.waits:
            raise StateError("nobody can wait in virtual time: use `then`")
        return self.last_round

    def leave(self) -> None:
        """As the real one does."""
        super().leave()
        self._wake()

    def rejoin(self) -> None:
        """As the real one does."""
        super().rejoin()
        self._wake()

    def stand(self, still: bool) -> None:
        """From now on the rank's process stands still, or goes on and looks what there is."""
        self._still = still
        self._wake()

    def _wake(self) -> None:
        core, wake = self._ranks_together.core, _lib.pcoll_sim_group_wake
        simulator.call(wake, core, self._rank, self._still)

    def Free(self, timeout: float | None = None) -> None:
        """Nothing."""


def _options(grid: Grid, like: Array, wait: float) -> Any:
    """`wait`: for a member whose application does not come, which is half of the timeout."""
    options = _ffi.new("pcoll_group_options *")
    options.count, options.dtype = like.size, buffers.as_floats("like", like, False).dtype
    options.axes = grid.axes
    options.side[0 : grid.axes] = list(grid.sides)
    options.timeout_us = max(1, int(2e6 * wait))
    options.every = 1
    return options


def _check_memory(ranks: int, bytes_: int) -> None:
    def needed(ranks: int) -> int:
        return ranks * (_BYTES_PER_RANK + 4 * bytes_ + _BYTES_PER_PAIR * ranks)

    largest = memory.most(needed, _MOST_RANKS)
    if ranks > largest:
        raise ValueError(
            f"--ranks: expected 1 to {largest} with moshpit (what the memory of this machine "
            f"allows), got {ranks}"
        )


def group_reductions(
    ranks: int,
    grid: Sequence[int] | str,
    like: Array,
    events: Events,
    latency: float,
    window: float,
    seed: int = 0,
) -> list[SimulatedGroups]:
    """The handles of all ranks.

    Parameters
    ----------
    latency : float
        The mean, in virtual time.
    window : float
        How long a group waits for a member that does not come.
    """
    _check_memory(ranks, like.nbytes)
    options = _options(Grid(grid, ranks), like, max(window, _LATENCIES * latency))
    together = _Ranks(options, ranks, latency, seed)
    together.handles = [SimulatedGroups(rank, together, like, ranks) for rank in range(ranks)]
    events.sources.append(together)
    return together.handles
