/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks die in the middle of grouped averaging, and the others continue (csrc/group/group_agent.c):
 * the object as it runs under MPI, over simulated messages and windows in shared memory. A
 * rank dies at any of its steps on a window or message. The others are notified one after the
 * other, some while they send. Then all restart, and another rank may die before all have.
 * No rank is late here, so only deaths make rounds void. Checked:
 *   conservation   the sum over all ranks, with the last models of dead ones
 *   agreement      members of one group have the same list and the same bits
 *   void at once   a rank in a group with a dead rank stops waiting; other ranks have no
 *                  void round
 *   dead           all live ranks know who has died, and suspect no other
 *   liveness       all end and close
 *
 *   PARTIALCOLL_SEED=17 build/c/test_group_crashes      run one seed
 *   PARTIALCOLL_SCHEDULES=100000 …                      run more seeds
 */
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "group/group_agent.h"
#include "check.h"
#include "sim_window.h"

enum {
    RANKS = 8,
    MAX_COUNT = 40,
    RESULTS = 4096,
    TIMEOUT_US = 100000000, /* longer than any wait */
    COMMUNICATORS = 4096,
    WAKE_APP = 1,
    WAKE_NEWS = 2
};

struct rank {
    struct group g;
    struct communicator *communicator;
    double x[MAX_COUNT];
    bool waits, is_done, dead, heard;
    uint32_t left;       /* rounds */
    uint32_t dies_after; /* steps; 0: does not die */
    uint32_t cut_after;  /* messages, after a death */
};

struct result {
    uint64_t index, list, bits;
};

static struct {
    uint64_t seed, drawn, deaths, voids;
    uint32_t ranks, count, to_die;
    struct sim *sim;
    struct window *windows[RANKS];
    struct window_ops window_ops, near;
    struct transport_ops transport_ops;
    int (*control)(struct transport *, uint32_t, const struct control *);
    struct rank rank[RANKS];
    bool stands[RANKS], outage;
    int32_t driven; /* the rank being driven, or -1 */
    jmp_buf at_death;
    struct communicator *old[COMMUNICATORS];
    uint32_t olds;
    double sum[MAX_COUNT];
    struct result results[RESULTS];
    uint32_t result_count;
} w;

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)(splitmix_mix(w.seed ^ ++w.drawn << 20) % bound);
}

static uint32_t living(void)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < w.ranks; r++)
        count += !w.rank[r].dead;
    return count;
}

/* Deaths. */

static void draw_death(void)
{
    uint32_t r = draw(w.ranks);
    if (w.to_die && living() > 1 && !w.rank[r].dead) {
        w.to_die--;
        w.rank[r].dies_after = 1 + draw(150);
    }
}

static void die(uint32_t r)
{
    w.rank[r].dead = true;
    w.deaths++;
    w.outage = true;
    sim_kill(w.sim, r);
    for (uint32_t s = 0; s < w.ranks; s++) {
        w.rank[s].cut_after = 1 + draw(12);
        if (!w.rank[s].dead && !w.rank[s].heard)
            sim_wake(w.sim, s, draw(100000), WAKE_NEWS);
    }
}

static void mortal(void)
{
    struct rank *k = w.driven < 0 ? NULL : &w.rank[w.driven];
    if (!k || !k->dies_after || --k->dies_after || living() == 1)
        return;
    die((uint32_t)w.driven);
    longjmp(w.at_death, 1);
}

static int compare_swap(struct window *window, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    mortal();
    int rc = w.near.compare_swap(window, peer, offset, expected, desired, before);
    mortal();
    return rc;
}

static int window_access(struct window *window, enum window_access kind, uint32_t peer,
                         size_t offset, const void *from, void *into, int dtype,
                         size_t count)
{
    if (kind == WINDOW_GET)
        mortal();
    return w.near.access(window, kind, peer, offset, from, into, dtype, count);
}

static int control(struct transport *t, uint32_t peer, const struct control *message)
{
    mortal();
    struct rank *k = &w.rank[t->rank];
    if (w.outage && k->cut_after && --k->cut_after == 0)
        return fail(PCOLL_EFAILED, "a rank has died");
    return w.control(t, peer, message);
}

