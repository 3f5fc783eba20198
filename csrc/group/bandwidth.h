/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the link of this rank is: what it tells the others, given or measured. */
#ifndef PCOLL_GROUP_BANDWIDTH_H
#define PCOLL_GROUP_BANDWIDTH_H

#include <stdint.h>

struct group;

enum { KIB = 1024 };

struct group_bandwidth {
    float told;      /* to the others; 0: none */
    double measured; /* in the last rounds, bytes per second; 0: none */
    uint32_t rounds; /* that were measured */
};

/* Driver: what the others are told from the next matchmaking on. */
void group_round_set_bandwidth(struct group *g, double bandwidth);
/* A round is over. */
void group_round_measure_bandwidth(struct group *g);

#endif
