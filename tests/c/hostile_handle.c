/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile messages to the endpoints of a handle on simulated ranks: control messages, and
 * data messages whose header, data or length was changed.
 */
#include <string.h>

#include "allreduce/endpoint.h"
#include "allreduce/control.h"
#include "check.h"
#include "hostile.h"
#include "transport/sim/sim_transport.h"

enum { RANKS = 6, MAX_COUNT = 40, CONTROL_KINDS = CONTROL_REPORT + 2 };

static struct {
    struct hostile *hostile;
    uint32_t ranks, count;
    struct sim *sim;
    struct endpoint *endpoints[RANKS];
    struct communicator *communicators[RANKS];
    struct stall_answers answers[RANKS];
    double data[MAX_COUNT];
    bool waits[RANKS], closes;
} w;

static uint32_t roll(uint32_t bound)
{
    return hostile_roll(w.hostile, bound);
}

static pcoll_options draw_options(void)
{
    static const char *const policies[] = {"solo",       "majority",   "full",
                                           "quorum:0.5", "first_of:2", "last_of:2",
                                           "quorum:2",   "solo"};
    static const char *const modifiers[] = {"", "", ",linger=20us", ",max_staleness=2",
                                            ",deadline=100us"};
    static const int32_t algorithms[] = {
        PCOLL_ALGORITHM_AUTO, PCOLL_ALGORITHM_RING, PCOLL_ALGORITHM_RECDBL,
        PCOLL_ALGORITHM_RABENSEIFNER, PCOLL_ALGORITHM_NATIVE};
    char text[64];
    pcoll_options o;
    pcoll_options_init(&o);
    snprintf(text, sizeof text, "%s%s", policies[roll(8)], modifiers[roll(5)]);
    EXPECT_OK(pcoll_policy_parse(text, &o.policy));
    o.algorithm = algorithms[roll(5)];
    o.seed = w.hostile->seed;
    o.history = 1 + roll(2);
    if (roll(3))
        return o;
    EXPECT_OK(pcoll_policy_parse("full", &o.policy));
    o.algorithm = PCOLL_ALGORITHM_AUTO;
    o.described = 1;
    return o;
}

/* Describe the next call between two rounds. In most cases the ranks agree on it. */
static void describe(uint32_t r)
{
    struct round_shape *shape = &w.endpoints[r]->shape;
    uint64_t call = w.endpoints[r]->engine.current + (roll(4) ? 0 : roll(1000));
    pcoll_buffer form = {.count = call * 7 % (2 * w.count + 1), .dtype = PCOLL_FLOAT32};
    if (!shape->described)
        return;
    EXPECT_OK(round_shape_describe(shape, &form));
    shape->intent = round_intent(call + 1);
}

static void create(void)
{
    w.ranks = w.hostile->ranks = 2 + roll(RANKS - 1);
    w.count = 1 + roll(MAX_COUNT);
    struct sim_options sim = {.size = w.ranks,
                              .seed = w.hostile->seed,
                              .network = {.L = 2000, .o = 200, .g = 50},
                              .hostile = true};
    EXPECT_OK(sim_create(&sim, &w.sim));
    pcoll_options options = draw_options();
    pcoll_buffer buffer = {.count = w.count, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct transport *t = sim_endpoint(w.sim, r);
        struct endpoint_spec spec = {
            .ranks = w.ranks, .buffers = &buffer, .nbuffers = 1, .options = &options};
        hostile_tap(w.hostile, t);
        EXPECT_OK(communicator_create(t, NULL, &w.communicators[r]));
        EXPECT_OK(endpoint_create(w.communicators[r], &spec, &w.endpoints[r]));
        EXPECT_OK(endpoint_settle_alone(w.endpoints[r]));
        EXPECT_OK(endpoint_open(w.endpoints[r]));
        EXPECT_OK(communicator_register(w.communicators[r], &w.endpoints[r]->base, 0));
        w.answers[r] = (struct stall_answers){
            .size = w.ranks, .by_rank = calloc(w.ranks, sizeof(struct stall_answer))};
        atomic_store(&w.answers[r].missing, w.ranks);
        w.endpoints[r]->stall_answers = &w.answers[r];
        sim_wake(w.sim, r, roll(20000), 0);
    }
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        communicator_fail(w.communicators[r], PCOLL_EPROTOCOL); /* it may be closing */
        uint64_t *ballot = w.communicators[r]->closing.ballot;  /* MPI would keep it */
        communicator_unregister(w.communicators[r], 0);
        endpoint_destroy(&w.endpoints[r]);
        communicator_destroy(&w.communicators[r]);
        free(ballot);
        free(w.answers[r].by_rank);
    }
    sim_free(&w.sim);
}

