/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of simulated ranks: one of them runs at a time, and goes on until it pauses
 * or ends. So anything can happen between any two of its steps, and the same again.
 */
#ifndef PCOLL_TESTS_FIBER_H
#define PCOLL_TESTS_FIBER_H

#include <stdbool.h>

struct fiber;

/* Begin body(arg) in *at, which is made when it is first used, and come back when it
 * has ended or pauses. Not from within a fiber. */
void fiber_run(struct fiber **at, void (*body)(void *arg), void *arg);
/* It has paused. */
bool fiber_is_paused(const struct fiber *f);
/* It never goes on. */
void fiber_abandon(struct fiber **at);
/* Go on with it, until it ends or pauses again. */
void fiber_resume(struct fiber *f);
/* The fiber that runs; NULL: none. */
struct fiber *fiber_current(void);
/* Within a fiber: come back to whoever ran it. */
void fiber_pause(void);

#endif
