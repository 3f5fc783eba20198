/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements that a thread waits for. All functions are collective. Ranks compare their arguments
 * before a handle exists, so that a difference is an error on all of them and not a hang.
 */
#pragma once

#include "base/error.h"
#include "kernels/payload.h"
#include "runtime/communicator.h"

/* Wait until nothing closes. Call this first: agreements of an interrupted Free precede others. */
void agree_settle(struct communicator *c);

/* Replace the values by their maxima, or sums, over all ranks. */
int agree_max(struct communicator *c, uint64_t *values, int count);
int agree_sum(struct communicator *c, uint64_t *values, int count);
/* Return the values of all ranks, by rank. The caller frees them, also after an error. */
int agree_gather(struct communicator *c, uint64_t value, uint64_t **values);

/* The same in two steps, for several communicators at once. The driver begins, and may ask
 * whether the end would wait. Every agreement that has begun needs its end. */
struct waiting;
int agree_begin(struct communicator *c, enum agree_op op, const uint64_t *values,
                int count, struct waiting **out);
bool agree_is_over(void *waiting);
int agree_end(struct waiting *w, uint64_t *values);

/* Some ranks have refused: fail on all, with "<whose> 1, 4 <what>: " and the first one's reason. */
int agree_refusals(struct communicator *c, bool refused, const struct reason *reason,
                   int code, const char *whose, const char *what);

/* An argument that has to be the same on all ranks, as a number. */
struct agree_field {
    const char *argument;
    const char *const *words; /* For the values 0, 1 …; NULL: it is a number. */
    uint64_t value;
};
extern const char *const
    agree_real[]; /* As words: the value holds the bits of a double. */

/* Compare the arguments. `local` is this rank's own check of them: if that has failed, it is
 * returned here, and PCOLL_EMISMATCH on the others. In the same agreement replace the `extra`
 * values of `more` by their maxima; both may be 0. */
int agree_same(struct communicator *c, int local, const struct agree_field *fields,
               int count, uint64_t *more, int extra);

/* The same for an allreduce. `payload`: their layout. User-defined ops cannot be distinguished. */
int agree_arguments(struct communicator *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options, uint64_t *more, int extra);

/* Return PCOLL_OK if `local` is PCOLL_OK on all ranks; otherwise an error on all. */
int agree_outcome(struct communicator *c, int local);

/* If `local` is PCOLL_OK on all ranks, enter p (NULL after an error) into the table of all, in
 * slots that are free on all, before the first one may send; otherwise fail on all ranks. */
int agree_enter(struct communicator *c, struct object *p, int local);
