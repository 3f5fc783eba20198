/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which other ranks may run). */
/*
 * The gossip buffers (csrc/gossip/gossip.h) step by step: ranks are coroutines, and every
 * access to another rank's memory is a point at which another rank may run. Checked:
 *   whole        a register or queue is read exactly as published or sent
 *   newest       a version is never older than one seen before
 *   conserved    the sum over all ranks of model and accumulator, at the end
 *   capped       landed and uncollected deltas, after every step
 *   once         a pushed message is drained once, by its target
 *   alone        a slot that a rank has claimed is changed by no other rank
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 4000)
 */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "gossip/gossip.h"
#include "check.h"
#include "memory_window.h"
#include "stepper.h"

enum { MAX_COUNT = 2600, MAX_MESSAGES = 256 };

/* A run uses stamps (models whose elements are all equal, which shows tearing) or
 * averages (arbitrary models, which shows losses). */
static struct {
    uint32_t ranks, cap, actions;
    bool stamps;
    pcoll_gossip_options options;
    struct window *windows[MEMORY_RANKS];
    struct gossip_memory memory[MEMORY_RANKS];
    double model[MEMORY_RANKS][MAX_COUNT], momentum[MEMORY_RANKS][MAX_COUNT];
    double before;
    double published[MEMORY_RANKS]; /* the newest stamp */
    uint64_t seen[MEMORY_RANKS][MEMORY_RANKS];
    /* by target: the stamps pushed to it, and how often each was drained */
    double pushed[MEMORY_RANKS][MAX_MESSAGES];
    int drained[MEMORY_RANKS][MAX_MESSAGES], messages[MEMORY_RANKS];
    double next_stamp;
} t;

static double uniform(uint64_t seed, uint64_t n)
{
    return (double)splitmix_below(seed, n, 1 << 20) / (1 << 20) - 0.5;
}

static uint32_t other(uint32_t rank)
{
    return (rank + 1 + stepper_random(t.ranks - 1)) % t.ranks;
}

static void fill(double *x, double value)
{
    for (size_t i = 0; i < t.options.count; i++)
        x[i] = value;
}

static void check_whole(const double *x, size_t from, size_t count, const char *what)
{
    for (size_t i = 1; i < count; i++)
        INVARIANT("whole", x[i] == x[0], "%s: element %zu is %g, the first is %g", what,
                  from + i, x[i], x[0]);
}

static int64_t word(uint32_t rank, enum gossip_word which)
{
    return *(const int64_t *)(t.windows[rank]->memory + gossip_word_at(which));
}

/* Called after every change of a word. */
static void check_cap(void)
{
    for (uint32_t i = 0; i < t.ranks; i++) {
        int64_t landed = word(i, WORD_LANDED), collected = word(i, WORD_COLLECTED);
        INVARIANT("capped", landed - collected <= (int64_t)t.cap && landed >= collected,
                  "%lld landed, %lld collected at rank %u, the cap is %u",
                  (long long)landed, (long long)collected, i, t.cap);
    }
}

static void publish_stamp(uint32_t rank)
{
    uint64_t version;
    fill(t.model[rank], ++t.next_stamp);
    EXPECT_OK(register_publish(&t.memory[rank], t.model[rank], &version));
    t.published[rank] = t.next_stamp;
}

static void read_stamp(uint32_t rank)
{
    static double out[MEMORY_RANKS][MAX_COUNT];
    uint32_t peer = other(rank);
    uint64_t version;
    int rc = register_read(&t.memory[rank], peer, NULL, out[rank], &version);
    if (rc == PCOLL_EEMPTY || rc == PCOLL_EAGAIN)
        return;
    EXPECT_OK(rc);
    check_whole(out[rank], 0, t.options.count, "a register");
    INVARIANT("newest", version >= t.seen[rank][peer], "version %llu after %llu",
              (unsigned long long)version, (unsigned long long)t.seen[rank][peer]);
    t.seen[rank][peer] = version;
}

