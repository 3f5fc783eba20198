/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain: calls of its application, freezes, which any member may do, and
 * calls of the leader's driver if there is a fabric. */
#include "spy.h"

#include "base/check.h"
#include "check.h"
#include "domain/node.h"
#include "model.h"
#include "reference.h"

struct spy {
    struct domain_ops ops; /* first member: the domain's ops, some replaced by ours */
    const struct domain_ops *real;
    struct domain *domain;
    struct spy_arg hooks;
    struct ledger *ledger;
    struct ledger_account *account; /* in the ledger */
    uint32_t rank;
    enum pcoll_late late;
    enum pcoll_deliver deliver;
    uint32_t history;
    bool over;      /* the rank has died, or another domain has taken over */
    uint64_t began; /* first round of this domain */
    pcoll_stats expected;
    struct round_header *frozen; /* the header that the round in progress reads */
};

static struct spy *spy_of(struct domain *d)
{
    return (struct spy *)d->ops;
}

/* Fill with NaNs: before a round begins, its result must not exist; after it is
 * complete, its memory must not be read. */
static void spy_poison(const struct round_shape *shape, const struct round_header *h)
{
    memset(message_payload(h), 0xff, shape->payload.bytes);
}

/* A rank that frees its handle no longer delays others. */
static bool spy_closing(const struct spy *s, uint32_t rank)
{
    const struct endpoint *v = s->hooks.endpoints[rank];
    return !v || atomic_load(&v->closing) != OPEN;
}

/* Return the number of complete rounds according to shared memory. */
static uint64_t spy_node_complete(const struct spy *s)
{
    return node_control_round(atomic_load(&s->domain->shared->control));
}

static const struct placement *placement_of(const struct spy *s)
{
    return &s->hooks.own->placement;
}

/* Read the public state of a member without interleaving. */
static struct member look_at(struct spy *s, uint32_t who)
{
    void (*hook)(void) = interleave_hook;
    struct member m;
    interleave_hook = NULL;
    node_poll(s->domain, (int)who, &m);
    interleave_hook = hook;
    return m;
}

/* The first member of a round is frozen: no member may lag too far behind, and the
 * result must not exist yet. */
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
    if (p->members > 1) /* a single member has only a header */
        spy_poison(s->domain->shape, h);
}

/* Set when a round ends, before the owners of its slots may write there: no rank may
 * read them. */
static bool round_ends;

bool spy_round_ends(void)
{
    bool ends = round_ends;
    round_ends = false;
    return ends;
}

static void note_over(void *arg, uint64_t round)
{
    struct spy *s = arg; /* of the rank that ends the round */
    const struct placement *p = placement_of(s);
    (void)round;
    round_ends = true;
    for (uint32_t who = 0; who < p->members; who++) {
        struct ledger_account *a = &s->ledger->account[p->member[who]];
        if (a->slot)
            memset(a->slot, 0xff, s->domain->shape->payload.bytes);
        a->slot = NULL;
    }
}

static void note_frozen(void *arg, uint32_t rank, uint64_t round,
                        const struct round_header *h, const void *payload)
{
    struct spy *s = arg; /* of the rank that freezes */
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

/* See allreduce/handle_create.c. */
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

static int spy_node_create(struct spy *s, const struct round_shape *shape,
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
    return domain_node_create(shape, options, &hooks, &s->domain);
}

/* Calls of the leader's driver, if there is a fabric. */

/* Return whether all remaining ranks had joined with this round. */
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

/* Reasons for which the contract lets a round wait: a member lags by the whole history,
 * or has not read the previous round, with which all have joined. These reasons only
 * disappear. */
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
    bool held = is_held_back(s, round), admitted = s->real->admits(s->domain);
    INVARIANT("liveness", admitted || held,
              "the domain of rank %u holds round %llu back for nothing", s->rank,
              (unsigned long long)round);
    return admitted;
}

