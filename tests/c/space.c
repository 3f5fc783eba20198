/* SPDX-License-Identifier: Apache-2.0 */
#include "space.h"

#include <string.h>

#include "../../csrc/base/splitmix.h"
#include "check.h"

#define LENGTH(table) (sizeof(table) / sizeof *(table))

const struct space_policy space_policies[] = {{"solo", reference_any, 1},
                                              {"majority", reference_first_of, 1},
                                              {"full", reference_full, 1},
                                              {"quorum:0.5", reference_quorum, 1},
                                              {"quorum:1", reference_quorum, 1},
                                              {"quorum:1.0", reference_quorum, 1},
                                              {"quorum:3", reference_quorum, 3},
                                              {"first_of:2", reference_first_of, 2},
                                              {"first_of:5", reference_first_of, 5},
                                              {"last_of:1", reference_last_of, 1},
                                              {"last_of:3", reference_last_of, 3}};

/* Every policy takes every modifier. */
static const char *const modifiers[] = {
    "",
    "",
    "",
    ",linger=4us",
    ",deadline=20us",
    ",max_staleness=1",
    ",max_staleness=3",
    ",linger=30us,max_staleness=2",
    ",linger=10us,deadline=15us,max_staleness=1",
};

const struct space_algorithm space_algorithms[] = {
    {"recdbl", PCOLL_ALGORITHM_RECDBL, reference_recdbl},
    {"rabenseifner", PCOLL_ALGORITHM_RABENSEIFNER, reference_recdbl},
    {"ring", PCOLL_ALGORITHM_RING, reference_ring},
    {"native", PCOLL_ALGORITHM_NATIVE, reference_by_rank}};

static const struct {
    const char *name;
    int late;
    bool any_op; /* else SUM */
} lates[] = {{"carry", PCOLL_LATE_CARRY, false},
             {"latest", PCOLL_LATE_LATEST, true},
             {"drop", PCOLL_LATE_DROP, true}};

static const struct {
    const char *name;
    int deliver;
    int most_handles; /* "all": one such handle per loop */
} delivers[] = {{"one", PCOLL_DELIVER_ONE, WORLD_MOST_HANDLES},
                {"all", PCOLL_DELIVER_ALL, 1}};

static const char *const endings[] = {"loop", "join", "leave", "free"};
static const int ops[] = {PCOLL_SUM, PCOLL_MIN, PCOLL_MAX};

static const pcoll_network networks[] = {
    {.L = 2500, .latency = PCOLL_LATENCY_UNIFORM, .spread = 0.8},
    {.L = 2500, .latency = PCOLL_LATENCY_EXPONENTIAL},
    {.L = 2500, .latency = PCOLL_LATENCY_LOGNORMAL, .spread = 1.5},
    {.L = 2500, .latency = PCOLL_LATENCY_CONSTANT},
    {.L = 1000, .o = 400, .g = 600, .G = 0.5, .latency = PCOLL_LATENCY_EXPONENTIAL},
    {.L = 0, .latency = PCOLL_LATENCY_CONSTANT},
};

static const uint32_t rank_counts[] = {1,  2,  3,  4,  5,  6,  7,  8, 9,
                                       10, 11, 12, 13, 14, 15, 16, 17};
static const uint32_t many_ranks[] = {32, 64, 65, 130}; /* one run in fifty */
static const uint32_t counts[] = {1, 1, 2, 3, 7, 64, 257};
static const int64_t thinks[] = {0, 1000, 10000, 100000};
static const uint32_t one_ins[] = {0, 0, 3, 20}; /* how often a trouble happens */

/* The n-th draw of a seed. */
struct dice {
    uint64_t seed, n;
};

static uint32_t roll(struct dice *d, size_t bound)
{
    return splitmix_below(d->seed, d->n++, (uint32_t)bound);
}

#define PICK(dice, table) ((table)[roll(dice, LENGTH(table))])

static int draw_policy(struct dice *d, uint32_t ranks)
{
    size_t policy;
    do
        policy = roll(d, LENGTH(space_policies));
    while (space_policies[policy].least > ranks);
    return (int)policy;
}

static struct world_handle draw_handle(struct dice *d, size_t deliver, uint32_t ranks)
{
    size_t late = roll(d, LENGTH(lates));
    return (struct world_handle){
        .policy = draw_policy(d, ranks),
        .modifier = (int)roll(d, LENGTH(modifiers)),
        .algorithm = (int)roll(d, LENGTH(space_algorithms)),
        .deliver = delivers[deliver].deliver,
        .late = lates[late].late,
        .op = lates[late].any_op ? PICK(d, ops) : PCOLL_SUM,
        .owned_send = roll(d, 4) == 0,
        .history = roll(d, 4) ? 1 + roll(d, 8) : 1,
    };
}