static void read_chunk(uint32_t rank)
{
    struct gossip_memory *m = &t.memory[rank];
    uint32_t peer = other(rank);
    uint64_t version = 0;
    bool whole;
    EXPECT_OK(register_version(m, peer, &version));
    if (!version)
        return;
    size_t first = stepper_random(2) ? 0 : m->layout.chunk;
    if (first >= t.options.count)
        first = 0;
    EXPECT_OK(register_read_chunk(m, peer, first, NULL, &version, &whole));
    if (whole)
        check_whole(m->theirs, first, gossip_chunk_length(&m->layout, first),
                    "a chunk");
}

static void push_stamp(uint32_t rank)
{
    uint32_t peer = other(rank);
    double stamp = ++t.next_stamp;
    int at = t.messages[peer]++;
    EXPECT(at < MAX_MESSAGES, "more messages than expected");
    int32_t pushed;
    t.pushed[peer][at] = stamp; /* the target may drain it before push returns */
    static double x[MEMORY_RANKS][MAX_COUNT];
    fill(x[rank], stamp);
    int rc = queue_push(&t.memory[rank], peer, x[rank], NULL, NULL, &pushed);
    INVARIANT("alone", rc != PCOLL_EPROTOCOL,
              "the slot that rank %u was writing at rank %u has changed", rank, peer);
    EXPECT_OK(rc);
    if (!pushed)
        t.pushed[peer][at] = -1;
}

static bool drain_stamp(uint32_t rank)
{
    static double out[MEMORY_RANKS][MAX_COUNT];
    uint32_t source;
    int32_t taken;
    EXPECT_OK(queue_take(&t.memory[rank], NULL, out[rank], &source, &taken));
    if (!taken)
        return false;
    check_whole(out[rank], 0, t.options.count, "a message");
    for (int i = 0; i < t.messages[rank]; i++)
        if (t.pushed[rank][i] == out[rank][0]) {
            INVARIANT("once", ++t.drained[rank][i] == 1, "drained again: %g",
                      out[rank][0]);
            return true;
        }
    INVARIANT("once", false, "rank %u drained %g, which no rank sent it", rank,
              out[rank][0]);
    return true;
}

static void peek_stamp(uint32_t rank)
{
    static double out[MEMORY_RANKS][MAX_COUNT];
    uint32_t source;
    int32_t found;
    EXPECT_OK(
        queue_peek(&t.memory[rank], other(rank), NULL, out[rank], &source, &found));
    if (found)
        check_whole(out[rank], 0, t.options.count, "a message that stays");
}

static void act_on_stamps(uint32_t rank)
{
    switch (stepper_random(8)) {
    case 0:
    case 1:
        publish_stamp(rank);
        break;
    case 2:
    case 3:
        read_stamp(rank);
        break;
    case 4:
        read_chunk(rank);
        break;
    case 5:
        push_stamp(rank);
        break;
    case 6:
        drain_stamp(rank);
        break;
    default:
        peek_stamp(rank);
    }
}

static void collect(uint32_t rank)
{
    struct gossip_model own = {t.model[rank], t.momentum[rank], 0.75};
    uint64_t deltas;
    EXPECT_OK(exchange_collect(&t.memory[rank], &own, &deltas));
}

static void average(uint32_t rank)
{
    struct gossip_model own = {t.model[rank], t.momentum[rank], 0.75};
    int32_t averaged;
    int rc =
        exchange_average(&t.memory[rank], other(rank), t.cap, 0.5, &own, &averaged);
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EEMPTY, "%d: %s", rc, pcoll_last_error());
}

static void act_on_averages(uint32_t rank)
{
    uint64_t version;
    uint32_t often = rank == 0 ? 12 : 3; /* rank 0 collects rarely */
    if (!stepper_random(often)) {
        collect(rank);
        EXPECT_OK(register_publish(&t.memory[rank], t.model[rank], &version));
    } else {
        average(rank);
    }
}

static void body(int id)
{
    for (uint32_t i = 0; i < t.actions; i++)
        if (t.stamps)
            act_on_stamps((uint32_t)id);
        else
            act_on_averages((uint32_t)id);
}

