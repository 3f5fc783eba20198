/* SPDX-License-Identifier: Apache-2.0 */
#include "scenario.h"

#include <string.h>

#include "check.h"

static int64_t const MICROSECOND = 1000;

struct line {
    const char *file;
    int number;
    char *rest; /* what has not been read yet */
};

static _Noreturn void refuse(const struct line *l, const char *expected)
{
    fprintf(stderr, "%s:%d: expected %s\n", l->file, l->number, expected);
    check_failed();
}

/* The next word, or NULL. */
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

/* The place of a word among these. */
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

const char *scenario_read(const char *file, const char *text, struct scenario *out)
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
