/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User schedules on simulated ranks: random DAGs against a sequential evaluation.
 *
 * A random program is a list of steps of all ranks in a valid sequential order, which is the
 * reference. Each rank's schedule has the dependencies that memory requires, some more, and
 * gates of k of n. The simulation then chooses the order of the messages, timers and runs
 * of all ranks.
 *
 *   PARTIALCOLL_SEED=17 build/c/test_program        run one seed
 *   PARTIALCOLL_SCHEDULES=100000 …                  run more seeds
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "user_schedule/user_schedule.h"
#include "transport/sim/sim_transport.h"
#include "adding.h"
#include "check.h"

enum { RANKS = 6, BUFFERS = 4, ELEMENTS = 20, STEPS = 40, MAX_OPS = 4 * STEPS };

typedef int64_t memory[RANKS][BUFFERS][ELEMENTS];

struct step {
    enum op_kind kind; /* SEND: a message from `rank`, buffer a, to `peer`, buffer b */
    uint32_t rank, peer;
    int a, b; /* buffers */
    uint64_t count;
    int op;
};

/* The buffers that one operation of a rank reads and writes. */
struct access {
    int read, write; /* -1: none */
    bool accumulates;
    int op;
    uint64_t count;
};

struct world {
    uint64_t seed, drawn;
    uint32_t ranks;
    int steps;
    struct step step[STEPS];
    memory expected, real;
    struct builder builder[RANKS];
    struct access access[RANKS][MAX_OPS];
    struct sim *sim;
    struct communicator *communicator[RANKS];
    struct schedule_run *run[RANKS];
    uint64_t runs, started[RANKS];
    bool asleep[RANKS]; /* its application computes */
};

static struct world w;

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)(splitmix_mix(w.seed ^ ++w.drawn << 20) % bound);
}

/* Draw a program. */

static struct step draw_step(void)
{
    static const enum op_kind kinds[] = {OP_SEND, OP_SEND, OP_SEND,   OP_REDUCE,
                                         OP_COPY, OP_NOP,  OP_REDUCE, OP_TIMER};
    struct step s = {.kind = kinds[draw(8)],
                     .rank = draw(w.ranks),
                     .peer = draw(w.ranks),
                     .a = (int)draw(BUFFERS),
                     .b = (int)draw(BUFFERS),
                     .count = draw(4) ? 1 + draw(ELEMENTS) : 0,
                     .op = (int)draw(4)};
    if ((s.kind != OP_SEND || s.rank == s.peer) && s.a == s.b)
        s.b = (s.a + 1) % BUFFERS;
    return s;
}

/* The reference: one step after the other. */
static void evaluate(memory m)
{
    for (int i = 0; i < w.steps; i++) {
        const struct step *s = &w.step[i];
        int64_t *from = m[s->rank][s->a];
        if (s->kind == OP_SEND)
            memcpy(m[s->peer][s->b], from, s->count * sizeof *from);
        if (s->kind == OP_COPY)
            memcpy(m[s->rank][s->b], from, s->count * sizeof *from);
        if (s->kind == OP_REDUCE)
            reduce_kernel(s->op, PCOLL_INT64)(m[s->rank][s->b], from, m[s->rank][s->b],
                                              s->count);
    }
}

static bool conflict(const struct access *a, const struct access *b)
{
    bool both_write = a->write >= 0 && a->write == b->write;
    bool any_order =
        a->accumulates && b->accumulates && a->op == b->op && a->count == b->count;
    return (both_write && !any_order) || (a->write >= 0 && a->write == b->read) ||
           (b->write >= 0 && b->write == a->read);
}

static void note(uint32_t rank, int op, struct access access)
{
    EXPECT(op < MAX_OPS, "too many operations");
    w.access[rank][op] = access;
}

/* Make op depend on a gate of k of n earlier operations. */
static void add_gate(uint32_t rank, int op)
{
    struct builder *d = &w.builder[rank];
    int32_t before[3];
    int gate, n = 1 + (int)draw(3);
    for (int i = 0; i < n; i++)
        before[i] = (int32_t)draw((uint32_t)op);
    EXPECT_OK(builder_nop(d, "gate", &gate));
    note(rank, gate, (struct access){.read = -1, .write = -1});
    EXPECT_OK(builder_after(d, gate, before, n, 0));
    EXPECT_OK(builder_after(d, op, &gate, 1, 0));
    uint32_t distinct = 0;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int j = 0; j < i; j++)
            seen = seen || before[j] == before[i];
        distinct += !seen;
    }
    EXPECT_OK(builder_after(d, gate, NULL, 0, 1 + draw(distinct)));
}

