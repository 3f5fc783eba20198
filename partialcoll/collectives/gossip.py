# SPDX-License-Identifier: Apache-2.0
"""Gossip buffers: models averaged in pairs, without anybody waiting for anybody."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import buffers, checks, communicator
from .._core.buffers import Array
from .._core.device import DeviceBuffer, as_any_buffer
from .._core.ffi import core
from .._core.mirror import Twins
from .._core.mpi import MPI
from .._core.object import CoreObject
from .._core.pure import ffi, lib
from ..codec import Lattice
from ..errors import RankFailedError, StateError
from ..topology.topology import Topology, connected


@dataclass(frozen=True)
class GossipStats:
    """Counts of a `GossipBuffer` on this rank since it was created.

    ``publishes``, ``reads`` (of peers), ``averages``: operations. ``skipped``: averages left out
    because the peer had not collected. ``collected``: deltas taken from others. ``retries``:
    chunks read again because their owner had published meanwhile; ``torn``: chunks given up.
    ``pushed``, ``drained``: messages; ``queue_full``: not sent for want of room.
    ``decode_failures``: messages that did not decode with the key. ``fallbacks``: blocks read again
    with more bits. ``bytes_read``, ``bytes_written``: of the memory of others, and of the own
    queue. ``orphaned``: deltas of and for dead ranks, which this one took over.
    """

    publishes: int
    reads: int
    averages: int
    skipped: int
    collected: int
    retries: int
    torn: int
    pushed: int
    drained: int
    queue_full: int
    decode_failures: int
    fallbacks: int
    bytes_read: int
    bytes_written: int
    orphaned: int


class Board:
    """The words that all ranks of a buffer share, at rank 0; see `pairing.Board`."""

    def __init__(self, buffer: CoreObject) -> None:
        self._buffer = buffer

    def read_all(self) -> Array:
        """Return a copy of the words, one for each rank. One-sided."""
        words = np.empty(self._buffer.size, np.int64)
        self._buffer._call("board_read", words)
        return words

    def compare_and_swap(self, index: int, expected: int, desired: int) -> int:
        """Make word `index` `desired` if it is `expected`; return what it was. One-sided."""
        return int(self._buffer._answer("int64_t", "board_swap", index, expected, desired))

    def fetch_add(self, delta: int) -> int:
        """Add `delta` to the counter; return what it was. One-sided."""
        return int(self._buffer._answer("int64_t", "board_count", delta))


class GossipBuffer(CoreObject):
    """One model per rank, which ranks average in pairs.

    Three buffers over MPI's one-sided communication, in memory that MPI allocates: a *register*
    (what this rank publishes), an *accumulator* (what others have given to this rank's model) and
    a *queue* (whole models sent to this rank). Nothing but making and freeing one is collective,
    and nothing else waits for another rank. What each promises is in docs/gossip.md.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Its ranks; dup'ed.
    like : array
        `shape` and `dtype` of the model: float16, bfloat16, float32 or float64, the same on all
        ranks. It is not kept.
    topology : str, networkx graph or Topology
        Who may talk to whom; see `Topology.make`. It has to be connected.
    codec : Lattice or None
        With one, models are read and pushed in few bits.
    queue_slots : int
        Messages that the queue holds, 1 to 1024.
    max_uncollected : int
        Deltas that may lie at a rank before it collects; `average` skips it then. 2 converges,
        6 diverged in simulation.
    progress : "agent", "manual" or "spin"
        Who helps ranks of other nodes to reach this one's memory. Default:
        PARTIALCOLL_PROGRESS or "agent". Within one node nobody has to.
    on_failure : "raise" or "continue"
        What the others do when a rank dies: their calls raise RankFailedError, or they go on
        without it, and only calls about it raise that. What "continue" needs and promises is in
        docs/faults.md.
    on_disconnect : "raise" or "bridge"
        With "continue", where the topology falls apart without the dead: every call about a peer
        raises RankFailedError, or those next to the gap become neighbors; see `Topology.without`.

    Arrays of its methods may be on a CUDA device: a copy on the host stands for them, from which
    and to which they are copied, after what the current stream was given (docs/gpu.md).

    One thread at a time may use a buffer. In a ``with`` statement the end frees it. What lies here
    uncollected goes with it: to keep it, meet (a barrier) and collect before.

    Raises MismatchError if shape, dtype, topology or codec differ between ranks, ValueError if the
    topology is disconnected or has another number of ranks.
    """

    _noun, _kind, _maker = "gossip buffer", "gossip", "GossipBuffer"
    _moved = False  # has it averaged since it published?
    _taken = 1.0  # as the core has it
    _known: tuple[int, ...] = ()  # have died
    _on_disconnect: str | None = None  # None: they do not go on

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        like: Any,
        topology: Any = "exponential",
        codec: Lattice | None = None,
        queue_slots: int = 4,
        max_uncollected: int = 2,
        progress: str | None = None,
        on_failure: str = "raise",
        on_disconnect: str = "raise",
    ) -> None:
        def arguments() -> tuple[Any]:
            options = core.ffi.new("pcoll_gossip_options *")
            self._describe(options, like, topology)
            self._choose(options, codec, queue_slots, max_uncollected, progress)
            options.on_failure = communicator.failure_code(on_failure)
            checks.one_of("on_disconnect", on_disconnect, ("raise", "bridge"))
            return (options,)

        refused = (core.ffi.new("pcoll_gossip_options *", {"dtype": -1}),)
        self._create(comm, core.lib.pcoll_gossip_create, arguments, refused)
        self._on_disconnect = on_disconnect if on_failure == "continue" else None
        self._whole = self._topology

    def _describe(self, options: Any, like: Any, topology: Any) -> None:
        buffer = buffers.check_floats("like", as_any_buffer("like", like, writable=False))
        self.shape: tuple[int, ...] = buffer.array.shape
        self.dtype: np.dtype[Any] = buffer.array.dtype
        self._element = buffer.dtype
        self._twins = Twins()
        self._topology = connected(topology, self._size)
        # The peers that this rank may read, average with or send to.
        self._neighbors = frozenset(self._topology.neighbors(self._rank))
        options.count, options.dtype = buffer.count, buffer.dtype
        options.shape = zlib.crc32(repr(self.shape).encode())
        options.topology = self._topology.fingerprint

    def _choose(
        self,
        options: Any,
        codec: Lattice | None,
        queue_slots: int,
        max_uncollected: int,
        progress: str | None,
    ) -> None:
        options.queue_slots = checks.integer("queue_slots", queue_slots, 1, 1024)
        options.max_uncollected = checks.integer("max_uncollected", max_uncollected, 1, 2**31)
        options.progress = communicator.progress_code(progress)
        if codec is not None:
            checks.instance("codec", codec, Lattice, "a Lattice or None")
            options.bits, options.rotate = codec.bits, codec.rotate
            options.margin, options.seed = codec.margin, codec.seed

    def _peer(self, peer: int) -> int:
        peer = checks.rank("peer", peer, self._size)
        self._look_around()
        if peer not in self._neighbors:
            raise ValueError(
                f"peer: expected a neighbor of rank {self._rank} in the topology "
                f"({', '.join(map(str, sorted(self._neighbors))) or 'it has none'}), got {peer}"
            )
        return peer

    def _look_around(self) -> None:
        """Learn who has died. The dead stay neighbors: calls about them raise RankFailedError."""
        if self._on_disconnect is None:
            return
        known = tuple(np.flatnonzero(self.failed).tolist())
        if known == self._known:
            return
        try:
            left = self._whole.without(known, on_disconnect=self._on_disconnect)
        except ValueError as error:
            raise RankFailedError(known, str(error)) from None
        self._known, self._topology = known, left
        lost = self._neighbors.intersection(known)  # also those that a bridge had led to
        self._neighbors = lost.union(left.neighbors(self._rank))

    def _peer_or_own(self, peer: int) -> int:
        own = checks.rank("peer", peer, self._size) == self._rank
        return self._rank if own else self._peer(peer)

    def _optional(self, argument: str, given: Any, writable: bool = False) -> Any:
        return ffi.NULL if given is None else self._memory(argument, given, writable)

    def _memory(self, argument: str, given: Any, writable: bool = False) -> Any:
        """Return the memory of an array like the model, which it keeps alive."""
        if (  # a numpy array of floats as C knows them, as it nearly always is
            type(given) is np.ndarray
            and given.shape == self.shape
            and given.dtype == self.dtype
            and self.dtype.kind == "f"
            and given.flags.c_contiguous
            and (not writable or given.flags.writeable)
        ):
            return ffi.from_buffer(given)
        buffer = as_any_buffer(argument, given, writable)
        # A bfloat16 model of torch is an array of uint16 here, unless ml_dtypes is installed.
        bits = self._element == lib.PCOLL_BFLOAT16 and buffer.array.dtype == self.dtype
        if buffer.dtype != self._element and not bits:
            raise TypeError(f"{argument}: expected dtype {self.dtype}, got {buffer.name}")
        if buffer.array.shape != self.shape:
            raise ValueError(f"{argument}: expected shape {self.shape}, got {buffer.array.shape}")
        array = buffer.array
        if isinstance(buffer, DeviceBuffer):
            array = self._twins.take(argument, buffer, read=argument not in ("out", "sent"))
        return ffi.from_buffer(array.reshape(-1).view(np.uint8))

    def _after_free(self) -> None:
        self._twins.free()

    def _moving(self, x: Any, momentum: Any, factors: dict[str, float]) -> tuple[Any, Any]:
        """Check what averaging and collecting write to, and what they multiply by."""
        for name, value in factors.items():
            checks.number(name, value, -1e30, 1e30)
        memory = self._memory("x", x, True), self._optional("momentum", momentum, True)
        arrays = isinstance(x, np.ndarray) and isinstance(momentum, np.ndarray)
        if momentum is not None and (not arrays or np.may_share_memory(x, momentum)):
            pair = [as_any_buffer("momentum", given, True) for given in (x, momentum)]
            buffers.check_apart("momentum", pair)
        return memory

    def _key_and_out(self, key: Any, out: Any) -> tuple[Any, Any]:
        arrays = isinstance(key, np.ndarray) and isinstance(out, np.ndarray)
        if key is not None and (key is out or (arrays and np.may_share_memory(key, out))):
            raise ValueError("out: expected other memory than key's")
        return self._optional("key", key), self._memory("out", out, writable=True)

    def publish(self, x: Any) -> int:
        """Make a copy of `x` what others read of this rank. Return its version: 1, 2, … Local."""
        memory, self._moved = self._memory("x", x), False
        return int(self._answer("uint64_t", "publish", memory))

    def read(self, peer: int, *, key: Any = None, out: Any = None) -> tuple[Array, int]:
        """Return the model that `peer`, a neighbor, has published last, and its version; of this
        rank, with a codec, what the others make of its own model. One-sided.

        `key`: with a codec, this rank's own model; the nearer it is, the fewer bits are read.
        `out`: the array where the model goes, not in the key; a new one by default. Raises
        StateError if the peer has published nothing yet, or publishes faster than it can be read.
        """
        out = np.empty(self.shape, self.dtype) if out is None else out
        version = ffi.new("uint64_t *")
        code = self._function("read")(
            self._core(), self._peer_or_own(peer), *self._key_and_out(key, out), version
        )
        if code == lib.PCOLL_EAGAIN:
            raise StateError(self._library.last_error())
        self._library.check(code)
        self._twins.land(out=out)
        return out, int(version[0])

    def average(
        self,
        x: Any,
        peer: int,
        *,
        weight: float = 0.5,
        momentum: Any = None,
        ratio: float = 1.0,
        taken: float = 1.0,
    ) -> bool:
        """Average `x` with what `peer` has published. One-sided, in place.

        ``x -= weight * (x - theirs)``, and what `x` has lost is given to the peer, which has it
        when it collects. So the sum over all ranks of ``x`` and `pending` does not change, whatever
        others do meanwhile. Theirs is what they have published and not collected yet: a correction
        that others, or this rank, have given is not made once more. For the same reason an average
        that follows another one publishes `x` first, unless you have. `momentum`, if given, moves
        `ratio` times as far (A2CiD2's x~, with ratio = alpha~ / alpha). `taken`: of what it has not
        collected yet the peer's model takes this part, from 0 to 1, and something else the rest (of
        A2CiD2's deltas the model takes 2 / (1 + ratio)).

        Returns False, and changes nothing, if too many deltas lie uncollected at the peer. Raises
        StateError if the peer has published nothing yet.
        """
        own, other = self._moving(x, momentum, {"weight": weight, "ratio": ratio})
        if taken != self._taken:
            checks.number("taken", taken, 0, 1)
            self._call("set_taken", taken)
            self._taken = taken
        given = (self._peer(peer), own, weight, other, ratio)
        if self._moved:  # where this rank is no longer
            self._answer("uint64_t", "publish", own)
        self._moved = bool(self._answer("int32_t", "average", *given))
        if self._moved:
            self._twins.land(x=x, momentum=momentum)
        return self._moved

    def collect(self, x: Any, *, momentum: Any = None, ratio: float = 1.0) -> int:
        """Add to `x`, in place, what others have given since the last time. Return how many deltas
        have landed since; with 0 nothing has changed. Local. What `x` cannot hold (rounding) stays
        for the next time. `momentum` gains `ratio` times what `x` does."""
        own, other = self._moving(x, momentum, {"ratio": ratio})
        landed = int(self._answer("uint64_t", "collect", own, other, ratio))
        if landed:
            self._twins.land(x=x, momentum=momentum)
        return landed

    def pending(self) -> Array:
        """Return a copy of what lies here uncollected; float64 for float64, else float32. Local."""
        held = np.float64 if self._element == lib.PCOLL_FLOAT64 else np.float32
        out = np.empty(self.shape, held)
        self._call("pending", out)
        return out

    def push(self, peer: int, x: Any, *, key: Any = None, sent: Any = None) -> bool:
        """Send `x` to the queue of `peer`. Return False if it is full: then nothing was sent.
        One-sided. With a codec it is encoded relative to `key` (default: 0), so that the peer can
        decode it with the same key; `sent`, an array, becomes exactly what the peer will have."""
        given = self._peer(peer), self._memory("x", x), self._optional("key", key)
        into = self._optional("sent", sent, writable=True)
        pushed = bool(self._answer("int32_t", "push", *given, into))
        if pushed:
            self._twins.land(sent=sent)
        return pushed

    def drain(self, *, key: Any = None) -> list[tuple[int, Array]]:
        """Take all messages out of the own queue: (source, model), oldest first. Local. With a
        codec: decoded with `key` (default: 0). Those that do not decode are counted in
        ``stats.decode_failures`` and are not returned."""
        messages = []
        source, taken = ffi.new("uint32_t *"), ffi.new("int32_t *")
        for _ in range(1024):  # others may be faster than this loop
            out = np.empty(self.shape, self.dtype)
            memory = self._optional("key", key), self._memory("out", out, writable=True)
            self._call("drain", *memory, source, taken)
            if not taken[0]:
                break
            messages.append((int(source[0]), out))
        return messages

    def peek(self, peer: int, *, key: Any = None, out: Any = None) -> tuple[Array, int] | None:
        """Return the newest message in the queue of `peer` (or of this rank), which stays there,
        and its sender; None if none decodes with `key`. `out` as for `read`. One-sided."""
        out = np.empty(self.shape, self.dtype) if out is None else out
        source, found = ffi.new("uint32_t *"), ffi.new("int32_t *")
        memory = self._key_and_out(key, out)
        self._call("peek", self._peer_or_own(peer), *memory, source, found)
        if not found[0]:
            return None
        self._twins.land(out=out)
        return out, int(source[0])

    @property
    def topology(self) -> Topology:
        """The topology of the buffer; with ``on_failure="continue"`` among the live ranks."""
        self._look_around()
        return self._topology

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """The dead ranks, with ``on_failure="continue"``: bool, (ranks,). Any thread may ask."""
        return self._set_of_ranks("failed", self._size)

    @property
    def board(self) -> Board:
        """A shared number for each rank and a counter, 0 at first, for `pairing.Available`."""
        return Board(self)

    @property
    def stats(self) -> GossipStats:
        """Counters of this rank."""
        return self._counters(GossipStats)

    @property
    def memory(self) -> int:
        """Bytes of this rank's window: four models (five of 16 bits), and one for each slot of the
        queue. What is never written takes no memory."""
        return int(self._answer("uint64_t", "bytes"))

    def __repr__(self) -> str:
        state = "freed" if self._is_freed() else f"rank {self._rank} of {self._size}"
        return f"GossipBuffer({state}, shape={self.shape}, dtype={self.dtype})"
