/* SPDX-License-Identifier: Apache-2.0 */
/* Create the members of a domain, run their applications and drivers, and check the
 * public state of the domain after a failure. */
#include "steps.h"

#include <string.h>

#include "base/random.h"
#include "check.h"

static struct steps s;

/* The coroutines: an application and a driver for each rank. */
static int steps_application(uint32_t rank)
{
    return 2 * (int)rank;
}

static int steps_driver(uint32_t rank)
{
    return 2 * (int)rank + 1;
}

/* The leader's driver if there is a fabric, as in csrc/allreduce/{endpoint,starting}.c.
 * It starts the rounds, and copies the sum of the domain into the result as if the
 * other domains contributed nothing. */

/* Return whether the round may start, and its initiator. */
static bool may_start(struct steps *s, uint32_t *initiator)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    size_t words = bitset_words(s->o.ranks);
    struct policy_draw draw = {
        .seed = s->options.seed, .slot = s->slot, .round = f->round, .endpoints = 2};
    struct policy_round asked = {.ranks = s->o.ranks,
                                 .words = (uint32_t)words,
                                 .live = f->live,
                                 .live_count = bitset_count(f->live, words),
                                 .drawn = f->drawn,
                                 .overdue = f->overdue};
    policy_open(&s->policy, &draw, s->policy.max_staleness ? f->absences : NULL,
                &asked);
    bitset_clear(f->arrived, words);
    bitset_clear(f->deposited, words);
    node_fabric_arrivals(d, 0, f->arrived, f->deposited);
    struct policy_report report = policy_count(&asked, f->arrived, f->deposited);
    *initiator = round_trigger_starter(&s->policy, &asked, f->arrived);
    const struct placement *p = &s->member[0].placement;
    asked.own_count = 0;
    for (uint32_t i = 0; i < p->members; i++)
        asked.own_count += bitset_has(f->live, p->member[i]);
    return policy_met(&s->policy, &asked, &report);
}

static void count_absences(struct steps *s, const struct round_header *result)
{
    struct steps_fabric *f = &s->fabric;
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        bool active = round_has(result, s->o.ranks, ROUND_ACTIVE, i);
        f->absences[i] = active || !bitset_has(f->live, i) ? 0 : f->absences[i] + 1;
    }
}

static void finish_round(struct steps *s, const struct round_header *contribution)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    struct round_header *result = node_result(d, f->round);
    INTERLEAVE();
    round_header_copy(result, contribution, s->o.ranks);
    if (!round_is_null(contribution, s->o.ranks))
        memcpy(message_payload(result), message_payload(contribution),
               s->shape.payload.bytes);
    INTERLEAVE();
    count_absences(s, result);
    round_live(result, s->o.ranks, NULL, 0, bitset_words(s->o.ranks), f->live);
    d->ops->publish(d, f->round++);
    f->started = false;
}

/* Gather some chunks from the middle on, then everything. */
static bool gather(struct steps *s)
{
    struct domain *d = s->member[0].domain;
    size_t bytes = s->shape.payload.bytes, middle = bytes / 3;
    uint64_t round = s->fabric.round;
    return node_fabric_gather(d, round, middle, 2 * middle) &&
           node_fabric_gather(d, round, 2 * middle, bytes) &&
           node_fabric_gather(d, round, 0, middle) &&
           node_fabric_gather(d, round, 0, bytes);
}

static void steps_run_fabric(struct steps *s)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    for (;;) {
        uint32_t initiator;
        if (!f->started && d->ops->admits(d) && may_start(s, &initiator)) {
            f->started = true;
            f->initiator = initiator;
        }
        if (!f->started)
            return;
        if (!f->frozen) {
            f->frozen = d->ops->freeze(d, f->round);
            f->frozen->initiator = f->initiator;
        }
        if (!gather(s))
            return;
        finish_round(s, f->frozen);
        f->frozen = NULL;
    }
}

/* The steps of a member's application and driver, as in
 * csrc/allreduce/{handle,endpoint,sharing}.c. */

static struct steps_member *of(uint32_t rank)
{
    return &s.member[rank];
}

static void notify_driver(uint32_t rank)
{
    of(rank)->notifications++;
    stepper_wake(steps_driver(rank));
}

/* As endpoint_poll. */
static void look_again(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    int64_t alarm = INT64_MAX;
    if (s.o.fabric)
        node_alert(d);
    else
        node_help(d, false, &alarm);
    of(rank)->told = alarm;
    if (alarm != INT64_MAX)
        notify_driver(rank);
}

