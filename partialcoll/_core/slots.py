# SPDX-License-Identifier: Apache-2.0
"""The buffers of a handle: where deposits come from, and where results go."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
import numpy.typing as npt

from ..errors import StateError
from . import waiting
from .buffers import Array, Buffer, addresses, held, identity, is_half, narrow, wrap
from .device import DeviceBuffer, on_device, refuse_stream, stream_number
from .ffi import check, ffi, lib, raise_error
from .mirror import Twins


class Record:
    """Memory for the description of a round of `ranks` ranks: the struct, then three masks."""

    def __init__(self, ranks: int) -> None:
        struct = ffi.sizeof("pcoll_round")
        self._memory = ffi.new("char[]", struct + 3 * 8 * ((ranks + 63) // 64))
        self.view = ffi.buffer(self._memory)
        self.round = ffi.cast("pcoll_round *", self._memory)
        # The field `failed` alone, for code that reads it after each round.
        at = ffi.offsetof("pcoll_round", "failed")
        self.failed = memoryview(self.view)[at : at + 4].cast("I")
        # The arguments that the core's functions fill in.
        self.out = (self.round, ffi.cast("uint64_t *", self._memory + struct))


class SendSlots:
    """The memory for deposits of a handle without send buffers: a few places, used in turn."""

    def __init__(self, pointer: Any, like: list[Array]) -> None:
        self._pointer, self._like = pointer, like
        self._place = ffi.new("void **")
        self.views: dict[tuple[int, int], Array] = {}

    def place(self, buffer: int = 0) -> int:
        code = lib.pcoll_handle_send_slot(self._pointer[0], buffer, self._place)
        if code:
            raise_error(code)
        return int(ffi.cast("uintptr_t", self._place[0]))

    def next(self) -> list[Array]:
        """Return arrays for the next deposit, one for each buffer; good beyond the handle's end."""
        keys = []
        for i, like in enumerate(self._like):
            keys.append((i, self.place(i)))
            if keys[i] not in self.views:
                self.views[keys[i]] = wrap(held(self._place[0]), like)
        return [self.views[key].view() for key in keys]


class Slots:
    """The result slots of a handle with deliver="one" that has no receive buffers. Knows the
    handle's core and its description of the last round, not the handle: the rounds that it gave out
    hold on to this, and must not keep it alive."""

    def __init__(self, pointer: Any, record: Record, buffers: list[Buffer], ops: list[Any]) -> None:
        self._pointer, self._record, self._buffers, self._ops = pointer, record, buffers, ops
        self._halves = [is_half(buffer) for buffer in buffers]
        self._place = ffi.new("void const **")
        self.views: dict[tuple[int, int], Array] = {}
        # The round whose result is there for this rank; None: the library may write there.
        self.index: int | None = None

    def last(self) -> list[Array]:
        if self.index is None:
            raise StateError(
                "result: there is none before the first Wait, between Start and Wait, and after "
                "leave"
            )
        return self._look()

    def of(self, index: int) -> list[Array]:
        """Return the result of a round, if that is the one that is there."""
        if index != self.index:
            raise StateError(
                f"the result of round {index} went back to the library at the next Start (or "
                "leave): look at it before that, or make the handle with a recvbuf"
            )
        return self._look()

    def _look(self) -> list[Array]:
        if self._record.round.active == 0:  # no rank has written the slot
            views = [identity(op, buffer) for op, buffer in zip(self._ops, self._buffers)]
        else:
            views = [self._view(i, buffer) for i, buffer in enumerate(self._buffers)]
        for view in views:
            view.flags.writeable = False
        return views

    def _view(self, i: int, buffer: Buffer) -> Array:
        if self._pointer[0] == ffi.NULL:
            raise StateError("the handle has been freed")
        code = lib.pcoll_handle_result(self._pointer[0], i, self._place)
        if code:
            raise_error(code)
        address, half = self._place[0], self._halves[i]
        key = (i, int(ffi.cast("uintptr_t", address)))
        view = self.views.get(key)
        if view is None:  # there are no more than results are kept
            dtype = np.float32 if half else None
            view = wrap(held(address), buffer.array, dtype=dtype, writable=False)
            self.views[key] = view
        return narrow(buffer.array, view) if half else view


