/* SPDX-License-Identifier: Apache-2.0 */
/* Grids, shares, and their public functions for many cells at once; see grid.h. */

#include "protocol/group/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

enum { GOOD_SIDE = 32, LEAST_AXES = 2, FEW_PEERS = 3 };

/* Return the number of cells from one coordinate on the axis to the next. */
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
    return PCOLL_OK;
}

uint64_t grid_cells(const struct grid *g)
{
    CHECK(g->axes >= 1 && g->axes <= GRID_MAX_AXES);
    return grid_stride(g, 0) * g->side[0];
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

uint64_t grid_move(const struct grid *g, uint64_t cell, uint32_t axis,
                   uint32_t coordinate)
{
    CHECK(coordinate < g->side[axis]);
    uint64_t before = grid_coordinate(g, cell, axis);
    return cell + (coordinate - before) * grid_stride(g, axis);
}

/* Return the number of coordinates that a group on the axis moves to, at least its size. */
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

/* Return whether a grid with `axes` sides of length `side` holds the peers. */
static bool grid_holds(uint64_t side, uint32_t axes, uint64_t peers)
{
    uint64_t cells = 1;
    for (uint32_t a = 0; a < axes && cells < peers; a++)
        cells *= side;
    return cells >= peers;
}

/* Return the smallest such side. peers <= 2^32, so no product reaches 2^64. */
static uint32_t grid_even_side(uint64_t peers, uint32_t axes)
{
    uint32_t side = 1;
    while (!grid_holds(side, axes, peers))
        side++;
    return side;
}

/* Write `cells` as a product of sides from `axis` on, at most `most`, longest first; or false. */
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

/* Find a full grid with this number of axes, no side longer than twice an even side. */
static bool grid_find_full(struct grid *g, uint64_t peers, uint32_t axes)
{
    uint64_t even = grid_even_side(peers, axes);
    g->axes = axes;
    for (uint64_t most = even; most <= 2 * even; most++)
        if (grid_factor(g, 0, peers, most))
            return true;
    return false;
}

/* Make even sides, the last ones shorter by one as long as all peers have a cell. */
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

/* Shares. */

static int grid_compare_bandwidths(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

int grid_shares(const double *bandwidth, uint32_t members, double *share)
{
    if (members == 0)
        return fail(PCOLL_EINVAL, "bandwidth: expected at least one, got none");
    for (uint32_t i = 0; i < members; i++)
        if (!(bandwidth[i] > 0) || !isfinite(bandwidth[i]))
            return fail(
                PCOLL_EINVAL,
                "bandwidth: expected finite numbers above 0, got %g for member %u",
                bandwidth[i], i);
    double *fast = malloc(members * sizeof *fast), sum = 0;
    if (!fast)
        return fail(PCOLL_ENOMEM, "no memory for %u shares", members);
    memcpy(fast, bandwidth, members * sizeof *fast);
    qsort(fast, members, sizeof *fast, grid_compare_bandwidths);
    double most = fast[0]; /* Relative to it nothing overflows. */
    for (uint32_t i = 0; i < members; i++)
        fast[i] /= most;
    /* The shares add up to 1 with xi. If only the k fastest members have a share, xi is (M - 2 + k) /
     * (sum of their bandwidths), and that is right if the next one gets nothing. Members are added
     * as long as they get a share, which becomes less with each one. */
    double fastest = 0, xi = INFINITY;
    for (uint32_t k = 1; members > 2 && k <= members && xi * fast[k - 1] > 1; k++) {
        fastest += fast[k - 1];
        xi = ((double)(members - 2) + k) / fastest;
    }
    for (uint32_t i = 0; i < members; i++) {
        share[i] = members > 2 ? fmax(0, xi * (bandwidth[i] / most) - 1) : 1;
        sum += share[i];
    }
    CHECK(sum > 0 && isfinite(sum));
    for (uint32_t i = 0; i < members; i++)
        share[i] /= sum;
    free(fast);
    return PCOLL_OK;
}

void grid_bounds(const double *share, uint32_t members, uint64_t count, uint64_t grain,
                 uint64_t *bound)
{
    uint64_t unit = grain ? grain : 1, units = count / unit;
    double sum = 0, before = 0;
    uint32_t last = 0; /* The last member with a share has the rest. */
    for (uint32_t i = 0; i < members; i++) {
        sum += share[i];
        last = share[i] > 0 ? i : last;
    }
    CHECK(members >= 1 && sum > 0);
    bound[0] = 0;
    for (uint32_t i = 0; i < members; i++) {
        before += share[i];
        double part = before / sum * (double)units + 0.5;
        uint64_t whole = part < (double)units ? (uint64_t)part : units;
        bound[i + 1] = i < last ? whole * unit : count;
        CHECK(bound[i] <= bound[i + 1] && bound[i + 1] <= count);
    }
}

/* The public functions: arguments are checked. */

/* Make the grid, and check an axis and cells. */
static int grid_check_all(struct grid *g, const uint32_t *sides, uint32_t axes,
                          uint32_t axis, const uint64_t *cells, uint64_t count)
{
    int rc = fail_if_null(sides) ?: grid_init(g, sides, axes, 0);
    if (rc != PCOLL_OK)
        return rc;
    if (axis >= axes)
        return fail(PCOLL_EINVAL, "axis: expected 0 to %u, got %u", axes - 1, axis);
    uint64_t all = grid_cells(g);
    for (uint64_t i = 0; i < count; i++)
        if (cells[i] >= all)
            return fail(PCOLL_EINVAL, "cells: expected 0 to %llu, got %llu",
                        (unsigned long long)(all - 1), (unsigned long long)cells[i]);
    return PCOLL_OK;
}

int pcoll_grid_check(const uint32_t *sides, uint32_t axes, uint64_t peers)
{
    struct grid g;
    return fail_if_null(sides) ?: grid_init(&g, sides, axes, peers);
}

int pcoll_grid_auto(uint64_t peers, uint32_t *sides, uint32_t *axes)
{
    struct grid g;
    int rc = fail_if_null(sides, axes);
    if (rc != PCOLL_OK)
        return rc;
    if (peers < 1 || peers > (uint64_t)1 << 32)
        return fail(PCOLL_EINVAL, "peers: expected 1 to 2^32, got %llu",
                    (unsigned long long)peers);
    grid_auto(&g, peers);
    for (uint32_t a = 0; a < g.axes; a++)
        sides[a] = g.side[a];
    *axes = g.axes;
    return PCOLL_OK;
}

int pcoll_grid_lines(const uint32_t *sides, uint32_t axes, uint32_t axis,
                     const uint64_t *cells, uint64_t count, uint64_t *lines)
{
    struct grid g;
    int rc = fail_if_null_array(count, cells, lines)
                 ?: grid_check_all(&g, sides, axes, axis, cells, count);
    for (uint64_t i = 0; i < count && rc == PCOLL_OK; i++)
        lines[i] = grid_line(&g, cells[i], axis);
    return rc;
}

int pcoll_grid_coordinates(const uint32_t *sides, uint32_t axes, uint32_t axis,
                           const uint64_t *cells, uint64_t count, uint32_t *coordinates)
{
    struct grid g;
    int rc = fail_if_null_array(count, cells, coordinates)
                 ?: grid_check_all(&g, sides, axes, axis, cells, count);
    for (uint64_t i = 0; i < count && rc == PCOLL_OK; i++)
        coordinates[i] = grid_coordinate(&g, cells[i], axis);
    return rc;
}

int pcoll_grid_move(const uint32_t *sides, uint32_t axes, uint32_t axis,
                    const uint64_t *cells, const uint32_t *chunks, uint64_t count,
                    uint64_t *moved)
{
    struct grid g;
    int rc = fail_if_null_array(count, cells, chunks, moved)
                 ?: grid_check_all(&g, sides, axes, axis, cells, count);
    for (uint64_t i = 0; i < count && rc == PCOLL_OK; i++)
        if (chunks[i] < g.side[axis])
            moved[i] = grid_move(&g, cells[i], axis, chunks[i]);
        else
            rc = fail(PCOLL_EINVAL, "chunks: expected 0 to %u on axis %u, got %u",
                      g.side[axis] - 1, axis, chunks[i]);
    return rc;
}

int pcoll_grid_chunks(const uint32_t *sides, uint32_t axes, uint64_t peers,
                      uint64_t round, const uint64_t *lines, const uint32_t *positions,
                      const uint32_t *sizes, uint64_t count, uint32_t *chunks)
{
    struct grid g;
    int rc = fail_if_null(sides)
                 ?: fail_if_null_array(count, lines, positions, sizes, chunks)
                 ?: grid_init(&g, sides, axes, peers);
    for (uint64_t i = 0; i < count && rc == PCOLL_OK; i++) {
        uint32_t axis = grid_axis(&g, round);
        if (sizes[i] > g.side[axis])
            return fail(PCOLL_EINVAL, "sizes: expected at most %u on axis %u, got %u",
                        g.side[axis], axis, sizes[i]);
        if (positions[i] >= sizes[i])
            return fail(PCOLL_EINVAL,
                        "positions: expected less than the size %u, got %u", sizes[i],
                        positions[i]);
        chunks[i] = grid_chunk(&g, peers, round, lines[i], positions[i], sizes[i]);
    }
    return rc;
}

int pcoll_group_shares(const double *bandwidths, uint32_t members, double *shares)
{
    return fail_if_null(bandwidths, shares) ?: grid_shares(bandwidths, members, shares);
}

int pcoll_group_bounds(const double *shares, uint32_t members, uint64_t count,
                       uint64_t grain, uint64_t *bounds)
{
    double sum = 0;
    int rc = fail_if_null(shares, bounds);
    if (rc != PCOLL_OK)
        return rc;
    for (uint32_t i = 0; i < members; i++) {
        if (!(shares[i] >= 0 && shares[i] <= 1))
            return fail(PCOLL_EINVAL, "shares: expected 0 to 1, got %g for member %u",
                        shares[i], i);
        sum += shares[i];
    }
    if (!(sum > 0))
        return fail(PCOLL_EINVAL, "shares: expected one above 0, got none");
    grid_bounds(shares, members, count, grain, bounds);
    return PCOLL_OK;
}
