/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain: what its application calls. Everything it does not look at is passed
 * on. */
#include "spy.h"

#include "base/check.h"
#include "check.h"
#include "model.h"

void spy_poison(const struct round_shape *shape, const struct round_header *h)
{
    memset(message_payload(h), 0xff, shape->payload.bytes);
}

static int spy_deposit(struct domain *d, const void *const *buffers,
                       enum deposit_outcome *outcome)
{
    struct spy *s = spy_of(d);
    const double *first = buffers ? buffers[0] : s->real->ops->send_slot(s->real);
    struct model_deposit call = {.rank = s->rank,
                                 .value = *first,
                                 .late = s->late,
                                 .deliver = s->deliver,
                                 .began = sim_now(s->hooks.sim)};
    int rc = s->real->ops->deposit(s->real, buffers, outcome);
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

static void *spy_send_slot(struct domain *d)
{
    return spy_of(d)->real->ops->send_slot(spy_of(d)->real);
}

static int spy_pending(struct domain *d, void *const *buffers)
{
    return spy_of(d)->real->ops->pending(spy_of(d)->real, buffers);
}

static bool spy_ready(struct domain *d)
{
    struct spy *s = spy_of(d);
    bool ready = s->real->ops->ready(s->real);
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
    int rc =
        s->real->ops->deliver(s->real, last, horizon, buffers, round, masks, moved);
    if (rc != PCOLL_OK)
        return rc;
    s->account->delivered = round->index + 1;
    s->expected.delivered++;
    s->expected.lost += round->lost;
    check_read(s, round, before);
    return rc;
}

static void spy_snapshot(struct domain *d, struct member *copy)
{
    spy_of(d)->real->ops->snapshot(spy_of(d)->real, copy);
}

static void spy_poll(struct domain *d, int who, struct member *copy)
{
    spy_of(d)->real->ops->poll(spy_of(d)->real, who, copy);
}

/* The application's own look, between whose steps nobody goes on. */
static struct member own_state(struct spy *s)
{
    void (*hook)(void) = interleave_hook;
    struct member m;
    interleave_hook = NULL;
    s->real->ops->snapshot(s->real, &m);
    interleave_hook = hook;
    return m;
}

/* Who joins or leaves arrives, too, to say so: now, or when the next round opens. */
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
    int rc = s->real->ops->change(s->real, step);
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

/* A recovery: the watched domains see each other alone. */

static void spy_begin_at(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last)
{
    struct spy *s = spy_of(d);
    s->real->ops->begin_at(s->real, old ? spy_of(old)->real : NULL, round, last);
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
    struct domain *before = old ? spy_of(old)->real : NULL;
    int64_t began = sim_now(s->hooks.sim); /* others may come between its steps */
    if (s->hooks.grows)
        return s->real->ops->inherit(s->real, before, round, last);
    model_begin(s->ledger, s->hooks.epoch, round, d->shape->failed);
    int rc = s->real->ops->inherit(s->real, before, round, last);
    follow(s, old, began);
    return rc;
}

static void spy_retire(struct domain *d)
{
    spy_of(d)->real->ops->retire(spy_of(d)->real);
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
    s->real->ops->destroy(s->real);
    free(s);
}

struct domain_ops spy_member_ops(void)
{
    return (struct domain_ops){.deposit = spy_deposit,
                               .send_slot = spy_send_slot,
                               .pending = spy_pending,
                               .ready = spy_ready,
                               .deliver = spy_deliver,
                               .snapshot = spy_snapshot,
                               .poll = spy_poll,
                               .change = spy_change,
                               .retire = spy_retire,
                               .begin_at = spy_begin_at,
                               .inherit = spy_inherit,
                               .destroy = spy_destroy};
}

bool spy_closing(const struct spy *s, uint32_t rank)
{
    const struct endpoint *v = s->hooks.endpoints[rank];
    return !v || atomic_load(&v->closing) != OPEN;
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
    s->ops = spy_node_ops();
    int rc = spy_node_create(s, shape, options);
    if (rc != PCOLL_OK) {
        free(s);
        return rc;
    }
    s->base = *s->real;
    s->base.ops = &s->ops;
    *out = &s->base;
    return PCOLL_OK;
}
