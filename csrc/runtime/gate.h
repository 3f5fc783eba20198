/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader/writer lock with a rare writer. Threads of the application enter and leave all the
 * time. Now and then a recovery closes the gate, waits until no thread is inside, uses alone
 * what the gate protects, and opens the gate again. Entering and leaving an open gate costs one
 * atomic addition each.
 *
 * A communicator has a gate (outage.h), and each handle that continues when ranks die has one
 * (allreduce/handle.h). csrc/base/lock.h gives them their order.
 *
 * Protocol. Every operation below is sequentially consistent.
 *
 *   enter   E1. inside++   E2. read `closed`. If the gate is closed, leave, sleep until the
 *           gate is open, and begin again.
 *   leave   L1. inside--   L2. read `closed`. If the gate is closed, wake the sleepers.
 *   close   C1. closed = true   C2. sleep until inside == 0.
 *   open    O1. closed = false  O2. wake the sleepers.
 *
 * One thread at a time writes `closed`. Every thread that enters or leaves writes `inside`.
 *
 * Invariant: between C2 and O1 no thread is past E2 and before L1. Proof: a thread that reads
 * an open gate in E2 does so before C1 or after O1. If it reads before C1, its E1 comes before
 * C1 as well, so C2 does not read 0 until the thread has left.
 *
 * No wake-up is lost (base/thread.h): if a thread that leaves reads an open gate in L2, then
 * L2 comes before C1. Its L1 comes before that, so C2 reads the new value.
 *
 * A stale read is harmless: a thread that reads an open gate as closed leaves, reads `closed`
 * again under the mutex of the sleepers, and tries again. A thread that leaves at once was
 * counted for a moment without being inside. The writer sleeps until that thread wakes it.
 *
 * What the gate protects need not be atomic. The writer that reads inside == 0 acquires what
 * every thread that left has released, because `inside` changes by additions only. A thread
 * that enters reads what O1 released.
 *
 * A thread that leaves reads `closed` after L1. The caller keeps the gate in memory until then.
 */
#ifndef PCOLL_RUNTIME_GATE_H
#define PCOLL_RUNTIME_GATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/thread.h"

struct gate {
    _Atomic uint32_t
        inside; /* Threads that are inside, or that are about to leave again. */
    _Atomic bool closed;
    enum lock_rank rank;
    struct sleepers sleepers;
};

void gate_init(struct gate *g, enum lock_rank rank);
void gate_destroy(struct gate *g);

/* Enter, from any thread. Wait while the gate is closed. */
void gate_enter(struct gate *g);
/* Enter if the gate is open, and return whether it was. */
bool gate_try_enter(struct gate *g);
void gate_leave(struct gate *g);

/* Close an open gate. From now on no thread enters. */
void gate_close(struct gate *g);
/* Wait until no thread is inside. The caller is not inside. */
void gate_await_empty(struct gate *g);
void gate_open(struct gate *g);

/* Return whether the gate was closed a moment ago. */
static inline bool gate_is_closed(struct gate *g)
{
    return atomic_load(&g->closed);
}

#endif
