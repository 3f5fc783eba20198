/* SPDX-License-Identifier: Apache-2.0 */
/* What the application and the driver of a member do, in the order of steps of
 * csrc/allreduce/{handle,endpoint,sharing}.c. */
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "steps.h"

static struct steps *s;

void steps_begin(struct steps *steps)
{
    s = steps;
}

static struct steps_member *of(uint32_t rank)
{
    return &s->member[rank];
}

static void notify_driver(uint32_t rank)
{
    of(rank)->notifications++;
    stepper_wake(steps_driver(rank));
}

/* endpoint_poll. */
static void look_again(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    int64_t alarm = INT64_MAX;
    if (s->o.fabric)
        d->ops->alert(d);
    else
        d->ops->help(d, false, &alarm);
    of(rank)->told = alarm;
    if (alarm != INT64_MAX)
        notify_driver(rank);
}

/* endpoint_help. */
static void help(uint32_t rank)
{
    struct steps_member *m = of(rank);
    int64_t alarm;
    m->domain->ops->help(m->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == m->told)
        return;
    m->told = alarm;
    notify_driver(rank);
}

/* call_is_over. */
static bool is_over(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    if (d->ops->ready(d))
        return true;
    help(rank);
    return d->ops->ready(d);
}

/* progress_soon, then progress_wait. */
static void wait_for_round(uint32_t rank)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    m->doing = "waiting";
    for (uint32_t looks = s->o.think ? stepper_random(3) : 0; looks > 0; looks--)
        if (is_over(rank))
            return;
    d->ops->sleeps(d, true);
    for (;;) {
        uint32_t seen = m->rings;
        if (is_over(rank))
            break;
        if (m->rings == seen)
            stepper_block(INT64_MAX);
    }
    d->ops->sleeps(d, false);
}

static void think(uint32_t rank)
{
    uint32_t most = rank == s->o.slow ? 10 * s->o.think : s->o.think;
    of(rank)->doing = "computing";
    if (most && stepper_random(3))
        stepper_block(stepper_now() + stepper_random(most));
}

/* Each is another number, so that what a round took tells which deposit it was. */
static double value_of(uint32_t rank, uint64_t call)
{
    double number = (double)(call * 1000 + rank + 1);
    if (!s->o.fractions)
        return number;
    return number / 3 * (double)((uint64_t)1 << splitmix_below(rank, call, 30));
}

static void deposit(uint32_t rank, uint64_t call)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    double send[STEPS_MAX_COUNT], value = value_of(rank, call);
    double *owned = d->ops->send_slot(d), *to = owned ? owned : send;
    const void *buffers[] = {send};
    enum deposit_outcome outcome;
    for (uint32_t i = 0; i < s->o.count; i++)
        to[i] = steps_element(value, i);
    m->doing = "depositing";
    m->depositing = value;
    m->deposit_taken = false;
    m->in_deposit = true;
    m->came_at = stepper_now();
    EXPECT_OK(d->ops->deposit(d, owned ? NULL : buffers, &outcome));
    steps_deposited(s, rank, outcome);
    m->calling = true;
    memset(send, 0xff, sizeof send);
    if (outcome == DEPOSIT_ARRIVED ||
        (outcome == DEPOSIT_STORED && s->policy.max_staleness))
        look_again(rank);
}

static bool deliver(uint32_t rank, uint64_t last, pcoll_round *r)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    uint64_t masks[3 * bitset_words(STEPS_MAX_RANKS)];
    double recv[STEPS_MAX_COUNT];
    void *buffers[] = {recv};
    bool moved = false;
    memset(recv, 0xff, sizeof recv);
    m->doing = "taking a result";
    if (s->o.stepper.mode == STEPPER_STALL && !stepper_random(4))
        stepper_stall_soon(8); /* in the middle of the copy */
    m->in_deliver = true;
    int rc = d->ops->deliver(d, last, UINT64_MAX, buffers, r, masks, &moved);
    m->in_deliver = false;
    if (rc == PCOLL_EEMPTY)
        return false;
    EXPECT_OK(rc);
    steps_delivered(s, rank, r, masks, recv);
    if (moved)
        look_again(rank);
    return true;
}

static void change(uint32_t rank, int (*step)(struct member *))
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    m->doing = step == member_join ? "joining" : "leaving";
    m->came_at = stepper_now();
    m->in_change = true;
    EXPECT_OK(d->ops->change(d, step));
    m->in_change = false;
    m->joining = m->joining || step == member_join;
    m->calling = m->joining;
    m->left = m->left || step == member_leave;
    look_again(rank);
}

