/* SPDX-License-Identifier: Apache-2.0 */
/*
 * INTERLEAVE(): a point between two locked steps of an application's thread, where the
 * thread that drives the rounds may get in between. It is nothing, except in the tests
 * with simulated ranks, which have one thread: there everybody else may go on for a
 * while at this point.
 */
#ifndef PCOLL_BASE_INTERLEAVE_H
#define PCOLL_BASE_INTERLEAVE_H

#ifdef PCOLL_TEST_INTERLEAVE
extern void (*interleave_hook)(void);
#define INTERLEAVE() (interleave_hook ? interleave_hook() : (void)0)
#else
#define INTERLEAVE() ((void)0)
#endif

#endif
