/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deposits from a device and results to one, on the fake driver. A rank arrives once, with the data
 * of a late kernel, whichever thread sees the end of the copy. The library does not reuse a result
 * while it is being copied. The domain has one rank, and the test drives its rounds.
 * Compiled: threads.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "fake_device.h"
#include "allreduce/staging.h"
#include "domain/node.h"

enum { COUNT = 3000, ROUNDS = 40, BUFFERS = 2, DRIVERS = 2 };

struct rank {
    cuda_context context;
    cuda_stream sends, receives;              /* the application's streams */
    pcoll_place send[BUFFERS], recv[BUFFERS]; /* on the device */
    struct round_shape shape;
    struct placement placement;
    struct domain *domain;
    struct staging *staging;
    _Atomic int made, over;
};

static size_t bytes_of(int buffer)
{
    return COUNT * (buffer ? sizeof(uint16_t) : sizeof(float));
}

static void make(struct rank *r, enum pcoll_late late)
{
    pcoll_buffer buffers[BUFFERS] = {{.count = COUNT, .dtype = PCOLL_FLOAT32},
                                     {.count = COUNT, .dtype = PCOLL_FLOAT16}};
    pcoll_options o;
    pcoll_options_init(&o);
    o.policy.kind = PCOLL_SOLO;
    o.owned_send = 1;
    o.history = 1;
    o.late = (int32_t)late;
    *r = (struct rank){0};
    fake_device_start();
    EXPECT(cuda.primary_retain(&r->context, 0) == CUDA_SUCCESS, "no device");
    EXPECT(cuda.context_push(r->context) == CUDA_SUCCESS, "no context");
    EXPECT(cuda.stream_create(&r->sends, 1) == CUDA_SUCCESS, "no stream");
    EXPECT(cuda.stream_create(&r->receives, 1) == CUDA_SUCCESS, "no stream");
    for (int i = 0; i < BUFFERS; i++) {
        EXPECT(memory_take(&r->send[i].address, bytes_of(i)) == CUDA_SUCCESS,
               "no memory");
        EXPECT(memory_take(&r->recv[i].address, bytes_of(i)) == CUDA_SUCCESS,
               "no memory");
    }
    EXPECT_OK(round_shape_init(&r->shape, 1, buffers, BUFFERS, NULL));
    EXPECT_OK(placement_init(&r->placement, 0, 1, NULL, NULL, 0));
    struct node_hooks hooks = {.placement = &r->placement, .owned_sends = o.owned_send};
    EXPECT_OK(domain_node_create(&r->shape, &o, &hooks, &r->domain));
    EXPECT_OK(staging_create(0, &r->staging));
}

static void end(struct rank *r)
{
    cuda_context context;
    struct fake_cuda_counts c;
    staging_destroy(&r->staging);
    r->domain->ops->destroy(r->domain);
    placement_destroy(&r->placement);
    round_shape_destroy(&r->shape);
    stream_sync(number(r->sends));
    stream_sync(number(r->receives));
    for (int i = 0; i < BUFFERS; i++) {
        memory_free(r->send[i].address);
        memory_free(r->recv[i].address);
    }
    cuda.stream_destroy(r->sends);
    cuda.stream_destroy(r->receives);
    EXPECT(cuda.context_pop(&context) == CUDA_SUCCESS, "no context to leave");
    cuda.primary_release(0);
    get_counts(&c);
    INVARIANT("nothing is left", c.live == 0 && c.complaints == 0, "%d left, %d wrong",
              (int)c.live, (int)c.complaints);
}

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void try_once(struct rank *r)
{
    bool made;
    enum deposit_outcome outcome;
    (void)staging_try(r->staging, r->domain, &made, &outcome);
    if (made)
        atomic_fetch_add(&r->made, 1);
}

/* The drivers, which poll at any time. */
static void *drive(void *arg)
{
    struct rank *r = arg;
    while (!atomic_load(&r->over)) {
        try_once(r);
        sched_yield();
    }
    return NULL;
}

static void fill(float *values, uint16_t *halves, unsigned round)
{
    for (unsigned i = 0; i < COUNT; i++) {
        values[i] = (float)(i * 7 + round * 1000);
        halves[i] = (uint16_t)((i + round) % 20000 + 1000); /* bits of finite numbers */
    }
}

/* A late kernel, then the copy. */
static void begin(struct rank *r, unsigned round, unsigned late_us)
{
    static float values[COUNT];
    static uint16_t halves[COUNT];
    fill(values, halves, round);
    late_write(number(r->sends), r->send[0].address, values, sizeof values, late_us);
    late_write(number(r->sends), r->send[1].address, halves, sizeof halves, 0);
    EXPECT_OK(staging_begin(r->staging, r->domain, r->send, number(r->sends)));
}

/* Wait for the deposit. It must appear after its copy, and once. The application polls
 * as well, and sometimes reads the member's state. */
static void await(struct rank *r, unsigned round)
{
    struct member m;
    while (!staging_arrived(r->staging)) {
        try_once(r);
        INVARIANT("one deposit for each copy", staging_failure(r->staging) == PCOLL_OK,
                  "%s", pcoll_last_error());
        if (round % 3 == 0) {
            staging_hold(r->staging);
            node_snapshot(r->domain, &m);
            staging_release(r->staging);
        }
        nap(10);
    }
    node_snapshot(r->domain, &m);
    INVARIANT("a rank arrives once", m.stats.calls == round + 1, "%d times",
              (int)m.stats.calls);
}

