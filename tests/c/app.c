/* SPDX-License-Identifier: Apache-2.0 */
/* The application of a simulated rank: think, deposit, wait, take results, end. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "world_state.h"

enum { LONGEST_WAKE = 500 };

const char *app_phase_name(enum app_phase phase)
{
    static const char *const names[] = {
        [THINKING] = "computing", [WAITING] = "waiting",   [JOINING] = "joining",
        [FREEING] = "freeing",    [RENEWING] = "renewing", [MEETING] = "meeting",
        [DONE] = "done",          [GROWING] = "growing",   [GROWN] = "grown",
        [NEW_HERE] = "entering"};
    return names[phase];
}

/* Reproducible: depends on rank, call and handle, but not on timing. */
static double deposit_value(const struct world *w, uint32_t rank, uint64_t call, int k)
{
    uint64_t stream = rank * 1000003u + (uint64_t)k;
    if (!w->o.fractions)
        return 1 + splitmix_below(stream, call, 1000);
    uint64_t bits = splitmix_at(stream, call);
    double value = (double)(bits >> 11) * 0x1p-53 + 0x1p-60;
    return ldexp(bits & 1 ? value : -value, (int)(bits >> 1 & 31) - 16);
}

void app_ring(struct world *w, int k, uint32_t rank)
{
    sim_wake(w->sim, rank, sim_random(w->sim, LONGEST_WAKE),
             WAKE_DOORBELL | (uint64_t)k << WAKE_HANDLE);
}

void app_alert(struct world *w, uint32_t rank)
{
    sim_wake(w->sim, rank, sim_random(w->sim, LONGEST_WAKE), WAKE_AGENT);
}

static struct endpoint *endpoint_at(struct world *w, uint32_t rank)
{
    return w->endpoint[w->app[rank].handle][rank];
}

/* Begin to wait. In shared memory the rank announces that it sleeps, polls once, and
 * then polls only when it is woken (allreduce/handle.c). */
static void wait_for_round(struct world *w, uint32_t rank, enum app_phase phase)
{
    struct domain *d = endpoint_at(w, rank)->domain;
    node_sleeps(d, true);
    w->app[rank].rung = true;
    w->app[rank].phase = phase;
}

static void stop_waiting(struct world *w, uint32_t rank)
{
    struct domain *d = endpoint_at(w, rank)->domain;
    node_sleeps(d, false);
}

static bool looks(struct domain *d, bool stopped)
{
    int64_t alarm;
    if (d->ops->ready(d) || stopped)
        return d->ops->ready(d);
    node_help(d, false, &alarm);
    return d->ops->ready(d);
}

static bool is_ready(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = endpoint_at(w, rank)->domain;
    if (d->members == 1)
        return d->ops->ready(d);
    bool ready = false;
    while (a->rung && !ready) {
        a->rung = false;
        ready = looks(d, w->recovery[rank].stopped);
    }
    return ready;
}

/* The endpoint is not polled during a recovery, but at its end (go in recover.c). */
static void poll_endpoint(struct world *w, uint32_t rank, struct endpoint *v)
{
    if (!w->recovery[rank].stopped)
        endpoint_poll(v, false);
}

static bool deliver_one(struct world *w, int k, uint32_t rank, uint64_t last,
                        pcoll_round *r)
{
    struct app *a = &w->app[rank];
    struct endpoint *v = w->endpoint[k][rank];
    uint64_t masks[3 * bitset_words(w->o.ranks)];
    bool moved = false;
    void *recv[] = {a->recv};
    memset(a->recv, 0xff, w->o.count * sizeof *a->recv);
    int rc =
        v->domain->ops->deliver(v->domain, last, UINT64_MAX, recv, r, masks, &moved);
    if (rc == PCOLL_EEMPTY)
        return false;
    EXPECT_OK(rc);
    check_delivery(w, k, rank, r, masks);
    w->report.active_mean += r->active;
    w->report.lost += r->lost;
    w->deliveries++;
    if (moved)
        poll_endpoint(w, rank, v);
    return true;
}

