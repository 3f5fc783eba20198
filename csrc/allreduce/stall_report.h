/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing? A rank that waits for too long asks all others where they are; their
 * agents answer. What comes out is one sentence for people.
 */
#ifndef PCOLL_ALLREDUCE_STALL_REPORT_H
#define PCOLL_ALLREDUCE_STALL_REPORT_H

#include "allreduce/endpoint.h"

/* Application: ask, collect for at most patience_us, write the sentence. */
int stall_report_run(struct endpoint *v, int64_t patience_us, char *text,
                     uint64_t capacity);
/* The same of a handle that this rank frees: which ranks do not? */
int stall_report_unfreed(struct endpoint *v, int64_t patience_us, char *text,
                         uint64_t capacity);

#endif
