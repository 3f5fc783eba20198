/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: a result code, and a message that the thread keeps until its next failure.
 */
#pragma once

#include <stddef.h>

#include "include/partialcoll.h"

/* Record the message of a failure and return its code. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Return PCOLL_OK, or PCOLL_EINVAL with a message that names the first argument that is NULL.
 * For public functions, whose arguments have the names of the public header:
 * `fail_if_null(out) ?: enter(…)` calls enter() if no argument is NULL. */
#define fail_if_null(...) fail_if_null_as(#__VA_ARGS__, __VA_ARGS__)
/* The same for arguments that the header calls otherwise: "handle, text". */
#define fail_if_null_as(names, ...)                                                    \
    fail_if_any_null(names, (const void *const[]){__VA_ARGS__},                        \
                     sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))
/* The same for arrays of `count` elements, which may be NULL if `count` is 0. */
#define fail_if_null_array(count, ...) ((count) ? fail_if_null(__VA_ARGS__) : PCOLL_OK)

/* Return `options`, or `zeros` if one of the arguments is NULL. In that case the call continues,
 * because the other ranks wait for it, and then refuses the zeros with the message about NULL. */
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

struct reason {
    char text[512];
};
/* Copy why this thread fails: the text of pcoll_refuse, which this call forgets, or the message
 * of the last failure. */
void fail_reason(struct reason *reason);

/* Record MPI's error code in addition to the message. */
void fail_set_mpi_error(int mpi_error);

/* Ranks of a communicator that have died. */
struct failed_ranks {
    int count, mpi_error; /* the MPI error that reported them */
    int32_t rank[64];     /* the first of them; more are not listed */
    char host[64];        /* host that has died with them; empty: none */
};

/* Record which ranks have died, with a message. Returns PCOLL_EFAILED. */
int fail_ranks(const struct failed_ranks *who);
/* Return the ranks of this thread's last PCOLL_EFAILED. */
const struct failed_ranks *fail_last_ranks(void);

/* A failure that is reported later, or by another thread. */
struct failure {
    int code, mpi_error;
    struct reason reason;
    struct failed_ranks who; /* If the code is PCOLL_EFAILED. */
};
/* Return this thread's last failure, which has this code. */
struct failure fail_keep(int code);
/* Report it. Return its code, which may be PCOLL_OK. */
int fail_again(const struct failure *f);

/* A text that is written piece by piece. */
struct text {
    char *at;    /* the next character to write */
    size_t left; /* bytes left, including the 0 at the end */
    int items;   /* written so far; used by callers for separators */
};

/* Append. Cuts off what does not fit. */
void text_add(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parse like strtod and print like "%.*g", with a decimal point in every locale. */
double decimal_parse(const char *text, char **end);
void decimal_print(char *text, size_t capacity, int digits, double value);
