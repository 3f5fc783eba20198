/* SPDX-License-Identifier: Apache-2.0 */
/* Gates; see lock.h. */
#include "base/check.h"
#include "base/lock.h"

void gate_init(struct gate *g, enum lock_rank rank)
{
    g->rank = rank;
    atomic_init(&g->inside, 0);
    atomic_init(&g->closed, false);
    sleepers_init(&g->sleepers);
}

void gate_destroy(struct gate *g)
{
    CHECK(!atomic_load(&g->inside));
    sleepers_destroy(&g->sleepers);
}

static bool gate_is_open(void *arg)
{
    INTERLEAVE();
    return !gate_is_closed(arg);
}

static bool gate_is_empty(void *arg)
{
    struct gate *g = arg;
    INTERLEAVE();
    return atomic_load(&g->inside) == 0;
}

/* Count this thread as inside. If the result is false, the gate is closed and the thread must
 * leave again. */
static inline bool gate_count_in(struct gate *g)
{
    INTERLEAVE();
    uint32_t before = atomic_fetch_add(&g->inside, 1);
    CHECK(before < UINT32_MAX);
    (void)before;
    lock_held(g->rank);
    INTERLEAVE();
    return !gate_is_closed(g);
}

bool gate_try_enter(struct gate *g)
{
    if (gate_count_in(g))
        return true;
    gate_leave(g);
    return false;
}

/* A function of its own, so that a thread that finds the gate open saves no registers for it. */
static __attribute__((noinline)) void gate_enter_late(struct gate *g)
{
    do {
        gate_leave(g);
        sleepers_await(&g->sleepers, gate_is_open, g);
    } while (!gate_count_in(g));
}

void gate_enter(struct gate *g)
{
    lock_waits_shared(g->rank);
    if (!gate_count_in(g))
        gate_enter_late(g);
}

void gate_leave(struct gate *g)
{
    INTERLEAVE();
    uint32_t before = atomic_fetch_sub(&g->inside, 1);
    CHECK(before > 0);
    (void)before;
    lock_released(g->rank);
    INTERLEAVE();
    if (gate_is_closed(g))
        sleepers_wake(&g->sleepers);
}

void gate_close(struct gate *g)
{
    CHECK(!gate_is_closed(g));
    INTERLEAVE();
    atomic_store(&g->closed, true);
}

void gate_await_empty(struct gate *g)
{
    CHECK(gate_is_closed(g));
    lock_waits(g->rank);
    sleepers_await(&g->sleepers, gate_is_empty, g);
}

void gate_open(struct gate *g)
{
    CHECK(gate_is_closed(g));
    INTERLEAVE();
    atomic_store(&g->closed, false);
    INTERLEAVE();
    sleepers_wake(&g->sleepers);
}
