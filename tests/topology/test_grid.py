# SPDX-License-Identifier: Apache-2.0
"""Grids: groups of peers; shares by bandwidth, compared with a solver; bad input."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partialcoll as pc
from partialcoll import Grid, bandwidth_shares
from partialcoll._core.ffi import check, ffi, lib

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

tried = settings(deadline=None)
SIDES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@tried
@given(SIDES)
def test_lines_partition_the_cells(sides):
    grid = Grid(sides)
    cells = np.arange(grid.cells)
    where = np.unravel_index(cells, sides)
    for axis, side in enumerate(sides):
        lines = grid.line(cells, axis)
        assert (np.bincount(lines, minlength=grid.cells // side) == side).all()
        assert lines.max() < grid.cells // side
        np.testing.assert_array_equal(grid.coordinate(cells, axis), where[axis])
        # On one line all other coordinates are equal.
        others = [where[a] for a in range(len(sides)) if a != axis]
        for line in np.unique(lines):
            assert all(len(set(other[lines == line])) == 1 for other in others)


@tried
@given(SIDES, st.data())
def test_moving(sides, data):
    grid = Grid(sides)
    cell = data.draw(st.integers(0, grid.cells - 1))
    axis = data.draw(st.integers(0, grid.axes - 1))
    to = data.draw(st.integers(0, sides[axis] - 1))
    moved = grid.move(cell, axis, to)
    assert type(moved) is int
    assert grid.line(moved, axis) == grid.line(cell, axis)
    assert grid.coordinate(moved, axis) == to
    assert grid.move(moved, axis, grid.coordinate(cell, axis)) == cell
    for other in set(range(grid.axes)) - {axis}:
        assert grid.coordinate(moved, other) == grid.coordinate(cell, other)


def test_numbers_and_arrays():
    grid = Grid((3, 4, 5), peers=50)
    assert (grid.sides, grid.axes, grid.cells, grid.peers) == ((3, 4, 5), 3, 60, 50)
    assert not grid.full and Grid("3x4x5").full and str(grid) == "3x4x5"
    assert [grid.axis(t) for t in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    cells = np.arange(60, dtype=np.int32).reshape(6, 10)
    assert grid.line(cells, 1).shape == (6, 10)
    assert grid.line(cells, 1)[2, 3] == grid.line(23, 1) == grid.line(np.int64(23), 1)
    assert grid.move(cells[::2, ::3], 0, np.ones((3, 4), int)).tolist()[0] == [20, 23, 26, 29]
    assert grid.line(np.array([], int), 0).shape == (0,)
    assert pickle.loads(pickle.dumps(grid)) == grid != Grid((3, 4, 5))


def test_as_many_cells_as_there_can_be():
    side = (1 << 31) - 1
    grid = Grid((side, 2, side))
    cell = grid.cells - 2
    assert grid.coordinate(cell, 0) == side - 1 and grid.coordinate(cell, 2) == side - 2
    assert grid.line(cell, 0) == 2 * side - 2 and grid.line(cell, 1) == side * side - 2
    assert grid.move(cell, 0, 0) == 2 * side - 2


@tried
@given(SIDES, st.data())
def test_first_groups(sides, data):
    """No group exceeds the side, and sizes differ by at most one, for any number of peers."""
    grid = Grid(sides)
    peers = data.draw(st.integers(1, grid.cells))
    sizes = np.bincount(grid.line(np.arange(peers), 0), minlength=grid.cells // sides[0])
    assert sizes.max() <= sides[0] and sizes.max() - sizes.min() <= 1


def groups_of(lines, side):
    """Yield the peers by line. A line with too many is split."""
    for line in np.unique(lines):
        members = np.nonzero(lines == line)[0]
        parts = -(-len(members) // side)
        for part in range(parts):
            yield line, members[part::parts]


@tried
@given(SIDES, st.data())
def test_two_who_met_do_not_meet_on_the_other_axes(sides, data):
    """With dynamic keys, whichever peers stay away and whichever rounds are void."""
    grid = Grid(sides, peers=data.draw(st.integers(1, Grid(sides).cells)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    misses = data.draw(st.sampled_from((0, 0.1, 0.5)))
    cells, met = np.arange(grid.peers), []
    for t in range(3 * grid.axes):
        axis = grid.axis(t)
        there = np.nonzero(random.random(grid.peers) >= misses)[0]
        lines = grid.line(cells[there], axis)
        now = []
        for line, places in groups_of(lines, sides[axis]):
            members = there[places]
            for before in met[max(0, t - grid.axes + 1) :]:
                assert all(len(group & set(members)) <= 1 for group in before)
            if random.random() < misses:
                continue  # void
            size = len(members)
            chunks = grid.chunks(t, np.full(size, line), np.arange(size), np.full(size, size))
            assert len(set(chunks)) == size and chunks.max() < sides[axis]
            cells[members] = grid.move(cells[members], axis, chunks)
            now.append(set(members))
        met.append(now)


@tried
@given(SIDES, st.integers(0, 5))
def test_a_full_grid_is_exact(sides, first):
    """The average is exact after a round per axis, from any round on, with both kinds of keys."""
    grid = Grid(sides)
    for dynamic in (False, True):
        cells = np.arange(grid.cells)
        values = np.random.default_rng(first).normal(size=grid.cells)
        mean = values.mean()
        for t in range(first, first + grid.axes):
            axis = grid.axis(t)
            lines = grid.line(cells, axis)
            values = (np.bincount(lines, values) / sides[axis])[lines]
            if dynamic:
                order = np.argsort(lines, kind="stable")
                positions = np.empty(grid.cells, int)
                positions[order] = np.arange(grid.cells) % sides[axis]
                sizes = np.full(grid.cells, sides[axis])
                cells = grid.move(cells, axis, grid.chunks(t, lines, positions, sizes))
                assert len(set(cells)) == grid.cells
        np.testing.assert_allclose(values, mean, rtol=0, atol=1e-14)


def test_chunks_change_from_round_to_round():
    grid = Grid((32, 32))
    lines, positions, sizes = np.zeros(32, int), np.arange(32), np.full(32, 32)
    seen = {tuple(grid.chunks(2 * t, lines, positions, sizes)) for t in range(20)}
    assert len(seen) > 10


def splitmix(stream, n):
    """Return the n-th number of a stream, as in csrc/base/random.h."""
    mask = (1 << 64) - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    return mix((mix(stream) + (n + 1) * 0x9E3779B97F4A7C15) & mask)


@tried
@given(SIDES, st.integers(0, 1 << 40), st.data())
def test_chunks_are_what_the_header_says(sides, round, data):
    """Neighbors from a drawn place on, as wide as an average line, or one wider than the group."""
    grid = Grid(sides, peers=data.draw(st.integers(1, Grid(sides).cells)))
    side = sides[grid.axis(round)]
    size = data.draw(st.integers(1, side))
    line = data.draw(st.integers(0, grid.cells // side - 1))
    even = -(-grid.peers * side // grid.cells)
    width = even if size <= even else min(side, size + 1)
    place = (splitmix(round, line) >> 32) * width >> 32
    chunks = grid.chunks(round, [line] * size, np.arange(size), [size] * size)
    assert chunks.tolist() == [(place + i) % width for i in range(size)]


def factors(number, most, parts):
    """Return whether it is a product of `parts` integers from 2 to `most`."""
    if parts == 1:
        return 2 <= number <= most
    return any(
        number % side == 0 and factors(number // side, side, parts - 1)
        for side in range(2, min(most, number) + 1)
    )


def even_side(peers, axes):
    side = 1
    while side**axes < peers:
        side += 1
    return side


def test_auto():
    """Full where the rule allows it, and otherwise as few cells as its sides allow."""
    for peers in range(4, 2500):
        grid = Grid("auto", peers)
        axes = 2 if peers <= 1024 else 3
        assert grid.cells >= peers and min(grid.sides) >= 2
        assert list(grid.sides) == sorted(grid.sides, reverse=True)
        allowed = [a for a in (axes, axes + 1) if factors(peers, 2 * even_side(peers, a), a)]
        assert grid.full == bool(allowed)
        assert grid.axes == (allowed[0] if allowed else axes)
        even = even_side(peers, grid.axes)
        if grid.full:
            shortest = next(m for m in range(2 * even + 1) if factors(peers, m, grid.axes))
            assert max(grid.sides) == shortest
        else:
            assert set(grid.sides) <= {even, even - 1}
            assert grid.cells // even * (even - 1) < peers
            assert peers > 0.77 * grid.cells


@pytest.mark.parametrize(
    ("peers", "sides"),
    (
        (1, (1,)),
        (2, (2,)),
        (3, (3,)),
        (4, (2, 2)),
        (5, (3, 2)),
        (8, (4, 2)),
        (16, (4, 4)),
        (26, (6, 5)),
        (900, (30, 30)),
        (1001, (13, 11, 7)),
        (1024, (32, 32)),
        (10**6, (40, 40, 25, 25)),
        (1 << 20, (32,) * 4),
        ((1 << 32) - 1, (24, 24, 24, 24, 24, 24, 23)),
        (1 << 32, (32,) * 6 + (4,)),
    ),
)
def test_auto_by_example(peers, sides):
    assert Grid("auto", peers).sides == sides


@pytest.mark.parametrize(
    ("make", "complaint"),
    (
        (lambda: Grid((0, 4)), "sides: expected 1 to 4294967295, got 0"),
        (lambda: Grid((4, -1)), "sides: expected 1 to 4294967295, got -1"),
        (lambda: Grid((1 << 32,)), "sides: expected 1 to 4294967295, got 4294967296"),
        (lambda: Grid(()), "expected 1 to 16 axes, got 0"),
        (lambda: Grid((2,) * 17), "expected 1 to 16 axes, got 17"),
        (lambda: Grid((1 << 31, 1 << 31, 2)), r"fewer than 2\^63 cells"),
        (lambda: Grid((4, 4), 17), "expected cells for 17 peers, got 16"),
        (lambda: Grid("4x4", 0), "peers: expected 1 to .*, got 0"),
        (lambda: Grid("4*4"), 'expected "auto" or sides such as "32x32", got \'4\\*4\''),
        (lambda: Grid(""), "sides such as"),
        (lambda: Grid("auto"), 'peers: expected a number with grid="auto"'),
        (lambda: Grid("auto", 0), "peers: expected 1 to 4294967296, got 0"),
        (lambda: Grid("auto", (1 << 32) + 1), "peers: expected 1 to 4294967296"),
        (lambda: Grid((2, 3)).axis(-1), "round: expected 0 to .*, got -1"),
        (lambda: Grid((2, 3)).line(6, 0), "cells: expected 0 to 5, got 6"),
        (lambda: Grid((2, 3)).line(np.array([1, -1]), 0), "cells: expected 0 to 5, got -1"),
        (lambda: Grid((2, 3)).line(1, 2), "axis: expected 0 to 1, got 2"),
        (lambda: Grid((2, 3)).move(1, 0, 2), "chunks: expected 0 to 1, got 2"),
        (lambda: Grid((2, 3)).move(np.arange(3), 0, np.zeros(2, int)), "the shape of cells"),
        (lambda: Grid((2, 3)).chunks(0, [0], [2], [2]), "positions: expected less than the size 2"),
        (lambda: Grid((2, 3)).chunks(0, [0], [0], [3]), "sizes: expected at most 2 on axis 0"),
        (lambda: Grid((2, 3)).chunks(0, [0, 1], [0], [3]), "expected one shape"),
        (lambda: bandwidth_shares([1, 0, 2]), "above 0, got 0 for member 1"),
        (lambda: bandwidth_shares([-3]), "above 0, got -3 for member 0"),
        (lambda: bandwidth_shares([1, 1, math.nan]), "above 0, got nan for member 2"),
        (lambda: bandwidth_shares([1, math.inf]), "finite numbers above 0, got inf for member 1"),
        (lambda: bandwidth_shares([]), "expected at least one, got none"),
        (lambda: bandwidth_shares(np.ones((2, 2))), "one dimension, got shape"),
        (lambda: bounds([0.5, 2], 8, 1), "shares: expected 0 to 1, got 2 for member 1"),
        (lambda: bounds([0, 0], 8, 1), "expected one above 0, got none"),
    ),
)
def test_bad_input(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize(
    ("make", "complaint"),
    (
        (lambda: Grid(7), "expected a tuple of sides"),
        (lambda: Grid((2.5, 2)), "expected a whole number, got 2.5"),
        (lambda: Grid((2, 2), "3"), "peers: expected a whole number, got '3'"),
        (lambda: Grid((2, 2)).line(1.0, 0), "cells: expected whole numbers, got float64"),
        (lambda: Grid((2, 2)).move(1, 0, 0.5), "chunks: expected whole numbers, got float64"),
    ),
)
def test_bad_types(make, complaint):
    with pytest.raises(TypeError, match=complaint):
        make()


def test_the_c_interface_checks_as_well():
    """Axes, cells and chunks that Python does not let through."""
    sides, cells = ffi.new("uint32_t[]", [2, 3]), ffi.new("uint64_t[]", [6])
    lines, chunks = ffi.new("uint64_t *"), ffi.new("uint32_t[]", [3])
    for call, complaint in (
        (lambda: lib.pcoll_grid_lines(sides, 2, 2, cells, 1, lines), "axis: expected 0 to 1"),
        (lambda: lib.pcoll_grid_lines(sides, 2, 0, cells, 1, lines), "cells: expected 0 to 5"),
        (lambda: lib.pcoll_grid_coordinates(sides, 0, 0, cells, 1, chunks), "1 to 16 axes, got 0"),
        (lambda: lib.pcoll_grid_move(sides, 2, 1, lines, chunks, 1, lines), "chunks: expected 0"),
        (lambda: lib.pcoll_grid_check(ffi.new("uint32_t[]", [3, 0]), 2, 1), "at least 1, got 0"),
        (lambda: lib.pcoll_grid_auto(0, sides, chunks), "peers: expected 1"),
    ):
        with pytest.raises(ValueError, match=complaint):
            check(call())


def slowest(bandwidths, shares):
    return max((1 + (len(shares) - 2) * shares) / bandwidths)


def by_solver(bandwidths):
    """Return the least time of the slowest, by HiGHS. Bandwidths at most 1. Unknowns: w, xi."""
    optimize = pytest.importorskip("scipy.optimize")
    members = len(bandwidths)
    rows = np.hstack([(members - 2) * np.eye(members), -bandwidths[:, None]])
    found = optimize.linprog(
        np.r_[np.zeros(members), 1],
        A_ub=rows,
        b_ub=-np.ones(members),
        A_eq=np.r_[np.ones(members), 0][None],
        b_eq=[1],
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    return found.fun


def test_shares_against_a_solver():
    """The closed form is as good as the linear program's result, for ratios up to 10^9."""
    random = np.random.default_rng(1)
    zeros = 0
    for trial in range(400):
        members = int(random.integers(2, 33))
        spread = random.choice([0, 0.1, 1, 3, 9])
        bandwidths = 10 ** random.uniform(-spread, 0, members)
        shares = bandwidth_shares(1e6 * bandwidths)
        assert shares.min() >= 0 and abs(shares.sum() - 1) < 1e-12
        best = by_solver(bandwidths)
        assert slowest(bandwidths, shares) == pytest.approx(best, rel=1e-9), trial
        zeros += (shares == 0).any()
    assert 50 < zeros < 350


