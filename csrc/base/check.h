/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions, interleaving points and kill points, which only builds for tests compile in.
 *
 * CHECK(condition): an invariant that holds whatever callers and other ranks do. If it is
 * broken, the library has a bug. CHECKs are compiled into all builds that are tested
 * (PCOLL_CHECKS, or PARTIALCOLL_CHECKS=1 when the package is built). Other builds do not
 * evaluate the condition, so it must have no side effects. A mistake of a user or of
 * another rank is an error (error.h), never a CHECK.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#ifdef PCOLL_CHECKS
#define CHECK(condition)                                                               \
    ((condition) ? (void)0 : check_broken(__FILE__, __LINE__, #condition))
#else
#define CHECK(condition) ((void)sizeof(!(condition)))
#endif

/* Print the condition and end the process: by the hook if there is one, else by abort(). */
_Noreturn void check_broken(const char *file, int line, const char *condition);

/* Set by tests: print how to reproduce the failure, and exit. */
extern void (*check_hook)(void);

/*
 * INTERLEAVE(): a point between two steps of a thread in memory that other threads change,
 * under a lock or by atomic operations. In tests with simulated ranks the thread may pause
 * here while the others run. Other builds compile it to nothing.
 */

extern void (*interleave_hook)(void); /* set by tests (tests/c/interleave.c) */

#ifdef PCOLL_TEST_INTERLEAVE
#define INTERLEAVE() (interleave_hook ? interleave_hook() : (void)0)
#else
#define INTERLEAVE() ((void)0)
#endif

/*
 * MOMENT("name"): a kill point, at which tests end the process. Every state that docs/faults.md
 * lists has one. Only builds with CHECKs compile them in, and read two settings:
 *
 *   PARTIALCOLL_DIE="name:n"    The process kills itself when it passes the point for the n-th
 *                               time. "name:n:stop": it stops itself, until SIGCONT.
 *   PARTIALCOLL_MOMENTS=folder  The process keeps a file moments-PID there, struct moments.
 *                               Each thread writes the last point that it has passed, which
 *                               stays readable after its death. A process that maps the file
 *                               can have this one die at a later point.
 */

#ifdef PCOLL_CHECKS
#define MOMENT(name) moment_pass(name)
#else
#define MOMENT(name) ((void)0)
#endif

enum { MOMENT_THREADS = 63, MOMENT_NAME = 24 };

/* The last point that a thread has passed. Only that thread writes it, and it writes names
 * alternately: a death in between leaves the last name whole. */
struct thread_moment {
    _Atomic uint32_t which; /* index of the last name, plus 1; 0: none yet */
    uint32_t number;        /* points passed until now */
    char name[2][MOMENT_NAME];
    uint64_t unused;
};

/* A page. Another process writes `wish` while `left` is 0, and then sets `left` to the number of
 * times that the process passes the point until it dies there. */
struct moments {
    char wish[48];
    _Atomic int32_t left;
    _Atomic uint32_t threads;
    _Atomic int64_t died; /* time of the death at the wish (clock_ns); 0: none yet */
    struct thread_moment thread[MOMENT_THREADS];
};

void moment_pass(const char *name);
