/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way into an object that one thread uses at a time, and that a recovery shuts now and then
 * to be alone with it. Who is the only one has changed a word for that anyway; so all that it
 * costs to be ready for a recovery is to read another one, and to change the first once more.
 * (A gate, gate.h, is for any number of threads.)
 *
 * Protocol. Every operation below is sequentially consistent, but for 3 of giving back, which
 * releases.
 *
 *   to take       1. FREE to INSIDE, or to ASIDE, by swap: fails if another thread has it
 *                 2. INSIDE: reads `shut`; if it is, waits
 *   to step aside 1. state = ASIDE   2. reads `shut`; if it is, wakes those that sleep
 *   to come in    1. state = INSIDE  2. reads `shut`; if it is, waits
 *   to wait       1. steps aside     2. sleeps until it reads that it is open
 *                 3. comes in
 *   to give back  1., 2. steps aside, if it is inside   3. state = FREE
 *   to shut       1. shut = true     2. sleeps until it reads that nobody is INSIDE
 *   to open       1. shut = false    2. wakes those that sleep
 *
 * Who writes what: `state` the thread that has taken it, and any thread that finds it FREE;
 * `shut` one thread at a time, a recovery's.
 *
 * Invariant: between 2 of shutting and 1 of opening nobody is past 2 of coming in (or taking)
 * and before 1 of stepping aside. Who has read in 2 that it is open did so before 1 of the
 * shutting, or after the opening; if before, it was INSIDE before, too, and the recovery reads
 * otherwise only when it has stepped aside.
 *
 * No wake-up is lost (sleepers.h): if one that steps aside does not read that it is shut, its 2
 * comes before 1 of the shutting, hence its 1 before the recovery looks. Nobody waits for FREE:
 * who does not get it is turned away.
 *
 * Stale reads: one that takes an open passage for a shut one looks again under the mutex of the
 * sleepers. One that finds it taken, though it has just been given back, is turned away as if
 * it had come a moment before.
 *
 * What is touched inside need not be atomic: who takes it acquires what the last one has
 * released, and who reads `state` or `shut` what was done before they were changed. Nothing is
 * read after it has been given back: whoever takes it next may free it.
 */
#ifndef PCOLL_RUNTIME_PASSAGE_H
#define PCOLL_RUNTIME_PASSAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/sleepers.h"

enum passage_state { PASSAGE_FREE, PASSAGE_ASIDE, PASSAGE_INSIDE };

/* All zero: free, open, and never to be shut. */
struct passage {
    _Atomic uint32_t state; /* enum passage_state */
    _Atomic bool shut;
    struct sleepers *sleepers; /* NULL: it is never shut */
};

/* Any thread. False: another one has it. Inside, it waits while it is shut. */
bool passage_take(struct passage *p, enum passage_state as);

/* Who has taken it: from aside, waiting while it is shut; from inside; from either. */
void passage_come_in(struct passage *p);
void passage_step_aside(struct passage *p);
void passage_give_back(struct passage *p);

/* It is open: from now on nobody comes in, … */
void passage_shut(struct passage *p);
/* … and now nobody is inside: waits for one who is, and is not that one. */
void passage_await_empty(struct passage *p);
void passage_open(struct passage *p);

static inline bool passage_is_taken(const struct passage *p)
{
    return atomic_load_explicit(&p->state, memory_order_relaxed) != PASSAGE_FREE;
}

/* May be old when it comes back. */
static inline bool passage_is_shut(const struct passage *p)
{
    return atomic_load(&p->shut);
}

#endif
