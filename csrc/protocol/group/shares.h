/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef PCOLL_PROTOCOL_GROUP_SHARES_H
#define PCOLL_PROTOCOL_GROUP_SHARES_H

#include <stdint.h>

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