struct world_options space_draw(uint64_t seed)
{
    struct dice d = {.seed = seed};
    struct world_options o = {.seed = seed};
    o.ranks = roll(&d, 50) ? PICK(&d, rank_counts) : PICK(&d, many_ranks);
    size_t deliver = roll(&d, LENGTH(delivers));
    o.handles =
        roll(&d, 2) ? 1 : 1 + (int)roll(&d, (size_t)delivers[deliver].most_handles);
    o.ending = (enum world_ending)roll(&d, LENGTH(endings));
    for (int k = 0; k < o.handles; k++)
        o.handle[k] = draw_handle(&d, deliver, o.ranks);
    bool free_ok =
        o.handles == 1 && o.handle[0].policy == 0 && !*modifiers[o.handle[0].modifier];
    if (o.ending == END_FREE && !free_ok) /* others would wait for those who free */
        o.ending = END_LOOP;
    o.generations = roll(&d, 4) ? 1 : WORLD_MOST_GENERATIONS;
    o.calls = 1 + roll(&d, 30);
    o.count = PICK(&d, counts);
    o.fractions = roll(&d, 2);
    o.think = PICK(&d, thinks);
    o.slow = roll(&d, 2) ? roll(&d, o.ranks) : UINT32_MAX;
    o.slow_think = 20 * o.think;
    o.network = PICK(&d, networks);
    o.trouble = (struct world_trouble){.agent_stalls = PICK(&d, one_ins),
                                       .application_stalls = PICK(&d, one_ins),
                                       .spurious_wakes = PICK(&d, one_ins),
                                       .duplicates = PICK(&d, one_ins),
                                       .misuses = PICK(&d, one_ins),
                                       .close_all = PICK(&d, one_ins),
                                       .interleaves = PICK(&d, one_ins),
                                       .stall_longest = roll(&d, 2) ? 3000 : 50000};
    return o;
}

int space_policy_count(void)
{
    return LENGTH(space_policies);
}

int space_modifier_count(void)
{
    return LENGTH(modifiers);
}

int space_modifier(const char *text)
{
    int row = 0;
    while (strcmp(modifiers[row], text))
        row++;
    return row;
}

const char *space_policy_text(const struct world_handle *h)
{
    static char text[100];
    snprintf(text, sizeof text, "%s%s", space_policies[h->policy].text,
             modifiers[h->modifier]);
    return text;
}

pcoll_policy space_policy_of(const struct world_handle *h)
{
    pcoll_policy policy;
    CHECK_OK(pcoll_policy_parse(space_policy_text(h), &policy));
    return policy;
}

static const char *late_name(int late)
{
    for (size_t i = 0; i < LENGTH(lates); i++)
        if (lates[i].late == late)
            return lates[i].name;
    return "?";
}

void space_describe(const struct world_options *o, char *text, size_t capacity)
{
    size_t used = (size_t)snprintf(
        text, capacity,
        "PARTIALCOLL_SEED=%llu: %u ranks, ending %s, %llu calls, %d times",
        (unsigned long long)o->seed, o->ranks, endings[o->ending],
        (unsigned long long)o->calls, o->generations);
    for (int k = 0; k < o->handles && used < capacity; k++) {
        const struct world_handle *h = &o->handle[k];
        pcoll_policy policy = space_policy_of(h);
        char quorum[100];
        CHECK_OK(pcoll_policy_format(&policy, quorum, sizeof quorum));
        used += (size_t)snprintf(
            text + used, capacity - used, "; %s deliver=%s late=%s history=%u %s",
            quorum, h->deliver == PCOLL_DELIVER_ONE ? "one" : "all", late_name(h->late),
            h->history, space_algorithms[h->algorithm].name);
    }
}

void space_count(struct space_tally *t, const struct world_options *o,
                 const struct world_report *r)
{
    t->runs++;
    t->lost += r->lost;
    for (int k = 0; k < o->handles * o->generations; k++) {
        const struct world_handle *h = &o->handle[k % o->handles];
        t->handles++;
        t->handles_of[h->policy][h->algorithm][o->ranks]++;
        t->rounds += r->rounds[k];
    }
}

static void print_line(const struct space_tally *t, FILE *out, size_t policy,
                       size_t algorithm)
{
    char name[64];
    snprintf(name, sizeof name, "%s x %s", space_policies[policy].text,
             space_algorithms[algorithm].name);
    fprintf(out, "%-24s", name);
    const uint64_t *of = t->handles_of[policy][algorithm];
    for (size_t i = 0; i < LENGTH(rank_counts); i++)
        fprintf(out, " %6llu", (unsigned long long)of[rank_counts[i]]);
    for (size_t i = 0; i < LENGTH(many_ranks); i++)
        fprintf(out, " %6llu", (unsigned long long)of[many_ranks[i]]);
    fprintf(out, "\n");
}

void space_print(const struct space_tally *t, FILE *out)
{
    fprintf(out, "handles run, by policy x algorithm and number of ranks\n%-24s", "");
    for (size_t i = 0; i < LENGTH(rank_counts); i++)
        fprintf(out, " %6u", rank_counts[i]);
    for (size_t i = 0; i < LENGTH(many_ranks); i++)
        fprintf(out, " %6u", many_ranks[i]);
    fprintf(out, "\n");
    for (size_t p = 0; p < LENGTH(space_policies); p++)
        for (size_t a = 0; a < LENGTH(space_algorithms); a++)
            print_line(t, out, p, a);
    fprintf(
        out,
        "%llu schedules, %llu handles, %llu rounds, %llu rounds lost to slow ranks: "
        "all invariants held\n",
        (unsigned long long)t->runs, (unsigned long long)t->handles,
        (unsigned long long)t->rounds, (unsigned long long)t->lost);
}
