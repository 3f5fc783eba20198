/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CHECKs of the core (csrc/base/check.h) fire: each case calls a function in a way
 * that nobody may, in a process of its own, and has to end with the condition that it
 * breaks. What needs an MPI or a second driver to be broken is not here: the CHECKs of
 * user_object.c, process.c and agreement.c, and those of a domain's inside, which
 * tests/mistakes breaks.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* A round of four ranks that waits for any. */
static uint64_t live[1] = {15}, drawn[1], overdue[1];
static struct policy_round const asked = {.ranks = RANKS,
                                          .live = live,
                                          .drawn = drawn,
                                          .overdue = overdue,
                                          .live_count = RANKS};

static struct round_header *header(uint64_t round)
{
    static char memory[4][256];
    static int next;
    struct round_header *h = (struct round_header *)memory[next++ % 4];
    round_header_clear(h, RANKS, round);
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

/* Protocol. */

static void no_such_mask(void)
{
    round_add(header(0), RANKS, ROUND_MASKS, 0, 1);
}

static void no_such_mask_to_read(void)
{
    round_has(header(0), RANKS, ROUND_MASKS, 0);
}

static void headers_of_two_rounds(void)
{
    round_header_merge(header(0), header(0), header(1), RANKS);
}

static void a_mask_as_its_own_live_set(void)
{
    struct round_header *h = header(0);
    round_live(h, RANKS, NULL, 0, 1, h->set);
}

static void one_slot_pending_and_frozen(void)
{
    struct contribution c = contribution(1, 1);
    contribution_plan(&c);
}

static void a_deposit_over_the_frozen_one(void)
{
    struct contribution c = contribution(NO_SLOT, 1);
    contribution_publish(&c, (struct deposit_plan){.target = 1, .carried = NO_SLOT});
}

static void a_deposit_over_the_pending_one(void)
{
    struct contribution c = contribution(1, NO_SLOT);
    contribution_publish(&c, (struct deposit_plan){.target = 1, .carried = NO_SLOT});
}

static void a_plan_for_no_slot(void)
{
    struct contribution c = contribution(NO_SLOT, NO_SLOT);
    contribution_publish(&c, (struct deposit_plan){.target = 9, .carried = NO_SLOT});
}

static void handed_in_without_a_call(void)
{
    struct member m = member();
    member_publish(&m, (struct deposit_plan){.target = 0, .carried = NO_SLOT});
}

static void a_read_that_nobody_began(void)
{
    struct member m = member();
    uint64_t lost;
    member_read_end(&m, &lost);
}

static void more_delivered_than_complete(void)
{
    struct member m = member();
    m.delivered = 1;
    member_begin(&m);
}

static void a_descriptor_of_one_slot_for_two(void)
{
    struct member m = member();
    descriptor_load(1 | 1 << 3, &m);
}

static void a_rank_that_is_not_there(void)
{
    descriptor_announce(0, RANKS, header(0), RANKS);
}

static void more_arrived_than_live(void)
{
    struct policy_report report = {.arrived = RANKS + 1};
    policy_all_arrived(&asked, &report);
}

static void met_by_more_than_live(void)
{
    struct policy_report report = {.arrived = RANKS + 1};
    policy_met(&options.policy, &asked, &report);
}

static void more_drawn_than_arrived(void)
{
    policy_relevant(&options.policy, (struct policy_report){.drawn = 1});
}

static void a_policy_of_no_kind(void)
{
    struct pcoll_policy policy = {.kind = 99};
    policy_activates(&policy);
}

static void more_endpoints_than_ranks(void)
{
    struct policy_draw draw = {.endpoints = RANKS + 1};
    struct policy_round round = asked;
    policy_open(&options.policy, &draw, NULL, &round);
}

static void a_decision_without_a_report(void)
{
    struct round_state state = {.met_since = ROUND_NEVER};
    round_trigger_evaluate(&options.policy, &asked, &state);
}

static void a_report_of_no_endpoint(void)
{
    struct policy_report of[1] = {0}, report = {.arrived = 1};
    struct vote_count count;
    vote_count_init(&count, of, 1);
    vote_count_add(&count, 1, &report, 0);
}

static void a_report_to_no_coordinator(void)
{
    struct policy_report report = {.arrived = 1};
    struct vote_count count;
    vote_count_init(&count, NULL, 0);
    vote_count_add(&count, 0, &report, 0);
}

/* Schedules. */

static void an_operation_that_is_not_there(void)
{
    struct engine e = engine();
    engine_complete(&e, 0, 1);
}

static void released_twice(void)
{
    struct engine e = engine();
    engine_release(&e);
    engine_release(&e);
}

static void left_before_it_was_released(void)
{
    struct engine e = engine();
    engine_advance(&e);
}

static void the_state_of_a_round_that_is_far(void)
{
    struct engine e = engine();
    engine_state(&e, 2, 0);
}

static void run_before_it_was_committed(void)
{
    struct engine e;
    engine_init(&e, schedule(false));
}

static void ended_after_it_was_committed(void)
{
    sched_end(schedule(true), 0);
}

static void an_operation_without_a_name(void)
{
    sched_nop(schedule(false), NULL);
}

static void a_message_to_nobody(void)
{
    sched_send(schedule(false), "to nobody", -1, 0, 0);
}

/* Domains. */

static void placed_outside(void)
{
    struct placement p;
    placement_init(&p, RANKS, RANKS, NULL, NULL, 0);
}

static void memory_behind_the_end(void)
{
    struct segment s = {.memory = live, .bytes = 8, .fd = -1};
    segment_reserve(&s, 8, 1);
}

/* Communicators. */

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

static void two_objects_in_one_slot(void)
{
    struct communicator *c = communicator();
    struct object a = object_init(&ops), b = object_init(&ops);
    communicator_register(c, &a, 0);
    communicator_register(c, &b, 0);
}

static void an_empty_slot_is_given_back(void)
{
    struct communicator *c = communicator();
    struct object a = object_init(&ops);
    communicator_register(c, &a, 0);
    communicator_unregister(c, 1);
}

static void closed_out_of_turn(void)
{
    struct communicator *c = communicator();
    struct object a = object_init(&ops);
    communicator_register(c, &a, 0);
    communicator_closed(c, &a);
}

static void a_message_ends_that_never_began(void)
{
    struct progress *p;
    EXPECT_OK(progress_create(&p));
    progress_unrung(p, -1);
}

static void a_round_ends_that_never_began(void)
{
    struct progress *p;
    EXPECT_OK(progress_create(&p));
    progress_round(p, -1);
}

static void unlocked_by_one_who_does_not_drive(void)
{
    struct progress *p;
    EXPECT_OK(progress_create(&p));
    progress_unlock(p);
}

static struct gate *gate(void)
{
    static struct gate g;
    gate_init(&g, LOCK_COMMUNICATOR);
    return &g;
}

static void left_by_one_who_was_not_inside(void)
{
    gate_leave(gate());
}

static void closed_twice(void)
{
    struct gate *g = gate();
    gate_close(g);
    gate_close(g);
}

static void opened_while_open(void)
{
    gate_open(gate());
}

static void alone_while_open(void)
{
    gate_await_empty(gate());
}

static void a_gate_that_goes_with_somebody_inside(void)
{
    struct gate *g = gate();
    gate_enter(g);
    gate_destroy(g);
}

#define CASE(function, condition) {function, #function, condition}
static const struct {
    void (*run)(void);
    const char *name, *condition;
} cases[] = {
    CASE(no_such_mask, "which < ROUND_MASKS"),
    CASE(no_such_mask_to_read, "which < ROUND_MASKS"),
    CASE(headers_of_two_rounds, "a->round == b->round"),
    CASE(a_mask_as_its_own_live_set, "live != h->set"),
    CASE(one_slot_pending_and_frozen, "contribution_is_distinct(c)"),
    CASE(a_deposit_over_the_frozen_one, "plan.target != c->frozen"),
    CASE(a_deposit_over_the_pending_one, "plan.target != c->pending"),
    CASE(a_plan_for_no_slot, "plan.target < c->slots"),
    CASE(handed_in_without_a_call, "m->started"),
    CASE(a_read_that_nobody_began, "m->reading != NO_ROUND"),
    CASE(more_delivered_than_complete, "member_counts_hold(m)"),
    CASE(a_descriptor_of_one_slot_for_two, "descriptor_pending(word)"),
    CASE(a_rank_that_is_not_there, "rank < ranks"),
    CASE(more_arrived_than_live, "report->arrived <= round->live_count"),
    CASE(met_by_more_than_live, "report->arrived <= round->live_count"),
    CASE(more_drawn_than_arrived, "report.drawn <= report.arrived"),
    CASE(a_policy_of_no_kind, "policy->kind < "),
    CASE(more_endpoints_than_ranks, "d->endpoints <= round->ranks"),
    CASE(a_decision_without_a_report, "state->report"),
    CASE(a_report_of_no_endpoint, "endpoint < count->endpoints"),
    CASE(a_report_to_no_coordinator, "count->of_endpoint"),
    CASE(an_operation_that_is_not_there, "engine_has_op(e, op)"),
    CASE(released_twice, "!e->released"),
    CASE(left_before_it_was_released, "e->released"),
    CASE(the_state_of_a_round_that_is_far, "round <= e->current + 1"),
    CASE(run_before_it_was_committed, "s->committed"),
    CASE(ended_after_it_was_committed, "!s->committed"),
    CASE(an_operation_without_a_name, "op.label"),
    CASE(a_message_to_nobody, "peer >= 0"),
    CASE(placed_outside, "rank < ranks"),
    CASE(memory_behind_the_end, "offset + bytes <= s->bytes"),
    CASE(two_objects_in_one_slot, "!c->objects[slot + i]"),
    CASE(an_empty_slot_is_given_back, "c->objects[slot]"),
    CASE(closed_out_of_turn, "c->closing.turn == p"),
    CASE(a_message_ends_that_never_began, "atomic_load(&p->unrung) > 0"),
    CASE(a_round_ends_that_never_began, "atomic_load(&p->rounds) > 0"),
    CASE(unlocked_by_one_who_does_not_drive, "progress_is_driven(p)"),
    CASE(left_by_one_who_was_not_inside, "before > 0"),
    CASE(closed_twice, "!gate_is_closed(g)"),
    CASE(opened_while_open, "gate_is_closed(g)"),
    CASE(alone_while_open, "gate_is_closed(g)"),
    CASE(a_gate_that_goes_with_somebody_inside, "!atomic_load(&g->inside)"),
};
enum { CASES = sizeof cases / sizeof *cases };

/* What the child says on its standard error; its exit status comes back. */
static int listen_to(void (*run)(void), char *said, size_t capacity)
{
    int ends[2], status;
    EXPECT(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(ends[0], said + used, capacity - 1 - used)) > 0;)
        used += (size_t)n;
    said[used] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
    char said[4096];
    for (int i = 0; i < CASES; i++) {
        int status = listen_to(cases[i].run, said, sizeof said);
        EXPECT(status == 1 && strstr(said, "invariant broken: check") &&
                   strstr(said, cases[i].condition),
               "%s: exit %d instead of CHECK(%s):\n%s", cases[i].name, status,
               cases[i].condition, said);
    }
    printf("checks: %d broken preconditions were seen\n", CASES);
    return 0;
}