/* Add the required dependencies of op, and some others. */
static void add_dependencies(uint32_t rank, int op, struct access access)
{
    note(rank, op, access);
    bool must = false;
    for (int32_t i = 0; i < op; i++) {
        bool conflicts = conflict(&w.access[rank][i], &access);
        must = must || conflicts;
        if (conflicts || !draw(10))
            EXPECT_OK(builder_after(&w.builder[rank], op, &i, 1, 0));
    }
    if (op && !draw(3))
        add_gate(rank, op);
    else if (op && !must && !draw(2)) { /* op with its own gate */
        int32_t before = (int32_t)draw((uint32_t)op);
        EXPECT_OK(builder_after(&w.builder[rank], op, &before, 1, 1));
    }
}

/* Give some messages another tag. Order is then kept only among messages of one tag. */
static void add_message(const struct step *s)
{
    pcoll_buffer shape = {.count = s->count, .dtype = PCOLL_INT64};
    int op, tag = draw(3) ? 0 : (int)draw(3);
    EXPECT_OK(builder_send(&w.builder[s->rank], w.real[s->rank][s->a], &shape,
                           (int)s->peer, tag, NULL, &op));
    add_dependencies(s->rank, op, (struct access){.read = s->a, .write = -1});
    EXPECT_OK(builder_recv(&w.builder[s->peer], w.real[s->peer][s->b], &shape,
                           (int)s->rank, tag, NULL, &op));
    add_dependencies(s->peer, op, (struct access){.read = -1, .write = s->b});
}

static void add_step(const struct step *s)
{
    struct builder *d = &w.builder[s->rank];
    pcoll_buffer shape = {.count = s->count, .dtype = PCOLL_INT64, .op = s->op};
    struct access access = {.read = -1, .write = -1};
    int op = -1;
    if (s->kind == OP_SEND) {
        add_message(s);
        return;
    }
    if (s->kind == OP_NOP)
        EXPECT_OK(builder_nop(d, NULL, &op));
    if (s->kind == OP_TIMER)
        EXPECT_OK(builder_timer(d, draw(3) ? draw(20000) * 1e-9 : 0, NULL, &op));
    if (s->kind == OP_REDUCE || s->kind == OP_COPY)
        access = (struct access){.read = s->a,
                                 .write = s->b,
                                 .accumulates = s->kind == OP_REDUCE,
                                 .op = s->op,
                                 .count = s->count};
    if (s->kind == OP_REDUCE)
        EXPECT_OK(builder_reduce(d, w.real[s->rank][s->a], w.real[s->rank][s->b],
                                 &shape, NULL, &op));
    if (s->kind == OP_COPY)
        EXPECT_OK(builder_copy(d, w.real[s->rank][s->a], w.real[s->rank][s->b], &shape,
                               NULL, &op));
    add_dependencies(s->rank, op, access);
}

/* Create the ranks. */

static void commit_all(void)
{
    uint64_t sum[DIGEST_WORDS] = {0}, digest[DIGEST_WORDS];
    struct sched *s[RANKS];
    uint32_t tags = 0;
    for (uint32_t r = 0; r < w.ranks; r++) {
        EXPECT_OK(builder_commit(&w.builder[r], &s[r]));
        builder_digest_messages(&w.builder[r], digest);
        for (int i = 0; i < DIGEST_WORDS; i++)
            sum[i] += digest[i];
        tags = w.builder[r].tags > tags ? w.builder[r].tags : tags;
    }
    EXPECT(!sum[0] && !sum[1], "messages that match do not");
    for (uint32_t r = 0; r < w.ranks; r++) {
        w.builder[r].tags = tags;
        EXPECT_OK(
            schedule_run_create(w.communicator[r], &w.builder[r], s[r], &w.run[r]));
        EXPECT_OK(communicator_register(w.communicator[r], &w.run[r]->base, 3));
    }
}

