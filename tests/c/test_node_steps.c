/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which other members may run). */
/*
 * The protocol of a domain in shared memory (csrc/domain/node.h), step by step: seeded
 * schedules of all variants of a handle, and for the smallest handles all schedules with few
 * departures from running one member after the other. steps.c plays the members, and
 * steps_check.c checks them.
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 20000)
 *   PARTIALCOLL_DEPARTURES=n  at most n departures (default 2)
 */
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "check.h"
#include "steps.h"

#define LENGTH(table) (sizeof(table) / sizeof *(table))

/* A sequence of draws from a seed. */
struct dice {
    uint64_t seed, n;
};

static uint32_t roll(struct dice *d, size_t bound)
{
    return splitmix_below(d->seed, d->n++, (uint32_t)bound);
}

#define PICK(dice, table) ((table)[roll(dice, LENGTH(table))])

static const uint32_t rank_counts[] = {2, 2, 2, 2, 3, 3, 4, 5, 8};
static const uint32_t counts[] = {1, 1, 8, 9, 17, 40}; /* one chunk, or up to five */
static const uint32_t thinks[] = {0, 500, 5000, 50000};
static const uint32_t stays[] = {2, 5, 20, 100};
static const int64_t ticks[] = {2, 20, 200};
static const int ops[] = {PCOLL_SUM, PCOLL_MIN, PCOLL_MAX};
static const int lates[] = {PCOLL_LATE_CARRY, PCOLL_LATE_CARRY, PCOLL_LATE_LATEST,
                            PCOLL_LATE_DROP};
static const char *const endings[] = {"loop", "join", "leave", "free"};
static const char *const modes[] = {"uniform", "stay", "priority", "stall", "planned"};
static const char *const late_names[] = {[PCOLL_LATE_CARRY] = "carry",
                                         [PCOLL_LATE_LATEST] = "latest",
                                         [PCOLL_LATE_DROP] = "drop"};

static struct world_handle draw_handle(struct dice *d, uint32_t ranks)
{
    struct world_handle h = {
        .modifier = (int)roll(d, (size_t)space_modifier_count()),
        .deliver = roll(d, 2) ? PCOLL_DELIVER_ONE : PCOLL_DELIVER_ALL,
        .late = PICK(d, lates),
        .owned_send = roll(d, 4) == 0,
        .history = 1 + roll(d, 4),
    };
    h.op = h.late == PCOLL_LATE_CARRY ? PCOLL_SUM : PICK(d, ops);
    do
        h.policy = (int)roll(d, (size_t)space_policy_count());
    while (space_policies[h.policy].least > ranks);
    return h;
}

static struct steps_options draw(uint64_t seed)
{
    struct dice d = {.seed = seed};
    struct steps_options o = {.ranks = PICK(&d, rank_counts)};
    if (roll(&d, 1000) == 0) /* sets of more than one word */
        o.ranks = 64 + roll(&d, STEPS_MAX_RANKS - 63);
    o.handle = draw_handle(&d, o.ranks);
    o.calls = o.ranks > 8 ? 2 : 1 + roll(&d, 6);
    o.ending = (enum world_ending)roll(&d, LENGTH(endings));
    bool solo = o.handle.policy == 0 && o.handle.modifier == 0;
    if (o.ending == END_FREE && !solo) /* ranks would wait for those that have freed */
        o.ending = END_LOOP;
    o.count = PICK(&d, counts);
    o.fractions = roll(&d, 2);
    o.think = PICK(&d, thinks);
    o.slow = roll(&d, 2) ? roll(&d, o.ranks) : UINT32_MAX;
    o.nosy = roll(&d, 3) ? 0 : 1000;
    pcoll_policy p = space_policy_of(&o.handle);
    o.fabric = o.ranks > 1 && roll(&d, 4) == 0 && !(p.linger > 0 || p.deadline > 0);
    o.stepper = (struct stepper_options){.mode = (enum stepper_mode)roll(&d, 4),
                                         .seed = seed,
                                         .stay = PICK(&d, stays),
                                         .tick = PICK(&d, ticks),
                                         .longest = o.ranks > 8 ? 10000000 : 1000000};
    /* Drivers run while a slow rank computes, before each call of its two loops. */
    o.stepper.longest +=
        2 * o.calls * STEPS_SLOWNESS * o.think / (uint64_t)o.stepper.tick;
    return o;
}

static void describe(const struct steps_options *o)
{
    snprintf(check_context, sizeof check_context,
             "PARTIALCOLL_SEED=%llu: %u ranks, %s deliver=%s late=%s history=%u%s, %u "
             "elements, ending %s after %llu calls%s; %s %u, %lld ns",
             (unsigned long long)o->stepper.seed, o->ranks,
             space_policy_text(&o->handle),
             o->handle.deliver == PCOLL_DELIVER_ONE ? "one" : "all",
             late_names[o->handle.late], o->handle.history,
             o->handle.owned_send ? " owned_send" : "", o->count, endings[o->ending],
             (unsigned long long)o->calls, o->fabric ? ", on a fabric" : "",
             modes[o->stepper.mode], o->stepper.stay, (long long)o->stepper.tick);
}

/* Every byte of the memory is reserved by exactly one member: missing memory for other
 * bytes would show only when they are first touched. */
