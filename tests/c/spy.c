/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain; everything it does not look at is passed on. */
#include "spy.h"

#include "check.h"

void ledger_init(struct ledger *l, uint32_t ranks)
{
    *l = (struct ledger){.ranks = ranks};
    l->contributed = calloc(SPY_MOST_ROUNDS, sizeof *l->contributed);
    l->active = calloc(SPY_MOST_ROUNDS, sizeof *l->active);
    l->arrived = calloc(SPY_MOST_ROUNDS, sizeof *l->arrived);
}

void ledger_free(struct ledger *l)
{
    free(l->contributed);
    free(l->active);
    free(l->arrived);
}

static struct spy *of(struct domain *d)
{
    return (struct spy *)d;
}

static void model_deposit(struct spy *s, double value, enum deposit_outcome outcome)
{
    s->deposited += value;
    if (outcome == DEPOSIT_DROPPED) {
        CHECK(s->late == PCOLL_LATE_DROP, "dropped although late is not drop");
        s->dropped += value;
        return;
    }
    CHECK(outcome == DEPOSIT_ARRIVED || s->late != PCOLL_LATE_DROP,
          "stored although late=drop");
    bool add = s->late == PCOLL_LATE_CARRY && s->has_pending;
    if (s->has_pending && !add)
        s->dropped += s->pending;
    s->pending = add ? s->pending + value : value;
    s->has_pending = true;
    s->pending_arrived = outcome == DEPOSIT_ARRIVED;
}

static int spy_deposit(struct domain *d, int who, const void *const *buffers,
                       enum deposit_outcome *outcome)
{
    struct spy *s = of(d);
    int rc = s->real->ops->deposit(s->real, who, buffers, outcome);
    if (rc == PCOLL_OK)
        model_deposit(s, *(const double *)buffers[0], *outcome);
    return rc;
}

/* conservation, at the source: a round takes exactly what is owed, once. */
static struct round_header *spy_freeze(struct domain *d, uint64_t round)
{
    struct spy *s = of(d);
    struct ledger *l = s->ledger;
    struct round_header *h = s->real->ops->freeze(s->real, round);
    CHECK(round == l->frozen[s->rank], "rank %u freezes round %llu, expected %llu",
          s->rank, (unsigned long long)round, (unsigned long long)l->frozen[s->rank]);
    CHECK(round < SPY_MOST_ROUNDS, "more rounds than the ledger holds");
    l->frozen[s->rank]++;
    bool active = !round_is_null(h, d->shape->ranks);
    CHECK(active == s->has_pending, "rank %u contributes %d to round %llu, owes %d",
          s->rank, active, (unsigned long long)round, s->has_pending);
    if (active) {
        double value = *(double *)message_payload(d->shape, h);
        CHECK(value == s->pending, "rank %u contributes %g to round %llu, owes %g",
              s->rank, value, (unsigned long long)round, s->pending);
        l->contributed[round][s->rank] = value;
        l->active[round][s->rank] = true;
        l->arrived[round][s->rank] = s->pending_arrived;
    }
    s->has_pending = s->pending_arrived = false;
    s->pending = 0;
    return h;
}

static void *spy_send_slot(struct domain *d, int who)
{
    return of(d)->real->ops->send_slot(of(d)->real, who);
}

static bool spy_ready(struct domain *d, int who)
{
    return of(d)->real->ops->ready(of(d)->real, who);
}

static int spy_deliver(struct domain *d, int who, uint64_t last, void *const *buffers,
                       pcoll_round *round, uint64_t *masks, bool *moved)
{
    return of(d)->real->ops->deliver(of(d)->real, who, last, buffers, round, masks,
                                     moved);
}

static void spy_snapshot(struct domain *d, int who, struct member *copy)
{
    of(d)->real->ops->snapshot(of(d)->real, who, copy);
}

static int spy_change(struct domain *d, int who, int (*step)(struct member *))
{
    return of(d)->real->ops->change(of(d)->real, who, step);
}

static void spy_arrivals(struct domain *d, uint64_t *arrived)
{
    of(d)->real->ops->arrivals(of(d)->real, arrived);
}

static bool spy_admits(struct domain *d)
{
    return of(d)->real->ops->admits(of(d)->real);
}

static struct round_header *spy_result(struct domain *d, uint64_t round)
{
    return of(d)->real->ops->result(of(d)->real, round);
}

static void spy_publish(struct domain *d, uint64_t round)
{
    struct spy *s = of(d);
    s->real->ops->publish(s->real, round);
    struct member m;
    s->real->ops->snapshot(s->real, 0, &m);
    CHECK(m.deliver != PCOLL_DELIVER_ONE || m.left ||
              m.complete - m.delivered <= m.history,
          "rank %u lags %llu rounds, history is %u", s->rank,
          (unsigned long long)(m.complete - m.delivered), m.history);
}

static void spy_destroy(struct domain *d)
{
    struct spy *s = of(d);
    s->real->ops->destroy(s->real);
    free(s);
}

static const struct domain_ops spy_ops = {
    .deposit = spy_deposit,
    .send_slot = spy_send_slot,
    .ready = spy_ready,
    .deliver = spy_deliver,
    .snapshot = spy_snapshot,
    .change = spy_change,
    .arrivals = spy_arrivals,
    .admits = spy_admits,
    .freeze = spy_freeze,
    .result = spy_result,
    .publish = spy_publish,
    .destroy = spy_destroy,
};

int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out)
{
    struct spy_arg *a = arg;
    struct spy *s = calloc(1, sizeof *s);
    int rc = domain_single_create(shape, options, &a->rank, &s->real);
    if (rc != PCOLL_OK) {
        free(s);
        return rc;
    }
    s->base = *s->real;
    s->base.ops = &spy_ops;
    s->ledger = a->ledger;
    s->rank = a->rank;
    s->late = options->late;
    a->made = s;
    *out = &s->base;
    return PCOLL_OK;
}