static void create(uint64_t seed)
{
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.ranks = 1 + draw(RANKS);
    w.steps = 1 + (int)draw(STEPS);
    w.runs = 1 + draw(4);
    for (size_t i = 0; i < sizeof w.real / sizeof(int64_t); i++)
        ((int64_t *)w.real)[i] = (int64_t)draw(100) - 50;
    memcpy(w.expected, w.real, sizeof w.real);
    for (uint32_t r = 0; r < w.ranks; r++)
        w.builder[r] = (struct builder){.rank = r, .size = w.ranks};
    for (int i = 0; i < w.steps; i++) {
        w.step[i] = draw_step();
        add_step(&w.step[i]);
    }
    struct sim_options options = {
        .size = w.ranks,
        .seed = seed,
        .network = {.L = 2000, .o = 100, .latency = PCOLL_LATENCY_EXPONENTIAL},
        .hostile = true,
        .stall_one_in = draw(2) ? 5 : 0,
        .stall_longest = 10000,
        .spurious_one_in = draw(2) ? 7 : 0};
    EXPECT_OK(sim_create(&options, &w.sim));
    for (uint32_t r = 0; r < w.ranks; r++)
        EXPECT_OK(
            communicator_create(sim_endpoint(w.sim, r), NULL, &w.communicator[r]));
    commit_all();
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        communicator_unregister(w.communicator[r], w.run[r]->base.slot);
        schedule_run_destroy(&w.run[r]);
        builder_destroy(&w.builder[r]);
        communicator_destroy(&w.communicator[r]);
    }
    sim_free(&w.sim);
}

/* Run them. */

static void poll(uint32_t rank)
{
    while (communicator_poll(w.communicator[rank]) > 0)
        ;
    EXPECT_OK(communicator_check(w.communicator[rank]));
}

enum { APPLICATION = 1 }; /* token of its wake-ups */

/* An application computes for a while before each start and after a run. */
static void sleep_application(uint32_t rank)
{
    w.asleep[rank] = true;
    sim_wake(w.sim, rank, 1 + draw(30000), APPLICATION);
}

static void step_application(uint32_t rank, uint64_t starts)
{
    struct schedule_run *p = w.run[rank];
    bool over = atomic_load(&p->finished) == w.started[rank];
    if (w.asleep[rank] || !over || w.started[rank] == starts)
        return;
    w.started[rank]++;
    schedule_run_start(p);
    poll(rank);
    sleep_application(rank);
}

/* Run until nothing is left to happen. Rank r starts starts[r] runs. */
static void run(const uint64_t starts[RANKS])
{
    struct sim_stop stop;
    for (uint32_t r = 0; r < w.ranks; r++)
        sleep_application(r);
    while (sim_step(w.sim, &stop)) {
        if (stop.woken && stop.token == APPLICATION)
            w.asleep[stop.rank] = false;
        poll(stop.rank);
        step_application(stop.rank, starts[stop.rank]);
    }
}

static void dump(FILE *out)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        char text[2000], *schedule;
        if (!w.run[r])
            return;
        schedule_run_pending(w.run[r], text, sizeof text);
        EXPECT_OK(sched_print(w.run[r]->sched, "text", &schedule));
        fprintf(out, "rank %u: %s\n%s", r, text, schedule);
        free(schedule);
    }
}

static void check_finished(uint64_t runs)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        EXPECT(atomic_load(&w.run[r]->finished) == runs,
               "rank %u has finished %llu of %llu runs", r,
               (unsigned long long)atomic_load(&w.run[r]->finished),
               (unsigned long long)runs);
}

static void close_all(void)
{
    struct sim_stop stop;
    for (uint32_t r = 0; r < w.ranks; r++) {
        EXPECT_OK(schedule_run_close(w.run[r]));
        poll(r);
    }
    while (sim_step(w.sim, &stop))
        poll(stop.rank);
    for (uint32_t r = 0; r < w.ranks; r++)
        EXPECT(atomic_load(&w.run[r]->closing) == RUN_CLOSED, "rank %u is not closed",
               r);
}

