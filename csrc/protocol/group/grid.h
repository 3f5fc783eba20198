/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grid of grouped averaging: which ranks meet in which round. Arithmetic only.
 * Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, section 3.1 and algorithm 1.
 *
 * A rank has a cell, its own number at first. Cells are numbered row by row: the last
 * axis is the fastest digit. Round t averages along axis t mod axes. The line of a
 * cell, the key of the round, is the cell with the coordinate of that axis struck out;
 * those of one line form a group.
 *
 * Static keys: cells stay. On a full grid all have the average of all after as many
 * rounds as there are axes.
 *
 * Dynamic keys: whoever has averaged along an axis moves on it, to a coordinate that
 * nobody else of its group moves to (grid_chunk, grid_move); nobody moves where the
 * round was void. Two who met then differ in that coordinate until it is drawn anew, so
 * they meet on no other axis before. First cells are ranks, which spreads any number of
 * them evenly: no first group exceeds the side.
 *
 * A rank that missed a round keeps its cell while its group moves without it, so a line
 * can come to hold more ranks than its side. No group exceeds the side: such a line
 * makes several. Who is left over should not be the same ranks again and again: with
 * p = 0.005, on 8 x 8 x 8 x 8 full of peers, it takes 10 rounds until an error of 1e-9
 * if they are drawn, 27 if they are always those with the highest numbers.
 */
#ifndef PCOLL_PROTOCOL_GROUP_GRID_H
#define PCOLL_PROTOCOL_GROUP_GRID_H

#include <stdbool.h>
#include <stdint.h>

enum { GRID_MAX_AXES = 16 };

struct grid {
    uint32_t axes;
    uint32_t side[GRID_MAX_AXES];
};

/* PCOLL_EINVAL, which says what is wrong: no axis or too many, a side of 0, more than
 * 2^63 - 1 cells, fewer cells than peers. */
int grid_init(struct grid *g, const uint32_t *sides, uint32_t axes, uint64_t peers);

/*
 * A good grid for so many peers, at most 2^32. The fewest axes, two or more, with which
 * no side needs to exceed 32: small groups lose little to one lost rank, few axes make
 * few rounds. With them, or with one axis more, a full grid whose sides are at most
 * twice as long as even ones; among several the one with the shortest longest side.
 * Else an under-full one: sides differ by one, as few cells as that allows. Up to three
 * peers: one axis.
 */
void grid_auto(struct grid *g, uint64_t peers);

uint64_t grid_cells(const struct grid *g);
bool grid_full(const struct grid *g, uint64_t peers);

/* The axis of a round. */
uint32_t grid_axis(const struct grid *g, uint64_t round);

uint32_t grid_coordinate(const struct grid *g, uint64_t cell, uint32_t axis);

/* Equal for the cells of one line along the axis, different for all others of that
 * axis; below cells / side. */
uint64_t grid_line(const struct grid *g, uint64_t cell, uint32_t axis);

/* The cell of a line with this coordinate. */
uint64_t grid_cell(const struct grid *g, uint64_t line, uint32_t axis,
                   uint32_t coordinate);

/* The cell with its coordinate on the axis replaced; coordinate < side. */
uint64_t grid_move(const struct grid *g, uint64_t cell, uint32_t axis,
                   uint32_t coordinate);

/*
 * Where the member at this position, in the order of ranks, of a group of so many on
 * the line moves in the round: coordinates on the round's axis, different within the
 * group. size is at most the side. Ranks that know the group need no message for it.
 * peers: how many there are, the same number for all members of the group.
 *
 * A run of neighboring coordinates, modulo a width and from a place drawn for round
 * and line. The width is what a line of this axis holds if the peers are spread evenly,
 * rounded up; a larger group has one place more than members, as far as the side has
 * one. So lines of equal size stay on few coordinates, and the lines across them are
 * full: 768 peers on 32 x 32 are done after two rounds. Where sizes differ, the holes
 * fall anywhere. If they were always last, as with 0 ... size - 1 in whatever order,
 * the last line across would hold few, and its average would be far from that of all:
 * 900 peers on 32 x 32 would need 5.3 rounds until an error of 1e-9 rather than 4.0;
 * 470 on 8 x 8 x 8 9.7 rather than 7.9. A random order of the members changes nothing.
 */
uint32_t grid_chunk(const struct grid *g, uint64_t peers, uint64_t round, uint64_t line,
                    uint32_t position, uint32_t size);

/*
 * Who reduces how much of the vector in a group whose members have links of different
 * speed. Arithmetic only. Source: Ryabinin et al., Moshpit SGD, NeurIPS 2021, appendix
 * G.
 *
 * A member with bandwidth b that reduces the share w of a vector sends the other 1 - w
 * of its own and takes in w from each of the M - 1 others: (1 + (M - 2) w) / b. The
 * shares make the slowest of these times as short as possible. They are what a linear
 * program asks for, in closed form:
 *
 *   w_i = max(0, (xi b_i - 1) / (M - 2)), xi such that they add up to 1
 *
 * A slow member may have no share at all: it sends its vector and takes the result.
 * With one or two members every share costs the same; they are equal then.
 */

/* Bandwidths in any unit. PCOLL_EINVAL: no members, or one whose bandwidth is not above
 * 0 or not finite, with its place and value; PCOLL_ENOMEM. */
int grid_shares(const double *bandwidth, uint32_t members, double *share);

/*
 * The elements of each member: member i has bound[i] … bound[i + 1] - 1, so bound has
 * room for members + 1. Bounds are multiples of grain, but for the last, which is
 * count. A share of 0 has no element. The same shares give the same bounds on all
 * ranks.
 */
void grid_bounds(const double *share, uint32_t members, uint64_t count, uint64_t grain,
                 uint64_t *bound);

#endif