/* Create the world. */

static struct transport *endpoint(uint32_t r)
{
    struct transport *t = sim_endpoint(w.sim, r);
    if (!w.control) {
        w.control = t->ops->control;
        w.transport_ops = *t->ops;
        w.transport_ops.control = control;
    }
    t->ops = &w.transport_ops;
    return t;
}

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
    EXPECT_OK(communicator_create(endpoint(r), NULL, &k->communicator));
    k->g.options = *options;
    k->g.communicator = k->communicator;
    EXPECT_OK(group_object_prepare(&k->g, r, w.ranks));
    k->g.cell = r;
    k->g.cells = calloc(w.ranks, sizeof *k->g.cells);
    for (uint32_t p = 0; p < w.ranks; p++)
        k->g.cells[p] = p;
    EXPECT_OK(communicator_register(k->communicator, &k->g.base, 0));
    k->left = 8 + draw(8);
    for (uint32_t i = 0; i < w.count; i++)
        w.sum[i] += k->x[i] = (double)draw(1000000) / 1000;
}

static void create(uint64_t seed)
{
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.driven = -1;
    w.ranks = 2 + draw(RANKS - 1);
    w.count = 1 + draw(MAX_COUNT);
    w.to_die = 1 + draw(3);
    struct sim_options options = {.size = w.ranks,
                                  .seed = seed,
                                  .network = {.L = 5000, .o = 500, .g = 100},
                                  .hostile = true,
                                  .in_order = true,
                                  .spurious_one_in = 10};
    EXPECT_OK(sim_create(&options, &w.sim));
    pcoll_group_options o = {
        .count = w.count, .dtype = PCOLL_FLOAT64, .timeout_us = TIMEOUT_US, .every = 1};
    draw_grid(&o);
    for (uint32_t r = 0; r < w.ranks; r++)
        make_rank(r, &o);
    far_windows_create(w.sim, w.ranks, w.ranks, w.rank[0].g.place.bytes, w.stands,
                       w.windows);
    w.near = w.window_ops = *w.windows[0]->ops;
    w.window_ops.compare_swap = compare_swap;
    w.window_ops.access = window_access;
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.rank[r].g;
        w.windows[r]->ops = &w.window_ops;
        g->window = w.windows[r];
        EXPECT_OK(group_object_attach(g));
        g->now.data.piece = 1 + draw(8);
        g->driven = true;
        communicator_notify(w.rank[r].communicator, &g->base);
        sim_wake(w.sim, r, draw(100000), WAKE_APP);
    }
    draw_death();
}

static void retire_communicator(struct communicator *c)
{
    EXPECT(w.olds < COMMUNICATORS, "too many communicators");
    c->transport = NULL;
    w.old[w.olds++] = c;
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        w.rank[r].g.driven = false;
        group_object_dispose(&w.rank[r].g);
        communicator_free_windows(w.rank[r].communicator);
        retire_communicator(w.rank[r].communicator);
    }
    for (uint32_t i = 0; i < w.olds; i++)
        communicator_destroy(&w.old[i]);
    far_windows_destroy(w.ranks, w.windows);
    sim_free(&w.sim);
}

/* Ranks and their applications. */

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = splitmix_mix(h ^ ((const unsigned char *)data)[i]);
    return h;
}

static void check_agreement(uint32_t r)
{
    const struct group_shared *s = &w.rank[r].g.shared;
    uint64_t list =
        hash(0, s->outcome_ranks, s->outcome.members * sizeof *s->outcome_ranks);
    uint64_t bits = hash(1, w.rank[r].x, w.count * sizeof *w.rank[r].x);
    for (uint32_t i = 0; i < w.result_count; i++) {
        const struct result *seen = &w.results[i];
        if (seen->index == s->outcome.index && seen->list == list) {
            INVARIANT("agreement", seen->bits == bits, "round %llu",
                      (unsigned long long)s->outcome.index);
            return;
        }
    }
    if (w.result_count < RESULTS)
        w.results[w.result_count++] = (struct result){s->outcome.index, list, bits};
}

static bool is_finished(const struct rank *k)
{
    return atomic_load(&k->g.shared.finished) == atomic_load(&k->g.shared.started);
}

