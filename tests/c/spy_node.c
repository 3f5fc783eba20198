/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain: freezing, which any member may do, and what the
 * leader's driver calls where there is a fabric. */
#include "domain/node.h"
#include "check.h"
#include "model.h"
#include "reference.h"
#include "spy.h"

static const struct node *node_in(const struct spy *s)
{
    return (const struct node *)s->real;
}

uint64_t spy_node_complete(const struct spy *s)
{
    return node_control_round(atomic_load(&node_in(s)->shared->control));
}

static const struct placement *placement_of(const struct spy *s)
{
    return &s->hooks.own->placement;
}

/* What all may know of a member, between whose steps nobody goes on. */
static struct member look_at(struct spy *s, uint32_t who)
{
    void (*hook)(void) = interleave_hook;
    struct member m;
    interleave_hook = NULL;
    s->real->ops->poll(s->real, (int)who, &m);
    interleave_hook = hook;
    return m;
}

/* The first member of a round is frozen: nobody is too far behind; its result is not
 * there yet. */
static void begin_round(struct spy *s, uint64_t round, const struct round_header *h)
{
    const struct placement *p = placement_of(s);
    for (uint32_t who = 0; who < p->members; who++) {
        struct member m = look_at(s, who);
        INVARIANT("staleness",
                  s->deliver != PCOLL_DELIVER_ONE || m.left ||
                      spy_closing(s, p->member[who]) ||
                      round - m.delivered < s->history,
                  "round %llu begins, of which rank %u has %llu, history is %u",
                  (unsigned long long)round, p->member[who],
                  (unsigned long long)m.delivered, s->history);
    }
    if (p->members > 1) /* else there is only a header */
        spy_poison(s->base.shape, h);
}

/* Nobody reads what the round was made of, from before its owners may write there. */
static bool round_ends;

bool spy_round_ends(void)
{
    bool ends = round_ends;
    round_ends = false;
    return ends;
}

static void note_over(void *arg, uint64_t round)
{
    struct spy *s = arg; /* of whoever ends it */
    const struct placement *p = placement_of(s);
    (void)round;
    round_ends = true;
    for (uint32_t who = 0; who < p->members; who++) {
        struct ledger_account *a = &s->ledger->account[p->member[who]];
        if (a->slot)
            memset(a->slot, 0xff, s->base.shape->payload.bytes);
        a->slot = NULL;
    }
}

static void note_frozen(void *arg, uint32_t rank, uint64_t round,
                        const struct round_header *h, const void *payload)
{
    struct spy *s = arg; /* of whoever freezes */
    if (rank == placement_of(s)->member[0])
        begin_round(s, round, h);
    model_freeze(s->ledger, rank, round, h, payload, sim_now(s->hooks.sim));
    s->ledger->account[rank].slot = (void *)(uintptr_t)payload;
}

static void wake(void *arg, uint32_t rank)
{
    const struct spy *s = arg;
    s->hooks.wake(s->hooks.arg, rank);
}

/* As allreduce/handle_create.c. */
static void alert(void *arg, uint32_t rank)
{
    const struct spy *s = arg;
    struct endpoint *v = s->hooks.own;
    if (rank == s->rank)
        communicator_notify(v->communicator, &v->base);
    else
        s->hooks.alert(s->hooks.arg, rank);
}

static int64_t now(void *arg)
{
    return sim_now(((const struct spy *)arg)->hooks.sim);
}

int spy_node_create(struct spy *s, const struct round_shape *shape,
                    const pcoll_options *options)
{
    struct endpoint *v = s->hooks.own;
    struct node_hooks hooks = {.memory = s->hooks.memory,
                               .placement = &v->placement,
                               .slot = &v->base.slot,
                               .owned_sends = options->owned_send,
                               .arg = s,
                               .wake = wake,
                               .alert = alert,
                               .now = now,
                               .frozen = note_frozen,
                               .over = note_over};
    return domain_node_create(shape, options, &hooks, &s->real);
}

static void help(struct domain *d, bool driver, int64_t *alarm)
{
    spy_of(d)->real->ops->help(spy_of(d)->real, driver, alarm);
}

