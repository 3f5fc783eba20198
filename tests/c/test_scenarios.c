/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator plays the scenarios of tests/scenarios. The transcripts must not change. With the
 * argument "write" they are rewritten; read them before you commit them.
 */
#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "allreduce/control.h"
#include "allreduce/endpoint.h"
#include "check.h"
#include "domain/node.h"
#include "transport/sim/sim_transport.h"

/*
 * A scenario: the actions of some ranks with their times, and the resulting transcript. Each file
 * of tests/scenarios has one: an explanation in lines that begin with "#", settings and the
 * ranks' programs, a line "--", the transcript. The README.md there explains the format.
 */

enum { SCENARIO_RANKS = 16, SCENARIO_ACTIONS = 16 };

enum action_kind { ACT_DEPOSIT, ACT_JOIN, ACT_LEAVE, ACT_FREE };

struct action {
    enum action_kind kind;
    double value; /* of a deposit */
    int64_t at;   /* ns; later if the previous action has not ended by then */
};

struct program {
    int count;
    struct action action[SCENARIO_ACTIONS];
};

struct scenario {
    uint32_t ranks;
    uint64_t hosts[SCENARIO_RANKS];
    bool shares; /* some ranks share memory */
    uint64_t elements;
    double latency; /* ns */
    pcoll_options options;
    struct program program[SCENARIO_RANKS];
};

static int64_t const MICROSECOND = 1000;

struct line {
    const char *file;
    int number;
    char *rest; /* unread part */
};

static _Noreturn void refuse(const struct line *l, const char *expected)
{
    fprintf(stderr, "%s:%d: expected %s\n", l->file, l->number, expected);
    check_failed();
}

/* Return the next word, or NULL. */
static char *word(struct line *l)
{
    return strtok_r(NULL, " ,:", &l->rest);
}

static double number(struct line *l)
{
    char *text = word(l), *end = text;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end)
        refuse(l, "a number");
    return value;
}

static int64_t time_of(struct line *l)
{
    return (int64_t)(number(l) * (double)MICROSECOND);
}

/* Return the index of a word among these. */
static int one_of(struct line *l, const char *text, const char *const *names, int count)
{
    for (int i = 0; text && i < count; i++)
        if (!strcmp(text, names[i]))
            return i;
    refuse(l, "another word");
}

#define ONE_OF(l, text, ...)                                                           \
    one_of(l, text, (const char *const[]){__VA_ARGS__},                                \
           (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)))

/* deposit 3 at 5 */
static void read_action(struct line *l, struct program *p, const char *verb)
{
    if (p->count == SCENARIO_ACTIONS)
        refuse(l, "fewer actions");
    struct action *a = &p->action[p->count++];
    a->kind = (enum action_kind)ONE_OF(l, verb, "deposit", "join", "leave", "free");
    if (a->kind == ACT_DEPOSIT)
        a->value = number(l);
    ONE_OF(l, word(l), "at");
    a->at = time_of(l);
}

/* nodes 0 1 | 2 3 */
static void read_nodes(struct line *l, struct scenario *s)
{
    uint64_t host = 1;
    s->shares = true;
    for (uint32_t r = 0; r < s->ranks;) {
        const char *text = word(l);
        if (!text)
            refuse(l, "all ranks in order, with | between nodes");
        if (!strcmp(text, "|"))
            host++;
        else if ((uint32_t)atoi(text) == r)
            s->hosts[r++] = host;
        else
            refuse(l, "the ranks in order");
    }
}

static void read_program(struct line *l, struct scenario *s)
{
    uint32_t rank = (uint32_t)number(l);
    if (rank >= s->ranks)
        refuse(l, "a rank (ranks come first)");
    for (char *verb; (verb = word(l));)
        read_action(l, &s->program[rank], verb);
}

static void read_setting(struct line *l, struct scenario *s, const char *name)
{
    pcoll_options *o = &s->options;
    if (!strcmp(name, "ranks")) {
        s->ranks = (uint32_t)number(l);
        if (!s->ranks || s->ranks > SCENARIO_RANKS)
            refuse(l, "1 to 16 ranks");
    } else if (!strcmp(name, "policy"))
        EXPECT_OK(pcoll_policy_parse(strtok_r(NULL, "", &l->rest), &o->policy));
    else if (!strcmp(name, "late"))
        o->late = ONE_OF(l, word(l), "carry", "latest", "drop");
    else if (!strcmp(name, "deliver"))
        o->deliver = ONE_OF(l, word(l), "one", "all");
    else if (!strcmp(name, "history"))
        o->history = (uint32_t)number(l);
    else if (!strcmp(name, "algorithm"))
        o->algorithm = PCOLL_ALGORITHM_RECDBL +
                       ONE_OF(l, word(l), "recdbl", "rabenseifner", "ring");
    else if (!strcmp(name, "elements"))
        s->elements = (uint64_t)number(l);
    else if (!strcmp(name, "latency"))
        s->latency = (double)time_of(l);
    else if (!strcmp(name, "nodes"))
        read_nodes(l, s);
    else if (!strcmp(name, "rank"))
        read_program(l, s);
    else
        refuse(l, "a setting");
}

