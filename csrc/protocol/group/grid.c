/* SPDX-License-Identifier: Apache-2.0 */
/* Cells, lines and coordinates; grids that fit a number of peers. */
#include "protocol/group/grid.h"

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

enum { GOOD_SIDE = 32, LEAST_AXES = 2, FEW_PEERS = 3 };

/* Cells from one coordinate on the axis to the next. */
static uint64_t grid_stride(const struct grid *g, uint32_t axis)
{
    uint64_t s = 1;
    for (uint32_t a = axis + 1; a < g->axes; a++)
        s *= g->side[a];
    return s;
}

int grid_init(struct grid *g, const uint32_t *sides, uint32_t axes, uint64_t peers)
{
    uint64_t cells = 1;
    if (axes < 1 || axes > GRID_MAX_AXES)
        return fail(PCOLL_EINVAL, "grid: expected 1 to %d axes, got %u", GRID_MAX_AXES,
                    axes);
    for (uint32_t a = 0; a < axes; a++) {
        if (sides[a] == 0)
            return fail(PCOLL_EINVAL, "grid: expected sides of at least 1, got 0");
        if (cells > INT64_MAX / sides[a])
            return fail(PCOLL_EINVAL, "grid: expected fewer than 2^63 cells");
        cells *= sides[a];
    }
    if (cells < peers)
        return fail(PCOLL_EINVAL,
                    "grid: expected cells for %llu peers, got %llu of them",
                    (unsigned long long)peers, (unsigned long long)cells);
    g->axes = axes;
    for (uint32_t a = 0; a < axes; a++)
        g->side[a] = sides[a];
    CHECK(grid_cells(g) == cells);
    return PCOLL_OK;
}

uint64_t grid_cells(const struct grid *g)
{
    CHECK(g->axes >= 1 && g->axes <= GRID_MAX_AXES);
    return grid_stride(g, 0) * g->side[0];
}

bool grid_full(const struct grid *g, uint64_t peers)
{
    CHECK(peers <= grid_cells(g));
    return grid_cells(g) == peers;
}

uint32_t grid_axis(const struct grid *g, uint64_t round)
{
    CHECK(g->axes >= 1);
    return (uint32_t)(round % g->axes);
}

uint32_t grid_coordinate(const struct grid *g, uint64_t cell, uint32_t axis)
{
    CHECK(axis < g->axes && cell < grid_cells(g));
    return (uint32_t)(cell / grid_stride(g, axis) % g->side[axis]);
}

uint64_t grid_line(const struct grid *g, uint64_t cell, uint32_t axis)
{
    CHECK(axis < g->axes && cell < grid_cells(g));
    uint64_t s = grid_stride(g, axis);
    return cell / s / g->side[axis] * s + cell % s;
}

uint64_t grid_cell(const struct grid *g, uint64_t line, uint32_t axis,
                   uint32_t coordinate)
{
    CHECK(axis < g->axes && coordinate < g->side[axis]);
    uint64_t s = grid_stride(g, axis);
    return (line / s * g->side[axis] + coordinate) * s + line % s;
}

uint64_t grid_move(const struct grid *g, uint64_t cell, uint32_t axis,
                   uint32_t coordinate)
{
    CHECK(coordinate < g->side[axis]);
    return grid_cell(g, grid_line(g, cell, axis), axis, coordinate);
}

/* How many coordinates a group on the axis moves to, at least its size. */
static uint32_t grid_width(const struct grid *g, uint64_t peers, uint32_t axis,
                           uint32_t size)
{
    uint64_t lines = grid_cells(g) / g->side[axis];
    uint64_t even = peers / lines + (peers % lines != 0);
    if (size <= even)
        return (uint32_t)even;
    return size < g->side[axis] ? size + 1 : size;
}

uint32_t grid_chunk(const struct grid *g, uint64_t peers, uint64_t round, uint64_t line,
                    uint32_t position, uint32_t size)
{
    CHECK(position < size && size <= g->side[grid_axis(g, round)]);
    uint32_t w = grid_width(g, peers, grid_axis(g, round), size);
    CHECK(w >= size && w <= g->side[grid_axis(g, round)]);
    uint64_t place = position + (uint64_t)splitmix_below(round, line, w);
    return (uint32_t)(place % w);
}

/* Does a grid with `axes` sides of `side` hold the peers? */
static bool grid_holds(uint64_t side, uint32_t axes, uint64_t peers)
{
    uint64_t cells = 1;
    for (uint32_t a = 0; a < axes && cells < peers; a++)
        cells *= side;
    return cells >= peers;
}

/* The least side that does; peers <= 2^32, so no product comes near 2^64. */
static uint32_t grid_even_side(uint64_t peers, uint32_t axes)
{
    uint32_t side = 1;
    while (!grid_holds(side, axes, peers))
        side++;
    return side;
}

/* Write `cells` as a product of sides from `axis` on, none above `most`, longest first;
 * false if there is no such product. */
static bool grid_factor(struct grid *g, uint32_t axis, uint64_t cells, uint64_t most)
{
    if (axis == g->axes)
        return cells == 1;
    for (uint64_t side = most; side >= LEAST_AXES; side--) {
        if (cells % side == 0) {
            g->side[axis] = (uint32_t)side;
            if (grid_factor(g, axis + 1, cells / side, side))
                return true;
        }
        if (!grid_holds(side - 1, g->axes - axis, cells))
            return false;
    }
    return false;
}

/* A full grid with so many axes, none longer than twice an even side. */
static bool grid_find_full(struct grid *g, uint64_t peers, uint32_t axes)
{
    uint64_t even = grid_even_side(peers, axes);
    g->axes = axes;
    for (uint64_t most = even; most <= 2 * even; most++)
        if (grid_factor(g, 0, peers, most))
            return true;
    return false;
}

/* Even sides, the last ones shorter by one as long as all peers have a cell. */
static void grid_find_partial(struct grid *g, uint64_t peers, uint32_t axes)
{
    uint32_t even = grid_even_side(peers, axes);
    g->axes = axes;
    for (uint32_t a = 0; a < axes; a++)
        g->side[a] = even;
    for (uint32_t a = axes; a-- > 0;) {
        g->side[a]--;
        if (grid_cells(g) < peers) {
            g->side[a]++;
            return;
        }
    }
}

void grid_auto(struct grid *g, uint64_t peers)
{
    uint32_t axes = LEAST_AXES;
    if (peers <= FEW_PEERS) {
        *g = (struct grid){.axes = 1, .side = {peers ? (uint32_t)peers : 1}};
        return;
    }
    while (!grid_holds(GOOD_SIDE, axes, peers))
        axes++;
    if (!grid_find_full(g, peers, axes) && !grid_find_full(g, peers, axes + 1))
        grid_find_partial(g, peers, axes);
    CHECK(g->axes <= GRID_MAX_AXES && grid_cells(g) >= peers);
}