@tried
@given(st.lists(st.floats(1e-300, 1e300), min_size=3, max_size=40))
def test_shares_are_level(bandwidths):
    """Members with a share finish at one time, before a member without one would if it had any.
    This makes the shares optimal."""
    given = np.array(bandwidths) / max(bandwidths)
    shares = bandwidth_shares(bandwidths)
    assert abs(shares.sum() - 1) < 1e-12 and shares.min() >= 0
    members = len(bandwidths)
    used = shares > 1e-9
    times = (1 + (members - 2) * shares[used]) / given[used]
    np.testing.assert_allclose(times, times[0], rtol=1e-7)
    idle = (shares == 0) & (given > 0)
    assert (times[0] * given[idle] * (1 - 1e-9) <= 1).all()


def test_shares_by_example():
    np.testing.assert_array_equal(bandwidth_shares([5]), [1])
    np.testing.assert_array_equal(bandwidth_shares([1e9, 1]), [0.5, 0.5])
    np.testing.assert_allclose(bandwidth_shares([7] * 5), [0.2] * 5, rtol=1e-15)
    np.testing.assert_allclose(bandwidth_shares([10, 10, 10, 1]), [1 / 3, 1 / 3, 1 / 3, 0])
    # Two fast ones: xi = 4 / (3 + 3 + 2), so (1.5 - 1) / 2, (1 - 1) / 2 …
    np.testing.assert_allclose(bandwidth_shares([4, 3, 3, 2]), [0.5, 0.25, 0.25, 0])
    np.testing.assert_array_equal(bandwidth_shares([5e-324, 1e308, 3]), [0, 1, 0])
    assert pc.bandwidth_shares is bandwidth_shares