/* As endpoint_help. */
static void help(uint32_t rank)
{
    struct steps_member *m = of(rank);
    int64_t alarm;
    node_help(m->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == m->told)
        return;
    m->told = alarm;
    notify_driver(rank);
}

/* As call_is_over. */
static bool is_over(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    if (d->ops->ready(d))
        return true;
    help(rank);
    return d->ops->ready(d);
}

/* As progress_soon, then progress_wait. */
static void wait_for_round(uint32_t rank)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    m->doing = "waiting";
    for (uint32_t looks = s.o.think ? stepper_random(3) : 0; looks > 0; looks--)
        if (is_over(rank))
            return;
    node_sleeps(d, true);
    for (;;) {
        uint32_t seen = m->rings;
        if (is_over(rank))
            break;
        if (m->rings == seen)
            stepper_block(INT64_MAX);
    }
    node_sleeps(d, false);
}

static void think(uint32_t rank)
{
    uint32_t most = rank == s.o.slow ? STEPS_SLOWNESS * s.o.think : s.o.think;
    of(rank)->doing = "computing";
    if (most && stepper_random(3))
        stepper_block(stepper_now() + stepper_random(most));
}

/* Each deposit has its own number, which shows which deposit a round took. */
static double value_of(uint32_t rank, uint64_t call)
{
    double number = (double)(call * 1000 + rank + 1);
    if (!s.o.fractions)
        return number;
    return number / 3 * (double)((uint64_t)1 << splitmix_below(rank, call, 30));
}

static void deposit(uint32_t rank, uint64_t call)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    double send[STEPS_MAX_COUNT], value = value_of(rank, call);
    double *owned = node_send_slot(d), *to = owned ? owned : send;
    const void *buffers[] = {send};
    enum deposit_outcome outcome;
    for (uint32_t i = 0; i < s.o.count; i++)
        to[i] = steps_element(value, i);
    m->doing = "depositing";
    m->depositing = value;
    m->deposit_taken = false;
    m->in_deposit = true;
    m->came_at = stepper_now();
    EXPECT_OK(d->ops->deposit(d, owned ? NULL : buffers, &outcome));
    steps_deposited(&s, rank, outcome);
    m->calling = true;
    memset(send, 0xff, sizeof send);
    if (outcome == DEPOSIT_ARRIVED ||
        (outcome == DEPOSIT_STORED && s.policy.max_staleness))
        look_again(rank);
}

static bool deliver(uint32_t rank, uint64_t last, pcoll_round *r)
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    uint64_t masks[3 * bitset_words(STEPS_MAX_RANKS)];
    double recv[STEPS_MAX_COUNT];
    void *buffers[] = {recv};
    bool moved = false;
    memset(recv, 0xff, sizeof recv);
    m->doing = "taking a result";
    if (s.o.stepper.mode == STEPPER_STALL && !stepper_random(4))
        stepper_stall_soon(8); /* during the copy */
    m->in_deliver = true;
    int rc = d->ops->deliver(d, last, UINT64_MAX, buffers, r, masks, &moved);
    m->in_deliver = false;
    if (rc == PCOLL_EEMPTY)
        return false;
    EXPECT_OK(rc);
    steps_delivered(&s, rank, r, masks, recv);
    if (moved)
        look_again(rank);
    return true;
}

static void change(uint32_t rank, int (*step)(struct member *))
{
    struct steps_member *m = of(rank);
    struct domain *d = m->domain;
    m->doing = step == member_join ? "joining" : "leaving";
    m->came_at = stepper_now();
    m->in_change = true;
    EXPECT_OK(d->ops->change(d, step));
    m->in_change = false;
    m->joining = m->joining || step == member_join;
    m->calling = m->joining;
    m->left = m->left || step == member_leave;
    look_again(rank);
}

static void finish(uint32_t rank)
{
    struct domain *d = of(rank)->domain;
    EXPECT_OK(d->ops->change(d, member_finish));
    of(rank)->calling = false;
}

/* Make one call: one round with deliver="one", else all rounds not seen yet. */
static void call(uint32_t rank, uint64_t number)
{
    struct domain *d = of(rank)->domain;
    struct member m;
    pcoll_round r;
    bool one = s.o.handle.deliver == PCOLL_DELIVER_ONE, any = false;
    think(rank);
    deposit(rank, number);
    wait_for_round(rank);
    node_snapshot(d, &m);
    uint64_t last = one ? m.delivered : m.complete - 1;
    while (deliver(rank, last, &r))
        any = true;
    INVARIANT("order", any || !one, "rank %u was told of a round that does not exist",
              rank);
    finish(rank);
}