static void test_random(uint64_t seed)
{
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    create(seed);
    uint64_t starts[RANKS];
    for (uint32_t r = 0; r < RANKS; r++)
        starts[r] = w.runs;
    run(starts);
    check_finished(w.runs);
    for (uint64_t i = 0; i < w.runs; i++)
        evaluate(w.expected);
    EXPECT(!memcmp(w.expected, w.real, sizeof w.real), "another result");
    if (draw(2)) { /* some start once more, and all leave */
        memory before;
        memcpy(before, w.real, sizeof before);
        for (uint32_t r = 0; r < w.ranks; r++)
            starts[r] += draw(2);
        run(starts);
        uint64_t most = 0;
        for (uint32_t r = 0; r < w.ranks; r++)
            most = starts[r] > most ? starts[r] : most;
        close_all();
        check_finished(most);
        for (uint32_t r = 0; r < w.ranks; r++)
            EXPECT(starts[r] == most || !memcmp(before[r], w.real[r], sizeof before[r]),
                   "rank %u: memory changed in a run that it has not started", r);
    } else
        close_all();
    destroy();
}

/* A gate of 1 of 2 must open early: its second predecessor waits for an operation
 * behind the gate. */
static void test_opens_early(void)
{
    enum { GO, NEAR, FAR };
    pcoll_buffer one = {.count = 1, .dtype = PCOLL_INT64};
    snprintf(check_context, sizeof check_context, "opens early");
    for (uint32_t k = 1; k <= 2; k++) {
        memset(&w, 0, sizeof w);
        w.ranks = 3;
        int32_t in[2], out, first;
        for (uint32_t r = 0; r < w.ranks; r++)
            w.builder[r] = (struct builder){.rank = r, .size = w.ranks};
        EXPECT_OK(
            builder_recv(&w.builder[0], w.real[0][NEAR], &one, 1, 0, NULL, &in[0]));
        EXPECT_OK(
            builder_recv(&w.builder[0], w.real[0][FAR], &one, 2, 0, NULL, &in[1]));
        EXPECT_OK(builder_send(&w.builder[0], w.real[0][GO], &one, 2, 0, NULL, &out));
        EXPECT_OK(builder_after(&w.builder[0], out, in, 2, k));
        EXPECT_OK(builder_send(&w.builder[1], w.real[1][GO], &one, 0, 0, NULL, &out));
        EXPECT_OK(
            builder_recv(&w.builder[2], w.real[2][NEAR], &one, 0, 0, NULL, &first));
        EXPECT_OK(builder_send(&w.builder[2], w.real[2][GO], &one, 0, 0, NULL, &out));
        EXPECT_OK(builder_after(&w.builder[2], out, &first, 1, 0));
        EXPECT_OK(sim_create(
            &(struct sim_options){.size = 3, .seed = 1, .hostile = true}, &w.sim));
        for (uint32_t r = 0; r < w.ranks; r++)
            EXPECT_OK(
                communicator_create(sim_endpoint(w.sim, r), NULL, &w.communicator[r]));
        commit_all();
        run((uint64_t[RANKS]){1, 1, 1});
        bool over = atomic_load(&w.run[0]->finished) == 1;
        EXPECT(over == (k == 1), "%u of 2: over %d", k, over);
        char text[500];
        schedule_run_pending(w.run[0], text, sizeof text);
        EXPECT(over ||
                   strstr(text, "operation 1 (RECV 1 int64 tag 0) waits for rank 2"),
               "%s", text);
        destroy();
    }
}

/* into = from op into, with from on the left: a NaN on the left wins MAX, one on the
 * right loses. */
static void test_operands(void)
{
    double x[2] = {NAN, 1}, y[2] = {1, NAN};
    pcoll_buffer one = {.count = 1, .dtype = PCOLL_FLOAT64, .op = PCOLL_MAX};
    int op;
    snprintf(check_context, sizeof check_context, "operands");
    memset(&w, 0, sizeof w);
    w.ranks = 1;
    w.builder[0] = (struct builder){.rank = 0, .size = 1};
    EXPECT_OK(builder_reduce(&w.builder[0], &x[0], &x[1], &one, NULL, &op));
    EXPECT_OK(builder_reduce(&w.builder[0], &y[0], &y[1], &one, NULL, &op));
    EXPECT_OK(sim_create(&(struct sim_options){.size = 1, .seed = 1}, &w.sim));
    EXPECT_OK(communicator_create(sim_endpoint(w.sim, 0), NULL, &w.communicator[0]));
    commit_all();
    run((uint64_t[RANKS]){1});
    EXPECT(isnan(x[1]) && y[1] == 1, "%g, %g", x[1], y[1]);
    destroy();
}