static void finish(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    EXPECT_OK(d->ops->change(d, member_finish));
    of(rank)->calling = false;
}

/* One call: with deliver="one" a round, else those that have not been seen. */
static void call(uint32_t rank, uint64_t number)
{
    struct domain *d = of(rank)->domain;
    struct member m;
    pcoll_round r;
    bool one = s->o.handle.deliver == PCOLL_DELIVER_ONE, any = false;
    think(rank);
    deposit(rank, number);
    wait_for_round(rank);
    d->ops->snapshot(d, &m);
    uint64_t last = one ? m.delivered : m.complete - 1;
    while (deliver(rank, last, &r))
        any = true;
    INVARIANT("order", any || !one, "rank %u was told of a round that is not there",
              rank);
    finish(rank);
}

static void join(uint32_t rank)
{
    pcoll_round r = {0};
    change(rank, member_join);
    while (!r.joined) {
        wait_for_round(rank);
        if (!deliver(rank, UINT64_MAX, &r))
            INVARIANT("order", false, "rank %u: no round to take in a join", rank);
    }
    steps_joined(s, rank, &r);
    finish(rank);
}

static uint64_t calls_of(uint32_t rank, uint32_t loop)
{
    bool uneven = s->o.ending != END_LOOP;
    return uneven ? splitmix_below(s->o.stepper.seed + 3 + loop, rank,
                                   (uint32_t)s->o.calls + 1)
                  : s->o.calls;
}

static bool leaves(uint32_t rank)
{
    bool everybody = splitmix_below(s->o.stepper.seed + 7, 0, 8) == 0;
    return s->o.ending == END_LEAVE &&
           (everybody || splitmix_below(s->o.stepper.seed + 4, rank, 3) == 0);
}

/* "all": to a round number; those that others wait for do not stop before. */
static uint64_t loop(uint32_t rank, uint64_t number, uint64_t calls)
{
    bool until = s->o.handle.deliver == PCOLL_DELIVER_ALL && s->o.ending == END_LOOP;
    for (uint64_t i = 0; until ? of(rank)->next < calls : i < calls; i++)
        call(rank, number++);
    return number;
}

/* Who has left does something else, and frees its handle when the others are through.
 */
static void leave(uint32_t rank)
{
    change(rank, member_leave);
    of(rank)->doing = "gone";
    s->leavers++;
    while (s->applications > s->leavers)
        stepper_block(stepper_now() + 10000);
    s->leavers--;
}

static void application(uint32_t rank)
{
    bool joins = s->o.ending == END_JOIN || s->o.ending == END_LEAVE;
    uint64_t number = loop(rank, 0, calls_of(rank, 0));
    if (joins && leaves(rank))
        leave(rank);
    else if (joins) {
        join(rank);
        number = loop(rank, number, calls_of(rank, 1));
        join(rank);
    }
    struct steps_member *m = of(rank);
    m->doing = "over";
    m->retired = true;
    m->domain->ops->retire(m->domain);
    if (s->o.fabric)
        m->domain->ops->alert(m->domain);
    else
        notify_driver(rank);
    if (--s->applications == 0)
        for (uint32_t i = 0; i < s->o.ranks; i++)
            notify_driver(i);
}

/* The leader's: when it has been notified, or finds the mark. */
static void drive_fabric(void)
{
    struct steps_member *m = of(0);
    uint32_t seen = 0;
    while (s->applications) {
        bool asked = m->domain->ops->attention(m->domain);
        if (asked || m->notifications != seen) {
            seen = m->notifications;
            steps_run_fabric(s);
        } else
            stepper_block(INT64_MAX);
    }
}

/* run_member, when it is asked to, and when its alarm rings. */
static void driver(uint32_t rank)
{
    struct steps_member *m = of(rank);
    uint32_t seen = 0;
    while (s->applications) {
        int64_t nosy =
            s->o.nosy ? stepper_now() + 1 + stepper_random(s->o.nosy) : INT64_MAX;
        if (m->notifications == seen)
            stepper_block(nosy < m->alarm ? nosy : m->alarm);
        seen = m->notifications;
        if (m->alarm <= stepper_now())
            m->alarm = INT64_MAX;
        int64_t next;
        m->domain->ops->help(m->domain, true, &next);
        m->alarm = next < m->alarm ? next : m->alarm;
    }
}

void steps_body(int id)
{
    if (id == 1 && s->o.fabric)
        drive_fabric();
    else if (id % 2)
        driver((uint32_t)id / 2);
    else
        application((uint32_t)id / 2);
}