static void take_result(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (k->dead || !k->waits || !is_finished(k))
        return;
    k->waits = false;
    if (!k->g.shared.outcome.is_void) {
        memcpy(k->x, k->g.now.data.landing, w.count * sizeof *k->x);
        check_agreement(r);
    }
    w.voids += k->g.shared.outcome.is_void;
    sim_wake(w.sim, r, draw(50000), WAKE_APP);
}

static void drive(uint32_t r, void (*how)(uint32_t r))
{
    if (w.rank[r].dead)
        return;
    w.driven = (int32_t)r;
    if (!setjmp(w.at_death))
        how(r);
    w.driven = -1;
}

static void poll(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (k->heard)
        return;
    communicator_poll(k->communicator);
    k->heard = communicator_check(k->communicator) != PCOLL_OK;
    EXPECT(!k->heard || w.outage, "%s", pcoll_last_error());
}

static void act(uint32_t r)
{
    struct rank *k = &w.rank[r];
    if (k->dead || k->waits || k->is_done)
        return;
    if (!k->left--) {
        k->is_done = true; /* no other rank waits for it from now on */
        atomic_store(&k->g.shared.wants_away, true);
    } else {
        memcpy(w.windows[r]->memory + k->g.place.input_at, k->x,
               w.count * sizeof *k->x);
        k->waits = true;
        atomic_fetch_add(&k->g.shared.started, 1);
    }
    communicator_notify(k->communicator, &k->g.base);
}

/* Recovery. */

/* The state of a rank in its round when all were stopped. */
struct stood {
    bool in_group, with_dead, own;
};

static struct stood look(uint32_t r)
{
    const struct group *g = &w.rank[r].g;
    struct stood s = {.in_group = g->phase == PHASE_ROUND,
                      .own = g->now.contribution == CONTRIBUTION_OWN};
    for (uint32_t i = 0; s.in_group && i < g->now.data.group.members; i++)
        s.with_dead |= w.rank[g->now.data.group.rank[i]].dead;
    return s;
}

static void check_round(uint32_t r, struct stood s)
{
    struct rank *k = &w.rank[r];
    if (!s.in_group || !s.own)
        return;
    INVARIANT("void at once", !s.with_dead || is_finished(k), "rank %u waits still", r);
    INVARIANT("void at once",
              s.with_dead || !is_finished(k) || !k->g.shared.outcome.is_void,
              "rank %u: a round of the living is void", r);
}

/* Restart in a new communicator at this round. */
static void restart(uint32_t r, const uint64_t *words, uint64_t round)
{
    struct rank *k = &w.rank[r];
    struct stood stood = look(r);
    retire_communicator(k->communicator);
    EXPECT_OK(communicator_create(endpoint(r), NULL, &k->communicator));
    k->g.communicator = k->communicator;
    k->g.driven = false;
    k->g.base.notified = false;
    EXPECT_OK(group_agent_restart(&k->g, words, round));
    check_round(r, stood);
    EXPECT_OK(communicator_register(k->communicator, &k->g.base, 0));
}

static void go(uint32_t r)
{
    struct rank *k = &w.rank[r];
    k->g.driven = true;
    k->heard = false;
    int rc = group_agent_drive(&k->g.base);
    k->heard = rc != PCOLL_OK;
    EXPECT(!k->heard || w.outage, "%s", pcoll_last_error());
}

/* Get a dead rank's last model: the last result it was given, or the average of a
 * committed round. */
static void take_last_model(uint32_t r)
{
    struct rank *k = &w.rank[r];
    struct group *g = &k->g;
    enum decision decision = DECISION_ABORT;
    if (!k->waits)
        return;
    k->waits = false;
    if (is_finished(k))
        decision = g->shared.outcome.is_void ? DECISION_ABORT : DECISION_COMMIT;
    else if (g->phase == PHASE_ROUND && g->now.contribution == CONTRIBUTION_OWN)
        EXPECT_OK(group_window_vote(g, g->now.name, VOTE_NOTHING,
                                    g->now.data.group.members, &decision));
    if (decision == DECISION_COMMIT)
        memcpy(k->x, g->now.data.landing, w.count * sizeof *k->x);
}

