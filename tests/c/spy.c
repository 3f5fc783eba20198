/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain: what its application calls, and domains of one rank. Everything
 * it does not look at is passed on. */
#include "spy.h"

#include "base/check.h"
#include "check.h"
#include "model.h"

void spy_poison(const struct round_shape *shape, const struct round_header *h)
{
    memset(message_payload(shape, h), 0xff, shape->payload.bytes);
}

uint64_t spy_complete(const struct spy *s)
{
    return s->hooks.memory ? spy_node_complete(s) : s->published;
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
    call.complete = spy_complete(s);
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

static bool spy_ready(struct domain *d)
{
    struct spy *s = spy_of(d);
    bool ready = s->real->ops->ready(s->real);
    INVARIANT("liveness", ready == (spy_complete(s) > s->account->delivered),
              "rank %u: ready %d, %llu of %llu rounds delivered", s->rank, ready,
              (unsigned long long)s->account->delivered,
              (unsigned long long)spy_complete(s));
    return ready;
}

/* `before` rounds were complete when the call began. */
static void check_read(struct spy *s, const pcoll_round *round, uint64_t before)
{
    struct ledger_account *a = s->account;
    unsigned long long index = round->index, complete = round->lag + a->delivered;
    INVARIANT("order", !round->lost || index + s->history <= spy_complete(s),
              "rank %u lost round %llu, which is not older than the history", s->rank,
              index - 1);
    bool included = a->taken_in >= 0 && (uint64_t)a->taken_in <= index;
    INVARIANT("agreement", round->included == included,
              "rank %u is told that round %llu has its deposit: %d; it was %d", s->rank,
              index, round->included, included);
    INVARIANT("agreement", complete >= before && complete <= spy_complete(s),
              "rank %u is told that %llu rounds are complete, it is %llu to %llu",
              s->rank, complete, (unsigned long long)before,
              (unsigned long long)spy_complete(s));
}

static int spy_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                       void *const *buffers, pcoll_round *round, uint64_t *masks,
                       bool *moved)
{
    struct spy *s = spy_of(d);
    uint64_t before = spy_complete(s);
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
    return spy_complete(spy_of(d));
}

/* A recovery: the watched domains see each other alone. */

static struct round_header *spy_slot(struct domain *d, int i)
{
    return spy_of(d)->real->ops->slot(spy_of(d)->real, i);
}

static void spy_begin_at(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last)
{
    struct spy *s = spy_of(d);
    s->real->ops->begin_at(s->real, old ? spy_of(old)->real : NULL, round, last);
    s->published = round;
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
    model_begin(s->ledger, s->hooks.epoch, s->published, d->shape->failed);
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
                               .ready = spy_ready,
                               .deliver = spy_deliver,
                               .snapshot = spy_snapshot,
                               .poll = spy_poll,
                               .change = spy_change,
                               .retire = spy_retire,
                               .slot = spy_slot,
                               .begin_at = spy_begin_at,
                               .inherit = spy_inherit,
                               .destroy = spy_destroy};
}

/* The other side, where the domain is one rank. */

bool spy_closing(const struct spy *s, uint32_t rank)
{
    const struct endpoint *v = s->hooks.endpoints[rank];
    return !v || atomic_load(&v->closing) != OPEN;
}

static struct round_header *single_freeze(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    struct round_header *h = s->real->ops->freeze(s->real, round);
    bool active = !round_is_null(h, d->shape->ranks);
    model_freeze(s->ledger, s->rank, round, h,
                 active ? message_payload(d->shape, h) : NULL, sim_now(s->hooks.sim));
    s->frozen = active ? h : NULL;
    memset(s->real->ops->result(s->real, round), 0xff, d->shape->slot_bytes);
    return h;
}

static void single_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    spy_of(d)->real->ops->arrivals(spy_of(d)->real, arrived, deposited);
}

/* Nobody is held up but by what the contract says: a lag of the whole history, a result
 * that is being copied out of the slot, the round after which all have joined. */
static bool single_admits(struct domain *d)
{
    struct spy *s = spy_of(d);
    bool admits = s->real->ops->admits(s->real);
    struct member m = own_state(s);
    uint64_t round = s->published;
    bool lags =
        s->deliver == PCOLL_DELIVER_ONE && round - s->account->delivered >= s->history;
    bool copies = m.reading >= 0 && (uint64_t)m.reading + s->history + 1 == round;
    bool joins = m.joined_in >= 0;
    INVARIANT("liveness", admits || lags || copies || joins,
              "rank %u holds round %llu back for nothing", s->rank,
              (unsigned long long)round);
    return admits;
}

static struct round_header *single_result(struct domain *d, uint64_t round)
{
    return spy_of(d)->real->ops->result(spy_of(d)->real, round);
}

static void single_publish(struct domain *d, uint64_t round)
{
    struct spy *s = spy_of(d);
    s->real->ops->publish(s->real, round);
    s->published++;
    note_leaver(s, sim_now(s->hooks.sim));
    struct member m = own_state(s);
    INVARIANT("staleness",
              m.deliver != PCOLL_DELIVER_ONE || m.left || spy_closing(s, s->rank) ||
                  m.complete - m.delivered <= m.history,
              "rank %u lags %llu rounds, history is %u", s->rank,
              (unsigned long long)(m.complete - m.delivered), m.history);
    if (s->frozen)
        spy_poison(d->shape, s->frozen);
    s->frozen = NULL;
}

static int single_create(struct spy *s, const struct round_shape *shape,
                         const pcoll_options *options)
{
    return domain_single_create(shape, options, &s->rank, &s->real);
}

static struct domain_ops single_ops(void)
{
    struct domain_ops ops = spy_member_ops();
    ops.arrivals = single_arrivals;
    ops.admits = single_admits;
    ops.freeze = single_freeze;
    ops.result = single_result;
    ops.publish = single_publish;
    return ops;
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
    s->ops = a->memory ? spy_node_ops() : single_ops();
    int rc = a->memory ? spy_node_create(s, shape, options)
                       : single_create(s, shape, options);
    if (rc != PCOLL_OK) {
        free(s);
        return rc;
    }
    s->base = *s->real;
    s->base.ops = &s->ops;
    *out = &s->base;
    return PCOLL_OK;
}