/* Check that a commit is refused. */

static void refuse(struct builder *d, const char *part)
{
    struct sched *s = NULL;
    EXPECT(builder_commit(d, &s) == PCOLL_EINVAL && !s, "accepted: %s", part);
    EXPECT(strstr(pcoll_last_error(), part), "expected \"%s\", got \"%s\"", part,
           pcoll_last_error());
    builder_destroy(d);
}

static void test_refused(void)
{
    int64_t x[8] = {0};
    pcoll_buffer four = {.count = 4, .dtype = PCOLL_INT64, .op = PCOLL_SUM};
    struct builder d = {.rank = 0, .size = 2};
    int32_t a, b, c, behind;
    snprintf(check_context, sizeof check_context, "refused");

    builder_nop(&d, "behind", &behind); /* not on the cycle, and first in the list */
    builder_nop(&d, "one", &a);
    builder_nop(&d, "two", &b);
    builder_after(&d, a, &b, 1, 0);
    builder_after(&d, b, &a, 1, 0);
    builder_after(&d, behind, &b, 1, 0);
    struct sched *s = NULL;
    EXPECT(builder_commit(&d, &s) == PCOLL_EINVAL, "a cycle was accepted");
    EXPECT(!strstr(pcoll_last_error(), "behind"), "%s", pcoll_last_error());
    refuse(&d, "depends on itself");

    builder_recv(&d, x, &four, 0, 0, "in", &a); /* from itself */
    builder_send(&d, x + 4, &four, 0, 0, "out", &b);
    builder_after(&d, b, &a, 1, 0);
    refuse(&d, "depends on itself");

    builder_recv(&d, x, &four, 1, 0, "in", &a);
    builder_send(&d, x + 3, &four, 1, 0, "out", &b);
    refuse(&d, "use the same memory");

    /* 1 of 2 does not ensure that the receive is complete; 2 of 2 does. */
    for (uint32_t k = 1; k <= 2; k++) {
        builder_recv(&d, x, &four, 1, 0, "in", &a);
        builder_nop(&d, "other", &b);
        builder_copy(&d, x, x + 4, &four, "use", &c);
        builder_after(&d, c, (int32_t[]){a, b}, 2, k);
        if (k == 1)
            refuse(&d, "use the same memory");
    }
    EXPECT_OK(builder_commit(&d, &s));
    sched_free(&s);
    builder_destroy(&d);

    builder_nop(&d, "one", &a);
    builder_nop(&d, "two", &b);
    builder_after(&d, b, (int32_t[]){a, a}, 2, 2); /* a duplicate counts once */
    refuse(&d, "needs 2 of 1");

    EXPECT(builder_after(&d, 0, &a, 1, 0) == PCOLL_EINVAL, "a foreign operation");
    EXPECT(builder_send(&d, x, &four, 2, 0, NULL, &a) == PCOLL_EINVAL, "rank 2 of 2");
    EXPECT(builder_send(&d, x, &four, 1, -1, NULL, &a) == PCOLL_EINVAL, "tag -1");
    EXPECT(builder_send(&d, NULL, &four, 1, 0, NULL, &a) == PCOLL_EINVAL, "NULL");
    EXPECT(builder_timer(&d, -1, NULL, &a) == PCOLL_EINVAL, "a negative time");
    EXPECT(builder_reduce(&d, x, x + 1, &four, NULL, &a) == PCOLL_EINVAL, "overlap");
    EXPECT(!d.count, "something was added");
}

/* Reductions into one place need no order. */
static void test_accumulate(void)
{
    int64_t x[3] = {1, 2, 3};
    pcoll_buffer one = {.count = 1, .dtype = PCOLL_INT64, .op = PCOLL_SUM};
    struct builder d = {.rank = 0, .size = 1};
    struct sched *s = NULL;
    int op;
    builder_reduce(&d, &x[0], &x[2], &one, NULL, &op);
    builder_reduce(&d, &x[1], &x[2], &one, NULL, &op);
    EXPECT_OK(builder_commit(&d, &s));
    sched_free(&s);
    one.op = PCOLL_MAX;
    builder_reduce(&d, &x[1], &x[2], &one, NULL, &op);
    refuse(&d, "use the same memory");
}

/* Check the error message for messages from rank 0 that do not match those that 1
 * expects. */