static void think(struct world *w, uint32_t rank)
{
    int64_t mean = rank == w->o.slow ? w->o.slow_think : w->o.think;
    int64_t time = mean ? sim_random(w->sim, (uint32_t)(2 * mean) + 1) : 0;
    w->app[rank].phase = THINKING;
    sim_wake(w->sim, rank, time, WAKE_CALL);
}

static void start(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct endpoint *v = w->endpoint[a->handle][rank];
    enum deposit_outcome outcome;
    double value = deposit_value(w, rank, a->call, a->handle);
    double *owned = node_send_slot(v->domain);
    double *to = owned ? owned : a->send;
    for (uint32_t i = 0; i < w->o.count; i++)
        to[i] = ldexp(value, -(int)(i % 16));
    const void *send[] = {to};
    EXPECT_OK(v->domain->ops->deposit(v->domain, owned ? NULL : send, &outcome));
    /* The core must have copied the data: overwrite the buffer at once. */
    memset(a->send, 0xff, w->o.count * sizeof *a->send);
    if (!w->recovery[rank].stopped)
        endpoint_deposited(v, outcome);
    wait_for_round(w, rank, WAITING);
}

static void begin_join(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct endpoint *v = w->endpoint[a->handle][rank];
    EXPECT_OK(v->domain->ops->change(v->domain, member_join));
    poll_endpoint(w, rank, v);
    wait_for_round(w, rank, JOINING);
}

/* The handles of the rank's current generation: [first_handle, end_of_handles). */
static int first_handle(const struct world *w, uint32_t rank)
{
    return w->app[rank].generation * w->o.handles;
}

static int end_of_handles(const struct world *w, uint32_t rank)
{
    return first_handle(w, rank) + w->o.handles;
}

static void begin_free(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    a->phase = FREEING;
    a->handle = first_handle(w, rank);
    a->asks = false;
}

static void close_handle(struct world *w, int k, uint32_t rank)
{
    w->asked[k][rank] = true;
    if (!w->gone[k][rank])
        EXPECT_OK(endpoint_close(w->endpoint[k][rank]));
}

static void ask_to_close(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    a->asks = true;
    uint32_t close_all = w->o.trouble.close_all;
    bool all = close_all && sim_random(w->sim, close_all) == 0;
    for (int k = a->handle; all && k < end_of_handles(w, rank); k++)
        close_handle(w, k, rank);
    close_handle(w, a->handle, rank);
}

static void leave_all(struct world *w, uint32_t rank)
{
    for (int k = first_handle(w, rank); k < end_of_handles(w, rank); k++) {
        struct endpoint *v = w->endpoint[k][rank];
        EXPECT_OK(v->domain->ops->change(v->domain, member_leave));
        poll_endpoint(w, rank, v);
    }
}

/* The loops are done: leave, join or free, as drawn. */
static void end_loops(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    w->report.loops_over[rank] = sim_now(w->sim);
    if (a->leaves) {
        leave_all(w, rank);
        begin_free(w, rank);
    } else if (a->joins_left)
        begin_join(w, rank);
    else
        begin_free(w, rank);
}

/* One loop is done: start the next one, or end. */
static void next_loop(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    a->call++;
    bool all = w->o.handle[0].deliver == PCOLL_DELIVER_ALL && w->o.ending == END_LOOP;
    uint64_t progress = all ? w->expected_next[first_handle(w, rank)][rank] : a->call;
    if (progress < a->calls)
        think(w, rank);
    else
        end_loops(w, rank);
}
/* After the first join: another number of calls, maybe none, then join again. */
static void join_over(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (++a->handle < end_of_handles(w, rank)) {
        begin_join(w, rank);
        return;
    }
    a->handle = first_handle(w, rank);
    uint32_t whose = w->o.handles == 1 ? rank : 0;
    bool at_once = splitmix_below(w->o.seed + 6, 0, 4) == 0;
    if (!--a->joins_left)
        begin_free(w, rank);
    else if (at_once)
        begin_join(w, rank);
    else {
        a->calls = a->call + 1 + splitmix_below(w->o.seed + 5, whose, 5);
        think(w, rank);
    }
}

