/* SPDX-License-Identifier: Apache-2.0 */
/* Making the members of a domain, and what others see of it after a failure. */
#include "steps.h"

#include <string.h>

#include "check.h"

static struct steps s;

static void wake(void *arg, uint32_t rank)
{
    (void)arg;
    s.member[rank].rings++;
    stepper_wake(steps_application(rank));
}

/* The leader itself is notified; others ring its doorbell, and leave the mark in the
 * domain.
 */
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
    const struct node *n = steps_node(&s, i);
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

/* What others may see of a member is what it has done; nobody is at work. */
static void check_looks(void)
{
    uint64_t busy[bitset_words(STEPS_MAX_RANKS)];
    bitset_clear(busy, bitset_words(STEPS_MAX_RANKS));
    s.observer->ops->busy(s.observer, busy);
    EXPECT(bitset_empty(busy, bitset_words(s.o.ranks)), "somebody is busy, all sleep");
    const uint64_t *awaited = s.observer->ops->awaited(s.observer);
    EXPECT(s.o.fabric || !awaited == !policy_draws(&s.policy), "awaited");
    for (uint32_t i = 0; i < s.o.ranks; i++) {
        const struct steps_member *known = &s.member[i];
        struct member m;
        s.observer->ops->poll(s.observer, (int)i, &m);
        INVARIANT("agreement",
                  m.rank == i && m.delivered == known->next && m.left == known->left &&
                      m.joining == (known->joining && !known->all_joined) &&
                      m.started == known->calling && m.retired == known->retired &&
                      m.frozen == s.rounds && m.complete == s.rounds,
                  "what is seen of rank %u", i);
    }
}

/* Who closes is named, if it should stop there. */
void steps_closing(uint32_t rank)
{
    uint64_t busy[bitset_words(STEPS_MAX_RANKS)];
    void (*hook)(void) = interleave_hook;
    if (!hook) /* steps_idle, which does not expect it */
        return;
    bitset_clear(busy, bitset_words(STEPS_MAX_RANKS));
    interleave_hook = NULL;
    s.observer->ops->busy(s.observer, busy);
    interleave_hook = hook;
    INVARIANT("at most once",
              bitset_count(busy, bitset_words(s.o.ranks)) == 1 &&
                  bitset_has(busy, rank),
              "rank %u closes a round, and others are said to be busy", rank);
}

/* Nobody makes a step until then: nothing may be left to do, and who is to look at an
 * alarm has set it. */
void steps_idle(int64_t until)
{
    const struct node *n = (struct node *)s.observer;
    uint64_t before = atomic_load(&n->shared->control);
    int64_t alarm, set = INT64_MAX;
    s.observer->ops->help(s.observer, true, &alarm);
    if (s.o.fabric)
        steps_run_fabric(&s);
    uint64_t after = atomic_load(&n->shared->control);
    INVARIANT("liveness", before == after && node_control_phase(after) == NODE_OPEN,
              "all are asleep, and round %llu is not started or not ended",
              (unsigned long long)node_control_round(before));
    for (uint32_t i = 0; i < s.o.ranks; i++)
        set = s.member[i].alarm < set ? s.member[i].alarm : set;
    INVARIANT("liveness", alarm >= set || until == INT64_MAX,
              "all are asleep, and nobody looks at round %llu at %lld, but at %lld",
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
    m->placement.domains += s.o.fabric; /* one without ranks */
    if (rank == 0) {
        s.bytes = node_bytes(&s.shape, &s.options, &m->placement);
        s.memory = aligned_alloc(64, (s.bytes + 63) / 64 * 64);
        EXPECT(s.memory, "no memory for a domain");
        memset(s.memory, 0, s.bytes);
    }
    m->hooks = site_of(rank);
    EXPECT_OK(domain_node_create(&s.shape, &s.options, &m->hooks, &m->domain));
    void *memory;
    size_t bytes;
    m->domain->ops->memory(m->domain, &memory, &bytes);
    EXPECT(memory == s.memory && bytes == s.bytes, "another memory than it was given");
    if (rank == 0) { /* nobody may count on what has never been written */
        struct node *n = steps_node(&s, 0);
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
    steps_begin(&s);
    s.o.stepper.coroutines = 2 * (int)o->ranks;
    s.o.stepper.idle = steps_idle;
    stepper_run(&s.o.stepper, steps_body, &s.report);
    steps_end(&s);
    unmake();
    check_dump = NULL;
    return &s;
}
