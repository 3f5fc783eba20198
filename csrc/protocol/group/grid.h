/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped averaging: which ranks meet in which round, and how much of the vector each reduces.
 * Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, section 3.1, algorithm 1 and appendix G.
 *
 * Grid. Each rank has a cell, at first the cell with its own number. Cells are numbered row by row:
 * the last axis is the fastest digit. Round t averages along axis t mod axes. The line of a cell is
 * the cell without the coordinate of that axis. It is the key of the round: the ranks of one line
 * form a group.
 *
 * Static keys. The cells stay. A full grid averages all ranks in as many rounds as it has axes.
 *
 * Dynamic keys. A rank that has averaged along an axis moves along it, to a coordinate to which no
 * other rank of its group moves (grid_chunk, grid_move). No rank moves after a void round. Two
 * ranks that have met differ in that coordinate until it is drawn again, so they meet on no other
 * axis before. The first cells are the ranks, spread evenly: no first group exceeds the side.
 *
 * A rank that missed a round keeps its cell while its group moves, so a line can contain more ranks
 * than its side. No group exceeds the side: such a line makes several groups. Always leaving over
 * the same ranks nearly triples the rounds to a small error.
 *
 * Shares. A member with bandwidth b that reduces the share w of a vector sends the other 1 - w of
 * its own vector and receives w from each of the M - 1 other members: this takes (1 + (M - 2) w) /
 * b. The shares make the longest of these times as short as possible. They solve the linear program
 * of appendix G in closed form:
 *
 *   w_i = max(0, (xi b_i - 1) / (M - 2)), with xi such that the shares add up to 1
 *
 * A slow member may have no share: it sends its vector and receives the result. With one or two
 * members every division costs the same, and the shares are equal.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { GRID_MAX_AXES = 16 };

struct grid {
    uint32_t axes;
    uint32_t side[GRID_MAX_AXES];
};

/* Initialize. PCOLL_EINVAL: number of axes, a side of 0, 2^63 cells or more, or too few for all. */
int grid_init(struct grid *g, const uint32_t *sides, uint32_t axes, uint64_t peers);

/*
 * Choose a grid for `peers` ranks, at most 2^32. It has the fewest axes, two or more, with which no
 * side needs to exceed 32: in small groups a lost rank costs little, and few axes need few rounds.
 * Prefer a full grid with this number of axes, or one more, if its longest side is at most twice
 * that of an even grid; among several, the one whose longest side is shortest. Otherwise the sides
 * differ by one and the grid has as few cells as that allows. Up to three peers have one axis.
 */
void grid_auto(struct grid *g, uint64_t peers);
uint64_t grid_cells(const struct grid *g);
/* Return the axis of a round. */
uint32_t grid_axis(const struct grid *g, uint64_t round);
uint32_t grid_coordinate(const struct grid *g, uint64_t cell, uint32_t axis);
/* Return the number of a cell's line along the axis, below cells / side. */
uint64_t grid_line(const struct grid *g, uint64_t cell, uint32_t axis);
/* Return the cell with its coordinate on the axis replaced; coordinate < side. */
uint64_t grid_move(const struct grid *g, uint64_t cell, uint32_t axis,
                   uint32_t coordinate);

/*
 * Return the coordinate on the round's axis to which a member moves. `position` is its place, in
 * the order of ranks, in a group of `size` members on the line; size is at most the side. The
 * coordinates of a group are different. `peers` is the number of all ranks, the same for all
 * members. Members that know the group need no message for this.
 *
 * The coordinates of a group are consecutive modulo a width, from an offset drawn for round and
 * line. The width is the number of peers on a line of this axis if they are spread evenly, rounded
 * up; for a larger group it is its size plus 1, at most the side. So lines of equal size stay on
 * few coordinates, and the lines across them are full. Where sizes differ, the empty coordinates
 * are anywhere. If they were always the last ones, the last line across would hold few ranks, and
 * its average would be far from that of all: an error of 1e-9 would take 900 peers on 32 x 32 5.3
 * rounds rather than 4.0, and 470 peers on 8 x 8 x 8 9.7 rather than 7.9.
 */
uint32_t grid_chunk(const struct grid *g, uint64_t peers, uint64_t round, uint64_t line,
                    uint32_t position, uint32_t size);
/* Compute the shares of members with these bandwidths, in any unit; `share` may be the same array.
 * PCOLL_EINVAL names the first bandwidth that is not finite or not above 0; PCOLL_ENOMEM. */
int grid_shares(const double *bandwidth, uint32_t members, double *share);

/*
 * Divide `count` elements by shares: member i has elements bound[i] to bound[i + 1] - 1, so `bound`
 * has room for members + 1. Bounds are multiples of `grain`, but for the last, which is `count`. A
 * share of 0 has no element. Equal shares give equal bounds on all ranks.
 */
void grid_bounds(const double *share, uint32_t members, uint64_t count, uint64_t grain,
                 uint64_t *bound);