static void finish_call(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = w->endpoint[a->handle][rank]->domain;
    struct member m;
    pcoll_round r;
    stop_waiting(w, rank);
    node_snapshot(d, &m);
    uint64_t last = m.deliver == PCOLL_DELIVER_ONE ? m.delivered : m.complete - 1;
    /* The first round may be newer: earlier ones may have been overwritten. */
    INVARIANT("order", deliver_one(w, a->handle, rank, UINT64_MAX, &r),
              "rank %u was told of a round that does not exist", rank);
    while (deliver_one(w, a->handle, rank, last, &r))
        ;
    EXPECT_OK(d->ops->change(d, member_finish));
    if (++a->handle < end_of_handles(w, rank))
        start(w, rank);
    else {
        a->handle = first_handle(w, rank);
        a->phase = w->o.grows && r.failed ? GROWING : GROWN;
    }
}

/* A rank that learns of a death recovers before it grows. */
static bool advance_growing(struct world *w, uint32_t rank)
{
    if (is_recovering(w, rank))
        return false;
    w->recovery[rank].step = PAUSING;
    return true;
}

/* A newcomer makes the calls of the remaining rounds. It is given the round before. */
void app_grown(struct world *w, uint32_t rank, uint64_t round)
{
    struct app *a = &w->app[rank];
    if (a->phase == NEW_HERE) {
        pcoll_round r;
        a->calls = w->o.calls;
        a->call = round ? round - 1 : 0;
        w->expected_next[0][rank] = a->call;
        INVARIANT("one history", !round || deliver_one(w, 0, rank, UINT64_MAX, &r),
                  "newcomer %u is not given the last round", rank);
        if (!round) {
            think(w, rank);
            return;
        }
    }
    a->phase = GROWN;
}

static void advance_join(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = w->endpoint[a->handle][rank]->domain;
    pcoll_round r;
    stop_waiting(w, rank);
    if (!deliver_one(w, a->handle, rank, UINT64_MAX, &r) || !r.joined) {
        wait_for_round(w, rank, JOINING);
        return;
    }
    check_joined(w, a->handle, 2 - a->joins_left, rank, &r);
    EXPECT_OK(d->ops->change(d, member_finish));
    join_over(w, rank);
}

static void meet(struct world *w, uint32_t rank, enum app_phase phase)
{
    struct app *a = &w->app[rank];
    a->phase = phase;
    a->agreement = (struct agreement){.values = &a->votes, .count = 1};
    EXPECT_OK(communicator_agree(w->communicator[rank], &a->agreement));
}

/* All handles are closed: create the next generation in the same slots, or end. */
static void end_generation(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (a->generation + 1 == w->o.generations) {
        a->phase = DONE;
        return;
    }
    meet(w, rank, RENEWING);
}

/* Called with the progress lock. */
static bool advance_free(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (is_recovering(w, rank)) /* closing waits for the end of the recovery */
        return false;
    if (!a->asks)
        ask_to_close(w, rank);
    bool *gone = &w->gone[a->handle][rank];
    if (!*gone && atomic_load(&w->endpoint[a->handle][rank]->closing) != CLOSED)
        return false;
    if (!*gone)
        check_closed(w, a->handle, rank);
    *gone = true;
    if (++a->handle < end_of_handles(w, rank))
        close_handle(w, a->handle, rank);
    else
        end_generation(w, rank);
    return a->phase == FREEING;
}

/* When all have freed, create new handles. When all have created theirs, begin
 * (allreduce/handle_create.c). */
static bool advance_meeting(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (!atomic_load(&a->agreement.done))
        return false;
    if (a->phase == RENEWING) {
        world_make_handles(w, rank, ++a->generation);
        meet(w, rank, MEETING);
    } else
        app_begin(w, rank);
    return true;
}

/* Take the round that is ready. */
static void take(struct world *w, uint32_t rank)
{
    if (w->app[rank].phase == JOINING)
        advance_join(w, rank);
    else
        finish_call(w, rank);
}

