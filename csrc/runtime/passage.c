/* SPDX-License-Identifier: Apache-2.0 */
/* See passage.h, also for the numbers. */
#include "runtime/passage.h"

#include "base/check.h"
#include "base/interleave.h"

static bool is_open(void *arg)
{
    INTERLEAVE();
    return !passage_is_shut(arg);
}

static bool is_empty(void *arg)
{
    struct passage *p = arg;
    INTERLEAVE();
    return atomic_load(&p->state) != PASSAGE_INSIDE;
}

/* Apart, so that those who find it open save no registers for it. */
static __attribute__((noinline)) void wait_until_open(struct passage *p)
{
    do {
        passage_step_aside(p);
        sleepers_await(p->sleepers, is_open, p);
        INTERLEAVE();
        atomic_store(&p->state, PASSAGE_INSIDE);
        INTERLEAVE();
    } while (passage_is_shut(p));
}

bool passage_take(struct passage *p, enum passage_state as)
{
    CHECK(p && as != PASSAGE_FREE);
    uint32_t state = PASSAGE_FREE;
    INTERLEAVE();
    if (!atomic_compare_exchange_strong(&p->state, &state, as))
        return false;
    INTERLEAVE();
    if (as == PASSAGE_INSIDE && passage_is_shut(p))
        wait_until_open(p);
    return true;
}

void passage_come_in(struct passage *p)
{
    CHECK(atomic_load(&p->state) == PASSAGE_ASIDE);
    INTERLEAVE();
    atomic_store(&p->state, PASSAGE_INSIDE);
    INTERLEAVE();
    if (passage_is_shut(p))
        wait_until_open(p);
}

void passage_step_aside(struct passage *p)
{
    CHECK(atomic_load(&p->state) == PASSAGE_INSIDE);
    INTERLEAVE();
    atomic_store(&p->state, PASSAGE_ASIDE);
    INTERLEAVE();
    if (passage_is_shut(p))
        sleepers_wake(p->sleepers);
}

/* Where it is never shut nobody looks whether it is inside. */
void passage_give_back(struct passage *p)
{
    CHECK(passage_is_taken(p));
    if (p->sleepers &&
        atomic_load_explicit(&p->state, memory_order_relaxed) == PASSAGE_INSIDE)
        passage_step_aside(p);
    INTERLEAVE();
    atomic_store_explicit(&p->state, PASSAGE_FREE, memory_order_release);
}

void passage_shut(struct passage *p)
{
    CHECK(p->sleepers && !passage_is_shut(p));
    INTERLEAVE();
    atomic_store(&p->shut, true);
}

void passage_await_empty(struct passage *p)
{
    CHECK(passage_is_shut(p));
    sleepers_await(p->sleepers, is_empty, p);
}

void passage_open(struct passage *p)
{
    CHECK(passage_is_shut(p));
    INTERLEAVE();
    atomic_store(&p->shut, false);
    INTERLEAVE();
    sleepers_wake(p->sleepers);
}
