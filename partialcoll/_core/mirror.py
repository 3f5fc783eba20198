# SPDX-License-Identifier: Apache-2.0
"""Pinned memory of the host that stands for arrays on a device, where an engine works on the host
alone: pulled before it does, pushed afterwards.

A pull waits for what its stream was given before, and for the copy. A push does not wait: what its
stream is given next comes after it, and the host's side stays as it is until the next `settle`.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import settings, waiting
from .buffers import Array, is_device
from .device import DeviceBuffer, as_device_buffer, stream_number
from .ffi import check, ffi, lib

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def _end(pointer: Any, memory: list[Any], process: int) -> None:
    if os.getpid() == process:  # a child has no device
        lib.pcoll_mirror_free(pointer)
    memory.clear()


def reserve(nbytes: int) -> Array:
    """Return bytes of the host's, whole pages, which take memory when they are used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), flags=flags), np.uint8)


class Mirror:
    def __init__(self, device: int) -> None:
        self.device = device
        self._pointer = ffi.new("pcoll_mirror **")
        check(lib.pcoll_mirror_create(device, self._pointer))
        self._memory: list[Array] = []
        self.free = weakref.finalize(self, _end, self._pointer, self._memory, os.getpid())

    def pin(self, memory: Array) -> None:
        """Pin whole pages, none twice. They stay as long as this does."""
        if memory.size:
            self._memory.append(memory)
            address = ffi.cast("void *", memory.ctypes.data)
            check(lib.pcoll_mirror_pin(self._pointer[0], address, memory.size))

    def room(self, like: DeviceBuffer) -> Array:
        memory = reserve(like.array.nbytes)
        self.pin(memory)
        return memory[: like.array.nbytes].view(like.array.dtype).reshape(like.array.shape)

    def _begin(self, copy: Any, pairs: Sequence[tuple[Array, DeviceBuffer]], stream: Any) -> None:
        self.settle()
        if pairs:
            pieces = ffi.new("pcoll_piece[]", len(pairs))
            for piece, (array, buffer) in zip(pieces, pairs):
                piece.host = ffi.cast("void *", array.ctypes.data)
                piece.device, piece.bytes = buffer.address, array.nbytes
            number = stream_number(stream, [buffer for _, buffer in pairs])
            check(copy(self._pointer[0], pieces, len(pairs), number))

    def _stall(self, waited: float) -> None:
        settings.logger.warning(
            "waiting for %.1f s for device %d: its stream has not come so far", waited, self.device
        )

    def settle(self) -> None:
        """Wait until no copy is under way: the host's side may be written to."""
        pointer = self._pointer[0]
        waiting.wait(lambda us: int(lib.pcoll_mirror_wait(pointer, us)), None, self._stall)

    def pull(self, pairs: Sequence[tuple[Array, DeviceBuffer]], stream: Any = None) -> None:
        """Copy from the device to these arrays of the host; wait for it."""
        self._begin(lib.pcoll_mirror_pull, pairs, stream)
        self.settle()

    def push(self, pairs: Sequence[tuple[Array, DeviceBuffer]], stream: Any = None) -> None:
        """Copy these arrays to the device, for what the stream is given next."""
        self._begin(lib.pcoll_mirror_push, pairs, stream)


class _Mirrors(dict[int, Mirror]):
    """The mirrors by device; each is created at its first use."""

    def __missing__(self, device: int) -> Mirror:
        return self.setdefault(device, Mirror(device))


