/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped allreduces on simulated ranks: the object as it runs under MPI, over simulated
 * messages and windows. Applications enter at random times, leave and return, and processes
 * are suspended at any step for any time. Checked after every round and at the end:
 *
 *   conservation   the sum over the ranks does not change
 *   agreement      members of one group have the same list and the same bits
 *   exact          a rank told that it has the average of all has it
 *   side           no group is larger than its side
 *   blame          no rank is suspected without a failure; a suspended one is suspected
 *                  once for each suspension, and suspects no other
 *   back           at the end, when all have returned, all know it
 *   liveness       a wait is bounded by some timeouts for each suspension, however long
 *                  the suspensions are
 *   quiet          when all have closed, nothing is in progress
 *
 *   PARTIALCOLL_SEED=17 build/c/test_group         run one seed
 *   PARTIALCOLL_SCHEDULES=100000 …                 run more seeds
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "group/group_agent.h"
#include "check.h"
#include "sim_window.h"

enum {
    RANKS = 9,
    MAX_COUNT = 60,
    RESULTS = 4096,
    TIMEOUT_US = 10000,
    WAKE_APP = 1,
    WAKE_PROCESS = 2
};

static const int64_t timeout_ns = TIMEOUT_US * INT64_C(1000);

/* The result that all members of a group must share. */
struct result {
    uint64_t index, list, bits;
};

struct rank {
    struct group g;
    struct communicator *communicator;
    double x[MAX_COUNT];
    bool waits, is_away, is_done;
    int64_t since, stood; /* start of the current wait; total time in doubt; ns */
    uint64_t rounds, commits;
};

static struct {
    uint64_t seed, drawn;
    uint32_t ranks, count;
    struct sim *sim;
    struct window *windows[RANKS];
    struct rank rank[RANKS];
    bool stands[RANKS];
    bool calm;     /* no rank leaves or is suspended */
    uint32_t only; /* the only suspended rank of a calm run; RANKS: none */
    uint32_t standstills;
    int64_t end, checked;
    double sum[MAX_COUNT];
    struct result results[RESULTS];
    uint32_t result_count;
} w;

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)(splitmix_mix(w.seed ^ ++w.drawn << 20) % bound);
}

static void dump(FILE *out)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.rank[r].g;
        fprintf(out,
                "rank %u: phase %d round %llu contribution %d decision %d marked %d "
                "group %u/%u match %d waits %d away %d stands %d started %llu\n",
                r, g->phase, (unsigned long long)g->round, g->now.contribution,
                g->now.decision, g->now.marked, g->now.name.leader, g->now.name.seq,
                g->match.state, w.rank[r].waits, w.rank[r].is_away, w.stands[r],
                (unsigned long long)atomic_load(&g->shared.started));
    }
}

/* Create the world. */

static void draw_grid(pcoll_group_options *o)
{
    uint64_t cells = 1;
    o->axes = draw(4);
    for (uint32_t i = 0; i < o->axes; i++)
        cells *= o->side[i] = 1 + draw(4);
    if (o->axes && cells < w.ranks)
        o->side[draw(o->axes)] *= (uint32_t)((w.ranks + cells - 1) / cells);
    o->keys = (int32_t)draw(3);
}

static void make_rank(uint32_t r, const pcoll_group_options *options)
{
    struct rank *k = &w.rank[r];
    EXPECT_OK(communicator_create(sim_endpoint(w.sim, r), NULL, &k->communicator));
    k->g.options = *options;
    k->g.options.bandwidth = draw(2) ? 0 : 1 + draw(100);
    k->g.communicator = k->communicator;
    EXPECT_OK(group_object_prepare(&k->g, r, w.ranks));
    k->g.cell = r;
    k->g.cells = calloc(w.ranks, sizeof *k->g.cells);
    for (uint32_t p = 0; p < w.ranks; p++)
        k->g.cells[p] = p;
    EXPECT_OK(communicator_register(k->communicator, &k->g.base, 0));
    for (uint32_t i = 0; i < w.count; i++)
        w.sum[i] += k->x[i] = (double)draw(1000000) / 1000;
}