static void sleeps(struct domain *d, bool asleep)
{
    spy_of(d)->real->ops->sleeps(spy_of(d)->real, asleep);
}

static int failure(struct domain *d)
{
    return spy_of(d)->real->ops->failure(spy_of(d)->real);
}

static void busy(struct domain *d, uint64_t *set)
{
    spy_of(d)->real->ops->busy(spy_of(d)->real, set);
}

static const uint64_t *awaited(struct domain *d)
{
    return spy_of(d)->real->ops->awaited(spy_of(d)->real);
}

static void ask_leader(struct domain *d)
{
    spy_of(d)->real->ops->alert(spy_of(d)->real);
}

static bool attention(struct domain *d)
{
    return spy_of(d)->real->ops->attention(spy_of(d)->real);
}

/* The driver's, where there is a fabric. */

static void arrivals(struct domain *d, uint32_t first_word, uint64_t *arrived,
                     uint64_t *deposited)
{
    spy_of(d)->real->ops->arrivals(spy_of(d)->real, first_word, arrived, deposited);
}

/* Had all who are there joined with this round? */
static bool all_joined(const struct ledger *l, uint64_t round)
{
    bool joined = false;
    for (uint32_t r = 0; r < l->ranks; r++) {
        if (!reference_gone(l, round, r))
            return false;
        joined = joined || l->round[round][r].joined;
    }
    return joined;
}

/* What the contract lets hold a round back: a lag of the whole history, the round
 * before, with which all have joined, not yet read. Such reasons only go away. */
static bool is_held_back(struct spy *s, uint64_t round)
{
    const struct placement *p = placement_of(s);
    bool joins = round && all_joined(s->ledger, round - 1);
    for (uint32_t who = 0; who < p->members; who++) {
        struct member m = look_at(s, who);
        bool lags = s->deliver == PCOLL_DELIVER_ONE && !m.left &&
                    round - m.delivered >= s->history;
        bool unaware = joins && m.delivered < round &&
                       s->ledger->round[round - 1][p->member[who]].joined;
        if ((lags || unaware) && !m.retired)
            return true;
    }
    return false;
}

static bool admits(struct domain *d)
{
    struct spy *s = spy_of(d);
    uint64_t round = spy_node_complete(s);
    bool held = is_held_back(s, round), admitted = s->real->ops->admits(s->real);
    INVARIANT("liveness", admitted || held,
              "the domain of rank %u holds round %llu back for nothing", s->rank,
              (unsigned long long)round);
    return admitted;
}

static struct round_header *freeze(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    struct round_header *h = s->real->ops->freeze(s->real, round);
    bool sum = h == node_in(s)->gathered && d->members > 1;
    s->frozen = sum ? h : NULL; /* else a member's: note_over */
    struct round_header *result = s->real->ops->result(s->real, round);
    memset((char *)(result + 1) - d->shape->header_bytes, 0xff, d->shape->slot_bytes);
    return h;
}

static bool gather(struct domain *d, uint64_t round, size_t begin, size_t end)
{
    return spy_of(d)->real->ops->gather(spy_of(d)->real, round, begin, end);
}

static struct round_header *result(struct domain *d, uint64_t round)
{
    return spy_of(d)->real->ops->result(spy_of(d)->real, round);
}

/* The fabric has read the sum of the domain. */
static void publish(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    if (s->frozen)
        spy_poison(d->shape, s->frozen);
    s->frozen = NULL;
    s->real->ops->publish(s->real, round);
}

struct domain_ops spy_node_ops(void)
{
    struct domain_ops ops = spy_member_ops();
    ops.help = help;
    ops.sleeps = sleeps;
    ops.failure = failure;
    ops.busy = busy;
    ops.awaited = awaited;
    ops.alert = ask_leader;
    ops.attention = attention;
    ops.arrivals = arrivals;
    ops.admits = admits;
    ops.freeze = freeze;
    ops.gather = gather;
    ops.result = result;
    ops.publish = publish;
    return ops;
}