def bounds(shares, count, grain):
    out = ffi.new("uint64_t[]", len(shares) + 1)
    check(lib.pcoll_group_bounds(shares, len(shares), count, grain, out))
    return [int(bound) for bound in out]


@tried
@given(
    st.lists(st.sampled_from((0, 0, 1e-9, 0.3, 1, 1, 5)), min_size=1, max_size=20).filter(any),
    st.integers(0, 10**12),
    st.sampled_from((0, 1, 2, 16, 1024)),
)
def test_bounds(weights, count, grain):
    """They cover everything once, in multiples of the grain, nothing without a share, and each
    within a grain of its share."""
    shares = [weight / sum(weights) for weight in weights]
    found = bounds(shares, count, grain)
    grain = max(grain, 1)
    assert found[0] == 0 and found[-1] == count and found == sorted(found)
    assert all(bound % grain == 0 for bound in found if bound != count)
    sizes = np.diff(found)
    for share, size in zip(shares, sizes):
        assert (
            size == 0 if share == 0 else abs(size - share * count) < 2 * grain + 1e-3 * count**0.5
        )


def test_bounds_of_huge_vectors():
    found = bounds([0.25, 0.5, 0, 0.25, 0], (1 << 63) - 1, 16)
    assert found[0] == 0 and found[4] == found[5] == (1 << 63) - 1 and found[2] == found[3]
    assert found[1] == pytest.approx(2**61, rel=1e-12)
