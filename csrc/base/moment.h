/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MOMENT("name"): a point at which a process may die, for the tests. Every state that docs/faults.md
 * lists has one. Nothing but in builds with checks (check.h), where two settings are looked at:
 *
 *   PARTIALCOLL_DIE="name:n"    the process kills itself when it comes there for the n-th time;
 *                               "name:n:stop": it stops itself, until it is told to go on
 *   PARTIALCOLL_MOMENTS=folder  it keeps a file moments-PID there, struct moments: each of its
 *                               threads writes down where it came last, which outlives it; and
 *                               whoever has mapped it, too, can have it die at a moment to come
 */
#ifndef PCOLL_BASE_MOMENT_H
#define PCOLL_BASE_MOMENT_H

#include <stdatomic.h>
#include <stdint.h>

#ifdef PCOLL_CHECKS
#define MOMENT(name) moment_pass(name)
#else
#define MOMENT(name) ((void)0)
#endif

enum { MOMENT_THREADS = 63, MOMENT_NAME = 24 };

/* Written by its thread alone. A death between two steps leaves the last name whole. */
struct thread_moment {
    _Atomic uint32_t which; /* of the names, plus 1; 0: none yet */
    uint32_t number;        /* of moments until now */
    char name[2][MOMENT_NAME];
    uint64_t unused;
};

/* A page. `wish` is written by others, while nothing is `left`; then how often it is passed until
 * the process dies there. */
struct moments {
    char wish[48];
    _Atomic int32_t left;
    _Atomic uint32_t threads;
    _Atomic int64_t died; /* by that wish, at this time (clock_ns); 0: not */
    struct thread_moment thread[MOMENT_THREADS];
};

void moment_pass(const char *name);

#endif
