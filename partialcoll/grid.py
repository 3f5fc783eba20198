# SPDX-License-Identifier: Apache-2.0
"""The grid of grouped averaging, and who of a group reduces how much: arithmetic only.

Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, section 3.1 and appendix G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ._core import checks
from ._core.pure import call, check, ffi, lib

MOST_AXES = 16
MOST_SIDE = (1 << 32) - 1
MOST_AUTO = 1 << 32

Numbers = TypeVar("Numbers", int, npt.NDArray[Any])


def as_sides(sides: Sequence[int] | str) -> list[int]:
    if isinstance(sides, str):
        words = sides.split("x")
        if not all(word.isdigit() for word in words):
            raise ValueError(f'grid: expected "auto" or sides such as "32x32", got {sides!r}')
        sides = [int(word) for word in words]
    try:
        given = list(sides)
    except TypeError:
        raise TypeError(f'grid: expected a tuple of sides or "auto", got {sides!r}') from None
    if not 1 <= len(given) <= MOST_AXES:
        raise ValueError(f"grid: expected 1 to {MOST_AXES} axes, got {len(given)}")
    return [checks.integer("grid: sides", side, 1, MOST_SIDE) for side in given]


def _numbers(values: Any, name: str, dtype: Any, most: int) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected whole numbers, got {array.dtype}")
    if array.size and not (int(array.min()) >= 0 and int(array.max()) <= most):
        raise ValueError(f"{name}: expected 0 to {most}, got {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, dtype)


class Grid:
    """A grid of cells for ``peers`` peers: it determines which peers average in which round.

    ``sides`` are the lengths of the axes, as ``(4, 8)`` or ``"4x8"``, or ``"auto"``: a full grid of
    two or more axes with sides of about 32 at most, if ``peers`` has such factors, else one with as
    few empty cells as sides that differ by one allow. Cells are numbered row by row, as by
    `numpy.ravel_multi_index`; at first each peer has the cell of its own number. ``cells`` below
    are one number or an array of them, and so are the results. ValueError: an axis too many (16 at
    most), a side of 0, 2^63 cells or more, fewer cells than peers.
    """

    def __init__(self, sides: Sequence[int] | str = "auto", peers: int | None = None) -> None:
        if isinstance(sides, str) and sides == "auto":
            if peers is None:
                raise ValueError('peers: expected a number with grid="auto", got None')
            self.peers = checks.integer("peers", peers, 1, MOST_AUTO)
            room, axes = ffi.new("uint32_t[]", MOST_AXES), ffi.new("uint32_t *")
            check(lib.pcoll_grid_auto(self.peers, room, axes))
            self.sides = tuple(int(side) for side in room[0 : axes[0]])
        else:
            self.sides = tuple(as_sides(sides))
            asked = 0 if peers is None else checks.integer("peers", peers, 1, (1 << 63) - 1)
            check(lib.pcoll_grid_check(self.sides, len(self.sides), asked))
            self.peers = self.cells if peers is None else asked
        self._c_sides = ffi.new("uint32_t[]", self.sides)
        self._key = self.sides, self.peers

    @property
    def axes(self) -> int:
        """Number of axes, and of rounds until each peer has met all, directly or through others."""
        return len(self.sides)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(self.sides)

    @property
    def full(self) -> bool:
        """Whether every cell has a peer: `axes` complete rounds then give the exact average."""
        return self.cells == self.peers

    def __repr__(self) -> str:
        return f"Grid({self.sides}, peers={self.peers})"

    def __str__(self) -> str:
        return "x".join(str(side) for side in self.sides)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Grid) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grid, self._key

    def axis(self, round: int) -> int:
        """Return along which axis round number `round` (from 0) averages: they take turns."""
        return checks.integer("round", round, 0, 2**64 - 1) % self.axes

    def line(self, cells: Numbers, axis: int) -> Numbers:
        """Return the lines of the `cells` along an `axis`, the keys of their groups: the cells of
        one line, and no others, have one number, less than cells / side."""
        return cast("Numbers", self._each(lib.pcoll_grid_lines, cells, axis, np.int64))

    def coordinate(self, cells: Numbers, axis: int) -> Numbers:
        """Return the places of the `cells` on an `axis`, from 0 to its side - 1."""
        return cast("Numbers", self._each(lib.pcoll_grid_coordinates, cells, axis, np.uint32))

    def _each(self, function: Any, cells: Any, axis: int, dtype: Any) -> Any:
        given = _numbers(cells, "cells", np.int64, self.cells - 1)
        out, axis = np.empty(given.shape, dtype), checks.integer("axis", axis, 0, self.axes - 1)
        call(function, self._c_sides, self.axes, axis, given, given.size, out)
        return out if np.ndim(cells) else out.item()

    def move(self, cells: Numbers, axis: int, chunks: npt.ArrayLike) -> Numbers:
        """Return the `cells` with their coordinates on the `axis` replaced by `chunks`: where the
        members of groups go with dynamic keys, after a round that was not void."""
        axis = checks.integer("axis", axis, 0, self.axes - 1)
        given = _numbers(cells, "cells", np.int64, self.cells - 1)
        to = _numbers(chunks, "chunks", np.uint32, self.sides[axis] - 1)
        if given.shape != to.shape:
            raise ValueError(f"chunks: expected the shape of cells, {given.shape}, got {to.shape}")
        out = np.empty_like(given)
        call(lib.pcoll_grid_move, self._c_sides, self.axes, axis, given, to, given.size, out)
        return cast("Numbers", out if np.ndim(cells) else out.item())

    def chunks(self, round: int, lines: Any, positions: Any, sizes: Any) -> npt.NDArray[np.uint32]:
        """Return where the members of groups go with dynamic keys: coordinates on the axis of a
        round, number `round` from 0, which differ within a group and from round to round. `lines`,
        `positions`, `sizes`: arrays of int, of one shape: for each member the line of its group on
        that axis, its place in the group in the order of ranks, and how many are in the group, at
        most the side."""
        keys = _numbers(lines, "lines", np.int64, (1 << 63) - 1)
        places = _numbers(positions, "positions", np.uint32, MOST_SIDE)
        of = _numbers(sizes, "sizes", np.uint32, MOST_SIDE)
        if not keys.shape == places.shape == of.shape:
            raise ValueError(
                "lines, positions, sizes: expected one shape, got "
                f"{keys.shape}, {places.shape}, {of.shape}"
            )
        out = np.empty(keys.shape, np.uint32)
        grid = (self._c_sides, self.axes, self.peers)
        index = checks.integer("round", round, 0, 2**64 - 1)
        call(lib.pcoll_grid_chunks, *grid, index, keys, places, of, keys.size, out)
        return out


def bandwidth_shares(bandwidths: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the part of the vector that each member of a group is to reduce. With bandwidth b and
    share w, of M members, a member sends and takes in (1 + (M - 2) w) / b vectors: the shares make
    the slowest as fast as possible, by the closed form of the linear program of the paper's
    appendix G. They add up to 1; a slow member's may be 0. One or two members: equal.
    ``bandwidths``: one number for each member, above 0 and finite, in any unit; ValueError names
    the first that is not."""
    given = np.ascontiguousarray(bandwidths, np.float64)
    if given.ndim != 1:
        raise ValueError(f"bandwidths: expected one dimension, got shape {given.shape}")
    shares = np.empty_like(given)
    call(lib.pcoll_group_shares, given, given.size, shares)
    return shares
