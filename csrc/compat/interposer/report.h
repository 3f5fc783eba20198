/* SPDX-License-Identifier: Apache-2.0 */
/* What became of the program's calls, counted, and told at the end of MPI. */
#ifndef PCOLL_COMPAT_INTERPOSER_REPORT_H
#define PCOLL_COMPAT_INTERPOSER_REPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The first is what we want; the others say why MPI did it. */
enum outcome {
    TAKEN,
    PASSED_FULL,
    PASSED_FIRST,
    PASSED_OUTSIDE,
    PASSED_OTHER_WORLD,
    PASSED_NO_ELEMENTS,
    PASSED_ARGUMENTS,
    PASSED_ORDERED,
    PASSED_GAPS,
    PASSED_OP_OF_USER,
    PASSED_INTERCOMM,
    PASSED_THREADS,
    PASSED_CACHE,
    PASSED_LIMIT,
    PASSED_REFUSED,
    PASSED_NESTED,
    OUTCOMES
};

extern _Atomic uint64_t report_counts[OUTCOMES];
extern bool
    report_wanted; /* until MPI has begun, and where a rank asks for the report */

/* Inline: a call that is handed to MPI has to cost nanoseconds. */
static inline void report_count(enum outcome outcome)
{
    if (report_wanted)
        atomic_fetch_add_explicit(&report_counts[outcome], 1, memory_order_relaxed);
}

/* The calls counted on this rank. */
uint64_t report_calls(void);

/* Add up over all ranks; rank 0 prints. Collective over MPI_COMM_WORLD. */
void report_print(void);

#endif