/* Parse a scenario. Return its transcript. End the program at a line that
 * cannot be read. */
static const char *scenario_read(const char *file, const char *text,
                                 struct scenario *out)
{
    *out = (struct scenario){.elements = 1, .latency = 2.0 * (double)MICROSECOND};
    out->options.history = 4;
    out->options.seed = 1;
    out->options.algorithm = PCOLL_ALGORITHM_RECDBL;
    struct line line = {.file = file};
    while (*text) {
        const char *end = strchr(text, '\n');
        EXPECT(end && end - text < 200, "%s:%d: too long", file, line.number);
        char copy[200], *rest = copy;
        memcpy(copy, text, (size_t)(end - text));
        copy[end - text] = 0;
        line.number++;
        text = end + 1;
        if (!strcmp(copy, "--"))
            return text;
        char *name = strtok_r(copy, " ", &rest);
        line.rest = rest;
        if (name && *name != '#')
            read_setting(&line, out, name);
    }
    return text;
}

/*
 * Write the transcript of simulated ranks: their messages, when a round takes their deposits,
 * and when it completes. It hooks into the two interfaces of an endpoint, transport and domain,
 * and changes nothing. One simulation at a time.
 */

enum { TEXT = 200 };

static FILE *out;
static struct sim *sim;
static struct endpoint *followed[SCENARIO_RANKS];
/* The wrapped functions. */
static const struct transport_ops *wire;
static struct transport_ops told_wire;
static const struct domain_ops *domain[SCENARIO_RANKS];
static struct domain_ops told_domain[SCENARIO_RANKS];

/* Write a line with the time and the rank. */
__attribute__((format(printf, 2, 3))) static void narrate(uint32_t rank,
                                                          const char *format, ...)
{
    va_list arguments;
    fprintf(out, "%8.1f  rank %u ", (double)sim_now(sim) / 1e3, rank);
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fputc('\n', out);
}

static const char *narrator_set(const uint64_t *set, uint32_t ranks)
{
    static char text[TEXT];
    int used = 0;
    for (uint32_t r = 0; r < ranks; r++)
        if (bitset_has(set, r))
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%u",
                             used ? " " : "", r);
    text[used] = 0;
    return text;
}

static const char *sum_of(uint32_t ranks, const struct round_header *h,
                          const void *payload)
{
    static char text[2 * TEXT];
    double first;
    if (round_is_null(h, ranks))
        return "nothing";
    memcpy(&first, payload, sizeof first);
    uint64_t active[TEXT / 64] = {0};
    round_apply(h, ranks, ROUND_ACTIVE, active, true);
    snprintf(text, sizeof text, "%g of rank%s %s", first,
             bitset_count(active, bitset_words(ranks)) > 1 ? "s" : "",
             narrator_set(active, ranks));
    return text;
}

static const char *narrator_sum(const struct endpoint *v, const struct round_header *h)
{
    return sum_of(v->shape.ranks, h, message_payload(h));
}

/* Return the sum in a message, whose header follows the data. */
static const char *message_sum(const struct endpoint *v, const char *data, size_t bytes)
{
    static struct round_header header[TEXT / sizeof(struct round_header)];
    uint32_t ranks = v->shape.ranks;
    const struct round_header *last = (const struct round_header *)(data + bytes) - 1;
    size_t wire = round_header_length(last, ranks);
    uint64_t round = last->round;
    struct round_header *h = header + sizeof header / sizeof *header - 1;
    CHECK(round_header_bytes(ranks) <= sizeof header);
    CHECK(round_header_decode(h, data + bytes - wire, wire, ranks, round) == PCOLL_OK);
    return sum_of(ranks, h, data);
}

static int send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                size_t bytes, uint64_t cookie)
{
    const struct endpoint *v = followed[t->rank];
    if (v->data.plan.algorithm == PCOLL_ALGORITHM_RECDBL) /* messages are whole
                                                           * vectors */
        narrate(t->rank, "-> rank %u: %s", peer, message_sum(v, data, bytes));
    else
        narrate(t->rank, "-> rank %u: a part of the data, %zu bytes", peer, bytes);
    return wire->send(t, peer, tag, data, bytes, cookie);
}

