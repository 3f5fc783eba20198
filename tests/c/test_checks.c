/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CHECKs of the core (csrc/base/check.h) fire: each case calls a function in a forbidden way,
 * which must end with the violated condition. CHECKs that need an MPI or a second driver are tested
 * elsewhere or not at all: those of user_object.c, process.c and agreement.c, and those inside a
 * domain, which tests/mistakes breaks.
 */
#include "check.h"
#include "domain/domain.h"
#include "domain/placement.h"
#include "protocol/member.h"
#include "protocol/policy.h"
#include "runtime/communicator.h"
#include "base/lock.h"
#include "schedule/sched.h"

enum { RANKS = 4 };

static pcoll_options const options = {
    .policy = {.kind = PCOLL_SOLO}, .history = 2, .late = PCOLL_LATE_CARRY};

/* A policy round of four ranks, none of them drawn. */
static uint64_t live[1] = {15}, drawn[1], overdue[1];
static struct policy_round const asked = {.ranks = RANKS,
                                          .words = 1,
                                          .live = live,
                                          .drawn = drawn,
                                          .overdue = overdue,
                                          .live_count = RANKS};

static struct round_header *header(uint64_t round)
{
    static char memory[4][256];
    static int next;
    struct round_header *h = (struct round_header *)memory[next++ % 4];
    round_header_clear(h, round);
    return h;
}

static struct member member(void)
{
    struct member m;
    member_init(&m, 1, &options);
    return m;
}

static struct contribution contribution(int pending, int frozen)
{
    struct contribution c;
    contribution_init(&c, PCOLL_LATE_CARRY, false);
    c.pending = pending;
    c.frozen = frozen;
    return c;
}

static struct sched *schedule(bool committed)
{
    struct sched *s = sched_create();
    sched_end(s, sched_nop(s, "the only one"));
    if (committed)
        EXPECT_OK(sched_commit(s));
    return s;
}

static struct engine engine(void)
{
    struct engine e;
    EXPECT_OK(engine_init(&e, schedule(true)));
    return e;
}

static int run_nothing(struct object *p)
{
    (void)p;
    return PCOLL_OK;
}

static struct object_ops const ops = {.run = run_nothing};

static struct communicator *communicator(void)
{
    static struct transport t = {.size = 1, .tags = 1000};
    struct communicator *c;
    EXPECT_OK(communicator_create(&t, NULL, &c));
    return c;
}

static struct gate *gate(void)
{
    static struct gate g;
    gate_init(&g, LOCK_COMMUNICATOR);
    return &g;
}

static void break_protocol(void)
{
    if (check_breaks("which < ROUND_MASKS"))
        round_add(header(0), RANKS, ROUND_MASKS, 0, 1);
    if (check_breaks("which < ROUND_MASKS"))
        round_has(header(0), RANKS, ROUND_MASKS, 0);
    if (check_breaks("a->round == b->round"))
        round_header_merge(header(0), header(0), header(1), RANKS);
    if (check_breaks("live != h->set")) {
        struct round_header *h = header(0);
        round_live(h, RANKS, NULL, 0, 1, h->set);
    }
    if (check_breaks("contribution_is_distinct(c)")) {
        struct contribution c = contribution(1, 1);
        contribution_plan(&c);
    }
    if (check_breaks("plan.target != c->frozen")) {
        struct contribution c = contribution(NO_SLOT, 1);
        contribution_publish(&c,
                             (struct deposit_plan){.target = 1, .carried = NO_SLOT});
    }
    if (check_breaks("plan.target != c->pending")) {
        struct contribution c = contribution(1, NO_SLOT);
        contribution_publish(&c,
                             (struct deposit_plan){.target = 1, .carried = NO_SLOT});
    }
    if (check_breaks("plan.target < c->slots")) {
        struct contribution c = contribution(NO_SLOT, NO_SLOT);
        contribution_publish(&c,
                             (struct deposit_plan){.target = 9, .carried = NO_SLOT});
    }
    if (check_breaks("m->started")) {
        struct member m = member();
        member_publish(&m, (struct deposit_plan){.target = 0, .carried = NO_SLOT});
    }
    if (check_breaks("m->reading != NO_ROUND")) {
        struct member m = member();
        uint64_t lost;
        member_read_end(&m, &lost);
    }
    if (check_breaks("member_counts_hold(m)")) {
        struct member m = member();
        m.delivered = 1;
        member_begin(&m);
    }
    if (check_breaks("descriptor_pending(word)")) {
        struct member m = member();
        descriptor_load(1 | 1 << 3, &m);
    }
    if (check_breaks("rank < ranks"))
        descriptor_announce(0, RANKS, header(0), RANKS);
    if (check_breaks("report->arrived <= round->live_count")) {
        struct policy_report report = {.arrived = RANKS + 1};
        policy_met(&options.policy, &asked, &report);
    }
    if (check_breaks("report.drawn <= report.arrived"))
        policy_relevant(&options.policy, (struct policy_report){.drawn = 1});
    if (check_breaks("policy->kind < ")) {
        struct pcoll_policy policy = {.kind = 99};
        policy_activates(&policy);
    }
    if (check_breaks("d->endpoints <= round->ranks")) {
        struct policy_draw draw = {.endpoints = RANKS + 1};
        struct policy_round round = asked;
        policy_open(&options.policy, &draw, NULL, &round);
    }
    if (check_breaks("state->report")) {
        struct round_state state = {.met_since = ROUND_NEVER};
        round_trigger_evaluate(&options.policy, &asked, &state);
    }
    if (check_breaks("endpoint < count->endpoints")) {
        struct policy_report of[1] = {0}, report = {.arrived = 1};
        struct vote_count count;
        vote_count_init(&count, of, 1);
        vote_count_add(&count, 1, &report, 0);
    }
    if (check_breaks("count->of_endpoint")) {
        struct policy_report report = {.arrived = 1};
        struct vote_count count;
        vote_count_init(&count, NULL, 0);
        vote_count_add(&count, 0, &report, 0);
    }
}

