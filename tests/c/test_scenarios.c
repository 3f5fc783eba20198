/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenarios of tests/scenarios, played by the simulator: the transcripts are what
 * they were. With "write" as argument they are written anew, to be read before they are
 * kept.
 */
#include <glob.h>
#include <string.h>

#include "check.h"
#include "domain/node.h"
#include "narrator.h"
#include "scenario.h"

enum token { AGENT, DOORBELL, ACTION };
enum phase { IDLE, WAITING, JOINING, FREEING };

struct player {
    struct communicator *communicator;
    struct endpoint *endpoint;
    enum phase phase;
    int next; /* action */
};

struct stage {
    struct scenario s;
    struct sim *sim;
    struct player player[SCENARIO_RANKS];
    void *memory[SCENARIO_RANKS]; /* by domain */
};

static void wake(void *arg, uint32_t rank)
{
    struct stage *stage = arg;
    sim_wake(stage->sim, rank, 0, DOORBELL);
}

static void alert(void *arg, uint32_t rank)
{
    struct stage *stage = arg;
    struct player *p = &stage->player[rank];
    if (p->endpoint)
        communicator_notify(p->communicator, &p->endpoint->base);
    sim_wake(stage->sim, rank, 0, AGENT);
}

static int64_t now(void *arg)
{
    return sim_now(((struct stage *)arg)->sim);
}

static void settle(struct stage *stage, uint32_t rank)
{
    struct endpoint *v = stage->player[rank].endpoint;
    const pcoll_options *options = &stage->s.options;
    void **memory = &stage->memory[v->placement.index];
    if (v->placement.members == 1) {
        EXPECT_OK(endpoint_settle(v, options, domain_single_create, &rank));
        return;
    }
    size_t bytes = node_bytes(&v->shape, options, &v->placement);
    if (!*memory) {
        *memory = aligned_alloc(64, bytes);
        EXPECT(*memory, "no memory for a domain");
        memset(*memory, 0, bytes);
    }
    struct node_hooks hooks = {.memory = *memory,
                               .placement = &v->placement,
                               .slot = &v->base.slot,
                               .arg = stage,
                               .wake = wake,
                               .alert = alert,
                               .now = now,
                               .frozen = narrator_frozen};
    EXPECT_OK(endpoint_settle(v, options, domain_node_create, &hooks));
}

