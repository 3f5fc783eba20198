# SPDX-License-Identifier: Apache-2.0
"""Grouped allreduce: ranks on a virtual grid average along one axis after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import buffers, checks, communicator, settings, waiting
from .._core.buffers import Array, Buffer
from .._core.device import DeviceBuffer, as_any_buffer, one_device, refuse_stream
from .._core.ffi import core
from .._core.mirror import Twins
from .._core.mpi import MPI
from .._core.object import CoreObject
from .._core.pure import codes, ffi, lib
from .._core.slots import owner_of
from ..errors import StateError
from ..grid import as_sides


@dataclass(frozen=True)
class GroupRound:
    """The result of a round of a `GroupAllreduce`.

    ``index``: number of the round, which was along the ``axis``. ``group``: the ranks that averaged
    together, ascending; empty if the round is void. ``position``: this rank's place among them.
    ``active``: how many of them contributed; the others had left, or their applications were late.
    ``exact``: as many rounds as there are axes, this the last, were complete; with the results fed
    back, this is the average over all ranks. ``void``: a member was lost in mid-round, and
    everybody has its own input back. ``missed``: rounds since this rank's last one, before this
    one. ``shares``: the part of the data that each member has reduced; they sum to 1.
    """

    index: int
    axis: int
    group: tuple[int, ...]
    position: int
    active: int
    exact: bool
    void: bool
    missed: int
    shares: tuple[float, ...]


@dataclass(frozen=True)
class GroupStats:
    """Counts of a `GroupAllreduce` on this rank since it was created.

    ``rounds``, ``void_rounds``: with a contribution of this rank. ``null_rounds``: rounds in which
    its agent reduced for others without one. ``matched_ahead``: rounds whose group was known
    before ``Start``. ``suspected``: ranks that this one found to be silent. ``bytes_fetched``: from
    the memory of others. ``bandwidth``: measured, bytes per second; 0 if it was not.
    """

    rounds: int
    void_rounds: int
    null_rounds: int
    matched_ahead: int
    suspected: int
    bytes_fetched: int
    bandwidth: float


_KEYS = codes("KEYS", "auto", "static", "dynamic")


def _microseconds(name: str, seconds: Any) -> int:
    return int(checks.number(name, seconds, 1e-6, 1e9, above=0, what="seconds") * 1e6)


class GroupAllreduce(CoreObject):
    """A persistent average over groups of ranks on a virtual grid. Collective. ``Free`` leaves
    first, so no other rank's rounds wait for this rank.

    Round t averages along axis ``t mod len(grid)``, among the ranks of one line that are there:
    ``Start()`` contributes, ``Wait()`` returns the `GroupRound`. With the results fed back
    (``sendbuf=MPI.IN_PLACE``), one round per axis makes the exact average over all ranks on a full
    grid, bitwise the same on all (to rounding error where cells are given or keys are dynamic); on
    others the ranks approach it round by round. The group of a round is found in the background, as
    soon as the round before is over. A member that is lost in mid-round voids the round for its own
    group, whose members keep their inputs. Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021,
    section 3.1 and appendices E to G.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Its ranks; dup'ed.
    sendbuf : buffer or MPI.IN_PLACE
        What this rank contributes: float16, bfloat16, float32 or float64, C-contiguous.
    recvbuf : buffer
        The average, of the same shape and dtype.
    grid : tuple of int or "auto"
        Lengths of the sides; their product is at least the number of ranks.
    bandwidth : float, "measured" or None
        Of this rank's link, in any unit: a member with a slow link reduces less. None: all
        are equal. "measured": from the rounds themselves, between nodes.
    keys : "static", "dynamic" or "auto"
        Whether cells stay, or move so that ranks that have met do not meet again soon. Default:
        static if the ranks fill the grid.
    timeout : float
        Seconds that a member may be silent in mid-round before the round is void. A member whose
        application has not come after half of it is passed over: the round is done without its
        contribution. Default: PARTIALCOLL_TIMEOUT or 10.
    window : float
        Seconds that matchmaking waits for more members. Default: twice the timeout, or with
        dynamic keys a fifth of it.
    measure_every : int
        Rounds after which measured bandwidths are taken over.
    cell : int
        Where on the grid this rank sits, row by row. Default: its rank.
    progress : "agent", "manual" or "spin"
        Who works while the application computes. Default: PARTIALCOLL_PROGRESS or "agent".
    on_failure : "raise" or "continue"
        What the others do when a rank dies: their calls raise RankFailedError, or its round is
        void at once and they go on without it. What "continue" needs and promises is in
        docs/faults.md.

    Raises MismatchError if arguments differ between ranks, ValueError if the grid cannot hold the
    ranks, two ranks have one cell, or a bandwidth or a time is not above 0.
    """

    _noun, _kind, _maker = "grouped allreduce", "group", "GroupAllreduce_init"

    def __init__(
        self,
        comm: MPI.Intracomm,
        sendbuf: Any,
        recvbuf: Any,
        *,
        grid: Any = "auto",
        bandwidth: Any = None,
        keys: str = "auto",
        timeout: float | None = None,
        window: float | None = None,
        measure_every: int = 16,
        cell: int | None = None,
        progress: str | None = None,
        on_failure: str = "raise",
    ) -> None:
        def arguments() -> tuple[Any]:
            found = as_any_buffer("recvbuf", recvbuf, writable=True)
            self._recv = self._send = buffers.check_floats("recvbuf", found)
            if sendbuf is not MPI.IN_PLACE:
                self._send = as_any_buffer("sendbuf", sendbuf, writable=False)
                buffers.check_match([self._send], [self._recv])
                buffers.check_apart("recvbuf", [self._send, self._recv])
            one_device([self._send, self._recv])
            given = {"count": self._recv.count, "dtype": self._recv.dtype}
            options = core.ffi.new("pcoll_group_options *", given)
            sides = grid
            if isinstance(sides, (int, np.integer)) and not isinstance(sides, bool):
                sides = (int(sides),)
            if not isinstance(sides, str) or sides != "auto":
                sides = as_sides(sides)
                options.axes = len(sides)
                options.side[0 : len(sides)] = sides
            if isinstance(bandwidth, str):
                if bandwidth != "measured":
                    raise ValueError(
                        f'bandwidth: expected a number, "measured" or None, got {bandwidth!r}'
                    )
                options.measure = 1
            elif bandwidth is not None:
                options.bandwidth = checks.number("bandwidth", bandwidth, above=0)
            limit = settings.base_timeout() if timeout is None else timeout
            options.keys = checks.code("keys", keys, _KEYS)
            options.timeout_us = _microseconds("timeout", limit)
            options.window_us = 0 if window is None else _microseconds("window", window)
            options.every = checks.integer("measure_every", measure_every, 1, 2**31 - 1)
            options.cell = -1 if cell is None else checks.integer("cell", cell, 0, 2**31 - 1)
            options.progress = communicator.progress_code(progress)
            options.on_failure = communicator.failure_code(on_failure)
            return (options,)

        refused = (core.ffi.new("pcoll_group_options *", {"dtype": -1}),)
        self._create(comm, core.lib.pcoll_group_create, arguments, refused)
        self._prepare()

    def _place(
        self, argument: str, buffer: Buffer, read: bool = False, stream: Any = None
    ) -> Array:
        if isinstance(buffer, DeviceBuffer):
            return self._twins.take(argument, buffer, read, stream)
        refuse_stream(stream)
        return buffer.array

    def _prepare(self) -> None:
        self._twins = Twins()
        self._last_round: GroupRound | None = None
        self._ranks, self._parts = np.empty(self._size, np.uint32), np.empty(self._size)
        self._shape = self._library.ffi.new("pcoll_group_shape *")
        self._call("get_shape", self._shape)

    def Start(self, stream: Any = None) -> None:
        """Contribute what the send buffer holds, to the round that this rank is at; the buffer may
        be used again at once. Local. Raises StateError if the last round has not been waited for,
        or if this rank has left. A buffer on a device is copied after what `stream` (None: the
        current one) was given before, and the call waits for that."""
        argument = "recvbuf" if self._send is self._recv else "sendbuf"
        self._call("start", self._place(argument, self._send, True, stream))

    def Wait(self, timeout: float | None = None, stream: Any = None) -> GroupRound:
        """Wait for the round that took the contribution. The receive buffer then has the average of
        the contributions, or this rank's own input if the round is void; on a device for work
        submitted to `stream` from now on. Raises TimeoutError after `timeout` seconds; ``Wait`` may
        be called again then."""
        checks.time_limit("timeout", timeout)
        found = self._library.ffi.new("pcoll_group_round *")

        def warn(waited: float) -> None:
            settings.logger.warning("waiting for %.1f s in a group: %s", waited, self.pending())

        if not waiting.wait(self._step(found, stream), timeout, warn):
            raise TimeoutError(f"the round was not over within {timeout} s: {self.pending()}")
        return self._take(found, stream)

    def _step(self, found: Any, stream: Any) -> Callable[[int], int]:
        core, function = self._core(), self._function("wait")
        receive = self._library.plain(self._place("recvbuf", self._recv, stream=stream))
        return lambda us: int(function(core, us, receive, found))

    def Test(self, stream: Any = None) -> GroupRound | None:
        """Return the round if it is over, else None; `stream` as for `Wait`. Local."""
        found = self._library.ffi.new("pcoll_group_round *")
        code = self._step(found, stream)(0)
        if code == lib.PCOLL_EAGAIN:
            return None
        self._library.check(code)
        return self._take(found, stream)

    def _take(self, found: Any, stream: Any) -> GroupRound:
        if isinstance(self._recv, DeviceBuffer):
            self._twins.land(stream, recvbuf=self._recv.owner)
        self._call("members", self._ranks, self._parts)
        members = int(found.members)
        names = ("index", "axis", "position", "active", "missed")
        self._last_round = GroupRound(
            group=tuple(self._ranks[:members].tolist()),
            exact=bool(found.exact),
            void=bool(found.is_void),
            shares=tuple(self._parts[:members].tolist()),
            **{name: int(getattr(found, name)) for name in names},
        )
        return self._last_round

    def pending(self) -> str:
        """Say what the round that this rank is at waits for. Local."""
        text = ffi.new("char[]", 2048)
        self._call("pending", text, 2048)
        return str(ffi.string(text).decode(errors="replace"))

    # Membership

    def leave(self) -> None:
        """Stop taking part. Local, at once; no rank waits for this one afterwards. A round that it
        has started is finished. If it is in a group already, its agent reduces its part of that
        round for the other members, and contributes nothing."""
        self._call("leave")

    def rejoin(self) -> None:
        """Take part again, from the next round whose group is not formed yet. Local. This rank does
        not get what it has missed: take an up-to-date rank's state first (`StateExchange`)."""
        self._call("rejoin")

    def _look(self) -> tuple[int, bool, Array]:
        index, away = ffi.new("uint64_t *"), ffi.new("int32_t *")
        standings = np.empty(self._size, np.uint8)
        self._call("look", index, away, standings)
        return int(index[0]), bool(away[0]), standings

    @property
    def away(self) -> bool:
        """Whether this rank has left."""
        return self._look()[1]

    @property
    def round(self) -> int:
        """The round that this rank is at."""
        return self._look()[0]

    @property
    def live(self) -> tuple[int, ...]:
        """The ranks that take part, as far as this rank has been told."""
        return tuple(np.flatnonzero(self._look()[2] == 0).tolist())

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that were silent for too long, and have not come back."""
        return tuple(np.flatnonzero(self._look()[2] == 2).tolist())

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """The ranks that have died, with ``on_failure="continue"``: bool, shape (ranks,)."""
        return np.equal(self._look()[2], 3)

    @property
    def send_buffer(self) -> Any:
        """The memory that `Start` takes the contribution from; in place, the receive buffer."""
        return owner_of(self._send)

    @property
    def recv_buffer(self) -> Any:
        """The memory that `Wait` fills."""
        return owner_of(self._recv)

    def _after_free(self) -> None:
        self._twins.free()

    @property
    def last_round(self) -> GroupRound:
        """The round that the last `Wait` or `Test` returned. StateError before the first one."""
        if self._last_round is None:
            raise StateError("no round has been waited for yet")
        return self._last_round

    @property
    def grid(self) -> tuple[int, ...]:
        """Lengths of the grid's sides."""
        return tuple(int(self._shape.side[i]) for i in range(self._shape.axes))

    @property
    def keys(self) -> str:
        """ "static" or "dynamic"."""
        return "dynamic" if self._shape.keys == lib.PCOLL_KEYS_DYNAMIC else "static"

    @property
    def timeout(self) -> float:
        """Seconds that a member may be silent in mid-round."""
        return float(self._shape.timeout_us) / 1e6

    @property
    def window(self) -> float:
        """Seconds that matchmaking waits for more members."""
        return float(self._shape.window_us) / 1e6

    @property
    def bandwidth(self) -> float:
        """The link bandwidth that this rank announces; 0: nothing, or not measured yet."""
        return self.stats.bandwidth

    @bandwidth.setter
    def bandwidth(self, value: float) -> None:
        number = checks.number("bandwidth", value, above=0)
        self._call("set_bandwidth", number)

    @property
    def stats(self) -> GroupStats:
        """Counters of this rank."""
        return self._counters(GroupStats)

    @property
    def memory(self) -> int:
        """Bytes that it takes on this rank: three times the data, and some."""
        return int(self._shape.bytes)

    def __repr__(self) -> str:
        state = "freed" if self._is_freed() else f"rank {self._rank} of {self._size}"
        return f"GroupAllreduce({state}, grid={self.grid}, keys={self.keys!r})"


GroupAllreduce_init = GroupAllreduce  # named as MPI names what makes a persistent operation
