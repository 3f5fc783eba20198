/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failing: a result code and a message that stays with the thread until the next one.
 */
#ifndef PCOLL_BASE_ERROR_H
#define PCOLL_BASE_ERROR_H

#include <stddef.h>

#include "include/partialcoll.h"

/* Record the message of a failure and return its code. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* PCOLL_OK, or PCOLL_EINVAL with a message that names the first of these arguments that is NULL.
 * For public functions, whose arguments have the names of the public header: `fail_if_null(out)
 * ?: enter(…)` goes on if none is. */
#define fail_if_null(...) fail_if_null_as(#__VA_ARGS__, __VA_ARGS__)
/* The same where the header has other names: "handle, text". */
#define fail_if_null_as(names, ...)                                                    \
    fail_if_any_null(names, (const void *const[]){__VA_ARGS__},                        \
                     sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))
/* The same for arrays of `count` elements, which may be NULL if that is 0. */
#define fail_if_null_array(count, ...) ((count) ? fail_if_null(__VA_ARGS__) : PCOLL_OK)

/* `options`; `zeros`, if one of the arguments is NULL: the call goes on, because the other ranks
 * wait for it, and refuses them with that message. */
#define options_or_zeros(zeros, options, ...)                                          \
    (fail_if_null(options, __VA_ARGS__) ? (pcoll_refuse(pcoll_last_error()), (zeros))  \
                                        : (options))

int fail_null(const char *names, size_t index);

static inline int fail_if_any_null(const char *names, const void *const *arguments,
                                   size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!arguments[i])
            return fail_null(names, i);
    return PCOLL_OK;
}

/* Why this thread fails now: what pcoll_refuse has said, which is forgotten by this, or
 * the message of its last failure. */
struct reason {
    char text[512];
};
void fail_reason(struct reason *reason);

/* Record MPI's own code beside the message. */
void fail_set_mpi_error(int mpi_error);

/* Ranks of a communicator that have died. */
struct failed_ranks {
    int count, mpi_error; /* that told of it */
    int32_t rank[64];     /* who needs more needs another job */
    char host[64];        /* that has gone with them; empty: none */
};

/* Record who has died, and the message for it; PCOLL_EFAILED. */
int fail_ranks(const struct failed_ranks *who);
/* Those of this thread's last PCOLL_EFAILED. */
const struct failed_ranks *fail_last_ranks(void);

#endif
