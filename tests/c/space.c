/* SPDX-License-Identifier: Apache-2.0 */
#include "space.h"

#include <string.h>

#include "base/random.h"
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
    {"native", PCOLL_ALGORITHM_NATIVE, reference_in_order}};

static const struct {
    const char *name;
    int late;
    bool any_op; /* true: every op; false: SUM */
} lates[] = {{"carry", PCOLL_LATE_CARRY, false},
             {"latest", PCOLL_LATE_LATEST, true},
             {"drop", PCOLL_LATE_DROP, true}};

static const struct {
    const char *name;
    int deliver;
    int most_handles; /* "all": one such handle per loop */
} delivers[] = {{"one", PCOLL_DELIVER_ONE, WORLD_MAX_HANDLES},
                {"all", PCOLL_DELIVER_ALL, 1}};

/* The place of a rank. Ranks of one place share memory. */
static uint32_t by_itself(uint32_t rank)
{
    return rank;
}

static uint32_t together(uint32_t rank)
{
    (void)rank;
    return 0;
}

/* Places of 1, 4 and 2 consecutive ranks, repeated. */
static uint32_t unevenly(uint32_t rank)
{
    uint32_t within = rank % 7;
    return 3 * (rank / 7) + (within > 0) + (within > 4);
}

static uint32_t by_turns(uint32_t rank)
{
    return rank % 3;
}

static const struct {
    const char *name;
    uint32_t (*place)(uint32_t rank);
    uint32_t most; /* ranks in a domain; 0: no limit */
} groupings[] = {{"alone", by_itself, 0},    {"one", together, 0},
                 {"pairs", together, 2},     {"threes", together, 3},
                 {"1+4+2", unevenly, 0},     {"strided", by_turns, 0},
                 {"dealt out", by_turns, 4}, {"single", by_turns, 1}};
static const int grouped[] = {0, 7, 1, 1, 1, 2, 3, 4, 5, 6}; /* weighted rows */

static const char *const moments[WORLD_MOMENTS] = {
    [AT_ANY_TIME] = "at any time",     [WHILE_RECOVERING] = "while recovering",
    [WHILE_CLOSING] = "while closing", [WHILE_JOINING] = "while joining",
    [WHILE_GROWING] = "while growing", [AFTER_ANOTHER] = "after another one"};

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
static const uint32_t one_ins[] = {0, 0, 3, 20}; /* steps per trouble */

static const uint32_t pauses[] = {0, 4, 15, 60}; /* of a thread between two steps */

/* A sequence of draws from a seed. */
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
    if (o.ending == END_FREE && !free_ok) /* ranks would wait for those that have
                                           * freed */
        o.ending = END_LOOP;
    o.generations = roll(&d, 4) ? 1 : WORLD_MAX_GENERATIONS;
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
                                       .interleaves = PICK(&d, pauses),
                                       .stall_longest = roll(&d, 2) ? 3000 : 50000};
    o.grouping = PICK(&d, grouped);
    return o;
}

/* Usually early, sometimes late. Most kill points last only a few steps. */
static uint32_t draw_steps(struct dice *d, enum world_moment moment)
{
    return roll(d, (size_t)1 << roll(d, moment == AT_ANY_TIME ? 13 : 9));
}

static bool is_victim(const struct world_options *o, uint32_t rank)
{
    for (int i = 0; i < o->crashes; i++)
        if (o->crash[i].rank == rank)
            return true;
    return false;
}

/* Few calls, then a join in shared memory, in which a rank dies: covers the short time
 * in which a round is complete but some ranks have not read it. */
static void end_soon(struct world_options *o, struct dice *d)
{
    o->ending = END_JOIN;
    o->calls = 1 + roll(d, 3);
    o->grouping = 1;
    o->crashes = 1;
    o->crash[0].moment = WHILE_JOINING;
    o->crash[0].steps = roll(d, 100);
}

