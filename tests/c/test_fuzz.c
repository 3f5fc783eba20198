/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random input for the schedule builder, the engine and the parsers, compared with an oracle. The
 * oracle computes the meaning of a schedule by repeated passes over all operations.
 *
 *   PARTIALCOLL_SEED=n  only this case
 *   PARTIALCOLL_FUZZ=n  seeds 1 to n (default 20000)
 */
#include <string.h>

#include "base/random.h"
#include "schedule/sched.h"
#include "check.h"

enum { MAX_OPS = 24, MAX_EDGES = 60, ROUNDS = 3 };

struct dice {
    uint64_t seed, n;
};

static uint32_t roll(struct dice *d, uint32_t bound)
{
    return splitmix_below(d->seed, d->n++, bound);
}

/* A requested schedule. */
struct plan {
    int ops, edges, end;
    bool outside[MAX_OPS], nop[MAX_OPS];
    uint32_t need[MAX_OPS], preds[MAX_OPS]; /* need 0: all */
    int from[MAX_EDGES], to[MAX_EDGES];
    bool nonsense; /* named an operation that does not exist */
};

static int add_random(struct sched *s, struct dice *d, struct plan *p)
{
    int id = p->ops;
    uint32_t kind = roll(d, 8);
    p->outside[id] = kind < 2;
    p->nop[id] = kind == 2 || kind == 3;
    p->ops++;
    switch (kind) {
    case 0:
        return sched_event(s, "event");
    case 1:
        return sched_control_recv(s, "control", 0, 0);
    case 2:
    case 3:
        return sched_nop(s, "nop");
    case 4:
        return sched_send(s, "send", 1, 2, 0);
    case 5:
        return sched_recv(s, "receive", 1, 2, 0);
    case 6:
        return sched_reduce(s, "reduce", 0, 1, 2);
    default:
        return sched_control_send(s, "control", 1, 0);
    }
}

/* Usually an operation that exists. */
static int some_op(struct dice *d, const struct plan *p)
{
    if (roll(d, 400) == 0)
        return roll(d, 2) ? -1 : p->ops;
    return (int)roll(d, (uint32_t)p->ops);
}

static void add_edge(struct sched *s, struct dice *d, struct plan *p)
{
    int to = some_op(d, p), from = some_op(d, p);
    bool exist = to >= 0 && to < p->ops && from >= 0 && from < p->ops;
    /* Usually forward, so that not every plan has a cycle; events rarely wait. */
    if (exist && from > to && roll(d, 100)) {
        int swap = from;
        from = to;
        to = swap;
    }
    if (exist && ((from == to || p->outside[to]) && roll(d, 100)))
        return;
    sched_after(s, to, from);
    if (!exist) {
        p->nonsense = true;
        return;
    }
    p->from[p->edges] = from;
    p->to[p->edges++] = to;
    p->preds[to]++;
}

static struct sched *build(struct dice *d, struct plan *p)
{
    struct sched *s = sched_create();
    *p = (struct plan){0};
    int ops = 1 + (int)roll(d, MAX_OPS), edges = (int)roll(d, MAX_EDGES);
    for (int i = 0; i < ops; i++)
        EXPECT(add_random(s, d, p) == i, "operation %d has another number", i);
    for (int i = 0; i < edges; i++)
        add_edge(s, d, p);
    for (int i = 0; i < ops; i++) {
        if (roll(d, 2) || !p->preds[i])
            continue;
        p->need[i] = roll(d, 200) ? 1 + roll(d, p->preds[i]) : p->preds[i] + 1;
        sched_op(s, i)->need = p->need[i];
    }
    p->end = some_op(d, p);
    sched_end(s, p->end);
    return s;
}

static uint32_t gate(const struct plan *p, int op)
{
    return p->need[op] ? p->need[op] : p->preds[op];
}

/* Remove operations without remaining predecessors until none is left to remove. */
static bool acyclic(const struct plan *p)
{
    bool gone[MAX_OPS] = {false};
    for (int pass = 0; pass < p->ops; pass++) {
        for (int i = 0; i < p->ops; i++) {
            bool waits = false;
            for (int e = 0; e < p->edges; e++)
                waits = waits || (p->to[e] == i && !gone[p->from[e]]);
            gone[i] = gone[i] || !waits;
        }
    }
    for (int i = 0; i < p->ops; i++)
        if (!gone[i])
            return false;
    return true;
}

static bool valid(const struct plan *p)
{
    if (p->nonsense || p->end < 0 || p->end >= p->ops)
        return false;
    for (int i = 0; i < p->ops; i++)
        if ((p->outside[i] && p->preds[i]) || gate(p, i) > p->preds[i])
            return false;
    return acyclic(p);
}

static bool gate_open(const struct plan *p, const bool *done, int op)
{
    uint32_t count = 0;
    for (int e = 0; e < p->edges; e++)
        count += p->to[e] == op && done[p->from[e]];
    return count >= gate(p, op);
}

