/* SPDX-License-Identifier: Apache-2.0 */
/* Grids and shares for callers outside: checked, and for many cells at once. */
#include "protocol/group/grid.h"
#include "protocol/group/shares.h"

#include "base/error.h"

static int grid_check_axis(const struct grid *g, uint32_t axis)
{
    if (axis >= g->axes)
        return fail(PCOLL_EINVAL, "axis: expected 0 to %u, got %u", g->axes - 1, axis);
    return PCOLL_OK;
}

static int grid_check_cells(const struct grid *g, const uint64_t *cells, uint64_t count)
{
    uint64_t all = grid_cells(g);
    for (uint64_t i = 0; i < count; i++)
        if (cells[i] >= all)
            return fail(PCOLL_EINVAL, "cells: expected 0 to %llu, got %llu",
                        (unsigned long long)(all - 1), (unsigned long long)cells[i]);
    return PCOLL_OK;
}

static int grid_check_chunks(const struct grid *g, uint32_t axis,
                             const uint32_t *chunks, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (chunks[i] >= g->side[axis])
            return fail(PCOLL_EINVAL, "chunks: expected 0 to %u on axis %u, got %u",
                        g->side[axis] - 1, axis, chunks[i]);
    return PCOLL_OK;
}

static int grid_check_all(struct grid *g, const uint32_t *sides, uint32_t axes,
                          uint32_t axis, const uint64_t *cells, uint64_t count)
{
    int rc = fail_if_null(sides) ?: grid_init(g, sides, axes, 0);
    if (rc == PCOLL_OK)
        rc = grid_check_axis(g, axis);
    return rc == PCOLL_OK ? grid_check_cells(g, cells, count) : rc;
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
    if (rc == PCOLL_OK)
        rc = grid_check_chunks(&g, axis, chunks, count);
    for (uint64_t i = 0; i < count && rc == PCOLL_OK; i++)
        moved[i] = grid_move(&g, cells[i], axis, chunks[i]);
    return rc;
}

static int grid_check_members(const struct grid *g, uint32_t axis, uint32_t position,
                              uint32_t size)
{
    if (size > g->side[axis])
        return fail(PCOLL_EINVAL, "sizes: expected at most %u on axis %u, got %u",
                    g->side[axis], axis, size);
    if (position >= size)
        return fail(PCOLL_EINVAL, "positions: expected less than the size %u, got %u",
                    size, position);
    return PCOLL_OK;
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
        rc = grid_check_members(&g, grid_axis(&g, round), positions[i], sizes[i]);
        if (rc == PCOLL_OK)
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