static void join(uint32_t rank)
{
    pcoll_round r = {0};
    change(rank, member_join);
    while (!r.joined) {
        wait_for_round(rank);
        if (!deliver(rank, UINT64_MAX, &r))
            INVARIANT("order", false, "rank %u: no round to take in a join", rank);
    }
    steps_joined(&s, rank, &r);
    finish(rank);
}

static uint64_t calls_of(uint32_t rank, uint32_t loop)
{
    bool uneven = s.o.ending != END_LOOP;
    return uneven ? splitmix_below(s.o.stepper.seed + 3 + loop, rank,
                                   (uint32_t)s.o.calls + 1)
                  : s.o.calls;
}

static bool leaves(uint32_t rank)
{
    bool everybody = splitmix_below(s.o.stepper.seed + 7, 0, 8) == 0;
    return s.o.ending == END_LEAVE &&
           (everybody || splitmix_below(s.o.stepper.seed + 4, rank, 3) == 0);
}

/* With deliver="all" loop up to a round number if other ranks wait for this one. */
static uint64_t loop(uint32_t rank, uint64_t number, uint64_t calls)
{
    bool until = s.o.handle.deliver == PCOLL_DELIVER_ALL && s.o.ending == END_LOOP;
    for (uint64_t i = 0; until ? of(rank)->next < calls : i < calls; i++)
        call(rank, number++);
    return number;
}

/* Leave. Do something else, and free the handle when the others are done. */
static void leave(uint32_t rank)
{
    change(rank, member_leave);
    of(rank)->doing = "gone";
    s.leavers++;
    while (s.applications > s.leavers)
        stepper_block(stepper_now() + 10000);
    s.leavers--;
}

static void application(uint32_t rank)
{
    bool joins = s.o.ending == END_JOIN || s.o.ending == END_LEAVE;
    uint64_t number = loop(rank, 0, calls_of(rank, 0));
    if (joins && leaves(rank))
        leave(rank);
    else if (joins) {
        join(rank);
        number = loop(rank, number, calls_of(rank, 1));
        join(rank);
    }
    struct steps_member *m = of(rank);
    m->doing = "over";
    m->retired = true;
    node_retire(m->domain);
    if (s.o.fabric)
        node_alert(m->domain);
    else
        notify_driver(rank);
    if (--s.applications == 0)
        for (uint32_t i = 0; i < s.o.ranks; i++)
            notify_driver(i);
}

/* The leader's driver runs when it is notified or finds the mark. */
static void drive_fabric(void)
{
    struct steps_member *m = of(0);
    uint32_t seen = 0;
    while (s.applications) {
        bool asked = node_attention(m->domain);
        if (asked || m->notifications != seen) {
            seen = m->notifications;
            steps_run_fabric(&s);
        } else
            stepper_block(INT64_MAX);
    }
}

/* run_member, when asked to and when its alarm rings. */
static void driver(uint32_t rank)
{
    struct steps_member *m = of(rank);
    uint32_t seen = 0;
    while (s.applications) {
        int64_t nosy =
            s.o.nosy ? stepper_now() + 1 + stepper_random(s.o.nosy) : INT64_MAX;
        if (m->notifications == seen)
            stepper_block(nosy < m->alarm ? nosy : m->alarm);
        seen = m->notifications;
        if (m->alarm <= stepper_now())
            m->alarm = INT64_MAX;
        int64_t next;
        node_help(m->domain, true, &next);
        m->alarm = next < m->alarm ? next : m->alarm;
    }
}

static void steps_body(int id)
{
    if (id == 1 && s.o.fabric)
        drive_fabric();
    else if (id % 2)
        driver((uint32_t)id / 2);
    else
        application((uint32_t)id / 2);
}

/* The domain. */

static void wake(void *arg, uint32_t rank)
{
    (void)arg;
    s.member[rank].rings++;
    stepper_wake(steps_application(rank));
}

/* Notify the leader's own driver directly. Other ranks ring its doorbell, and leave the
 * mark in the domain. */