/* Sum models, momenta, and uncollected deltas, which will be added to both. */
static double sum_of_all(void)
{
    double sum = 0;
    for (uint32_t r = 0; r < t.ranks; r++) {
        const struct gossip_layout *l = &t.memory[r].layout;
        const double *sums = (const double *)(t.windows[r]->memory + l->sums_at);
        for (size_t i = 0; i < t.options.count; i++)
            sum += (double)(i % 7 + 1) *
                   (t.model[r][i] + t.momentum[r][i] + sums[i] * (1 + 0.75));
    }
    return sum;
}

/* After a rank has collected, no reservation is left. */
static void check_reservations(void)
{
    for (uint32_t r = 0; r < t.ranks; r++) {
        collect(r);
        INVARIANT(
            "capped", word(r, WORD_RESERVED) == word(r, WORD_COLLECTED),
            "rank %u: %lld reserved, %lld collected, and no average is in progress", r,
            (long long)word(r, WORD_RESERVED), (long long)word(r, WORD_COLLECTED));
    }
}

static void finish(void)
{
    check_reservations();
    if (!t.stamps) {
        double now = sum_of_all(), error = fabs(now - t.before);
        INVARIANT("conserved",
                  error <= 1e-10 * (fabs(t.before) + (double)t.options.count),
                  "%.17g became %.17g", t.before, now);
        return;
    }
    for (uint32_t r = 0; r < t.ranks; r++) {
        while (drain_stamp(r))
            ;
        for (int i = 0; i < t.messages[r]; i++)
            INVARIANT("once", t.pushed[r][i] < 0 || t.drained[r][i] == 1,
                      "%g was drained %d times", t.pushed[r][i], t.drained[r][i]);
    }
}

static void prepare(uint32_t rank, uint64_t seed)
{
    struct gossip_memory *m = &t.memory[rank];
    m->window = t.windows[rank];
    for (size_t i = 0; i < t.options.count; i++) {
        t.model[rank][i] = uniform(seed + rank, 100 + 2 * i) * 100;
        t.momentum[rank][i] = uniform(seed + rank, 101 + 2 * i);
    }
}

static void create_memories(void)
{
    t.options.margin = 1;
    t.options.max_uncollected = t.cap;
    for (uint32_t r = 0; r < t.ranks; r++)
        EXPECT_OK(gossip_memory_prepare(&t.memory[r], &t.options, r, t.ranks, false));
    memory_windows_create(t.ranks, t.memory[0].layout.bytes, t.windows);
}

static void create(uint64_t seed)
{
    static const uint64_t counts[] = {1, 7, 1024, 1025, 2600};
    static const int bits[] = {0, 0, 4, 8, 16};
#define DRAW(n, bound) splitmix_below(seed, n, bound)
    memset(&t, 0, sizeof t);
    t.ranks = 2 + DRAW(1, 4);
    t.stamps = DRAW(2, 2);
    t.cap = 1 + DRAW(3, 3);
    t.actions = 6 + DRAW(4, 12);
    t.options = (pcoll_gossip_options){.count = counts[DRAW(5, 5)],
                                       .dtype = PCOLL_FLOAT64,
                                       .bits = t.stamps ? 0 : bits[DRAW(6, 5)],
                                       .queue_slots = 1 + DRAW(7, 3)};
    create_memories();
}

static void destroy(void)
{
    for (uint32_t i = 0; i < t.ranks; i++)
        gossip_memory_destroy(&t.memory[i]);
    memory_windows_destroy(t.ranks, t.windows);
}

static void describe(uint64_t seed)
{
    snprintf(check_context, sizeof check_context,
             "PARTIALCOLL_SEED=%llu: %u ranks, %s, %llu elements, %d bits, cap %u, %u "
             "slots",
             (unsigned long long)seed, t.ranks, t.stamps ? "stamps" : "averages",
             (unsigned long long)t.options.count, t.options.bits, t.cap,
             t.options.queue_slots);
}

static uint64_t steps; /* of all seeds */

