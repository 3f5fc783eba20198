/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate that threads of the application go through all the time, and that is closed now
 * and then, for one thread, a recovery's: from when nobody is inside until it opens the
 * gate again, it is alone with what the gate keeps. Going in and out costs an atomic
 * addition each and no lock, as long as the gate is open.
 *
 * Protocol. Every operation below is sequentially consistent.
 *
 *   to enter   1. inside++   2. reads `closed`; if it is, steps back as one that leaves,
 *              sleeps until it reads that the gate is open, and begins again
 *   to leave   1. inside--   2. reads `closed`; if it is, wakes those that sleep
 *   to close   1. closed = true   2. sleeps until it reads inside == 0
 *   to open    1. closed = false  2. wakes those that sleep
 *
 * Who writes what: `closed` one thread at a time, `inside` whoever enters or leaves.
 *
 * Invariant: between 2 of closing and 1 of opening nobody is past 2 of entering and
 * before 1 of leaving. Who has read in 2 that the gate is open did so before 1 of the
 * closing, or after the opening; if before, it was counted before, too, and the closer
 * reads 0 only when it has left.
 *
 * No wake-up is lost (sleepers.h): if one that leaves does not read that the gate is
 * closed, its 2 comes before 1 of the closing, hence its 1 before the closer looks.
 *
 * Stale reads: one that takes an open gate for closed steps back, looks under the mutex
 * of the sleepers, and tries again. Who steps back has been counted for a moment without
 * being inside: the closer sleeps that much longer, and is woken by it.
 *
 * What is touched inside need not be atomic: whoever reads `inside` as 0 acquires what all
 * that have left have released, since it is changed by additions only; and whoever enters
 * has read what the opening has stored.
 *
 * One that leaves still reads `closed` when it is counted no more: something else has to
 * keep the gate in being until then.
 */
#ifndef PCOLL_RUNTIME_GATE_H
#define PCOLL_RUNTIME_GATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/sleepers.h"

struct gate {
    _Atomic uint32_t inside;
    _Atomic bool closed;
    struct sleepers sleepers;
};

void gate_init(struct gate *g);
void gate_destroy(struct gate *g);

/* Any number of threads. Waits while it is closed. */
void gate_enter(struct gate *g);
/* The same without waiting; false: it is closed, and the thread is not inside. */
bool gate_try_enter(struct gate *g);
void gate_leave(struct gate *g);

/* It is open: from now on nobody gets in, … */
void gate_close(struct gate *g);
/* … and now nobody is inside: waits for those who are, and is not one of them. */
void gate_await_empty(struct gate *g);
void gate_open(struct gate *g);

/* May be old when it comes back. */
static inline bool gate_is_closed(struct gate *g)
{
    return atomic_load(&g->closed);
}

#endif