static struct round_header *freeze(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    struct round_header *h = s->real->freeze(s->domain, round);
    bool sum = h == s->domain->gathered && d->members > 1;
    s->frozen = sum ? h : NULL; /* a member's own slot is handled in note_over */
    struct round_header *result = node_result(s->domain, round);
    memset((char *)(result + 1) - d->shape->header_bytes, 0xff, d->shape->slot_bytes);
    return h;
}

/* The fabric has read the sum of the domain. */
static void publish(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    if (s->frozen)
        spy_poison(d->shape, s->frozen);
    s->frozen = NULL;
    s->real->publish(s->domain, round);
}

static int spy_deposit(struct domain *d, const void *const *buffers,
                       enum deposit_outcome *outcome)
{
    struct spy *s = spy_of(d);
    const double *first = buffers ? buffers[0] : node_send_slot(d);
    struct model_deposit call = {.rank = s->rank,
                                 .value = *first,
                                 .late = s->late,
                                 .deliver = s->deliver,
                                 .began = sim_now(s->hooks.sim)};
    int rc = s->real->deposit(s->domain, buffers, outcome);
    if (rc != PCOLL_OK)
        return rc;
    call.complete = spy_node_complete(s);
    model_deposit(s->ledger, &call, *outcome);
    s->expected.calls++;
    s->expected.arrived += *outcome == DEPOSIT_ARRIVED;
    s->expected.stored += *outcome == DEPOSIT_STORED;
    s->expected.dropped += *outcome == DEPOSIT_DROPPED;
    return rc;
}

static bool spy_ready(struct domain *d)
{
    struct spy *s = spy_of(d);
    bool ready = s->real->ready(s->domain);
    INVARIANT("liveness", ready == (spy_node_complete(s) > s->account->delivered),
              "rank %u: ready %d, %llu of %llu rounds delivered", s->rank, ready,
              (unsigned long long)s->account->delivered,
              (unsigned long long)spy_node_complete(s));
    return ready;
}

/* `before` rounds were complete when the call began. */
static void check_read(struct spy *s, const pcoll_round *round, uint64_t before)
{
    struct ledger_account *a = s->account;
    unsigned long long index = round->index, complete = round->lag + a->delivered;
    INVARIANT("order", !round->lost || index + s->history <= spy_node_complete(s),
              "rank %u lost round %llu, which is not older than the history", s->rank,
              index - 1);
    bool included = a->taken_in >= 0 && (uint64_t)a->taken_in <= index;
    INVARIANT("agreement", round->included == included,
              "rank %u is told that round %llu has its deposit: %d; it was %d", s->rank,
              index, round->included, included);
    INVARIANT("agreement", complete >= before && complete <= spy_node_complete(s),
              "rank %u is told that %llu rounds are complete, it is %llu to %llu",
              s->rank, complete, (unsigned long long)before,
              (unsigned long long)spy_node_complete(s));
}

static int spy_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                       void *const *buffers, pcoll_round *round, uint64_t *masks,
                       bool *moved)
{
    struct spy *s = spy_of(d);
    uint64_t before = spy_node_complete(s);
    int rc = s->real->deliver(s->domain, last, horizon, buffers, round, masks, moved);
    if (rc != PCOLL_OK)
        return rc;
    s->account->delivered = round->index + 1;
    s->expected.delivered++;
    s->expected.lost += round->lost;
    check_read(s, round, before);
    return rc;
}

/* Read the application's own state without interleaving. */
static struct member own_state(struct spy *s)
{
    void (*hook)(void) = interleave_hook;
    struct member m;
    interleave_hook = NULL;
    node_snapshot(s->domain, &m);
    interleave_hook = hook;
    return m;
}

/* A rank that joins or leaves arrives as well, now or when the next round opens, to
 * announce it. */
static void note_leaver(struct spy *s, int64_t time)
{
    struct member m = own_state(s);
    if (m.joining || m.left)
        model_arrival(s->ledger, s->rank, time);
}