static void run(uint64_t seed)
{
    static const enum stepper_mode modes[] = {STEPPER_UNIFORM, STEPPER_STAY,
                                              STEPPER_PRIORITY, STEPPER_STALL};
    static struct stepper_report report;
    create(seed);
    describe(seed);
    struct stepper_options o = {.mode = modes[DRAW(8, 4)],
                                .seed = seed,
                                .coroutines = (int)t.ranks,
                                .stay = 2 + DRAW(9, 40),
                                .tick = 1,
                                .longest = 10000000};
    for (uint32_t i = 0; i < t.ranks; i++)
        prepare(i, seed);
    t.before = sum_of_all();
    memory_window_watch = check_cap;
    stepper_run(&o, body, &report);
    memory_window_watch = NULL;
    finish();
    destroy();
    steps += report.steps;
}

/* Two ranks, used sequentially. */
static void create_pair(int bits)
{
    memset(&t, 0, sizeof t);
    t.ranks = 2;
    t.cap = 1;
    t.options = (pcoll_gossip_options){
        .count = 2048, .dtype = PCOLL_FLOAT64, .bits = bits, .queue_slots = 2};
    create_memories();
    prepare(0, 1);
    prepare(1, 2);
}

/* After any flipped bit in an encoded message, the message is discarded and never
 * decoded wrongly. */
static void test_corrupted(void)
{
    create_pair(8);
    const struct gossip_layout *l = &t.memory[0].layout;
    static double out[MAX_COUNT], sent[MAX_COUNT];
    for (uint64_t i = 0; i < 500; i++) {
        int32_t done;
        uint32_t source;
        EXPECT_OK(queue_push(&t.memory[0], 1, t.model[0], t.model[1], sent, &done));
        EXPECT(done, "no room");
        size_t at = gossip_queue_slot_at(l, 0) + l->notes_at +
                    splitmix_below(7, i, (uint32_t)(l->high_at - l->notes_at));
        bool note = at < gossip_queue_slot_at(l, 0) + l->low_at;
        bool used = note ? (at - gossip_queue_slot_at(l, 0) - l->notes_at) <
                               l->blocks * sizeof(struct gossip_block_note)
                         : true;
        t.windows[1]->memory[at] ^= (char)(1 << splitmix_below(8, i, 8));
        EXPECT_OK(queue_take(&t.memory[1], t.model[1], out, &source, &done));
        EXPECT(!done || !used || !memcmp(out, sent, l->count * sizeof *out),
               "byte %zu: a corrupted message was delivered", at);
        EXPECT(done || t.memory[1].stats.decode_failures > 0, "lost, and not counted");
        EXPECT_OK(queue_take(&t.memory[1], t.model[1], out, &source, &done));
        EXPECT(!done, "delivered twice");
    }
    EXPECT(t.memory[1].stats.decode_failures > 450,
           "%llu of 500 corrupted ones noticed",
           (unsigned long long)t.memory[1].stats.decode_failures);
    destroy();
}

/* The same for registers, which are read again with more bits or unencoded. */
static void test_corrupted_register(void)
{
    create_pair(8);
    const struct gossip_layout *l = &t.memory[0].layout;
    static double out[MAX_COUNT];
    for (size_t b = 0; b < l->blocks; b++)
        t.memory[0].distances[b] = 200; /* as if it had seen rank 1 */
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t version;
        EXPECT_OK(register_publish(&t.memory[0], t.model[0], &version));
        size_t at = gossip_register_slot_at(l, version) + l->low_at +
                    splitmix_below(9, i, (uint32_t)(l->raw_at - l->low_at));
        t.windows[0]->memory[at] ^= (char)(1 << splitmix_below(10, i, 8));
        EXPECT_OK(register_read(&t.memory[1], 0, t.model[1], out, &version));
        for (size_t e = 0; e < l->count; e++)
            EXPECT(fabs(out[e] - t.model[0][e]) <= 1, "element %zu is %g, was %g", e,
                   out[e], t.model[0][e]);
    }
    EXPECT(t.memory[1].stats.fallbacks > 0, "nothing was read again");
    destroy();
}

int main(void)
{
    uint64_t schedules = check_seeds(4000, run);
    test_corrupted();
    test_corrupted_register();
    printf("gossip steps: %llu schedules, %llu steps: all invariants held\n",
           (unsigned long long)schedules, (unsigned long long)steps);
    return 0;
}