/* Compute which operations must be done after these events: the least fixed point. */
static void fixed_point(const struct plan *p, const bool *happened, bool *done)
{
    memset(done, 0, MAX_OPS * sizeof *done);
    for (int pass = 0; pass <= p->ops; pass++)
        for (int i = 0; i < p->ops; i++)
            done[i] = done[i] || (p->outside[i] ? happened[i] : gate_open(p, done, i));
}

/* A running engine, and the observed state of its operations. */
struct run {
    struct dice *dice;
    const struct plan *plan;
    struct engine engine;
    bool happened[2][MAX_OPS]; /* by parity of the round */
    bool done[MAX_OPS], issued[MAX_OPS];
    int running[MAX_OPS], count;
};

/* Report an event of this round or the next, sometimes twice. */
static void happen(struct run *r)
{
    int op = (int)roll(r->dice, (uint32_t)r->plan->ops);
    uint64_t round = r->engine.current + roll(r->dice, 2);
    if (!r->plan->outside[op])
        return;
    bool *before = &r->happened[round % 2][op];
    enum engine_outcome expected = *before                      ? ENGINE_DROPPED
                                   : round == r->engine.current ? ENGINE_TAKEN
                                                                : ENGINE_KEPT;
    enum engine_outcome outcome = engine_complete(&r->engine, round, op);
    EXPECT(outcome == expected, "event %d of round %llu: %d, expected %d", op,
           (unsigned long long)round, outcome, expected);
    *before = true;
}

/* NOPs fire inside the engine, so compute which are done from the reported events. */
static void learn_nops(struct run *r)
{
    for (int pass = 0; pass <= r->plan->ops; pass++)
        for (int i = 0; i < r->plan->ops; i++)
            if (r->plan->outside[i])
                r->done[i] = r->happened[r->engine.current % 2][i];
            else if (r->plan->nop[i])
                r->done[i] = r->done[i] || gate_open(r->plan, r->done, i);
}

static void issue(struct run *r)
{
    int op = engine_next(&r->engine);
    if (op < 0)
        return;
    learn_nops(r);
    EXPECT(!r->plan->nop[op] && !r->plan->outside[op], "operation %d was issued", op);
    EXPECT(!r->issued[op], "operation %d was issued twice", op);
    EXPECT(gate_open(r->plan, r->done, op), "operation %d was issued early", op);
    r->issued[op] = true;
    r->running[r->count++] = op;
}

static void complete(struct run *r)
{
    if (!r->count)
        return;
    int which = (int)roll(r->dice, (uint32_t)r->count), op = r->running[which];
    r->running[which] = r->running[--r->count];
    EXPECT(engine_complete(&r->engine, r->engine.current, op) == ENGINE_TAKEN,
           "operation %d was not running", op);
    EXPECT(engine_complete(&r->engine, r->engine.current, op) == ENGINE_DROPPED,
           "operation %d was completed twice", op);
    r->done[op] = true;
}

static void check_round(struct run *r)
{
    const struct plan *p = r->plan;
    bool expected[MAX_OPS];
    fixed_point(p, r->happened[r->engine.current % 2], expected);
    for (int i = 0; i < p->ops; i++)
        EXPECT((engine_state(&r->engine, r->engine.current, i) == OP_DONE) ==
                   expected[i],
               "operation %d should be %s", i, expected[i] ? "done" : "waiting");
    EXPECT(engine_over(&r->engine) == expected[p->end], "over: %d",
           engine_over(&r->engine));
}

static void run_round(struct run *r)
{
    void (*const steps[])(struct run *) = {happen, issue, complete};
    memset(r->done, 0, sizeof r->done);
    memset(r->issued, 0, sizeof r->issued);
    for (int i = (int)roll(r->dice, 20); i > 0; i--)
        happen(r); /* held: the event must not have an effect yet */
    EXPECT(engine_next(&r->engine) < 0, "an operation ran before its round");
    engine_release(&r->engine);
    for (int i = 0; i < 10 * r->plan->ops; i++)
        steps[roll(r->dice, 3)](r);
    for (int i = 0; i <= r->plan->ops; i++) { /* run to the end */
        issue(r);
        complete(r);
    }
    check_round(r);
    EXPECT(engine_complete(&r->engine, r->engine.current + 2, 0) == ENGINE_IMPOSSIBLE,
           "two rounds ahead");
    memset(r->happened[r->engine.current % 2], 0, sizeof r->happened[0]);
    engine_advance(&r->engine);
}