static int spy_change(struct domain *d, int (*step)(struct member *))
{
    struct spy *s = spy_of(d);
    int64_t began = sim_now(s->hooks.sim);
    int rc = s->real->change(s->domain, step);
    note_leaver(s, began);
    return rc;
}

void spy_abandon(struct domain *d)
{
    spy_of(d)->over = true;
}

uint64_t spy_complete_of(struct domain *d)
{
    return spy_node_complete(spy_of(d));
}

/* Recovery: the watched domains see only each other. */

static void spy_begin_at(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last)
{
    struct spy *s = spy_of(d);
    s->real->begin_at(d, old, round, last);
    s->began = round;
}

static void follow(struct spy *s, struct domain *old, int64_t began)
{
    if (!old) {
        model_enter(s->ledger, s->rank);
        return;
    }
    model_recover(s->ledger, s->rank, s->late, began);
    s->expected = spy_of(old)->expected;
    spy_of(old)->over = true;
    note_leaver(s, began);
}

void spy_settle(struct domain *d, struct domain *old)
{
    struct spy *s = spy_of(d);
    model_begin(s->ledger, s->hooks.epoch, s->began, d->shape->failed);
    follow(s, old, sim_now(s->hooks.sim));
}

static int spy_inherit(struct domain *d, struct domain *old, uint64_t round,
                       const struct round_header *last)
{
    struct spy *s = spy_of(d);
    int64_t began = sim_now(s->hooks.sim); /* other ranks may run between its steps */
    if (s->hooks.grows)
        return s->real->inherit(d, old, round, last);
    model_begin(s->ledger, s->hooks.epoch, round, d->shape->failed);
    int rc = s->real->inherit(d, old, round, last);
    follow(s, old, began);
    return rc;
}

/* The statistics that users see. */
static void check_stats(struct spy *s)
{
    struct member m = own_state(s);
    const pcoll_stats *is = &m.stats, *be = &s->expected;
    INVARIANT("agreement",
              is->calls == be->calls && is->rounds == s->ledger->frozen[s->rank] &&
                  is->delivered == be->delivered && is->lost == be->lost + m.lost,
              "rank %u: statistics of calls and rounds", s->rank);
    INVARIANT("agreement",
              is->arrived == be->arrived && is->stored == be->stored &&
                  is->dropped == be->dropped && is->included == s->account->taken,
              "rank %u: statistics of deposits", s->rank);
    INVARIANT("agreement", is->redone == s->account->redone,
              "rank %u: %llu rounds redone, it was %llu", s->rank,
              (unsigned long long)is->redone, (unsigned long long)s->account->redone);
}

static void spy_destroy(struct domain *d)
{
    struct spy *s = spy_of(d);
    if (!s->over)
        check_stats(s);
    s->real->destroy(s->domain);
    free(s);
}

static void watch(struct domain_ops *ops)
{
    ops->deposit = spy_deposit;
    ops->ready = spy_ready;
    ops->deliver = spy_deliver;
    ops->change = spy_change;
    ops->begin_at = spy_begin_at;
    ops->inherit = spy_inherit;
    ops->destroy = spy_destroy;
    ops->admits = admits;
    ops->freeze = freeze;
    ops->publish = publish;
}

int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out)
{
    const struct spy_arg *a = arg;
    struct spy *s = calloc(1, sizeof *s);
    EXPECT(s, "no memory for a spy");
    s->hooks = *a;
    s->rank = a->rank;
    s->ledger = a->ledger;
    s->account = &a->ledger->account[a->rank];
    s->late = options->late;
    s->deliver = options->deliver;
    s->history = options->history;
    int rc = spy_node_create(s, shape, options);
    if (rc != PCOLL_OK) {
        free(s);
        return rc;
    }
    s->real = s->domain->ops;
    s->ops = *s->real;
    watch(&s->ops);
    s->domain->ops = &s->ops;
    *out = s->domain;
    return PCOLL_OK;
}