/* Sometimes delay a rank whose round is complete, as if it were not scheduled. */
static bool stalls(struct world *w, uint32_t rank)
{
    const struct world_trouble *t = &w->o.trouble;
    if (!t->application_stalls || sim_random(w->sim, t->application_stalls))
        return false;
    w->app[rank].stalled = true;
    sim_wake(w->sim, rank, sim_random(w->sim, (uint32_t)t->stall_longest + 1),
             WAKE_STALLED);
    return true;
}

static bool advance_waiting(struct world *w, uint32_t rank)
{
    if (!is_ready(w, rank) || stalls(w, rank))
        return false;
    take(w, rank);
    return true;
}

/* The steps that need the progress lock. */
static bool advance_locked(struct world *w, uint32_t rank)
{
    uint32_t misuses = w->o.trouble.misuses;
    struct app *a = &w->app[rank];
    if (w->driving[rank])
        return false;
    w->driving[rank] = true;
    bool made = a->handle < end_of_handles(w, rank) && a->phase != MEETING &&
                a->phase < GROWING;
    if (made && !is_recovering(w, rank) && misuses && !sim_random(w->sim, misuses))
        app_misuse(w, rank);
    bool more = false;
    if (a->phase == FREEING)
        more = advance_free(w, rank);
    else if (a->phase == RENEWING || a->phase == MEETING)
        more = advance_meeting(w, rank);
    w->driving[rank] = false;
    return more;
}

bool app_advance(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (a->stalled)
        return false;
    if (w->o.in_call && a->phase == WAITING && rank != w->o.awake &&
        sim_now(w->sim) < w->o.asleep) {
        a->stalled = true; /* the call has begun, but does not poll until then */
        sim_wake(w->sim, rank, w->o.asleep - sim_now(w->sim), WAKE_STALLED);
        return false;
    }
    bool more = advance_locked(w, rank);
    if (a->phase == GROWING && advance_growing(w, rank))
        more = true;
    if (a->phase == GROWN && !is_recovering(w, rank)) {
        next_loop(w, rank);
        more = true;
    }
    if (a->phase == WAITING || a->phase == JOINING)
        more = advance_waiting(w, rank) || more;
    return more;
}

bool app_rung(struct world *w, uint32_t rank, uint64_t token)
{
    struct app *a = &w->app[rank];
    bool doorbell = (token & ((1 << WAKE_HANDLE) - 1)) == WAKE_DOORBELL;
    a->rung = a->rung || (doorbell && token >> WAKE_HANDLE == (uint64_t)a->handle);
    return doorbell;
}

void app_woken(struct world *w, uint32_t rank, uint64_t token)
{
    struct app *a = &w->app[rank];
    if (token == WAKE_STALLED) {
        a->stalled = false;
        a->rung = true;
        if ((a->phase == WAITING || a->phase == JOINING) && is_ready(w, rank))
            take(w, rank);
    } else if (token == WAKE_CALL && a->phase == THINKING)
        start(w, rank);
}

void app_begin(struct world *w, uint32_t rank)
{
    const struct world_options *o = &w->o;
    struct app *a = &w->app[rank];
    /* With several handles all ranks make equally many calls, as required. */
    bool uneven = o->ending != END_LOOP && o->handles == 1;
    a->handle = first_handle(w, rank);
    a->call = 0;
    a->calls =
        uneven ? 1 + splitmix_below(o->seed + 3, rank, (uint32_t)o->calls) : o->calls;
    a->joins_left = o->ending == END_JOIN || o->ending == END_LEAVE ? 2 : 0;
    bool everybody = splitmix_below(o->seed + 7, 0, 8) == 0;
    a->leaves = o->ending == END_LEAVE && uneven &&
                (everybody || splitmix_below(o->seed + 4, rank, 3) == 0);
    if (o->asleep && rank != o->awake && o->in_call)
        think(w, rank);
    else if (o->asleep && rank != o->awake)
        sim_wake(w->sim, rank, o->asleep, WAKE_CALL); /* compute until then */
    else
        think(w, rank);
}