/* Restart all live ranks. Return false if one dies before all have restarted. */
static bool recover(void)
{
    uint64_t words[RANKS] = {0}, round = 0;
    w.outage = false;
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.rank[r].g;
        if (w.rank[r].dead)
            continue;
        words[r] = group_agent_state_word(g);
        round = g->round > round ? g->round : round;
    }
    sim_shrink(w.sim);
    for (uint32_t i = 0, first = draw(w.ranks); i < w.ranks; i++) {
        uint32_t r = (first + i) % w.ranks;
        if (w.rank[r].dead)
            continue;
        if (w.to_die && living() > 1 && !draw(20)) {
            w.to_die--;
            die(r);
            return false;
        }
        restart(r, words, round + 1);
    }
    return true;
}

static void go_on(void)
{
    while (!recover())
        ;
    for (uint32_t r = 0; r < w.ranks; r++)
        if (w.rank[r].dead)
            take_last_model(r);
        else
            take_result(r);
    draw_death();
    for (uint32_t i = 0, first = draw(w.ranks); i < w.ranks; i++)
        drive((first + i) % w.ranks, go);
}

static bool all_have_heard(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!w.rank[r].dead && !w.rank[r].heard)
            return false;
    return w.outage;
}

static bool step(void)
{
    struct sim_stop stop;
    if (all_have_heard())
        go_on();
    if (!sim_step(w.sim, &stop))
        return false;
    INVARIANT("liveness", sim_now(w.sim) < TIMEOUT_US * INT64_C(50000),
              "a rank waits forever");
    if (stop.woken && stop.token == WAKE_APP)
        act(stop.rank);
    else if (stop.woken && w.outage)
        w.rank[stop.rank].heard = true;
    drive(stop.rank, poll);
    take_result(stop.rank);
    return true;
}

static bool all_are_done(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!w.rank[r].dead && (!w.rank[r].is_done || w.rank[r].waits))
            return false;
    return !w.outage;
}

static bool all_have_closed(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!w.rank[r].dead && !atomic_load(&w.rank[r].g.base.closed))
            return false;
    return true;
}

static void check_all(void)
{
    for (uint32_t i = 0; i < w.count; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < w.ranks; r++)
            sum += w.rank[r].x[i];
        INVARIANT("conservation", fabs(sum - w.sum[i]) <= 1e-9 * (1 + fabs(sum)),
                  "element %u: %.17g, expected %.17g", i, sum, w.sum[i]);
    }
    for (uint32_t r = 0; r < w.ranks; r++)
        for (uint32_t s = 0; s < w.ranks && !w.rank[r].dead; s++) {
            enum member_status status = w.rank[r].g.membership.entries[s].status;
            INVARIANT("dead",
                      status != MEMBER_SUSPECT &&
                          (status == MEMBER_DEAD) == w.rank[s].dead,
                      "rank %u takes rank %u for %d", r, s, (int)status);
        }
}

static uint64_t deaths, voids; /* of all seeds */

static void test_random(uint64_t seed)
{
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    create(seed);
    for (uint32_t r = 0; r < w.ranks; r++)
        drive(r, poll);
    while (!all_are_done() && step())
        ;
    INVARIANT("liveness", all_are_done(), "nothing is left to happen");
    check_all();
    w.to_die = 0;
    for (uint32_t r = 0; r < w.ranks; r++) {
        w.rank[r].dies_after = 0;
        w.rank[r].g.shared.closing = true;
        if (w.rank[r].dead)
            continue;
        communicator_notify(w.rank[r].communicator, &w.rank[r].g.base);
        drive(r, poll);
    }
    while (!all_have_closed() && step())
        ;
    INVARIANT("liveness", all_have_closed(), "not all have closed");
    destroy();
    deaths += w.deaths;
    voids += w.voids;
}

int main(void)
{
    uint64_t schedules = check_seeds(2000, test_random);
    printf(
        "group crashes: %llu schedules, %llu deaths, %llu void rounds: all invariants "
        "held\n",
        (unsigned long long)schedules, (unsigned long long)deaths,
        (unsigned long long)voids);
    return 0;
}