static void create(uint64_t seed)
{
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.ranks = 1 + draw(RANKS);
    w.count = draw(MAX_COUNT + 1);
    w.only = draw(4) ? RANKS : draw(w.ranks);
    w.calm = w.only < RANKS || !draw(3);
    struct sim_options options = {.size = w.ranks,
                                  .seed = seed,
                                  .network = {.L = 5000, .o = 500, .g = 100},
                                  .hostile = true,
                                  .in_order = true,
                                  .stall_one_in = draw(2) * 20,
                                  .stall_longest = 100000,
                                  .spurious_one_in = 10};
    EXPECT_OK(sim_create(&options, &w.sim));
    pcoll_group_options o = {.count = w.count,
                             .dtype = PCOLL_FLOAT64,
                             .timeout_us = TIMEOUT_US,
                             .every = 1,
                             .measure = !draw(4)};
    draw_grid(&o);
    for (uint32_t r = 0; r < w.ranks; r++)
        make_rank(r, &o);
    far_windows_create(w.sim, w.ranks, 1 + draw(w.ranks), w.rank[0].g.place.bytes,
                       w.stands, w.windows);
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.rank[r].g;
        g->window = w.windows[r];
        EXPECT_OK(group_object_attach(g));
        g->now.data.piece = 1 + draw(8);
        g->driven = true;
        communicator_notify(w.rank[r].communicator, &g->base);
        sim_wake(w.sim, r, draw(1000000), WAKE_APP);
        if (!w.calm || r == w.only)
            sim_wake(w.sim, r, 1 + draw(40 * TIMEOUT_US) * INT64_C(1000), WAKE_PROCESS);
    }
    w.end = timeout_ns * (10 + draw(40));
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        communicator_unregister(w.rank[r].communicator, 0);
        group_object_dispose(&w.rank[r].g);
        communicator_destroy(&w.rank[r].communicator);
    }
    far_windows_destroy(w.ranks, w.windows);
    sim_free(&w.sim);
}

/* The invariants. */

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = splitmix_mix(h ^ ((const unsigned char *)data)[i]);
    return h;
}

static void check_agreement(const struct pcoll_group_round *round, uint64_t list,
                            uint64_t bits)
{
    for (uint32_t i = 0; i < w.result_count; i++) {
        const struct result *seen = &w.results[i];
        if (seen->index != round->index || seen->list != list)
            continue;
        INVARIANT("agreement", seen->bits == bits, "round %llu",
                  (unsigned long long)round->index);
        return;
    }
    if (w.result_count < RESULTS)
        w.results[w.result_count++] = (struct result){round->index, list, bits};
}

static bool is_near_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

static void check_round(uint32_t r)
{
    struct rank *k = &w.rank[r];
    const struct pcoll_group_round *round = &k->g.shared.outcome;
    uint32_t side = k->g.grid.side[round->axis];
    uint64_t list = hash(0, k->g.shared.outcome_ranks,
                         round->members * sizeof *k->g.shared.outcome_ranks);
    INVARIANT("side", round->members <= side, "%u members, side %u", round->members,
              side);
    EXPECT(k->g.shared.outcome_ranks[round->position] == r, "rank %u at place %u", r,
           round->position);
    EXPECT(round->active >= 1 && round->active <= round->members, "%u of %u",
           round->active, round->members);
    check_agreement(round, list, hash(1, k->x, w.count * sizeof *k->x));
    for (uint32_t i = 0; i < w.count && round->exact; i++)
        INVARIANT("exact", is_near_to(k->x[i], w.sum[i] / w.ranks),
                  "rank %u round %llu element %u: %.17g, expected %.17g", r,
                  (unsigned long long)round->index, i, k->x[i], w.sum[i] / w.ranks);
}

