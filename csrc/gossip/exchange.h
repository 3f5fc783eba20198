/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pair averaging without waiting, on the register and the accumulator: i reads j's
 * register and what lies in j's accumulator, which together are where j is, moves its
 * own model by half of the difference, and gives what it has lost to j's accumulator. The sum over all ranks stays, whatever interleaves (AD-PSGD's
 * averaging in difference form; A2CiD2's, where a momentum takes part in proportion).
 */
#ifndef PCOLL_GOSSIP_EXCHANGE_H
#define PCOLL_GOSSIP_EXCHANGE_H

#include <stdbool.h>

#include "gossip/memory.h"

/* The model and its companion, NULL if there is none, which moves `ratio` times as far.
 */
struct moving {
    void *x, *momentum;
    double ratio;
};

/* *averaged: false if `cap` deltas lie at the peer that it has not collected. Chunks
 * that could not be read whole are left as they are. PCOLL_EEMPTY: the peer has not
 * published. */
int exchange_average(struct gossip_memory *m, uint32_t peer, uint32_t cap,
                     double weight, const struct moving *own, bool *averaged);

/* Take what others have given; *deltas: how many of them are there completely. Nothing
 * is done if there is none. */
int exchange_collect(struct gossip_memory *m, const struct moving *own,
                     uint64_t *deltas);

#endif
