/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Yielding the core, and whether that is wise.
 *
 * Among threads that wait as well, a yield takes microseconds. Beside one that computes
 * it takes its time slice, whatever comes meanwhile, and the kernel counts the rest of
 * ours as used: some twenty milliseconds where threads are many. One that sleeps
 * instead has the core as soon as a ring wakes it. So a yield that took long says that
 * the cores are crowded, and whoever would yield sleeps for a while.
 *
 * Any number of threads may use one at the same time: what one of them writes
 * is right for it, and what is wrong for another costs a yield or a sleep that it would
 * have been spared.
 */
#ifndef PCOLL_BASE_CONTENTION_H
#define PCOLL_BASE_CONTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Until when the cores are taken to be crowded, and for how long they were the last
 * time, halved by each fast yield since. Begins as zeros. */
struct contention {
    _Atomic int64_t until_us, lasting_us;
};

/* Others want the cores for longer than a yield: sleep instead. */
bool contended(const struct contention *c);

/* Yield, and take note of how long that takes. */
void contention_yield(struct contention *c);

#endif
