/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failing: a result code and a message that stays with the thread until the next one.
 */
#ifndef PCOLL_BASE_ERROR_H
#define PCOLL_BASE_ERROR_H

#include "include/partialcoll.h"

/* Record the message of a failure and return its code. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

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
