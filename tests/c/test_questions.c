/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries for the state of a rank. Simulated ranks ask each other at random times, and close their
 * handles at random times. A rank whose handle has closed must receive no query and no answer,
 * because its communicator may be freed.
 */
#include "allreduce/control.h"
#include "base/random.h"
#include "check.h"
#include "transport/sim/sim_transport.h"

enum { RANKS = 5, SEEDS = 3000, ASK = 1, CLOSE = 2 };

static struct sim *sim;
static struct communicator *communicators[RANKS];
static struct endpoint *endpoints[RANKS];

static void create(uint64_t seed)
{
    pcoll_options options;
    pcoll_buffer buffer = {.count = 1, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    pcoll_options_init(&options);
    struct sim_options how = {
        .size = RANKS,
        .seed = seed,
        .network = {.L = 2000, .o = 200, .latency = PCOLL_LATENCY_EXPONENTIAL},
        .hostile = true};
    EXPECT_OK(sim_create(&how, &sim));
    for (uint32_t r = 0; r < RANKS; r++) {
        struct endpoint_spec spec = {
            .ranks = RANKS, .buffers = &buffer, .nbuffers = 1, .options = &options};
        EXPECT_OK(communicator_create(sim_endpoint(sim, r), NULL, &communicators[r]));
        EXPECT_OK(endpoint_create(communicators[r], &spec, &endpoints[r]));
        EXPECT_OK(endpoint_settle_alone(endpoints[r]));
        EXPECT_OK(communicator_register(communicators[r], &endpoints[r]->base, 0));
        sim_wake(sim, r, sim_random(sim, 8000), CLOSE);
        for (int i = 0; i < 3; i++)
            sim_wake(sim, r, sim_random(sim, 16000), ASK);
    }
}

/* A rank whose handle has closed receives no message. */
static void expect_nothing(uint32_t r)
{
    const struct transport_event *events;
    struct transport *t = communicators[r]->transport;
    int count = t->ops->poll(t, &events);
    for (int i = 0; i < count; i++)
        INVARIANT("nothing is left", events[i].kind != TRANSPORT_CONTROL,
                  "a message of kind %u came to rank %u, which has closed",
                  events[i].control.kind, r);
}

static void run(uint64_t seed)
{
    struct sim_stop stop;
    create(seed);
    while (sim_step(sim, &stop)) {
        struct endpoint *endpoint = endpoints[stop.rank];
        if (atomic_load(&endpoint->base.closed)) {
            expect_nothing(stop.rank);
            continue;
        }
        if (stop.woken && stop.token == CLOSE)
            EXPECT_OK(endpoint_close(endpoint));
        if (stop.woken && stop.token == ASK &&
            atomic_load(&endpoint->closing) < COUNTING)
            EXPECT_OK(stall_question_send(endpoint));
        while (communicator_poll(communicators[stop.rank]) > 0 &&
               !atomic_load(&endpoint->base.closed))
            ;
        EXPECT_OK(communicator_check(communicators[stop.rank]));
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        INVARIANT("liveness", atomic_load(&endpoints[r]->base.closed),
                  "rank %u has not closed", r);
        communicator_unregister(communicators[r], 0);
        endpoint_destroy(&endpoints[r]);
        communicator_destroy(&communicators[r]);
    }
    sim_free(&sim);
}

int main(void)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        run(seed);
    printf("questions: all tests passed\n");
    return 0;
}
