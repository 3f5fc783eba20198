/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator through its interface: gossip buffers whose parcels land at random times, and
 * groups in virtual time, on full grids, with and without a suspended rank. The simulator runs
 * csrc/gossip and csrc/group, so this test also finds their mistakes:
 *
 *   conserved   the sum over the ranks of models and uncollected deltas
 *   corrected   an average moves half of the way to the peer's published model plus the
 *               deltas given to it since
 *   late        a parcel has no effect before it lands
 *   once        a pushed message is drained once, by its target, unchanged
 *   exact       after a round for each axis every rank has the mean of all
 *   agreement   members of a group have the same bits
 *   void        the members of a suspended rank's group keep their models; other ranks are
 *               not affected
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 300)
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "include/simulator.h"

enum { RANKS = 12, MAX_COUNT = 1500, PARCELS = 256, MESSAGES = 256 };

static struct {
    uint64_t seed, drawn;
    uint32_t ranks;
    uint64_t count;
    double x[RANKS][MAX_COUNT];
    /* gossip: parcels on their way, and messages pushed and not drained yet */
    pcoll_sim_gossip *gossip;
    pcoll_gossip *buffer[RANKS];
    void *parcel[PARCELS];
    uint32_t parcels;
    struct {
        double stamp;
        uint32_t source, target;
    } message[MESSAGES];
    uint32_t messages;
    double next_stamp;
    /* groups */
    pcoll_sim_group *sim;
    pcoll_group *group[RANKS];
    double before[RANKS][MAX_COUNT];
} t;

