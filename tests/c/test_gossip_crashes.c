/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which ranks may die). */
/*
 * Ranks die at any step of their use of gossip buffers (csrc/gossip/gossip.h), also while they
 * settle, and the others continue. Between two deaths the live ranks end their current call,
 * then settle. Checked:
 *   conserved    the sum over live ranks and the last models of dead ones: up to rounding if
 *                all died outside of averages, collections and settling, else up to one
 *                chunk for each rank that did not
 *   reserved     at the end nothing counts as in progress
 *   slots        no slot of a queue is lost
 *   whole        a drained message was pushed with these contents, by the rank named in it or
 *                by a dead one
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 3000)
 */
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include "base/check.h"
#include "base/random.h"
#include "gossip/gossip.h"
#include "check.h"
#include "memory_window.h"
#include "stepper.h"

enum { MAX_COUNT = 2600, CHUNK = 1024, ACTIONS = 12 };

/* The current action of a rank, where its death would lose data. */
enum deed { NOTHING, MOVES, PUSHES };

static struct {
    uint32_t ranks, cap;
    pcoll_gossip_options options;
    struct window *windows[MEMORY_RANKS];
    struct gossip_memory memory[MEMORY_RANKS];
    double model[MEMORY_RANKS][MAX_COUNT];
    jmp_buf at_death[MEMORY_RANKS];
    enum deed deed[MEMORY_RANKS];
    int dies_after[MEMORY_RANKS]; /* after how many steps of this part; 0: never */
    bool dead[MEMORY_RANKS];
    bool outage; /* a rank has died in this part: the others end their calls */
    int torn;    /* chunks that may be lost with dead ranks */
    double stamp, before;
    uint64_t deaths;
} t;

static uint32_t lowest(void)
{
    uint32_t rank = 0;
    while (t.dead[rank])
        rank++;
    return rank;
}

static uint32_t living(void)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < t.ranks; r++)
        count += !t.dead[r];
    return count;
}

static void point(void)
{
    uint32_t self = (uint32_t)stepper_self();
    if (t.dies_after[self] && --t.dies_after[self] == 0 && living() > 1) {
        t.dead[self] = t.outage = true;
        t.deaths++;
        t.torn += t.deed[self] == MOVES;
        memory_window_die(t.windows[self]);
        longjmp(t.at_death[self], 1);
    }
    stepper_point();
}

/* Return another rank that is live as far as this rank knows. */
static uint32_t other(uint32_t rank)
{
    uint32_t peer;
    do
        peer = (rank + 1 + stepper_random(t.ranks - 1)) % t.ranks;
    while (t.dead[peer] && living() > 1);
    return peer;
}

static void collect(uint32_t rank)
{
    struct gossip_model own = {t.model[rank], NULL, 1};
    uint64_t deltas;
    t.deed[rank] = MOVES;
    EXPECT_OK(exchange_collect(&t.memory[rank], &own, &deltas));
    t.deed[rank] = NOTHING;
}

static void average(uint32_t rank)
{
    struct gossip_model own = {t.model[rank], NULL, 1};
    int32_t averaged;
    t.deed[rank] = MOVES;
    int rc =
        exchange_average(&t.memory[rank], other(rank), t.cap, 0.5, &own, &averaged);
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EEMPTY, "%d: %s", rc, pcoll_last_error());
    t.deed[rank] = NOTHING;
}

static void publish(uint32_t rank)
{
    uint64_t version;
    EXPECT_OK(register_publish(&t.memory[rank], t.model[rank], &version));
}

static void push(uint32_t rank)
{
    static double x[MEMORY_RANKS][MAX_COUNT];
    int32_t pushed;
    double stamp = ++t.stamp;
    for (size_t i = 0; i < t.options.count; i++)
        x[rank][i] = stamp;
    t.deed[rank] = PUSHES;
    EXPECT_OK(queue_push(&t.memory[rank], other(rank), x[rank], NULL, NULL, &pushed));
    t.deed[rank] = NOTHING;
}

static bool drain(uint32_t rank)
{
    static double out[MEMORY_RANKS][MAX_COUNT];
    uint32_t source;
    int32_t taken;
    EXPECT_OK(queue_take(&t.memory[rank], NULL, out[rank], &source, &taken));
    for (size_t i = 1; taken && i < t.options.count; i++)
        INVARIANT("whole", out[rank][i] == out[rank][0], "element %zu is %g, not %g", i,
                  out[rank][i], out[rank][0]);
    return taken;
}

static void act(uint32_t rank)
{
    switch (stepper_random(6)) {
    case 0:
        collect(rank);
        break;
    case 1:
        publish(rank);
        break;
    case 2:
        push(rank);
        break;
    case 3:
        drain(rank);
        break;
    default:
        average(rank);
    }
}

static void begin(void)
{
    interleave_hook = point;
}

static void work(int id)
{
    if (t.dead[id] || setjmp(t.at_death[id]))
        return;
    begin();
    for (int i = 0; i < ACTIONS && !t.outage; i++)
        act((uint32_t)id);
}

/* Settle after deaths. If a rank dies in here, the next part does the rest. */
static void settle(int id)
{
    if (t.dead[id] || setjmp(t.at_death[id]))
        return;
    begin();
    EXPECT_OK(accumulator_settle(&t.memory[id]));
    EXPECT_OK(queue_settle(&t.memory[id]));
    t.deed[id] = MOVES;
    for (uint32_t r = 0; (uint32_t)id == lowest() && r < t.ranks; r++)
        if (t.dead[r])
            EXPECT_OK(accumulator_adopt(&t.memory[id], r));
    t.deed[id] = NOTHING;
}

