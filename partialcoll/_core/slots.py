# SPDX-License-Identifier: Apache-2.0
"""Deposits that are written where they are read, results that stay where they were reduced: these
are views of the library's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import StateError
from .buffers import Array, Buffer, held, wrap
from .ffi import answer, check, ffi, lib
from .ops import identity, is_half, narrow
from .record import Record


class SendSlots:
    """The memory for deposits of a handle that has no send buffers. The places are few and take
    turns: each deposit has another one."""

    def __init__(self, pointer: Any, like: list[Array]) -> None:
        self._pointer, self._like = pointer, like
        self._place = ffi.new("void **")
        self._views: dict[tuple[int, int], Array] = {}

    def place(self, buffer: int = 0) -> int:
        """Where that of the next deposit is."""
        check(lib.pcoll_handle_send_slot(self._pointer[0], buffer, self._place))
        return int(ffi.cast("uintptr_t", self._place[0]))

    def next(self) -> list[Array]:
        """For the next deposit, one array for each buffer; good beyond the handle's end."""
        return [self._view((i, self.place(i)), like).view() for i, like in enumerate(self._like)]

    def _view(self, key: tuple[int, int], like: Array) -> Array:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = wrap(held(self._place[0]), like)
        return view

    def let_go(self) -> None:
        """The handle ends: its memory goes when nobody else has a view of it."""
        self._views.clear()


class Slots:
    """The result slots of a handle with deliver="one" that has no receive buffers.

    Knows the handle's core and its description of the last round, not the handle: the rounds
    that it gave out hold on to this, and must not keep it alive.
    """

    def __init__(self, pointer: Any, record: Record, buffers: list[Buffer], ops: list[Any]) -> None:
        self._pointer = pointer
        self._record = record
        self._buffers = buffers
        self._ops = ops
        self._views: dict[tuple[int, int], Array] = {}
        self._index: int | None = None  # the round whose result is there for this rank

    def fill(self) -> None:
        """The round that the core has just described is there."""
        self._index = self._record.round.index

    def empty(self) -> None:
        """From now on the library may write there."""
        self._index = None

    def let_go(self) -> None:
        """The handle ends: its memory goes when nobody else has a view of it."""
        self._views.clear()

    def last(self) -> list[Array]:
        """The result of the last round, one array for each buffer."""
        if self._index is None:
            raise StateError(
                "result: there is none before the first Wait, between Start and Wait, and after "
                "leave"
            )
        return self._look()

    def of(self, index: int) -> list[Array]:
        """The result of a round, if that is the one that is there."""
        if index != self._index:
            raise StateError(
                f"the result of round {index} went back to the library at the next Start (or "
                "leave): look at it before that, or make the handle with a recvbuf"
            )
        return self._look()

    def _look(self) -> list[Array]:
        if self._record.round.active == 0:  # nobody has written the slot
            views = [identity(op, buffer) for op, buffer in zip(self._ops, self._buffers)]
        else:
            views = [self._view(i, buffer) for i, buffer in enumerate(self._buffers)]
        for view in views:
            view.flags.writeable = False
        return views

    def _view(self, i: int, buffer: Buffer) -> Array:
        if self._pointer[0] == ffi.NULL:
            raise StateError("the handle has been freed")
        address = answer("void const *", lib.pcoll_handle_result, self._pointer[0], i)
        half = is_half(buffer)
        key = (i, int(ffi.cast("uintptr_t", address)))
        view = self._views.get(key)
        if view is None:  # there are no more than results are kept
            dtype = np.float32 if half else None
            view = wrap(held(address), buffer.array, dtype=dtype, writable=False)
            self._views[key] = view
        return narrow(buffer.array, view) if half else view
