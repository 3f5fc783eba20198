/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells what simulated ranks do: what they send, when a round takes their deposits, when
 * it is complete. It stands at the two seams of an endpoint, transport and domain, and
 * changes nothing. One simulation at a time.
 */
#ifndef PCOLL_TESTS_NARRATOR_H
#define PCOLL_TESTS_NARRATOR_H

#include <stdio.h>

#include "allreduce/endpoint.h"
#include "transport/sim/sim_transport.h"

/* From now on, to this stream. */
void narrator_begin(FILE *out, struct sim *sim);
/* The transport of a rank, told from now on: the same one. */
struct transport *narrator_transport(uint32_t rank);
/* So is what this endpoint does. */
void narrator_follow(struct endpoint *v);
/* As node_hooks.frozen. */
void narrator_frozen(void *arg, uint32_t rank, uint64_t round,
                     const struct round_header *header, const void *payload);

/* A line with the time and the rank. */
__attribute__((format(printf, 2, 3))) void narrate(uint32_t rank, const char *format,
                                                   ...);
/* "6 of ranks 0 2": the first float64 and who is in it; "nothing". */
const char *narrator_sum(const struct endpoint *v, const struct round_header *h);
/* "0 2" */
const char *narrator_set(const uint64_t *set, uint32_t ranks);

#endif