/* Sum live ranks' models, uncollected deltas, and dead ranks' last models. */
static double sum_of_all(void)
{
    double sum = 0;
    for (uint32_t r = 0; r < t.ranks; r++) {
        const double *sums =
            (const double *)(t.windows[r]->memory + t.memory[r].layout.sums_at);
        for (size_t i = 0; i < t.options.count; i++)
            sum += t.model[r][i] + (t.dead[r] ? 0 : sums[i]);
    }
    return sum;
}

static int64_t word(uint32_t rank, enum gossip_word which)
{
    return *(const int64_t *)(t.windows[rank]->memory + gossip_word_at(which));
}

static void check_slots(uint32_t rank)
{
    while (drain(rank))
        ;
    for (uint32_t slot = 0; slot < t.options.queue_slots; slot++) {
        int64_t state =
            *(const int64_t *)(t.windows[rank]->memory + gossip_queue_word_at(slot));
        INVARIANT("slots", state % 4 == 0, "slot %u of rank %u is in state %lld", slot,
                  rank, (long long)state % 4);
    }
}

static void check_all(void)
{
    double error = fabs(sum_of_all() - t.before);
    double bound = 1e-9 * (double)t.options.count + t.torn * CHUNK * 200.0 * t.cap;
    INVARIANT("conserved", error <= bound, "%.17g became %.17g, with %d torn", t.before,
              sum_of_all(), t.torn);
    for (uint32_t r = 0; r < t.ranks; r++) {
        if (t.dead[r])
            continue;
        collect(r);
        INVARIANT("reserved",
                  word(r, WORD_RESERVED) == word(r, WORD_COLLECTED) &&
                      word(r, WORD_LANDED) == word(r, WORD_COLLECTED),
                  "rank %u: %lld reserved, %lld landed, %lld collected", r,
                  (long long)word(r, WORD_RESERVED), (long long)word(r, WORD_LANDED),
                  (long long)word(r, WORD_COLLECTED));
        check_slots(r);
    }
}

#define DRAW(n, bound) splitmix_below(seed, n, bound)

static void create(uint64_t seed)
{
    static const uint64_t counts[] = {1, 1024, 1025, 2600};
    memset(&t, 0, sizeof t);
    t.ranks = 2 + DRAW(1, 5);
    t.cap = 1 + DRAW(3, 3);
    t.options = (pcoll_gossip_options){.count = counts[DRAW(5, 4)],
                                       .dtype = PCOLL_FLOAT64,
                                       .queue_slots = 1 + DRAW(7, 3),
                                       .max_uncollected = t.cap};
    for (uint32_t r = 0; r < t.ranks; r++)
        EXPECT_OK(gossip_memory_prepare(&t.memory[r], &t.options, r, t.ranks, false));
    memory_windows_create(t.ranks, t.memory[0].layout.bytes, t.windows);
    for (uint32_t r = 0; r < t.ranks; r++) {
        t.memory[r].window = t.windows[r];
        for (size_t i = 0; i < t.options.count; i++)
            t.model[r][i] = (double)splitmix_below(seed + r, 100 + i, 1000) / 10 - 50;
        publish(r);
    }
    t.before = sum_of_all();
    snprintf(check_context, sizeof check_context,
             "PARTIALCOLL_SEED=%llu: %u ranks, %llu elements, cap %u, %u slots",
             (unsigned long long)seed, t.ranks, (unsigned long long)t.options.count,
             t.cap, t.options.queue_slots);
}

/* Draw some live ranks to die after some of their steps. */
static void draw_deaths(uint64_t seed, uint64_t part, uint32_t often, uint32_t steps)
{
    for (uint32_t r = 0; r < t.ranks; r++)
        t.dies_after[r] = DRAW(1000 * part + 20 + r, often)
                              ? 0
                              : 1 + (int)DRAW(1000 * part + 40 + r, steps);
}

static uint64_t part(uint64_t seed, uint64_t number, coroutine_body *body)
{
    static const enum stepper_mode modes[] = {STEPPER_UNIFORM, STEPPER_STAY,
                                              STEPPER_PRIORITY, STEPPER_STALL};
    static struct stepper_report report;
    struct stepper_options o = {.mode = modes[DRAW(8 + number, 4)],
                                .seed = seed + number,
                                .coroutines = (int)t.ranks,
                                .stay = 2 + DRAW(9 + number, 40),
                                .tick = 1,
                                .longest = 10000000};
    t.outage = false;
    stepper_run(&o, body, &report);
    return report.steps;
}

static uint64_t steps, deaths; /* of all seeds */

static void run(uint64_t seed)
{
    uint64_t number = 0;
    create(seed);
    for (int i = 0; i < 3; i++) {
        draw_deaths(seed, ++number, 3, 400);
        steps += part(seed, number, work);
        do { /* until no rank dies in it */
            draw_deaths(seed, ++number, 4, 60);
            steps += part(seed, number, settle);
        } while (t.outage);
    }
    check_all();
    for (uint32_t i = 0; i < t.ranks; i++)
        gossip_memory_destroy(&t.memory[i]);
    memory_windows_destroy(t.ranks, t.windows);
    deaths += t.deaths;
}

int main(void)
{
    uint64_t schedules = check_seeds(3000, run);
    EXPECT(deaths > schedules, "%llu deaths", (unsigned long long)deaths);
    printf("gossip crashes: %llu schedules, %llu deaths, %llu steps: all invariants "
           "held\n",
           (unsigned long long)schedules, (unsigned long long)deaths,
           (unsigned long long)steps);
    return 0;
}
