/* SPDX-License-Identifier: Apache-2.0 */
/*
 * INTERLEAVE(): a point between two steps of a thread in memory that others change too,
 * locked or atomic, where they may get in between. It is nothing, except in the tests
 * with simulated ranks: there the thread may pause at this point while everybody else
 * goes on.
 */
#ifndef PCOLL_BASE_INTERLEAVE_H
#define PCOLL_BASE_INTERLEAVE_H

extern void (*interleave_hook)(void); /* the tests' own (tests/c/interleave.c) */

#ifdef PCOLL_TEST_INTERLEAVE
#define INTERLEAVE() (interleave_hook ? interleave_hook() : (void)0)
#else
#define INTERLEAVE() ((void)0)
#endif

#endif