static void create_rank(struct stage *stage, uint32_t rank)
{
    const struct scenario *s = &stage->s;
    struct player *p = &stage->player[rank];
    pcoll_buffer buffer = {
        .count = s->elements, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    struct endpoint_spec spec = {.ranks = s->ranks,
                                 .hosts = s->shares ? s->hosts : NULL,
                                 .buffers = &buffer,
                                 .nbuffers = 1,
                                 .options = &s->options};
    EXPECT_OK(communicator_create(narrator_transport(rank), NULL, &p->communicator));
    EXPECT_OK(endpoint_create(p->communicator, &spec, &p->endpoint));
    settle(stage, rank);
    EXPECT_OK(endpoint_open(p->endpoint));
    EXPECT_OK(communicator_register(p->communicator, &p->endpoint->base, 0));
    narrator_follow(p->endpoint);
}

static void schedule(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    const struct program *program = &stage->s.program[rank];
    if (p->next == program->count)
        return;
    int64_t delay = program->action[p->next].at - sim_now(stage->sim);
    sim_wake(stage->sim, rank, delay > 0 ? delay : 0, ACTION);
}

static void create(struct stage *stage, FILE *out)
{
    const struct scenario *s = &stage->s;
    struct sim_options options = {
        .size = s->ranks, .seed = 1, .in_order = true, .network = {.L = s->latency}};
    EXPECT_OK(sim_create(&options, &stage->sim));
    narrator_begin(out, stage->sim);
    for (uint32_t r = 0; r < s->ranks; r++)
        create_rank(stage, r);
    for (uint32_t r = 0; r < s->ranks; r++)
        schedule(stage, r);
}

static void destroy(struct stage *stage)
{
    for (uint32_t r = 0; r < stage->s.ranks; r++) {
        endpoint_destroy(&stage->player[r].endpoint);
        communicator_destroy(&stage->player[r].communicator);
    }
    for (uint32_t r = 0; r < stage->s.ranks; r++)
        free(stage->memory[r]);
    sim_free(&stage->sim);
}

/* It waits, and is woken when it shares memory with who has what it waits for. */
static void wait(struct player *p, enum phase phase)
{
    struct domain *d = p->endpoint->domain;
    p->phase = phase;
    d->ops->sleeps(d, true);
}

static void deposit(struct player *p, uint32_t rank, double value, uint64_t elements)
{
    static const char *const outcomes[] = {
        [DEPOSIT_ARRIVED] = "it arrives",
        [DEPOSIT_STORED] = "its round has begun, it is kept",
        [DEPOSIT_DROPPED] = "its round has begun, it is dropped"};
    struct domain *d = p->endpoint->domain;
    enum deposit_outcome outcome;
    double values[elements];
    for (uint64_t i = 0; i < elements; i++)
        values[i] = value;
    EXPECT_OK(d->ops->deposit(d, (const void *[]){values}, &outcome));
    narrate(rank, "deposits %g: %s", value, outcomes[outcome]);
    endpoint_deposited(p->endpoint, outcome);
    wait(p, WAITING);
}

static void act(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    struct domain *d = p->endpoint->domain;
    const struct action *a = &stage->s.program[rank].action[p->next++];
    switch (a->kind) {
    case ACT_DEPOSIT:
        deposit(p, rank, a->value, stage->s.elements);
        break;
    case ACT_JOIN:
        narrate(rank, "joins");
        EXPECT_OK(d->ops->change(d, member_join));
        endpoint_poll(p->endpoint, false);
        wait(p, JOINING);
        break;
    case ACT_LEAVE:
        narrate(rank, "leaves");
        EXPECT_OK(d->ops->change(d, member_leave));
        endpoint_poll(p->endpoint, false);
        schedule(stage, rank);
        break;
    case ACT_FREE:
        narrate(rank, "frees its handle");
        EXPECT_OK(endpoint_close(p->endpoint));
        p->phase = FREEING;
    }
}

/* One result, if there is one up to this round. */
static bool take(struct stage *stage, uint32_t rank, uint64_t last, pcoll_round *r)
{
    struct endpoint *v = stage->player[rank].endpoint;
    double values[stage->s.elements];
    uint64_t masks[3 * bitset_words(stage->s.ranks)];
    bool moved = false;
    int rc = v->domain->ops->deliver(v->domain, last, UINT64_MAX, (void *[]){values}, r,
                                     masks, &moved);
    if (rc == PCOLL_EEMPTY)
        return false;
    EXPECT_OK(rc);
    for (uint64_t i = 1; i < stage->s.elements; i++)
        EXPECT(values[i] == values[0], "element %llu", (unsigned long long)i);
    char lost[40] = "";
    if (r->lost)
        snprintf(lost, sizeof lost, ", %llu rounds lost", (unsigned long long)r->lost);
    narrate(rank, "takes round %llu: %g of %u%s%s%s%s", (unsigned long long)r->index,
            values[0], r->active, r->included ? ", its own included" : "",
            r->below_quorum ? ", below the quorum" : "",
            r->joined ? ", all joined" : "", lost);
    if (moved)
        endpoint_poll(v, false);
    return true;
}

static void finish(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    struct domain *d = p->endpoint->domain;
    EXPECT_OK(d->ops->change(d, member_finish));
    p->phase = IDLE;
    schedule(stage, rank);
}

/* What it was waiting for is there. */
static void receive(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    struct domain *d = p->endpoint->domain;
    struct member m;
    pcoll_round r;
    d->ops->sleeps(d, false);
    d->ops->snapshot(d, &m);
    uint64_t last = m.deliver == PCOLL_DELIVER_ONE ? m.delivered : m.complete - 1;
    EXPECT(take(stage, rank, UINT64_MAX, &r), "rank %u: nothing there", rank);
    while (p->phase == WAITING && take(stage, rank, last, &r))
        ;
    if (p->phase == WAITING || r.joined)
        finish(stage, rank);
    else
        wait(p, JOINING);
}

/* True if it could go on. */
static bool advance(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    struct domain *d = p->endpoint->domain;
    if (p->phase == FREEING && atomic_load(&p->endpoint->closing) == CLOSED) {
        narrate(rank, "has freed its handle");
        p->phase = IDLE;
        schedule(stage, rank);
    } else if (p->phase == WAITING || p->phase == JOINING) {
        if (!d->ops->ready(d) && d->members > 1)
            endpoint_help(p->endpoint);
        if (!d->ops->ready(d))
            return false;
        receive(stage, rank);
        return true;
    }
    return false;
}

static void run_rank(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    do
        while (communicator_poll(p->communicator) > 0)
            ;
    while (advance(stage, rank));
    EXPECT_OK(communicator_check(p->communicator));
}

/* Nothing is left to happen. */
static void tell_who_waits(struct stage *stage)
{
    static const char *const waits[] = {[WAITING] = "waits for a round",
                                        [JOINING] = "waits for all to join",
                                        [FREEING] = "waits for all to free"};
    for (uint32_t r = 0; r < stage->s.ranks; r++)
        if (stage->player[r].phase != IDLE)
            narrate(r, "%s, still", waits[stage->player[r].phase]);
}

static void play(struct stage *stage, FILE *out)
{
    struct sim_stop stop;
    create(stage, out);
    while (sim_step(stage->sim, &stop)) {
        if (stop.woken && stop.token == ACTION)
            act(stage, stop.rank);
        run_rank(stage, stop.rank);
    }
    tell_who_waits(stage);
    destroy(stage);
}

static char *contents(const char *path)
{
    FILE *file = fopen(path, "r");
    EXPECT(file, "%s cannot be read", path);
    char *text = calloc(1, 1 << 16);
    size_t length = fread(text, 1, (1 << 16) - 1, file);
    EXPECT(length && length < (1 << 16) - 1, "%s: too long", path);
    fclose(file);
    return text;
}

static void write_anew(const char *path, const char *head, size_t length,
                       const char *transcript)
{
    FILE *file = fopen(path, "w");
    EXPECT(file, "%s cannot be written", path);
    fwrite(head, 1, length, file);
    fprintf(file, "%s%s", head[length - 3] == '-' ? "" : "--\n", transcript);
    EXPECT(!fclose(file), "%s cannot be written", path);
}

static void compare(const char *path, const char *expected, const char *seen)
{
    for (int line = 1; *expected || *seen; line++) {
        int wanted = (int)strcspn(expected, "\n"), got = (int)strcspn(seen, "\n");
        EXPECT(wanted == got && !memcmp(expected, seen, (size_t)got),
               "%s: line %d of the transcript\n  expected: %.*s\n  got:      %.*s",
               path, line, wanted, expected, got, seen);
        expected += wanted + (expected[wanted] != 0);
        seen += got + (seen[got] != 0);
    }
}

static void run(const char *path, bool writes)
{
    struct stage *stage = calloc(1, sizeof *stage);
    char *text = contents(path), *seen = NULL;
    size_t length;
    FILE *out = open_memstream(&seen, &length);
    const char *transcript = scenario_read(path, text, &stage->s);
    play(stage, out);
    fclose(out);
    if (writes)
        write_anew(path, text, (size_t)(transcript - text), seen);
    else
        compare(path, transcript, seen);
    free(seen);
    free(text);
    free(stage);
}

int main(int argc, char **argv)
{
    glob_t files;
    EXPECT(!glob("tests/scenarios/*.txt", 0, NULL, &files), "no scenarios here");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        snprintf(check_context, sizeof check_context, "%s\n", files.gl_pathv[i]);
        run(files.gl_pathv[i], argc > 1 && !strcmp(argv[1], "write"));
    }
    printf("scenarios: all %zu as they were\n", files.gl_pathc);
    globfree(&files);
    return 0;
}