/* Equal loops in which newcomers join. Sometimes a newcomer dies again. */
static void grow(struct world_options *o, struct dice *d)
{
    o->grows = true;
    o->handles = 1;
    o->handle[0].deliver = PCOLL_DELIVER_ONE;
    o->ending = END_LOOP;
    o->calls = 3 + roll(d, 30);
    for (int i = 0; i < o->crashes; i++)
        if (o->crash[i].moment == WHILE_CLOSING || o->crash[i].moment == WHILE_JOINING)
            o->crash[i].moment = WHILE_GROWING;
    for (int i = 1; i < o->crashes && roll(d, 2); i++) {
        o->crash[i].rank = o->crash[0].rank;
        o->crash[i].moment = WHILE_GROWING;
    }
}

struct world_options space_draw_crashes(uint64_t seed)
{
    struct dice d = {.seed = splitmix_mix(seed)};
    struct world_options o = space_draw(seed);
    o.ranks = o.ranks > 1 ? o.ranks : 2 + roll(&d, 16);
    o.generations = 1;
    for (int k = 0; k < o.handles; k++) /* native operations cannot be withdrawn */
        while (space_algorithms[o.handle[k].algorithm].algorithm ==
               PCOLL_ALGORITHM_NATIVE)
            o.handle[k].algorithm = (int)roll(&d, LENGTH(space_algorithms));
    uint32_t most = o.ranks > WORLD_MAX_CRASHES ? WORLD_MAX_CRASHES : o.ranks - 1;
    uint32_t crashes = 1 + roll(&d, most);
    while ((uint32_t)o.crashes < crashes) {
        uint32_t rank = roll(&d, o.ranks);
        if (is_victim(&o, rank))
            continue;
        bool any = roll(&d, 2);
        enum world_moment moment =
            any ? AT_ANY_TIME : (enum world_moment)roll(&d, WORLD_MOMENTS);
        uint32_t steps = draw_steps(&d, moment);
        o.crash[o.crashes++] =
            (struct world_crash){.rank = rank, .moment = moment, .steps = steps};
    }
    o.detection = roll(&d, 2) ? 2000 : 100000;
    if (roll(&d, 6) == 0)
        end_soon(&o, &d);
    else if (roll(&d, 3) == 0)
        grow(&o, &d);
    return o;
}

int space_grouping_count(void)
{
    return LENGTH(groupings);
}

uint32_t space_hosts(const struct world_options *o, uint64_t *hosts)
{
    for (uint32_t r = 0; r < o->ranks; r++)
        hosts[r] = 1000 + 7 * groupings[o->grouping].place(o->ranks - 1 - r);
    return groupings[o->grouping].most;
}

/* Return whether two ranks are in the same place and in the same of the even parts into
 * which its ranks are divided. */
static bool share_memory(const struct world_options *o, const uint32_t *position,
                         uint32_t count, uint32_t a, uint32_t b)
{
    uint32_t most = groupings[o->grouping].most;
    uint32_t parts = most ? (count + most - 1) / most : 1, part[2];
    const uint32_t both[] = {position[a], position[b]};
    for (int i = 0; i < 2; i++) {
        part[i] = parts;
        while (part[i] && (uint64_t)count * part[i] / parts > both[i])
            part[i]--;
    }
    return part[0] == part[1];
}