/* The round of one rank: its sum is the deposit. */
static void run_round(struct rank *r, uint64_t round)
{
    struct domain *d = r->domain;
    INVARIANT("rounds are admitted", d->ops->admits(d), "round %d", (int)round);
    struct round_header *from = d->ops->freeze(d, round), *to = node_result(d, round);
    memcpy(to, from, r->shape.message_bytes);
    d->ops->publish(d, round);
}

static void expect_result(const struct rank *r, unsigned round)
{
    static float values[COUNT], found[COUNT];
    static uint16_t halves[COUNT], found_halves[COUNT];
    fill(values, halves, round);
    late_read(number(r->receives), r->recv[0].address, found, sizeof found, 0);
    late_read(number(r->receives), r->recv[1].address, found_halves,
              sizeof found_halves, 0);
    EXPECT(stream_sync(number(r->receives)) == CUDA_SUCCESS, "no end");
    INVARIANT("a result equals the deposit",
              !memcmp(found, values, sizeof values) &&
                  !memcmp(found_halves, halves, sizeof halves),
              "round %u", round);
}

static void take(struct rank *r)
{
    struct domain *d = r->domain;
    pcoll_round round;
    uint64_t masks[3];
    bool moved;
    EXPECT(d->ops->ready(d), "the round is not over");
    EXPECT_OK(d->ops->deliver(d, UINT64_MAX, UINT64_MAX, NULL, &round, masks, &moved));
    EXPECT_OK(d->ops->change(d, member_finish));
}

static void test_rounds(void)
{
    struct rank r;
    pthread_t driver[DRIVERS];
    make(&r, PCOLL_LATE_CARRY);
    for (int i = 0; i < DRIVERS; i++)
        EXPECT(pthread_create(&driver[i], NULL, drive, &r) == 0, "no thread");
    for (unsigned t = 0; t < ROUNDS; t++) {
        begin(&r, t, t % 4 * 300);
        await(&r, t);
        run_round(&r, t);
        take(&r);
        int rc = staging_fetch(r.staging, r.domain, r.recv, number(r.receives));
        INVARIANT("a deposit waits for the last result", rc == PCOLL_OK, "%d", rc);
        expect_result(&r, t);
    }
    atomic_store(&r.over, 1);
    for (int i = 0; i < DRIVERS; i++)
        pthread_join(driver[i], NULL);
    INVARIANT("each deposit is reported", atomic_load(&r.made) == ROUNDS, "%d times",
              atomic_load(&r.made));
    end(&r);
}

/* The receiving stream is busy, so a result is copied long after it was taken. The next
 * deposit, which would release the result, is even later. */
static void test_results_are_kept(void)
{
    struct rank r;
    make(&r, PCOLL_LATE_CARRY);
    for (unsigned t = 0; t < 6; t++) {
        begin(&r, t, 0);
        await(&r, t);
        run_round(&r, t);
        take(&r);
        EXPECT(stream_hold(number(r.receives)) == CUDA_SUCCESS, "it is not busy");
        EXPECT_OK(staging_fetch(r.staging, r.domain, r.recv, number(r.receives)));
        EXPECT(staging_fetch(r.staging, r.domain, r.recv, 0) == PCOLL_EAGAIN,
               "two at a time");
        begin(&r, ++t, 0);
        streams_settle(); /* the deposit's copy has completed */
        try_once(&r);
        INVARIANT("a deposit waits for the last result", !staging_arrived(r.staging),
                  "it was made");
        streams_release();
        expect_result(&r, t - 1);
        await(&r, t);
        run_round(&r, t);
        take(&r);
        EXPECT_OK(staging_fetch(r.staging, r.domain, r.recv, number(r.receives)));
        expect_result(&r, t);
    }
    end(&r);
}

/* Memory of another device, and memory that is freed during the copy. */
static void test_failures(void)
{
    struct rank r;
    float here[COUNT];
    make(&r, PCOLL_LATE_CARRY);
    pcoll_place wrong[BUFFERS] = {{.address = number(here)}, r.send[1]};
    int rc = staging_begin(r.staging, r.domain, wrong, 0);
    INVARIANT("invalid input is refused",
              rc == PCOLL_EINVAL && staging_arrived(r.staging), "%d: %s", rc,
              pcoll_last_error());
    begin(&r, 0, 0);
    await(&r, 0);
    stream_hold(number(r.sends));
    begin(&r, 1, 0);
    memory_free(r.send[0].address);
    streams_release();
    while (!staging_arrived(r.staging))
        try_once(&r);
    rc = staging_failure(r.staging);
    INVARIANT("a failed copy is reported",
              rc == PCOLL_ESTATE && strstr(pcoll_last_error(), "ILLEGAL_ADDRESS"),
              "%d: %s", rc, pcoll_last_error());
    EXPECT(atomic_load(&r.made) == 1, "a deposit without data");
    staging_destroy(&r.staging);
    _Exit(0); /* the context is lost */
}

int main(void)
{
    fake_device_name();
    test_rounds();
    test_results_are_kept();
    printf("staging: all tests passed\n");
    fflush(stdout);
    test_failures();
    return 0;
}
