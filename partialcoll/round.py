# SPDX-License-Identifier: Apache-2.0
"""The objects that a call returns: its rounds, and the ranks that were in them."""

from __future__ import annotations

import struct
from typing import Any, Callable, cast

import numpy as np
import numpy.typing as npt

from ._core.buffers import Array
from ._core.slots import bits

# struct pcoll_round: index, lag, lost, active, stored, initiator, included, below_quorum, joined;
# failed; behind it the words of the three masks.
_LAYOUT = struct.Struct("=3Q2I4iI4x")


def _field(which: int, about: str, kind: Any = int) -> Any:
    """A property: number `which` of the description, decoded when first asked for."""

    def get(self: _Described) -> Any:
        if self._fields is None:  # most loops look at few of them
            self._fields = _LAYOUT.unpack_from(self._raw)
        return kind(self._fields[which])

    return property(get, doc=about)


def _mask(which: int, about: str) -> Any:
    def get(self: _Described) -> npt.NDArray[np.bool_]:
        third = (len(self._raw) - _LAYOUT.size) // 3
        begin = _LAYOUT.size + which * third
        return bits(self._raw[begin : begin + third], self._ranks)

    return property(get, doc=f"{about}: bool, shape (ranks,).")


class _Described:
    """A round as the core describes it, with its number of ranks."""

    __slots__ = ("_fields", "_ranks", "_raw")

    _fields: tuple[int, ...] | None
    _ranks: int
    _raw: bytes

    index: int = _field(0, "Number of the round, from 0, the same on all ranks.")
    active: int = _field(3, "Ranks that contributed fresh data.")
    stored: int = _field(4, "Of them, those whose deposit was made before the round, not for it.")
    initiator: int = _field(
        5, "Lowest rank whose own arrival started the round; -1 if there was none."
    )
    below_quorum: bool = _field(
        7, "The round completed by its deadline with fewer ranks than its policy asks for.", bool
    )
    mask: npt.NDArray[np.bool_] = _mask(0, "Which ranks contributed fresh data")
    stored_mask: npt.NDArray[np.bool_] = _mask(
        1, "Which of them contributed a deposit from before the round"
    )
    failed: npt.NDArray[np.bool_] = _mask(
        2, 'Which ranks had died before it, with ``on_failure="continue"``'
    )


class Result(_Described):
    """One delivered round. The library makes it: of `raw`, the round as the core describes it
    (``struct pcoll_round`` and its masks), the number of `ranks`, which is how long the masks are,
    and the values, one array for each buffer: `buffers`, or without these what `look` returns, when
    first asked, for the number of the round."""

    __slots__ = ("_buffers",)

    def __init__(
        self,
        raw: bytes,
        ranks: int,
        buffers: list[Array] | None,
        look: Callable[[int], list[Array]] | None = None,
    ) -> None:
        self._raw, self._ranks, self._fields = raw, ranks, None
        self._buffers: Any = look if buffers is None else buffers

    @property
    def buffers(self) -> list[Array]:
        """The reduced values, one array for each buffer. Where a call delivered one round only,
        these are the receive buffers themselves, which the next call overwrites; without receive
        buffers (``recvbuf=None``, ``deliver="one"``) read-only views of the library's memory, which
        are good until the next `Start` (StateError if they are first asked for after it)."""
        if not isinstance(self._buffers, list):  # looked up when first asked for: few loops do
            self._buffers = self._buffers(self.index)
        return cast("list[Array]", self._buffers)

    def with_buffers(self, look: Callable[[int], list[Array]]) -> Result:
        """Return the same round with other values: what `look` returns for its number."""
        return Result(self._raw, self._ranks, None, look)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the first buffer, so that numpy functions accept a result."""
        array = np.asarray(self.buffers[0], dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return f"Result(index={self.index}, active={self.active}, stored={self.stored})"


class Round(_Described):
    """The return value of `Wait`: the last round delivered, and the results delivered with it. The
    library creates it from the ``last`` result, from all `results` if there are several, and from
    the number of rounds that are `lost`."""

    __slots__ = ("_last", "_lost", "_results")

    included: bool = _field(6, "Was the deposit of this call in a delivered round?", bool)
    lag: int = _field(1, "Rounds that are complete on this rank and have not been delivered yet.")
    joined: bool = _field(8, "With this round all ranks have joined.", bool)
    _lost_before: int = _field(2, "Rounds skipped just before this one.")

    def __init__(
        self, last: Result, results: list[Result] | None = None, lost: int | None = None
    ) -> None:
        self._raw, self._ranks, self._fields = last._raw, last._ranks, None
        self._last, self._results, self._lost = last, results, lost

    @property
    def results(self) -> list[Result]:
        """The delivered rounds, oldest first; with ``deliver="one"`` exactly one."""
        if self._results is None:
            self._results = [self._last]
        return self._results

    @property
    def lost(self) -> int:
        """Rounds that this call skipped because they were older than ``history``."""
        return self._lost_before if self._lost is None else self._lost

    def __repr__(self) -> str:
        return (
            f"Round(index={self.index}, active={self.active}, stored={self.stored}, "
            f"included={self.included}, lag={self.lag}, lost={self.lost}, "
            f"rounds={len(self.results)})"
        )