static void alert(void *arg, uint32_t rank)
{
    (void)arg;
    EXPECT(s.o.fabric && rank == 0, "rank %u is alerted", rank);
    if (stepper_self() / 2 == 0)
        s.member[0].notifications++;
    stepper_wake(steps_driver(0));
}

static int64_t now(void *arg)
{
    (void)arg;
    return stepper_now();
}

static const char *phase_name(enum node_phase phase)
{
    static const char *const names[] = {[NODE_OPEN] = "open",
                                        [NODE_CLOSING] = "closing",
                                        [NODE_REDUCING] = "reducing",
                                        [NODE_FABRIC] = "on the fabric"};
    return names[phase];
}

static void dump_member(uint32_t i, FILE *out)
{
    const struct steps_member *m = &s.member[i];
    const struct domain *n = steps_node(&s, i);
    uint64_t word = atomic_load(&n->descriptors[i]);
    fprintf(out,
            "rank %u: %s, has read %llu; descriptor: round %llu, pending %d, arrived "
            "%d, joining %d, left %d; delivered %llu, asleep %d, working %llu\n",
            i, m->doing, (unsigned long long)m->next,
            (unsigned long long)descriptor_rounds(word), descriptor_pending(word),
            !!(word & DESCRIPTOR_ARRIVED), !!(word & DESCRIPTOR_JOINING),
            !!(word & DESCRIPTOR_LEFT),
            (unsigned long long)atomic_load(&n->lines[i].delivered),
            (int)(atomic_load(&n->asleep[i / 64]) >> i % 64 & 1),
            (unsigned long long)atomic_load(&n->lines[i].working));
}

static void dump(FILE *out)
{
    const struct node_shared *shared = steps_node(&s, 0)->shared;
    uint64_t control = atomic_load(&shared->control);
    fprintf(out,
            "step %llu, coroutine %d; round %llu is %s (rank %u); chunks %u, taken "
            "%llx, done %llu; all joined with round %llu - 1\n",
            (unsigned long long)s.report.steps, stepper_self(),
            (unsigned long long)node_control_round(control),
            phase_name(node_control_phase(control)), node_control_who(control),
            steps_node(&s, 0)->chunks, (unsigned long long)atomic_load(&shared->taken),
            (unsigned long long)atomic_load(&shared->done),
            (unsigned long long)atomic_load(&shared->all_joined));
    for (uint32_t i = 0; i < s.o.ranks; i++)
        dump_member(i, out);
}

static struct node_hooks site_of(uint32_t rank)
{
    return (struct node_hooks){.memory = s.memory,
                               .placement = &s.member[rank].placement,
                               .slot = &s.slot,
                               .owned_sends = s.options.owned_send,
                               .arg = &s,
                               .wake = wake,
                               .alert = alert,
                               .cores = s.o.count % 3,
                               .now = now,
                               .frozen = steps_frozen,
                               .over = steps_over};
}

/* While all sleep, a member's public state equals its actions, and none is busy. */
static void check_looks(void)
{
    uint64_t busy[bitset_words(STEPS_MAX_RANKS)];
    bitset_clear(busy, bitset_words(STEPS_MAX_RANKS));
    node_busy(s.observer, busy);
    EXPECT(bitset_empty(busy, bitset_words(s.o.ranks)),
           "a member is busy, but all sleep");
    const uint64_t *awaited = node_awaited(s.observer);
    struct policy_round any = {.drawn = busy};
    EXPECT(s.o.fabric || !awaited == !policy_awaited(&s.policy, &any), "awaited");
    for (uint32_t i = 0; i < s.o.ranks; i++) {
        const struct steps_member *known = &s.member[i];
        struct member m;
        node_poll(s.observer, (int)i, &m);
        INVARIANT("agreement",
                  m.rank == i && m.delivered == known->next && m.left == known->left &&
                      m.joining == (known->joining && !known->all_joined) &&
                      m.started == known->calling && m.retired == known->retired &&
                      m.frozen == s.rounds && m.complete == s.rounds,
                  "public state of rank %u", i);
    }
}

/* A rank that closes a round is reported as busy, in case it stops there. */
void steps_closing(uint32_t rank)
{
    uint64_t busy[bitset_words(STEPS_MAX_RANKS)];
    void (*hook)(void) = interleave_hook;
    if (!hook) /* called by steps_idle, which makes no step */
        return;
    bitset_clear(busy, bitset_words(STEPS_MAX_RANKS));
    interleave_hook = NULL;
    node_busy(s.observer, busy);
    interleave_hook = hook;
    INVARIANT("at most once",
              bitset_count(busy, bitset_words(s.o.ranks)) == 1 &&
                  bitset_has(busy, rank),
              "rank %u closes a round, and others are reported as busy", rank);
}