static uint32_t draw(uint32_t bound)
{
    return splitmix_below(t.seed, t.drawn++, bound);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

static void fill_models(void)
{
    for (uint32_t r = 0; r < t.ranks; r++)
        for (uint64_t i = 0; i < t.count; i++)
            t.x[r][i] = (double)draw(2000) / 1000 - 1;
}

/* Gossip buffers. */

static double pending(uint32_t rank, uint64_t element)
{
    static double sums[MAX_COUNT];
    EXPECT_OK(pcoll_gossip_pending(t.buffer[rank], sums));
    return sums[element];
}

/* The sum of one element over all ranks. */
static double sum_of(uint64_t element)
{
    double sum = 0;
    for (uint32_t r = 0; r < t.ranks; r++)
        sum += t.x[r][element] + pending(r, element);
    return sum;
}

static void keep_parcel(uint32_t rank)
{
    void *parcel;
    EXPECT_OK(pcoll_sim_gossip_sent(t.gossip, rank, &parcel));
    INVARIANT("late", parcel, "the data of rank %u is not in flight", rank);
    t.parcel[t.parcels++] = parcel;
}

static void land(uint32_t which)
{
    uint32_t rank;
    EXPECT_OK(pcoll_sim_gossip_land(t.gossip, t.parcel[which], &rank));
    t.parcel[which] = t.parcel[--t.parcels];
}

/* Average with the peer: half of the way to its model plus uncollected deltas. */
static void average(uint32_t rank, uint32_t peer)
{
    static double theirs[MAX_COUNT];
    int32_t averaged;
    uint64_t version;
    double there = pending(peer, 0), before = t.x[rank][0];
    EXPECT_OK(pcoll_gossip_read(t.buffer[rank], peer, NULL, theirs, &version));
    EXPECT_OK(
        pcoll_gossip_average(t.buffer[rank], peer, t.x[rank], 0.5, NULL, 1, &averaged));
    INVARIANT("late", pending(peer, 0) == there, "it is there before it has landed");
    double moved = averaged ? 0.5 * (theirs[0] + there - before) : 0;
    INVARIANT("corrected", fabs(t.x[rank][0] - before - moved) < 1e-9,
              "rank %u moved by %g, expected %g", rank, t.x[rank][0] - before, moved);
    if (averaged)
        keep_parcel(rank);
}

static void collect(uint32_t rank)
{
    uint64_t deltas, version;
    EXPECT_OK(pcoll_gossip_collect(t.buffer[rank], t.x[rank], NULL, 1, &deltas));
    EXPECT_OK(pcoll_gossip_publish(t.buffer[rank], t.x[rank], &version));
}

static void push(uint32_t rank, uint32_t peer)
{
    static double x[MAX_COUNT];
    int32_t pushed;
    double stamp = ++t.next_stamp;
    for (uint64_t i = 0; i < t.count; i++)
        x[i] = stamp;
    EXPECT_OK(pcoll_gossip_push(t.buffer[rank], peer, x, NULL, NULL, &pushed));
    if (!pushed)
        return;
    keep_parcel(rank);
    t.message[t.messages].stamp = stamp;
    t.message[t.messages].source = rank;
    t.message[t.messages++].target = peer;
}

static bool drain(uint32_t rank)
{
    static double x[MAX_COUNT];
    uint32_t source, i = 0;
    int32_t taken;
    memset(x, 0, sizeof x);
    EXPECT_OK(pcoll_gossip_drain(t.buffer[rank], NULL, x, &source, &taken));
    if (!taken)
        return false;
    while (i < t.messages && t.message[i].stamp != x[0])
        i++;
    INVARIANT("once",
              i < t.messages && t.message[i].source == source &&
                  t.message[i].target == rank && x[t.count - 1] == x[0],
              "rank %u drained %g to %g from %u", rank, x[0], x[t.count - 1], source);
    t.message[i] = t.message[--t.messages];
    return true;
}

static void act(void)
{
    uint32_t rank = draw(t.ranks);
    uint32_t peer = (rank + 1 + draw(t.ranks - 1)) % t.ranks;
    uint32_t what = draw(6);
    if (what == 0)
        collect(rank);
    else if (what == 1 && t.messages < MESSAGES)
        push(rank, peer);
    else if (what == 2)
        drain(rank);
    else if (what == 3 && t.parcels)
        land(draw(t.parcels));
    else
        average(rank, peer);
}

static void test_gossip(void)
{
    pcoll_gossip_options o = {.count = t.count,
                              .dtype = PCOLL_FLOAT64,
                              .queue_slots = 1 + draw(4),
                              .max_uncollected = 1 + draw(3)};
    double before[2];
    t.ranks = 2 + draw(4);
    t.parcels = t.messages = 0;
    EXPECT_OK(pcoll_sim_gossip_create(t.ranks, &o, &t.gossip));
    fill_models();
    for (uint32_t r = 0; r < t.ranks; r++) {
        EXPECT_OK(pcoll_sim_gossip_rank(t.gossip, r, &t.buffer[r]));
        collect(r);
    }
    before[0] = sum_of(0);
    before[1] = sum_of(t.count - 1);
    for (int i = 0; i < 120; i++)
        act();
    while (t.parcels)
        land(t.parcels - 1);
    INVARIANT("conserved",
              is_near(sum_of(0), before[0]) && is_near(sum_of(t.count - 1), before[1]),
              "%.17g became %.17g", before[0], sum_of(0));
    for (uint32_t r = 0; r < t.ranks; r++)
        while (drain(r))
            ;
    INVARIANT("once", !t.messages, "%u messages were not drained", t.messages);
    EXPECT_OK(pcoll_sim_gossip_free(&t.gossip));
}

/* Groups. */

static pcoll_group_options draw_grid(void)
{
    pcoll_group_options o = {.count = t.count,
                             .dtype = PCOLL_FLOAT64,
                             .axes = 1 + draw(2),
                             .timeout_us = 10000,
                             .every = 1};
    t.ranks = 1;
    for (uint32_t i = 0; i < o.axes; i++)
        t.ranks *= o.side[i] = 2 + draw(2);
    o.keys = draw(2) ? PCOLL_KEYS_STATIC : PCOLL_KEYS_DYNAMIC;
    return o;
}

static void create_groups(const pcoll_group_options *o)
{
    pcoll_network network = {.L = 20000, .latency = PCOLL_LATENCY_EXPONENTIAL};
    EXPECT_OK(pcoll_sim_group_create(t.ranks, t.seed, &network, o, &t.sim));
    for (uint32_t r = 0; r < t.ranks; r++)
        EXPECT_OK(pcoll_sim_group_rank(t.sim, r, &t.group[r]));
    fill_models();
}

static void start(uint32_t rank)
{
    EXPECT_OK(pcoll_group_start(t.group[rank], t.x[rank]));
    EXPECT_OK(pcoll_sim_group_wake(t.sim, rank, 0));
}

/* Finish the next round. Return its rank. */
static uint32_t finish_one(pcoll_group_round *round)
{
    uint32_t rank;
    int64_t time;
    EXPECT_OK(pcoll_sim_group_run(t.sim, INT64_MAX / 2, &rank, &time));
    EXPECT(rank < t.ranks, "nothing is left to happen, or it never ends");
    EXPECT_OK(pcoll_group_wait(t.group[rank], 0, t.x[rank], round));
    return rank;
}

static void check_group(uint32_t rank)
{
    uint32_t ranks[RANKS];
    double shares[RANKS];
    EXPECT_OK(pcoll_group_members(t.group[rank], ranks, shares));
    EXPECT(ranks[0] < t.ranks, "rank %u in a group", ranks[0]);
    if (rank != ranks[0])
        INVARIANT("agreement",
                  !memcmp(t.x[rank], t.x[ranks[0]], t.count * sizeof(double)),
                  "ranks %u and %u of one group differ", rank, ranks[0]);
}

/* One round per axis gives the exact mean. */
static void test_exact(void)
{
    pcoll_group_options o = draw_grid();
    create_groups(&o);
    double mean = 0;
    for (uint32_t r = 0; r < t.ranks; r++)
        mean += t.x[r][t.count - 1] / t.ranks;
    for (uint32_t axis = 0; axis < o.axes; axis++) {
        pcoll_group_round round;
        for (uint32_t r = 0; r < t.ranks; r++)
            start(r);
        for (uint32_t r = 0; r < t.ranks; r++)
            finish_one(&round);
        for (uint32_t r = 0; r < t.ranks; r++)
            check_group(r);
    }
    for (uint32_t r = 0; r < t.ranks; r++)
        INVARIANT("exact", is_near(t.x[r][t.count - 1], mean),
                  "rank %u has %.17g, the mean is %.17g", r, t.x[r][t.count - 1], mean);
    EXPECT_OK(pcoll_sim_group_free(&t.sim));
}

/* One rank is suspended when its group is formed. */
static void test_void(void)
{
    pcoll_group_options o = draw_grid();
    o.keys = PCOLL_KEYS_STATIC;
    create_groups(&o);
    uint32_t still = draw(t.ranks), rank;
    int64_t time;
    EXPECT_OK(pcoll_sim_group_run(t.sim, 2000000, &rank, &time));
    EXPECT(rank == t.ranks && time == 2000000, "rank %u at %lld", rank,
           (long long)time);
    EXPECT_OK(pcoll_sim_group_wake(t.sim, still, 1));
    memcpy(t.before, t.x, sizeof t.x);
    for (uint32_t r = 0; r < t.ranks; r++)
        if (r != still)
            start(r);
    uint32_t side = o.side[0], stride = t.ranks / side; /* along the first axis */
    for (uint32_t i = 1; i < t.ranks; i++) {
        pcoll_group_round round;
        uint32_t r = finish_one(&round);
        bool met = r % stride == still % stride;
        INVARIANT("void", met == (round.is_void != 0), "rank %u, %u stood still", r,
                  still);
        INVARIANT("void",
                  !met || !memcmp(t.x[r], t.before[r], t.count * sizeof(double)),
                  "rank %u has not kept its own", r);
    }
    double sum = 0, before = 0;
    for (uint32_t r = 0; r < t.ranks; r++) {
        sum += t.x[r][0];
        before += t.before[r][0];
    }
    INVARIANT("conserved", is_near(sum, before), "%.17g became %.17g", before, sum);
    EXPECT_OK(pcoll_sim_group_free(&t.sim));
}

static void test_refused(void)
{
    pcoll_network network = {.L = -1};
    pcoll_group_options o = {.dtype = PCOLL_FLOAT64, .timeout_us = 1};
    pcoll_gossip_options g = {.dtype = PCOLL_INT8, .queue_slots = 1};
    EXPECT(pcoll_sim_group_create(2, 0, &network, &o, &t.sim) == PCOLL_EINVAL, "L");
    network.L = 1;
    o.timeout_us = 0;
    EXPECT(pcoll_sim_group_create(2, 0, &network, &o, &t.sim) == PCOLL_EINVAL, "time");
    o.timeout_us = INT64_MAX;
    EXPECT(pcoll_sim_group_create(2, 0, &network, &o, &t.sim) == PCOLL_EINVAL, "time");
    EXPECT(pcoll_sim_group_create(0, 0, &network, &o, &t.sim) == PCOLL_EINVAL, "ranks");
    EXPECT(pcoll_sim_gossip_create(0, &g, &t.gossip) == PCOLL_EINVAL, "ranks");
    EXPECT(pcoll_sim_gossip_create(2, &g, &t.gossip) == PCOLL_EINVAL, "slots");
}

static void run(uint64_t seed)
{
    static const uint64_t counts[] = {1, 7, 1024, 1025, 1500};
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    t.seed = seed;
    t.drawn = 0;
    t.count = counts[draw(5)];
    test_gossip();
    test_exact();
    test_void();
}

int main(void)
{
    uint64_t schedules = check_seeds(300, run);
    check_context[0] = 0;
    test_refused();
    printf("simulator: %llu schedules: all invariants held\n",
           (unsigned long long)schedules);
    return 0;
}
