/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What builds for tests add to the code: assertions, points at which simulated threads
 * interleave, and points at which a process may die.
 *
 * CHECK(condition): what must hold here, whatever callers and other ranks do; if not,
 * the fault is ours. On in all builds that are tested (PCOLL_CHECKS, or
 * PARTIALCOLL_CHECKS=1 when the package is built), nothing else: the condition is then
 * not evaluated, so it may have no effects. What a user or another rank can do wrong is
 * an error (error.h), never a CHECK.
 */
#ifndef PCOLL_BASE_CHECK_H
#define PCOLL_BASE_CHECK_H

#include <stdatomic.h>
#include <stdint.h>

#ifdef PCOLL_CHECKS
#define CHECK(condition)                                                               \
    ((condition) ? (void)0 : check_broken(__FILE__, __LINE__, #condition))
#else
#define CHECK(condition) ((void)sizeof(!(condition)))
#endif

/* Says so and ends the process: by the hook if there is one, else by abort(). */
_Noreturn void check_broken(const char *file, int line, const char *condition);

/* The tests' own: prints what leads to the failure again, and exits. */
extern void (*check_hook)(void);

/*
 * INTERLEAVE(): a point between two steps of a thread in memory that others change too,
 * locked or atomic, where they may get in between. It is nothing, except in the tests
 * with simulated ranks: there the thread may pause at this point while everybody else
 * goes on.
 */

extern void (*interleave_hook)(void); /* the tests' own (tests/c/interleave.c) */

#ifdef PCOLL_TEST_INTERLEAVE
#define INTERLEAVE() (interleave_hook ? interleave_hook() : (void)0)
#else
#define INTERLEAVE() ((void)0)
#endif

/*
 * MOMENT("name"): a point at which a process may die, for the tests. Every state that docs/faults.md
 * lists has one. Nothing but in builds with checks, where two settings are looked at:
 *
 *   PARTIALCOLL_DIE="name:n"    the process kills itself when it comes there for the n-th time;
 *                               "name:n:stop": it stops itself, until it is told to go on
 *   PARTIALCOLL_MOMENTS=folder  it keeps a file moments-PID there, struct moments: each of its
 *                               threads writes down where it came last, which outlives it; and
 *                               whoever has mapped it, too, can have it die at a moment to come
 */

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