/* No coroutine runs until then: no round may be left to start or end, and the rank
 * responsible for an alarm must have set it. */
void steps_idle(int64_t until)
{
    const struct domain *n = s.observer;
    uint64_t before = atomic_load(&n->shared->control);
    int64_t alarm, set = INT64_MAX;
    node_help(s.observer, true, &alarm);
    if (s.o.fabric)
        steps_run_fabric(&s);
    uint64_t after = atomic_load(&n->shared->control);
    INVARIANT("liveness", before == after && node_control_phase(after) == NODE_OPEN,
              "all are asleep, and round %llu is not started or not ended",
              (unsigned long long)node_control_round(before));
    for (uint32_t i = 0; i < s.o.ranks; i++)
        set = s.member[i].alarm < set ? s.member[i].alarm : set;
    INVARIANT("liveness", alarm >= set || until == INT64_MAX,
              "all are asleep, and round %llu is due at %lld, but polled at %lld",
              (unsigned long long)node_control_round(before), (long long)alarm,
              (long long)set);
    check_looks();
}

static void make_member(uint32_t rank)
{
    static uint64_t const hosts[STEPS_MAX_RANKS];
    struct steps_member *m = &s.member[rank];
    *m = (struct steps_member){
        .taken_in = -1, .alarm = INT64_MAX, .doing = "about to begin"};
    EXPECT_OK(placement_init(&m->placement, rank, s.o.ranks, hosts, NULL, 0));
    m->placement.domains += s.o.fabric; /* another domain without ranks */
    if (rank == 0) {
        s.bytes = node_bytes(&s.shape, &s.options, &m->placement);
        s.memory = aligned_alloc(64, (s.bytes + 63) / 64 * 64);
        EXPECT(s.memory, "no memory for a domain");
        memset(s.memory, 0, s.bytes);
    }
    m->hooks = site_of(rank);
    EXPECT_OK(domain_node_create(&s.shape, &s.options, &m->hooks, &m->domain));
    EXPECT(m->domain->bytes == s.bytes, "not the size that it was given");
    if (rank == 0) { /* fresh memory must not be assumed to be zero */
        struct domain *n = steps_node(&s, 0);
        memset(n->slots, 0xff, s.bytes - (size_t)(n->slots - (char *)s.memory));
    }
}

static void make(const struct steps_options *o)
{
    const struct world_handle *h = &o->handle;
    struct ledger *ledger = s.ledger ? s.ledger : calloc(1, sizeof *ledger);
    s = (struct steps){.o = *o, .ledger = ledger, .slot = 3};
    EXPECT(ledger, "no memory for a ledger");
    ledger_clear(ledger, o->ranks);
    s.applications = o->ranks;
    bitset_fill(s.fabric.live, o->ranks);
    s.policy = space_policy_of(h);
    s.options = (pcoll_options){.policy = s.policy,
                                .seed = 7,
                                .deliver = h->deliver,
                                .late = h->late,
                                .history = h->history,
                                .owned_send = h->owned_send};
    pcoll_buffer buffer = {.count = o->count, .dtype = PCOLL_FLOAT64, .op = h->op};
    EXPECT_OK(round_shape_init(&s.shape, o->ranks, &buffer, 1, NULL));
    for (uint32_t i = 0; i < o->ranks; i++)
        make_member(i);
    struct node_hooks hooks = site_of(0);
    hooks.frozen = NULL;
    EXPECT_OK(domain_node_create(&s.shape, &s.options, &hooks, &s.observer));
}

static void unmake(void)
{
    s.observer->ops->destroy(s.observer);
    for (uint32_t i = 0; i < s.o.ranks; i++) {
        s.member[i].domain->ops->destroy(s.member[i].domain);
        placement_destroy(&s.member[i].placement);
    }
    round_shape_destroy(&s.shape);
    free(s.memory);
}

const struct steps *steps_run(const struct steps_options *o)
{
    make(o);
    check_dump = dump;
    s.o.stepper.coroutines = 2 * (int)o->ranks;
    s.o.stepper.idle = steps_idle;
    stepper_run(&s.o.stepper, steps_body, &s.report);
    steps_end(&s);
    unmake();
    check_dump = NULL;
    return &s;
}