static void test_parts(void)
{
    enum { RANKS = 7, DOMAINS = 2 };
    static uint64_t const hosts[RANKS] = {1, 2, 1, 1, 2, 2, 1};
    pcoll_options o = {.history = 2, .owned_send = 1, .policy.max_staleness = 1};
    pcoll_buffer buffer = {.count = 100, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    struct round_shape shape;
    EXPECT_OK(round_shape_init(&shape, RANKS, &buffer, 1, NULL));
    for (uint32_t domain = 0; domain < DOMAINS; domain++) {
        static uint8_t times[1 << 16];
        size_t bytes = 0;
        memset(times, 0, sizeof times);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            struct placement p;
            EXPECT_OK(placement_init(&p, rank, RANKS, hosts, NULL, 0));
            for (int part = 0; p.index == domain && part < NODE_PARTS; part++) {
                size_t offset, length;
                bytes = node_bytes(&shape, &o, &p);
                node_part(&shape, &o, &p, (enum node_part)part, &offset, &length);
                EXPECT(offset + length <= bytes && bytes < sizeof times, "part %d",
                       part);
                for (size_t i = 0; i < length; i++)
                    times[offset + i]++;
            }
            placement_destroy(&p);
        }
        for (size_t i = 0; i < bytes; i++)
            EXPECT(times[i] == 1, "byte %zu of %zu is reserved %d times", i, bytes,
                   times[i]);
    }
    round_shape_destroy(&shape);
}

struct vote_tally {
    uint64_t schedules, rounds, lost, steps, switches;
};

static const struct steps *run(const struct steps_options *o, struct vote_tally *t)
{
    describe(o);
    const struct steps *s = steps_run(o);
    t->schedules++;
    t->rounds += s->rounds;
    t->lost += s->lost;
    t->steps += s->report.steps;
    t->switches += s->report.switches;
    return s;
}

/* Run all schedules that extend this one by a departure after its last one. */
static void depart(struct steps_options *o, struct vote_tally *t, int most)
{
    static uint8_t choices[STEPPER_DEPARTURES + 1][STEPPER_PLANNED_STEPS];
    int depth = o->stepper.departures;
    struct departure *next = &o->stepper.departure[depth];
    const struct steps *s = run(o, t);
    uint64_t steps = s->report.steps;
    if (depth >= most)
        return;
    EXPECT(steps < STEPPER_PLANNED_STEPS, "%llu steps", (unsigned long long)steps);
    memcpy(choices[depth], s->report.choices, steps);
    o->stepper.departures++;
    for (uint32_t at = depth ? next[-1].at + 1 : 0; at < steps; at++)
        for (uint32_t n = 1; n < choices[depth][at]; n++) {
            *next = (struct departure){at, n};
            depart(o, t, most);
        }
    o->stepper.departures--;
}

static struct steps_options smallest(const char *policy, int deliver,
                                     enum world_ending ending)
{
    struct steps_options o = {
        .ranks = 2,
        .handle = {.deliver = deliver,
                   .late = PCOLL_LATE_CARRY,
                   .op = PCOLL_SUM,
                   .history = 1},
        .calls = 2,
        .ending = ending,
        .count = 1,
        .slow = UINT32_MAX,
        .stepper = {.mode = STEPPER_PLANNED, .stay = 2, .tick = 1, .longest = 100000}};
    while (strcmp(space_policies[o.handle.policy].text, policy))
        o.handle.policy++;
    return o;
}

static void run_departures(struct vote_tally *t, int most)
{
    static const char *const policies[] = {"solo", "full"};
    for (size_t p = 0; p < LENGTH(policies); p++)
        for (int deliver = PCOLL_DELIVER_ONE; deliver <= PCOLL_DELIVER_ALL; deliver++) {
            struct steps_options o = smallest(policies[p], deliver, END_LOOP);
            depart(&o, t, most);
            o.count = 9; /* two chunks */
            depart(&o, t, most - 1);
            o = smallest(policies[p], deliver, END_JOIN);
            depart(&o, t, most - 1);
        }
}

static void print(const char *what, const struct vote_tally *t, clock_t begin)
{
    printf("%s: %llu schedules, %llu rounds (%llu lost to slow ranks), %llu steps, "
           "%llu switches, %.1f s: all invariants held\n",
           what, (unsigned long long)t->schedules, (unsigned long long)t->rounds,
           (unsigned long long)t->lost, (unsigned long long)t->steps,
           (unsigned long long)t->switches, (double)(clock() - begin) / CLOCKS_PER_SEC);
}

static struct vote_tally drawn, planned;

static void run_seed(uint64_t seed)
{
    struct steps_options o = draw(seed);
    run(&o, &drawn);
}

int main(void)
{
    int most = (int)check_setting("PARTIALCOLL_DEPARTURES", 2);
    EXPECT(most <= STEPPER_DEPARTURES, "PARTIALCOLL_DEPARTURES: at most %d",
           STEPPER_DEPARTURES);
    test_parts();
    clock_t begin = clock();
    check_seeds(20000, run_seed);
    print("node steps, drawn", &drawn, begin);
    begin = clock();
    run_departures(&planned, most);
    print("node steps, planned", &planned, begin);
    return 0;
}