static void mismatch(int sent, int received, uint64_t count, int dtype,
                     const char *part)
{
    int64_t x[100];
    pcoll_buffer four = {.count = 4, .dtype = PCOLL_INT64},
                 other = {.count = count, .dtype = dtype};
    struct builder d[2] = {{.rank = 0, .size = 2}, {.rank = 1, .size = 2}};
    uint64_t words[100], sum[DIGEST_WORDS], digest[DIGEST_WORDS];
    int op;
    for (int i = 0; i < sent; i++)
        EXPECT_OK(builder_send(&d[0], x, &four, 1, 5, NULL, &op));
    for (int i = 0; i < received; i++)
        EXPECT_OK(builder_recv(&d[1], x, &other, 0, 5, NULL, &op));
    for (int r = 0; r < 2; r++)
        EXPECT_OK(builder_number_messages(&d[r]));
    builder_digest_messages(&d[0], sum);
    builder_digest_messages(&d[1], digest);
    builder_write_messages(&d[0], words);
    builder_write_messages(&d[1], words + (uint64_t)sent * MESSAGE_WORDS);
    bool equal = !(sum[0] + digest[0]) && !(sum[1] + digest[1]);
    int rc = builder_compare_messages(words, (uint64_t)(sent + received));
    EXPECT(equal == !part && rc == (part ? PCOLL_EMISMATCH : PCOLL_OK), "%d", rc);
    EXPECT(!part || strstr(pcoll_last_error(), part), "expected \"%s\", got \"%s\"",
           part, pcoll_last_error());
    builder_destroy(&d[0]);
    builder_destroy(&d[1]);
}

static void test_mismatch(void)
{
    snprintf(check_context, sizeof check_context, "mismatch");
    mismatch(3, 3, 4, PCOLL_INT64, NULL);
    mismatch(3, 2, 4, PCOLL_INT64,
             "tag 5, rank 0 sends 3 messages to rank 1, and rank 1 receives 2");
    mismatch(0, 1, 4, PCOLL_INT64, "rank 0 sends 0 messages to rank 1");
    mismatch(2, 2, 5, PCOLL_INT64,
             "from rank 0 to rank 1 is 4 int64 where rank 0 sends it, and 5 int64");
    mismatch(1, 1, 4, PCOLL_FLOAT64, "4 float64 where rank 1 receives it");
}

/* Messages of different tags may be posted in different orders. */
static void test_tags(void)
{
    enum { TAGS = 3, EACH = 20 };
    int64_t x[TAGS][EACH], y[TAGS][EACH];
    pcoll_buffer one = {.count = 1, .dtype = PCOLL_INT64};
    int op;
    snprintf(check_context, sizeof check_context, "tags");
    memset(&w, 0, sizeof w);
    w.ranks = 2;
    for (uint32_t r = 0; r < w.ranks; r++)
        w.builder[r] = (struct builder){.rank = r, .size = w.ranks};
    for (int i = 0; i < TAGS * EACH; i++) {
        int a = i % TAGS, b = TAGS - 1 - i / EACH;
        x[a][i / TAGS] = 100 * a + i / TAGS;
        EXPECT_OK(builder_send(&w.builder[0], &x[a][i / TAGS], &one, 1, a, NULL, &op));
        EXPECT_OK(builder_recv(&w.builder[1], &y[b][i % EACH], &one, 0, b, NULL, &op));
    }
    EXPECT_OK(sim_create(&(struct sim_options){.size = 2, .seed = 1}, &w.sim));
    for (uint32_t r = 0; r < w.ranks; r++)
        EXPECT_OK(
            communicator_create(sim_endpoint(w.sim, r), NULL, &w.communicator[r]));
    commit_all();
    EXPECT(w.run[0]->base.slots == 2, "%u slots for %d tags", w.run[0]->base.slots,
           TAGS * EACH);
    run((uint64_t[RANKS]){1, 1});
    EXPECT(!memcmp(x, y, sizeof x), "messages of different tags are mixed up");
    destroy();
}

int main(void)
{
    check_dump = dump;
    test_refused();
    test_accumulate();
    test_mismatch();
    test_opens_early();
    test_operands();
    test_tags();
    check_seeds(10000, test_random);
    printf("programs: all tests passed\n");
    return 0;
}