class Twins:
    """An array of the host for each argument that is on a device, kept from call to call."""

    def __init__(self) -> None:
        self._mirrors = _Mirrors()
        self._arrays: dict[tuple[str, int], Array] = {}
        self._taken: dict[str, DeviceBuffer] = {}

    def take(self, name: str, buffer: DeviceBuffer, read: bool = True, stream: Any = None) -> Array:
        """Return the array of the argument `name`, always of one shape; `read`: with its values."""
        mirror, key = self._mirrors[buffer.device], (name, buffer.device)
        if key not in self._arrays:
            self._arrays[key] = mirror.room(buffer)
        self._taken[name] = buffer
        if read:
            mirror.pull([(self._arrays[key], buffer)], stream)
        else:
            mirror.settle()
        return self._arrays[key]

    def free(self) -> None:
        for mirror in self._mirrors.values():
            mirror.free()
        for each in (self._mirrors, self._arrays, self._taken):
            each.clear()

    def land(self, stream: Any = None, **written: Any) -> None:
        """Copy what became of these arguments to the device, if they are on one."""
        for name, given in written.items():
            if name in self._taken and is_device(given):
                buffer = self._taken[name]
                array = self._arrays[name, buffer.device]
                self._mirrors[buffer.device].push([(array, buffer)], stream)


@contextmanager
def on_host(arrays: Sequence[Any], written: bool) -> Iterator[list[Array]]:
    """Yield the host's arrays that stand for these, those on a device; with `written` what has
    become of them is there afterwards."""
    twins, found = Twins(), []
    there = {str(i): array for i, array in enumerate(arrays) if is_device(array)}
    try:
        for i, array in enumerate(arrays):
            if str(i) in there:
                array = twins.take(str(i), as_device_buffer("vector", array, written))
            found.append(array)
        yield found
        if written:
            twins.land(**there)
    finally:
        twins.free()


class Shadows:
    """Host memory laid out as the allocations of a device, so that what overlaps there overlaps
    here. All ranges are asked for before the first pull."""

    def __init__(self) -> None:
        self._mirrors = _Mirrors()
        self._areas: dict[tuple[int, int], Array] = {}  # by device and address
        self._used: dict[tuple[int, int], list[tuple[int, int]]] = {}  # bytes there
        self._read: dict[int, list[tuple[Array, DeviceBuffer]]] = {}
        self._written: dict[int, list[tuple[Array, DeviceBuffer]]] = {}

    def of(self, buffer: DeviceBuffer, read: bool, written: bool) -> Array:
        """Return the array that stands for a buffer, which is to be pulled or pushed, or both."""
        outline = buffer.array
        if not outline.nbytes:
            return np.empty(outline.shape, outline.dtype)
        begin, extent = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        check(lib.pcoll_device_allocation(buffer.address, begin, extent))
        key, offset = (buffer.device, int(begin[0])), buffer.address - int(begin[0])
        if key not in self._areas:
            self._areas[key] = reserve(int(extent[0]))
            self._used[key] = []
        self._used[key].append((offset, offset + outline.nbytes))
        part = self._areas[key][offset : offset + outline.nbytes]
        array: Array = part.view(outline.dtype).reshape(outline.shape)
        for wanted, pairs in ((read, self._read), (written, self._written)):
            if wanted:
                pairs.setdefault(buffer.device, []).append((array, buffer))
        return array

    def pull(self, stream: Any = None) -> None:
        """Pull what is read. With the first one all that was asked for is pinned."""
        for key, ranges in self._used.items():
            mirror = self._mirrors[key[0]]
            for begin, end in _whole_pages(ranges):
                mirror.pin(self._areas[key][begin:end])
            ranges.clear()
        for device, mirror in self._mirrors.items():
            mirror.pull(self._read.get(device, []), stream)

    def free(self) -> None:
        """End copies; the memory is no longer pinned, and stays as long as arrays in it do."""
        for mirror in self._mirrors.values():
            mirror.free()
        self._mirrors.clear()

    def push(self, stream: Any = None) -> None:
        for device, mirror in self._mirrors.items():
            mirror.push(self._written.get(device, []), stream)


def _whole_pages(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    pages: list[tuple[int, int]] = []
    for begin, end in sorted((b // mmap.PAGESIZE, -(-e // mmap.PAGESIZE)) for b, e in ranges):
        if pages and begin <= pages[-1][1]:
            begin, end = pages[-1][0], max(end, pages.pop()[1])
        pages.append((begin, end))
    return [(begin * mmap.PAGESIZE, end * mmap.PAGESIZE) for begin, end in pages]
