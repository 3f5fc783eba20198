/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CHECK(condition): what must hold here, whatever callers and other ranks do; if not,
 * the fault is ours. On in all builds that are tested (PCOLL_CHECKS, or
 * PARTIALCOLL_CHECKS=1 when the package is built), nothing else: the condition is then
 * not evaluated, so it may have no effects. What a user or another rank can do wrong is
 * an error (error.h), never a CHECK.
 */
#ifndef PCOLL_BASE_CHECK_H
#define PCOLL_BASE_CHECK_H

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

#endif
