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

#endif