static void break_schedules(void)
{
    if (check_breaks("engine_has_op(e, op)")) {
        struct engine e = engine();
        engine_complete(&e, 0, 1);
    }
    if (check_breaks("!e->released")) {
        struct engine e = engine();
        engine_release(&e);
        engine_release(&e);
    }
    if (check_breaks("e->released")) {
        struct engine e = engine();
        engine_advance(&e);
    }
    if (check_breaks("round <= e->current + 1")) {
        struct engine e = engine();
        engine_state(&e, 2, 0);
    }
    if (check_breaks("s->committed")) {
        struct engine e;
        engine_init(&e, schedule(false));
    }
    if (check_breaks("!s->committed"))
        sched_end(schedule(true), 0);
    if (check_breaks("op.label"))
        sched_nop(schedule(false), NULL);
    if (check_breaks("peer >= 0"))
        sched_send(schedule(false), "to nobody", -1, 0, 0);
}

static void break_domains(void)
{
    if (check_breaks("rank < ranks")) {
        struct placement p;
        placement_init(&p, RANKS, RANKS, NULL, NULL, 0);
    }
    if (check_breaks("offset + bytes <= s->bytes")) {
        struct segment s = {.memory = live, .bytes = 8, .fd = -1};
        segment_reserve(&s, 8, 1);
    }
}

static void break_communicators(void)
{
    if (check_breaks("!c->objects[slot + i]")) {
        struct communicator *c = communicator();
        struct object a = object_init(&ops), b = object_init(&ops);
        communicator_register(c, &a, 0);
        communicator_register(c, &b, 0);
    }
    if (check_breaks("c->objects[slot]")) {
        struct communicator *c = communicator();
        struct object a = object_init(&ops);
        communicator_register(c, &a, 0);
        communicator_unregister(c, 1);
    }
    if (check_breaks("c->closing.turn == p")) {
        struct communicator *c = communicator();
        struct object a = object_init(&ops);
        communicator_register(c, &a, 0);
        communicator_closed(c, &a);
    }
    if (check_breaks("atomic_load(&p->unrung) > 0")) {
        struct progress *p;
        EXPECT_OK(progress_create(&p));
        progress_unrung(p, -1);
    }
    if (check_breaks("atomic_load(&p->rounds) > 0")) {
        struct progress *p;
        EXPECT_OK(progress_create(&p));
        progress_round(p, -1);
    }
    if (check_breaks("progress_is_driven(p)")) {
        struct progress *p;
        EXPECT_OK(progress_create(&p));
        progress_unlock(p);
    }
    if (check_breaks("before > 0"))
        gate_leave(gate());
    if (check_breaks("!gate_is_closed(g)")) {
        struct gate *g = gate();
        gate_close(g);
        gate_close(g);
    }
    if (check_breaks("gate_is_closed(g)"))
        gate_open(gate());
    if (check_breaks("gate_is_closed(g)"))
        gate_await_empty(gate());
    if (check_breaks("!atomic_load(&g->inside)")) {
        struct gate *g = gate();
        gate_enter(g);
        gate_destroy(g);
    }
}

int main(void)
{
    break_protocol();
    break_schedules();
    break_domains();
    break_communicators();
    printf("checks: every broken precondition was seen\n");
    return 0;
}