uint32_t space_domains(const struct world_options *o, int algorithm, const bool *dead,
                       uint32_t *domain)
{
    uint64_t hosts[LEDGER_MAX_RANKS];
    uint32_t position[LEDGER_MAX_RANKS], count[LEDGER_MAX_RANKS] = {0}, domains = 0;
    bool native = space_algorithms[algorithm].algorithm == PCOLL_ALGORITHM_NATIVE;
    space_hosts(o, hosts);
    for (uint32_t r = 0; r < o->ranks; r++) {
        position[r] = 0;
        for (uint32_t i = 0; i < o->ranks; i++) {
            bool beside = hosts[i] == hosts[r] && !(dead && dead[i]);
            position[r] += i < r && beside;
            count[r] += beside;
        }
    }
    for (uint32_t r = 0; r < o->ranks; r++)
        domain[r] = UINT32_MAX;
    for (uint32_t first = 0; first < o->ranks; first++) {
        bool numbered = domain[first] != UINT32_MAX || (dead && dead[first]);
        for (uint32_t r = first; r < o->ranks && !numbered; r++) {
            uint32_t i = first;
            if ((dead && dead[r]) ||
                (r != first && (native || hosts[r] != hosts[first])))
                continue;
            while (i < r && (domain[i] == UINT32_MAX || hosts[i] != hosts[r] ||
                             !share_memory(o, position, count[r], i, r)))
                i++;
            domain[r] = i < r ? domain[i] : domains++;
        }
    }
    return domains;
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
    EXPECT_OK(pcoll_policy_parse(space_policy_text(h), &policy));
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
        "PARTIALCOLL_SEED=%llu: %u ranks, %s, ending %s, %llu calls, %d times",
        (unsigned long long)o->seed, o->ranks, groupings[o->grouping].name,
        endings[o->ending], (unsigned long long)o->calls, o->generations);
    for (int k = 0; k < o->handles && used < capacity; k++) {
        const struct world_handle *h = &o->handle[k];
        pcoll_policy policy = space_policy_of(h);
        char quorum[100];
        EXPECT_OK(pcoll_policy_format(&policy, quorum, sizeof quorum));
        used += (size_t)snprintf(
            text + used, capacity - used, "; %s deliver=%s late=%s history=%u %s",
            quorum, h->deliver == PCOLL_DELIVER_ONE ? "one" : "all", late_name(h->late),
            h->history, space_algorithms[h->algorithm].name);
    }
    for (int i = 0; i < o->crashes && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used,
                                 "; rank %u dies %s, step %u", o->crash[i].rank,
                                 moments[o->crash[i].moment], o->crash[i].steps);
}

void space_count(struct space_tally *t, const struct world_options *o,
                 const struct world_report *r)
{
    t->runs++;
    t->lost += r->lost;
    for (int moment = 0; moment < WORLD_MOMENTS; moment++)
        t->died[moment] += r->died[moment];
    t->recoveries += r->recoveries;
    t->attempts += r->attempts;
    t->redone += r->redone;
    t->grown += r->grown;
    t->called_off += r->called_off;
    t->newcomers += r->newcomers;
    for (int k = 0; k < o->handles * o->generations; k++) {
        const struct world_handle *h = &o->handle[k % o->handles];
        t->handles++;
        t->handles_of[h->policy][h->algorithm][o->ranks]++;
        uint32_t domain[LEDGER_MAX_RANKS];
        bool alone = space_domains(o, h->algorithm, NULL, domain) == o->ranks;
        t->grouped_of[h->policy][h->algorithm][alone ? 0 : o->grouping]++;
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
        fprintf(out, " %4llu", (unsigned long long)of[rank_counts[i]]);
    for (size_t i = 0; i < LENGTH(many_ranks); i++)
        fprintf(out, " %4llu", (unsigned long long)of[many_ranks[i]]);
    fprintf(out, " |");
    for (size_t i = 0; i < LENGTH(groupings); i++)
        fprintf(out, " %9llu", (unsigned long long)t->grouped_of[policy][algorithm][i]);
    fprintf(out, "\n");
}

static void print_deaths(const struct space_tally *t, FILE *out)
{
    if (!t->attempts)
        return;
    fprintf(out, "ranks died:");
    for (int moment = 0; moment < WORLD_MOMENTS; moment++)
        fprintf(out, " %llu %s", (unsigned long long)t->died[moment], moments[moment]);
    fprintf(out,
            "; %llu recoveries in %llu attempts, %llu times a rank began a round "
            "anew; %llu others have come, together %llu times, called off %llu times\n",
            (unsigned long long)t->recoveries, (unsigned long long)t->attempts,
            (unsigned long long)t->redone, (unsigned long long)t->newcomers,
            (unsigned long long)t->grown, (unsigned long long)t->called_off);
}

void space_print(const struct space_tally *t, FILE *out)
{
    fprintf(out, "handles run, by policy x algorithm, number of ranks | domains\n%-24s",
            "");
    for (size_t i = 0; i < LENGTH(rank_counts); i++)
        fprintf(out, " %4u", rank_counts[i]);
    for (size_t i = 0; i < LENGTH(many_ranks); i++)
        fprintf(out, " %4u", many_ranks[i]);
    fprintf(out, " |");
    for (size_t i = 0; i < LENGTH(groupings); i++)
        fprintf(out, " %9s", groupings[i].name);
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
    print_deaths(t, out);
}
