/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do all ranks mean the same? Before a handle exists its ranks compare their arguments,
 * so that a difference is an error on all of them and not a hang. Collective.
 */
#ifndef PCOLL_ALLREDUCE_AGREE_H
#define PCOLL_ALLREDUCE_AGREE_H

#include "../kernels/payload.h"
#include "context.h"

/* values become their maximum over the ranks. */
int agree_max(struct context *c, uint64_t *values, int count);

/* The same in two steps, for several communicators at once; every begin needs its end.
 */
struct waiting;
int agree_begin(struct context *c, const uint64_t *values, int count,
                struct waiting **out);
int agree_end(struct waiting *w, uint64_t *values);

/*
 * Compare the arguments; payload is their layout, for the size of MPI's datatypes. Two
 * ops of users cannot be told apart. local is this rank's own verdict about them: if it
 * is not PCOLL_OK here, it is returned here and PCOLL_EMISMATCH on the others.
 */
int agree_arguments(struct context *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options);

/* A slot that is free on all ranks. */
int agree_slot(struct context *c, uint32_t *slot);

/* All go on, or none: PCOLL_OK on every rank, or an error on every rank. */
int agree_outcome(struct context *c, int local);

#endif