static void check_sum(void)
{
    for (uint32_t i = 0; i < w.count; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < w.ranks; r++)
            sum += w.rank[r].x[i];
        INVARIANT("conservation", is_near_to(sum, w.sum[i]),
                  "element %u: %.17g, expected %.17g", i, sum, w.sum[i]);
    }
}

/* Return whether this rank has voted and the decision word is on another node whose
 * rank is suspended. It cannot know then whether the others have all voted
 * (docs/groups.md). */
static bool is_in_doubt(uint32_t r)
{
    const struct group *g = &w.rank[r].g;
    return g->phase == PHASE_ROUND && g->now.marked && w.stands[g->now.name.leader] &&
           window_is_far(g->window, g->now.name.leader);
}

static void check_waiting(void)
{
    int64_t limit = (10 + 4 * (int64_t)w.standstills) * timeout_ns;
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct rank *k = &w.rank[r];
        if (is_in_doubt(r))
            k->stood += sim_now(w.sim) - w.checked;
        INVARIANT("liveness", !k->waits || sim_now(w.sim) - k->since < limit + k->stood,
                  "rank %u waits since %lld, now %lld", r, (long long)k->since,
                  (long long)sim_now(w.sim));
    }
    w.checked = sim_now(w.sim);
}

/* Ranks and their applications. */

static void poll(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (w.stands[r])
        return;
    communicator_poll(k->communicator);
    EXPECT_OK(communicator_check(k->communicator));
}

static void take_result(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (!k->waits ||
        atomic_load(&k->g.shared.finished) < atomic_load(&k->g.shared.started))
        return;
    k->waits = false;
    k->rounds++;
    if (!k->g.shared.outcome.is_void) {
        memcpy(k->x, k->g.now.data.landing, w.count * sizeof *k->x);
        k->commits++;
        check_round(r);
    }
    sim_wake(w.sim, r, draw(4) ? draw(200000) : draw(3 * TIMEOUT_US) * INT64_C(500),
             WAKE_APP);
}

static void start(uint32_t r)
{
    struct rank *k = &w.rank[r];
    memcpy(w.windows[r]->memory + k->g.place.input_at, k->x, w.count * sizeof *k->x);
    k->waits = true;
    k->since = sim_now(w.sim);
    atomic_fetch_add(&k->g.shared.started, 1);
    communicator_notify(k->communicator, &k->g.base);
}

/* Now and then leave, or return, also during a round. */
static void change_mind(uint32_t r)
{
    struct rank *k = &w.rank[r];
    k->is_away = !k->is_away;
    atomic_store(&k->g.shared.wants_away, k->is_away);
    communicator_notify(k->communicator, &k->g.base);
    sim_wake(w.sim, r, draw(5 * TIMEOUT_US) * INT64_C(1000), WAKE_APP);
}

static void act(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (w.stands[r]) {
        sim_wake(w.sim, r, timeout_ns / 8, WAKE_APP);
        return;
    }
    if (k->waits || k->is_done)
        return;
    if (sim_now(w.sim) > w.end && !k->is_away) {
        k->is_done = true;
        return;
    }
    if (k->is_away || (!w.calm && !draw(20)))
        change_mind(r);
    else {
        start(r);
        if (!w.calm && !draw(30)) { /* leaves at once: this round still counts */
            k->is_away = true;
            atomic_store(&k->g.shared.wants_away, true);
        }
    }
}

/* Suspend or continue the process. */
static void stop_or_go(uint32_t r)
{
    if (w.stands[r]) {
        w.stands[r] = false;
        poll(r);
    } else if (sim_now(w.sim) < w.end) {
        uint32_t longest = draw(8) ? 4 : 100;
        int64_t time = (1 + draw(longest * TIMEOUT_US)) * INT64_C(1000);
        w.stands[r] = true;
        w.rank[r].stood += time;
        w.standstills++;
        sim_wake(w.sim, r, time, WAKE_PROCESS);
        return;
    }
    if (sim_now(w.sim) < w.end)
        sim_wake(w.sim, r, (1 + draw(60 * TIMEOUT_US)) * INT64_C(1000), WAKE_PROCESS);
}