static void fuzz_schedule(struct dice *d, uint64_t *committed)
{
    struct plan plan;
    struct sched *s = build(d, &plan);
    int rc = sched_commit(s);
    EXPECT(rc == (valid(&plan) ? PCOLL_OK : PCOLL_EINVAL), "commit: %d: %s", rc,
           pcoll_last_error());
    char *text, *dot;
    EXPECT_OK(sched_print(s, "text", &text));
    EXPECT_OK(sched_print(s, "dot", &dot));
    EXPECT(strstr(dot, "digraph"), "it cannot be printed");
    free(text);
    free(dot);
    if (rc == PCOLL_OK) {
        struct run r = {.dice = d, .plan = &plan};
        ++*committed;
        EXPECT_OK(engine_init(&r.engine, s));
        for (int i = 0; i < ROUNDS; i++)
            run_round(&r);
        EXPECT(engine_complete(&r.engine, 0, 0) == ENGINE_DROPPED, "round 0 is over");
        engine_destroy(&r.engine);
        EXPECT(sched_commit(s) == PCOLL_ESTATE, "committed twice");
    }
    sched_free(&s);
}

/* A random sequence of words of the grammar and other text. */
static void random_text(struct dice *d, char *text, size_t capacity)
{
    static const char *const words[] = {
        "solo",
        "majority",
        "full",
        "quorum:3",
        "quorum:0.75",
        "first_of:2",
        "last_of:4",
        ",linger=3us",
        ",deadline=1.5s",
        ",max_staleness=8",
        "quorum",
        "first_of",
        ":",
        ",",
        "max_staleness",
        "linger",
        "deadline",
        "=",
        "0.5",
        "1e999",
        "-1",
        "50us",
        "0x10",
        "nan",
        " ",
        "\t",
        "SOLO",
        "%s%n",
        "\xff\xfe",
        "99999999",
        "node",
        "rank",
        "auto:",
        "",
    };
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = roll(d, 8); i > 0 && used + 24 < capacity; i--) {
        if (roll(d, 5)) {
            const char *word = words[roll(d, sizeof words / sizeof *words)];
            used += (size_t)snprintf(text + used, capacity - used, "%s", word);
        } else {
            text[used++] = (char)(1 + roll(d, 255));
            text[used] = '\0';
        }
    }
}

/* An accepted policy has one canonical text. A refusal is explained. */
static void fuzz_policy(struct dice *d, uint64_t *accepted)
{
    char text[256], canonical[256], again[256];
    pcoll_policy policy = {.kind = -77}, same = {.kind = -77};
    random_text(d, text, sizeof text);
    int rc = pcoll_policy_parse(text, &policy);
    if (rc != PCOLL_OK) {
        EXPECT(rc == PCOLL_EINVAL && policy.kind == -77, "\"%s\": %d", text, rc);
        EXPECT(strstr(pcoll_last_error(), "quorum: expected"), "\"%s\": %s", text,
               pcoll_last_error());
        return;
    }
    ++*accepted;
    EXPECT_OK(pcoll_policy_format(&policy, canonical, sizeof canonical));
    EXPECT_OK(pcoll_policy_parse(canonical, &same));
    EXPECT_OK(pcoll_policy_format(&same, again, sizeof again));
    EXPECT(!strcmp(canonical, again), "\"%s\" is \"%s\" and \"%s\"", text, canonical,
           again);
}

/* An accepted domain is a word or a canonical number, and prints as the same text. */
static void fuzz_domain(struct dice *d, uint64_t *accepted)
{
    static const char *const words[] = {[PCOLL_DOMAIN_NODE] = "node",
                                        [PCOLL_DOMAIN_RANK] = "rank",
                                        [PCOLL_DOMAIN_AUTO] = "auto"};
    char text[256], canonical[32];
    int32_t domain = -77;
    uint32_t most = 77;
    random_text(d, text, sizeof text);
    int rc = pcoll_domain_parse(text, &domain, &most);
    if (rc != PCOLL_OK) {
        EXPECT(rc == PCOLL_EINVAL && domain == -77 && most == 77, "\"%s\": %d", text,
               rc);
        EXPECT(strstr(pcoll_last_error(), "domain: expected"), "\"%s\": %s", text,
               pcoll_last_error());
        return;
    }
    ++*accepted;
    snprintf(canonical, sizeof canonical, most ? "%s:%u" : "%s", words[domain], most);
    EXPECT(!strcmp(text, canonical), "\"%s\" is taken for \"%s\"", text, canonical);
}

static uint64_t committed, accepted; /* of all seeds */

static void fuzz(uint64_t seed)
{
    struct dice d = {.seed = seed};
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    fuzz_schedule(&d, &committed);
    for (int i = 0; i < 5; i++)
        fuzz_policy(&d, &accepted);
    fuzz_domain(&d, &accepted);
}

int main(void)
{
    uint64_t cases = check_seeds(check_setting("PARTIALCOLL_FUZZ", 20000), fuzz);
    printf("fuzz: %llu cases; %llu schedules were valid and run, %llu policies and "
           "domains were taken\n",
           (unsigned long long)cases, (unsigned long long)committed,
           (unsigned long long)accepted);
    return 0;
}
