/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do all ranks mean the same? Before a handle exists its ranks compare their arguments,
 * so that a difference is an error on all of them and not a hang. Collective.
 */
#ifndef PCOLL_RUNTIME_AGREEMENT_H
#define PCOLL_RUNTIME_AGREEMENT_H

#include "base/error.h"
#include "kernels/payload.h"
#include "runtime/communicator.h"

/* Before anything else: a Free that was interrupted goes on in the background, and its
 * agreements come first. */
void agree_settle(struct communicator *c);

/* values become their maximum, their sum over the ranks. */
int agree_max(struct communicator *c, uint64_t *values, int count);
int agree_sum(struct communicator *c, uint64_t *values, int count);
/* Everybody's value, by rank; free() it, whatever comes back. */
int agree_gather(struct communicator *c, uint64_t value, uint64_t **values);

/* The same in two steps, for several communicators at once; every begin needs its end. The
 * driver begins, and may ask whether the end would wait. */
struct waiting;
int agree_begin(struct communicator *c, enum agree_op op, const uint64_t *values,
                int count, struct waiting **out);
bool agree_is_over(void *waiting);
int agree_end(struct waiting *w, uint64_t *values);

/* Some have refused or failed: fail with this code on all, "<whose> 1, 4 <what>: " and why
 * the first of them has. */
int agree_refusals(struct communicator *c, bool refused, const struct reason *reason,
                   int code, const char *whose, const char *what);

/* An argument that has to be the same everywhere, as a number. */
struct agree_field {
    const char *argument;
    const char *const *values; /* words for the values 0, 1 …; NULL: a number */
    bool real;                 /* the bits of a double */
};
enum { AGREE_FIELDS = 32 }; /* at most */

/* Compare them. local is this rank's own decision about them: if it is not PCOLL_OK
 * here, it is returned here and PCOLL_EMISMATCH on the others. */
int agree_same(struct communicator *c, int local, const struct agree_field *fields,
               const uint64_t *own, int count);

/* The same for those of an allreduce; payload is their layout, for the size of MPI's
 * datatypes. Two ops of users cannot be told apart. */
int agree_arguments(struct communicator *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options);

/* All go on, or none: PCOLL_OK on every rank, or an error on every rank. */
int agree_outcome(struct communicator *c, int local);

/* p gets slots that are free on all ranks, and is in the table on all ranks before the
 * first one may send; or an error on every rank. */
int agree_enter(struct communicator *c, struct object *p);

#endif