static bool step(void)
{
    struct sim_stop stop;
    if (!sim_step(w.sim, &stop))
        return false;
    if (stop.woken && stop.token == WAKE_PROCESS)
        stop_or_go(stop.rank);
    else if (stop.woken)
        act(stop.rank);
    poll(stop.rank);
    take_result(stop.rank);
    check_waiting();
    return true;
}

static bool all_are_done(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!w.rank[r].is_done || w.rank[r].waits || w.stands[r])
            return false;
    return true;
}

static bool all_have_closed(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!atomic_load(&w.rank[r].g.base.closed))
            return false;
    return true;
}

static void close_all(void)
{
    int64_t begin = sim_now(w.sim);
    for (uint32_t r = 0; r < w.ranks; r++) {
        w.rank[r].g.shared.closing = true;
        communicator_notify(w.rank[r].communicator, &w.rank[r].g.base);
        poll(r);
    }
    while (!all_have_closed() && step())
        INVARIANT("liveness", sim_now(w.sim) - begin < 40 * timeout_ns,
                  "closing takes too long");
    INVARIANT("quiet", all_have_closed(), "not all have closed");
    uint64_t taken = 0, sent = 0;
    for (uint32_t r = 0; r < w.ranks; r++) {
        sent += w.rank[r].g.wire.sent;
        taken += w.rank[r].g.wire.received;
    }
    INVARIANT("quiet", sent == taken, "%llu messages sent, %llu received",
              (unsigned long long)sent, (unsigned long long)taken);
}

/* All have returned and all know it. A rank that others consider silent knows that, and
 * returns after its current round. */
static void check_back(void)
{
    int64_t until = sim_now(w.sim) + 10 * timeout_ns;
    while (sim_now(w.sim) < until && step())
        ;
    for (uint32_t r = 0; r < w.ranks; r++)
        for (uint32_t s = 0; s < w.ranks; s++)
            INVARIANT("back",
                      membership_is_live(&w.rank[r].g.membership, s) ||
                          w.rank[s].g.rejoin.suspected,
                      "rank %u takes rank %u for %s", r, s,
                      w.rank[r].g.membership.entries[s].status == MEMBER_AWAY
                          ? "away"
                          : "silent");
}

static uint64_t commits; /* of all seeds */

static void test_random(uint64_t seed)
{
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    create(seed);
    for (uint32_t r = 0; r < w.ranks; r++)
        poll(r);
    while (!all_are_done() && step())
        ;
    INVARIANT("liveness", all_are_done(), "nothing is left to happen");
    check_sum();
    check_back();
    for (uint32_t r = 0; r < w.ranks; r++) {
        commits += w.rank[r].commits;
        INVARIANT("blame",
                  !w.calm || (w.only < RANKS && r != w.only) ||
                      (w.rank[r].g.membership.entries[r].returns <= w.standstills &&
                       !w.rank[r].g.shared.stats.suspected),
                  "rank %u stood still %u times, has come back %u times, suspects %llu",
                  r, w.standstills, w.rank[r].g.membership.entries[r].returns,
                  (unsigned long long)w.rank[r].g.shared.stats.suspected);
        INVARIANT("calm",
                  !w.calm || w.only < RANKS || w.rank[r].commits == w.rank[r].rounds,
                  "rank %u: %llu of %llu rounds were void without a failure", r,
                  (unsigned long long)(w.rank[r].rounds - w.rank[r].commits),
                  (unsigned long long)w.rank[r].rounds);
    }
    close_all();
    destroy();
}

int main(void)
{
    check_dump = dump;
    uint64_t schedules = check_seeds(200, test_random);
    printf("groups: %llu schedules, %llu rounds that counted: all invariants held\n",
           (unsigned long long)schedules, (unsigned long long)commits);
    return 0;
}