static int control(struct transport *t, uint32_t peer, const struct control *m)
{
    unsigned long long round = m->round;
    switch ((enum control_kind)m->kind) {
    case CONTROL_ACTIVATE:
        narrate(t->rank, "-> rank %u: activates round %llu", peer, round);
        break;
    case CONTROL_REPORT:
        narrate(t->rank, "-> rank %u: reports for round %llu: %u arrived, %u drawn",
                peer, round, (unsigned)(m->value[0] >> 32), (unsigned)m->value[0]);
        break;
    case CONTROL_LAST:
        narrate(t->rank, "-> rank %u: sends nothing any more", peer);
        break;
    default:
        narrate(t->rank, "-> rank %u: control message %u", peer, m->kind);
    }
    return wire->control(t, peer, m);
}

static struct endpoint *endpoint_of(const struct domain *d)
{
    for (uint32_t r = 0; r < SCENARIO_RANKS; r++)
        if (followed[r] && followed[r]->domain == d)
            return followed[r];
    EXPECT(false, "unknown domain");
    return NULL;
}

static uint32_t rank_of(const struct endpoint *v)
{
    return v->communicator->transport->rank;
}

static void told_frozen(uint32_t rank, uint64_t round, bool null)
{
    narrate(rank, null ? "has nothing in round %llu" : "has its deposit in round %llu",
            (unsigned long long)round);
}

static void narrator_frozen(void *arg, uint32_t rank, uint64_t round,
                            const struct round_header *h, const void *payload)
{
    (void)arg;
    (void)h;
    told_frozen(rank, round, !payload);
}

static struct round_header *freeze(struct domain *d, uint64_t round)
{
    struct endpoint *v = endpoint_of(d);
    uint32_t rank = rank_of(v);
    struct round_header *h = domain[rank]->freeze(d, round);
    if (h && v->initiator != ROUND_NOBODY)
        narrate(rank, "starts round %llu", (unsigned long long)round);
    if (h && v->placement.members == 1)
        told_frozen(rank, round, round_is_null(h, v->shape.ranks));
    return h;
}

static void publish(struct domain *d, uint64_t round)
{
    const struct endpoint *v = endpoint_of(d);
    uint32_t rank = rank_of(v);
    narrate(rank, "completes round %llu: %s", (unsigned long long)round,
            narrator_sum(v, node_result(d, round)));
    domain[rank]->publish(d, round);
}

static void narrator_begin(FILE *stream, struct sim *s)
{
    out = stream;
    sim = s;
    memset(followed, 0, sizeof followed);
}

static struct transport *narrator_transport(uint32_t rank)
{
    struct transport *t = sim_endpoint(sim, rank);
    if (t->ops != &told_wire) {
        wire = t->ops;
        told_wire = *wire;
        told_wire.send = send;
        told_wire.control = control;
        t->ops = &told_wire;
    }
    return t;
}

static void narrator_follow(struct endpoint *v)
{
    uint32_t rank = rank_of(v);
    followed[rank] = v;
    domain[rank] = v->domain->ops;
    told_domain[rank] = *v->domain->ops;
    if (told_domain[rank].freeze)
        told_domain[rank].freeze = freeze;
    if (told_domain[rank].publish)
        told_domain[rank].publish = publish;
    v->domain->ops = &told_domain[rank];
}

/* Play a scenario. */

enum token { AGENT, DOORBELL, ACTION };
enum phase { IDLE, WAITING, JOINING, FREEING };

struct player {
    struct communicator *communicator;
    struct endpoint *endpoint;
    enum phase phase;
    int next; /* index of the next action */
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
        EXPECT_OK(endpoint_settle_alone(v));
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
    EXPECT_OK(endpoint_settle(v, domain_node_create, &hooks));
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

/* Wait. If the rank shares memory, it is woken by the rank that completes the round. */
static void wait(struct player *p, enum phase phase)
{
    struct domain *d = p->endpoint->domain;
    p->phase = phase;
    node_sleeps(d, true);
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

/* Take one result up to this round, if there is one. */
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

/* The round that the rank was waiting for is available. */
static void receive(struct stage *stage, uint32_t rank)
{
    struct player *p = &stage->player[rank];
    struct domain *d = p->endpoint->domain;
    struct member m;
    pcoll_round r;
    node_sleeps(d, false);
    node_snapshot(d, &m);
    uint64_t last = m.deliver == PCOLL_DELIVER_ONE ? m.delivered : m.complete - 1;
    EXPECT(take(stage, rank, UINT64_MAX, &r), "rank %u: nothing there", rank);
    while (p->phase == WAITING && take(stage, rank, last, &r))
        ;
    if (p->phase == WAITING || r.joined)
        finish(stage, rank);
    else
        wait(p, JOINING);
}

/* Return whether the rank could make progress. */
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

/* Nothing is left to happen: report which ranks still wait. */
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