class HandleBuffers:
    """The sources of a handle's deposits and the destinations of its results. The core copies host
    memory itself, and delivers to `buffers`. Deposits are read from `sent` (None: the library's
    memory), and results are written to `received`, both as the caller passed them. With `fetches`
    some of these are on a device; `fetch` then copies the delivered results there. several: results
    are added up, on the host, so arrays of the host replace the receive buffers."""

    def __init__(
        self, send: list[Buffer] | None, recv: list[Buffer], several: bool = False
    ) -> None:
        self._twins = Twins()
        self._there: dict[str, DeviceBuffer] = {}  # that others stand for
        self.received = [owner_of(buffer) for buffer in recv]
        self._takes_streams = bool(on_device([*(send or ()), *recv]))
        self.buffers = recv
        if several:
            self.buffers = [self._on_host(str(i), buffer) for i, buffer in enumerate(recv)]
        self._sent, self._received = on_device(send or []), on_device(self.buffers)
        self.fetches = bool(self._received)
        self.sent: list[Any] | None = None
        if send is not None or self.fetches:
            self.sent = [owner_of(buffer) for buffer in send or ()]
        self._from, self._to = _places(send or []), _places(self.buffers)

    def _on_host(self, name: str, buffer: Buffer) -> Buffer:
        if not isinstance(buffer, DeviceBuffer):
            return buffer
        self._there[name] = buffer
        array = self._twins.take(name, buffer, read=False)
        return Buffer(array, buffer.dtype, buffer.count, owner=buffer.owner)

    def starting(self, core: Any, stream: Any = None) -> Callable[[], int]:
        """Return a function that makes a deposit, or begins its copy; it returns a result code."""
        self.check_stream(stream)
        if not (self._sent or self.fetches):
            pointers = ffi.NULL if self.sent is None else addresses(self.sent)
            return partial(lib.pcoll_handle_start, core, pointers)
        return lambda: int(
            lib.pcoll_handle_start_device(core, self._from, stream_number(stream, self._sent))
        )

    def check_stream(self, stream: Any) -> None:
        if not self._takes_streams:
            refuse_stream(stream)

    def settle(self) -> None:
        """Wait until no copy is under way: the core may deliver."""
        for name, buffer in self._there.items():
            self._twins.take(name, buffer, read=False)

    def fetch(self, core: Any, stream: Any) -> None:
        """Begin to copy what was delivered; what the stream is given next comes after."""
        if self._there:
            self._twins.land(stream, **{name: one.owner for name, one in self._there.items()})
        if not self.fetches:
            return
        number = stream_number(stream, self._received)

        def begins() -> bool:  # not while the last one is still being copied, in a join
            code = lib.pcoll_handle_fetch_device(core, self._to, number)
            if code != lib.PCOLL_EAGAIN:
                check(code)
            return bool(code != lib.PCOLL_EAGAIN)

        waiting.until(begins, waiting.look)

    def free(self) -> None:
        self._twins.free()


def owner_of(buffer: Buffer) -> Any:
    return buffer.owner if isinstance(buffer, DeviceBuffer) else buffer.array


def _places(buffers: list[Buffer]) -> Any:
    """Return a C array of the buffers' places. Keep `buffers` alive while it is in use."""
    places = ffi.new("pcoll_place[]", len(buffers))
    for place, buffer in zip(places, buffers):
        place.address, place.on_host = buffer.begin, not isinstance(buffer, DeviceBuffer)
    return places


def bits(words: Any, ranks: int) -> npt.NDArray[np.bool_]:
    """Return a set of ranks, as the core has it, as an array: bool, shape (ranks,)."""
    raw = np.frombuffer(words, np.uint8)
    return np.unpackbits(raw, count=ranks, bitorder="little").astype(bool)