static void take_result(uint32_t r)
{
    struct domain *d = w.endpoints[r]->domain;
    uint64_t masks[3 * 1];
    pcoll_round round;
    bool moved = false;
    void *recv[] = {w.data};
    if (!w.waits[r] || !d->ops->ready(d))
        return;
    EXPECT_OK(d->ops->deliver(d, UINT64_MAX, UINT64_MAX, recv, &round, masks, &moved));
    EXPECT(round.active <= w.ranks && round.initiator < (int32_t)w.ranks,
           "a result of %u ranks", round.active);
    if (moved)
        communicator_notify(w.communicators[r], &w.endpoints[r]->base);
    if (d->ops->change(d, member_finish) == PCOLL_OK)
        w.waits[r] = false;
    w.hostile->done++;
}

static void act(uint32_t r)
{
    struct domain *d = w.endpoints[r]->domain;
    enum deposit_outcome outcome;
    const void *send[] = {w.data};
    if (w.closes && !w.waits[r]) {
        int rc = endpoint_close(w.endpoints[r]);
        EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL, "%d: %s", rc,
               pcoll_last_error());
        return;
    }
    if (!w.waits[r]) {
        describe(r);
        EXPECT_OK(d->ops->deposit(d, send, &outcome));
        endpoint_deposited(w.endpoints[r], outcome);
        w.waits[r] = true;
    }
    sim_wake(w.sim, r, roll(20000), 0);
}

static void send_hostile(void)
{
    uint32_t to = roll(w.ranks), from = (to + 1 + roll(w.ranks - 1)) % w.ranks;
    struct endpoint *v = w.endpoints[to];
    struct control message = hostile_message(w.hostile, CONTROL_KINDS);
    if (roll(2))
        message.round = v->engine.current + roll(2);
    if (atomic_load(&v->base.closed))
        return;
    int rc = v->base.ops->control(&v->base, from, &message);
    hostile_note(w.hostile, rc);
}

static bool poll(uint32_t r)
{
    struct communicator *c = w.communicators[r];
    communicator_poll(c);
    int rc = communicator_check(c);
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL, "%d: %s", rc, pcoll_last_error());
    EXPECT(rc == PCOLL_OK || !communicator_poll(c),
           "a failed communicator still polls");
    w.hostile->refused += rc != PCOLL_OK;
    return rc == PCOLL_OK;
}

void hostile_handles(struct hostile *h, uint64_t most)
{
    struct sim_stop stop;
    bool sound = true;
    memset(&w, 0, sizeof w);
    w.hostile = h;
    uint32_t pause = 1 + roll(60), closing = 100 + roll(2000);
    h->tampers = roll(3) ? 0 : 1 + roll(200);
    create();
    for (uint64_t i = 0; h->messages < most && sound && sim_step(w.sim, &stop); i++) {
        w.closes = i > closing;
        if (stop.woken)
            act(stop.rank);
        sound = poll(stop.rank);
        if (sound)
            take_result(stop.rank);
        for (uint32_t n = roll(pause) ? 0 : roll(8); n && sound; n--)
            send_hostile();
    }
    destroy();
}
