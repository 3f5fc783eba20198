/* SPDX-License-Identifier: Apache-2.0 */
/* A member of a domain in shared memory, as the rest sees it: what it is made of, how it
 * joins and leaves, and who drives the rounds. The protocol is in node.h. */
#include "domain/node.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "domain/node_memory.h"

static bool node_ready(struct domain *d)
{
    struct node *n = node_of(d);
    return node_control_round(node_control(n)) >= n->member.wanted;
}

static void node_snapshot(struct domain *d, struct member *copy)
{
    struct node *n = node_of(d);
    node_look(n);
    *copy = n->member;
    copy->stats.rounds = copy->complete;
}

/* From its words alone: for other threads and other members. */
static void node_poll(struct domain *d, int who, struct member *copy)
{
    const struct node *n = node_of(d);
    const struct node_line *line = &n->lines[who];
    uint64_t word = STEP(atomic_load(&n->descriptors[who]));
    uint32_t flags = STEP(atomic_load(&line->flags));
    *copy = (struct member){.rank = n->hooks.placement->member[who],
                            .deliver = n->deliver,
                            .history = n->history,
                            .started = flags & NODE_CALLING,
                            .retired = flags & NODE_RETIRED,
                            .joining = descriptor_joining(word),
                            .left = descriptor_left(word),
                            .joined_in = NO_ROUND,
                            .delivered = STEP(atomic_load(&line->delivered)),
                            .complete = node_control_round(node_control(n))};
    descriptor_load(word, copy);
}

/* Joins and leaves show in the descriptor; the end of a call is the member's own. */
static int node_change(struct domain *d, int (*step)(struct member *))
{
    struct node *n = node_of(d);
    for (;;) {
        uint64_t word = node_look(n);
        struct member after = n->member;
        int rc = step(&after);
        if (rc != PCOLL_OK)
            return rc;
        uint64_t next = descriptor_of(&after);
        if (next != word)
            node_note_arrival_time(n);
        if (next == word ||
            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word, next))) {
            n->member = after;
            node_set_flag(n, NODE_CALLING, after.started);
            return PCOLL_OK;
        }
    }
}

static void node_retire(struct domain *d)
{
    struct node *n = node_of(d);
    STEP(atomic_fetch_or(&node_own_line(n)->flags, NODE_RETIRED));
}

static void node_help(struct domain *d, bool driver, int64_t *alarm)
{
    struct node *n = node_of(d);
    enum node_side side = driver ? NODE_DRIVER : NODE_APPLICATION;
    *alarm = INT64_MAX;
    for (bool more = true; more;) {
        uint64_t control = node_control(n);
        uint64_t round = node_control_round(control);
        more = false;
        if (node_control_phase(control) == NODE_OPEN && !n->fabric)
            more = node_decide(n, round, side, alarm);
        else if (node_control_phase(control) == NODE_REDUCING)
            more = node_reduce(n, round);
    }
}

/* For its rounds: sets its bit before it looks for the last time. */
static void node_sleeps(struct domain *d, bool asleep)
{
    struct node *n = node_of(d);
    uint64_t bit = (uint64_t)1 << n->who % 64;
    _Atomic uint64_t *word = &n->asleep[n->who / 64];
    if (asleep)
        STEP(atomic_fetch_or(word, bit));
    else
        STEP(atomic_fetch_and(word, ~bit));
}

static int node_failure(struct domain *d)
{
    return atomic_load_explicit(&node_of(d)->shared->failure, memory_order_acquire);
}

static void node_destroy(struct domain *d)
{
    struct node *n = node_of(d);
    for (int side = 0; side < NODE_SIDES; side++) {
        struct node_view *v = &n->view[side];
        free(v->live);
        free(v->absences);
    }
    free(n->set);
    free(n);
}

static void node_memory(struct domain *d, void **memory, size_t *bytes)
{
    *memory = node_of(d)->hooks.memory;
    *bytes = node_of(d)->bytes;
}

static struct round_header *node_own_slot(struct domain *d, int i)
{
    CHECK(i >= 0 && i < node_of(d)->slots_each);
    return node_slot(node_of(d), node_of(d)->who, i);
}

static const struct domain_ops node_ops = {
    .deposit = node_deposit,
    .send_slot = node_send_slot,
    .ready = node_ready,
    .deliver = node_deliver,
    .snapshot = node_snapshot,
    .poll = node_poll,
    .change = node_change,
    .retire = node_retire,
    .help = node_help,
    .sleeps = node_sleeps,
    .failure = node_failure,
    .busy = node_busy,
    .awaited = node_awaited,
    .alert = node_alert,
    .attention = node_attention,
    .arrivals = node_fabric_arrivals,
    .admits = node_fabric_admits,
    .freeze = node_fabric_freeze,
    .gather = node_fabric_gather,
    .result = node_fabric_result,
    .publish = node_fabric_publish,
    .destroy = node_destroy,
    .slot = node_own_slot,
    .begin_at = node_begin_at,
    .inherit = node_inherit,
    .memory = node_memory,
};

/* All sets of a view in one block. */
static bool node_create_view(struct node *n, struct node_view *v, uint32_t ranks)
{
    size_t words = bitset_words(ranks);
    uint64_t *sets = calloc(5 * words, sizeof *sets);
    if (n->policy.max_staleness)
        v->absences = calloc(ranks, sizeof *v->absences);
    v->live = sets;
    if (!sets || (n->policy.max_staleness && !v->absences))
        return false;
    bitset_fill(v->live, ranks);
    v->arrived = sets + words;
    v->deposited = sets + 2 * words;
    v->round = (struct policy_round){.ranks = ranks,
                                     .live = v->live,
                                     .drawn = sets + 3 * words,
                                     .overdue = sets + 4 * words};
    return true;
}

int domain_node_create(const struct round_shape *shape, const pcoll_options *options,
                       void *arg, struct domain **out)
{
    CHECK(((const struct node_hooks *)arg)->placement->members > 0);
    CHECK(((const struct node_hooks *)arg)->placement->who <
          ((const struct node_hooks *)arg)->placement->members);
    CHECK(options->history >= 1);
    const struct node_hooks *hooks = arg;
    const struct placement *placement = hooks->placement;
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    n->hooks = *hooks;
    n->policy = options->policy;
    n->seed = options->seed;
    n->fabric = placement->domains > 1;
    n->members = placement->members;
    n->who = placement->who;
    n->hands = hooks->cores ? hooks->cores : placement->members;
    n->deliver = options->deliver;
    n->history = options->history;
    n->ring = options->history + 1;
    n->set = calloc(bitset_words(shape->ranks), sizeof *n->set);
    bool enough = n->set;
    for (int side = 0; side < NODE_SIDES; side++)
        enough = node_create_view(n, &n->view[side], shape->ranks) && enough;
    if (!enough) {
        node_destroy(&n->base);
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", shape->ranks);
    }
    for (uint32_t i = 0; i < n->members; i++)
        bitset_add(n->set, placement->member[i]);
    n->base = (struct domain){.ops = &node_ops,
                              .shape = shape,
                              .members = (int)n->members,
                              .member_set = n->set};
    member_init(&n->member, placement->member[n->who], options);
    node_map(n, options);
    n->first_chunk =
        (uint32_t)((uint64_t)placement->index * n->chunks / placement->domains);
    *out = &n->base;
    return PCOLL_OK;
}
