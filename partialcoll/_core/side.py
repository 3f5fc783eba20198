# SPDX-License-Identifier: Apache-2.0
"""The buffers of a handle: where deposits come from, and where results go."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from . import waiting
from .buffers import Buffer, addresses
from .device import DeviceBuffer, on_device, refuse_stream, stream_number
from .ffi import check, ffi, lib
from .mirror import Twins


class HostSide:
    """Memory of the host, which the core copies itself.

    Attributes
    ----------
    buffers : list of Buffer
        What the core delivers to.
    sent, received : list
        Whence deposits come, and what results come to, as it was given. sent: None: the library's
        memory.
    fetches : bool
        Are results copied by `fetch`, and not by the core as it delivers them?
    """

    fetches = False

    def __init__(self, send: list[Buffer] | None, recv: list[Buffer]) -> None:
        self.buffers = recv
        self.received: list[Any] = [buffer.array for buffer in recv]
        self.sent: list[Any] | None = None if send is None else [one.array for one in send]

    def starting(self, core: Any, stream: Any = None) -> Callable[[], int]:
        """What makes a deposit: gives a result code of the core."""
        self.check_stream(stream)
        pointers = ffi.NULL if self.sent is None else addresses(self.sent)
        return partial(lib.pcoll_handle_start, core, pointers)

    def check_stream(self, stream: Any) -> None:
        """ValueError if one is given where nothing is copied on it."""
        refuse_stream(stream)

    def settle(self) -> None:
        """No copy is under way: the core may deliver."""

    def fetch(self, core: Any, stream: Any) -> None:
        """Begin to copy what was delivered; what the stream is given next comes after."""

    def free(self) -> None:
        """Copies end."""


class DeviceSide(HostSide):
    """Some on a device: copied to where deposits lie, and from where results do. several: results
    are added up, which is done on the host: arrays of the host stand for those received."""

    def __init__(
        self, send: list[Buffer] | None, recv: list[Buffer], several: bool = False
    ) -> None:
        super().__init__(send, recv)
        self._twins = Twins()
        self._there: dict[str, DeviceBuffer] = {}  # that others stand for
        self.received = [_owner(buffer) for buffer in recv]
        if several:
            self.buffers = [self._on_host(str(i), buffer) for i, buffer in enumerate(recv)]
        self._sent, self._received = on_device(send or []), on_device(self.buffers)
        self.fetches = bool(self._received)
        if self._sent or self.fetches:
            self.sent = [_owner(buffer) for buffer in send or ()]
        self._from, self._to = _places(send or []), _places(self.buffers)

    def _on_host(self, name: str, buffer: Buffer) -> Buffer:
        if not isinstance(buffer, DeviceBuffer):
            return buffer
        self._there[name] = buffer
        array = self._twins.take(name, buffer, read=False)
        return Buffer(array, buffer.dtype, buffer.count, owner=buffer.owner)

    def starting(self, core: Any, stream: Any = None) -> Callable[[], int]:
        """What begins to copy the send buffers, when the stream has come so far."""
        if not (self._sent or self.fetches):
            return super().starting(core)
        return lambda: int(
            lib.pcoll_handle_start_device(core, self._from, _number(stream, self._sent))
        )

    def check_stream(self, stream: Any) -> None:
        """All are good."""

    def settle(self) -> None:
        """What was copied to the device last is there."""
        for name, buffer in self._there.items():
            self._twins.take(name, buffer, read=False)

    def fetch(self, core: Any, stream: Any) -> None:
        """To the device."""
        self._twins.land(stream, **{name: buffer.owner for name, buffer in self._there.items()})
        if not self.fetches:
            return
        number = _number(stream, self._received)

        def begins() -> bool:  # not while the last one is still being copied, in a join
            code = lib.pcoll_handle_fetch_device(core, self._to, number)
            if code != lib.PCOLL_EAGAIN:
                check(code)
            return bool(code != lib.PCOLL_EAGAIN)

        waiting.until(begins, waiting.look)

    def free(self) -> None:
        """Copies end."""
        self._twins.free()


def side_of(send: list[Buffer] | None, recv: list[Buffer], several: bool) -> HostSide:
    """For buffers that `one_device` has looked at."""
    if on_device([*(send or ()), *recv]):
        return DeviceSide(send, recv, several)
    return HostSide(send, recv)


def _owner(buffer: Buffer) -> Any:
    return buffer.owner if isinstance(buffer, DeviceBuffer) else buffer.array


def _number(stream: Any, buffers: list[DeviceBuffer]) -> int:
    return stream_number(stream, buffers) if buffers else 0


def _places(buffers: list[Buffer]) -> Any:
    """A C array of where they are. Keep the arrays alive as long as it is used."""
    places = ffi.new("pcoll_place[]", len(buffers))
    for place, buffer in zip(places, buffers):
        place.address, place.on_host = buffer.begin, not isinstance(buffer, DeviceBuffer)
    return places
