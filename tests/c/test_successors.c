/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results that members bring along when several domains become one. A surviving rank knows the
 * rounds up to its current one and has read some of them. A newcomer has only the last result. In
 * whatever order they join, no result that a survivor may still read is overwritten. Schedules of
 * deaths and newcomers rarely reach this case. Also: a member's unread deposits stay pending.
 */
#include <string.h>

#include "allreduce/endpoint.h"
#include "check.h"
#include "domain/node.h"

enum { RANKS = 3, HISTORY = 4, RING = HISTORY + 1, MOST_ROUNDS = 7 };

static struct round_shape shape;
static pcoll_options options;
static uint64_t tests;

/* The shared part, as far as this test needs it. */
static struct domain begin(void)
{
    return (struct domain){.shape = &shape,
                           .history = HISTORY,
                           .ring = RING,
                           .results = calloc(RING, shape.slot_bytes)};
}

static double *value_of(struct round_header *h)
{
    return message_payload(h);
}

/* Different values in each test, since freed memory may be reused unchanged. */
static double expected(uint64_t round)
{
    return (double)(tests * 100 + round);
}

static void write_result(struct round_header *h, uint64_t round)
{
    round_header_clear(h, round);
    round_add(h, RANKS, ROUND_ACTIVE, 0, 1);
    *value_of(h) = expected(round);
}

static struct domain *new_single(uint32_t rank)
{
    static struct placement alone[RANKS];
    struct domain *d;
    placement_destroy(&alone[rank]);
    EXPECT_OK(placement_init(&alone[rank], rank, RANKS, NULL, NULL, 0));
    struct node_hooks hooks = {.placement = &alone[rank],
                               .owned_sends = options.owned_send};
    EXPECT_OK(domain_node_create(&shape, &options, &hooks, &d));
    return d;
}

/* Check the sum of the member's deposits that it has not read. */
static void expect_pending(struct domain *d, double expected, const char *when)
{
    double sum = 0;
    int rc = node_pending(d, (void *[]){&sum});
    INVARIANT("an unread deposit is pending",
              expected ? rc == PCOLL_OK && sum == expected : rc == PCOLL_EEMPTY,
              "%s: %g are pending, expected %g, rc %d", when, sum, expected, rc);
}

/* A member that has read `read` of the rounds and was late since. */
static struct domain *survivor(uint64_t rounds, uint64_t read)
{
    struct domain *d = new_single(0);
    const double one = 1;
    double sum;
    for (uint64_t r = 0; r < rounds; r++) {
        enum deposit_outcome outcome;
        if (r <= read)
            EXPECT_OK(d->ops->deposit(d, (const void *[]){&one}, &outcome));
        EXPECT(d->ops->freeze(d, r), "no contribution to round %d", (int)r);
        write_result(node_result(d, r), r);
        d->ops->publish(d, r);
        pcoll_round round;
        uint64_t masks[ROUND_MASKS];
        bool moved;
        if (r >= read)
            continue;
        EXPECT_OK(
            d->ops->deliver(d, r, UINT64_MAX, (void *[]){&sum}, &round, masks, &moved));
        EXPECT_OK(d->ops->change(d, member_finish));
    }
    return d;
}

/* A newcomer with this rank that joined when `rounds` rounds were complete. */
static struct domain *newcomer(uint32_t rank, uint64_t rounds,
                               const struct round_header *last)
{
    struct domain *d = new_single(rank);
    d->ops->begin_at(d, NULL, rounds, last);
    EXPECT_OK(d->ops->inherit(d, NULL, rounds, last));
    return d;
}

/* Let all members join in an order that `turn` determines. */
static void become_one(struct domain *to, struct domain *const *from, uint64_t rounds,
                       const struct round_header *last, uint32_t turn)
{
    for (uint32_t i = 0; i < RANKS; i++)
        node_copy_results(to, from[(i + turn) % RANKS], rounds, last);
}

static void test_nothing_is_spoiled(uint64_t rounds, uint64_t read, uint32_t turn)
{
    tests++;
    struct domain to = begin();
    struct round_header *last = calloc(1, shape.slot_bytes);
    write_result(last, rounds - 1);
    struct domain *from[RANKS] = {survivor(rounds, read), newcomer(1, rounds, last),
                                  newcomer(2, rounds, last)};
    become_one(&to, from, rounds, last, turn);
    for (uint64_t r = read ? read - 1 : 0; r < rounds; r++) {
        struct round_header *found = node_result(&to, r);
        INVARIANT("a result that may be read exists",
                  found->round == r && *value_of(found) == expected(r),
                  "round %d of %d, %d read, order %u: it is %g of round %d", (int)r,
                  (int)rounds, (int)read, turn, *value_of(found), (int)found->round);
    }
    for (int i = 0; i < RANKS; i++)
        from[i]->ops->destroy(from[i]);
    free(to.results);
    free(last);
}

/*
 * Pending deposits against a count. Deposit i is 2^i, so a sum shows which deposits are in it. The
 * member is up to HISTORY rounds behind, and its domain is replaced from time to time, also when a
 * round is in progress that must be repeated.
 */

enum { STEPS = 3000, DEPOSITS = 48 };

struct counted {
    struct domain *d;
    uint64_t rounds, read, deposits;
    double stored;             /* Deposits that no round has taken. */
    double taken_in[STEPS];    /* By round. */
    struct round_header *last; /* NULL: no round yet */
};

static double count_pending(const struct counted *c)
{
    double sum = c->stored;
    for (uint64_t round = c->read; round < c->rounds; round++)
        sum += c->taken_in[round];
    return sum;
}

static void count_round(struct counted *c)
{
    EXPECT(c->d->ops->freeze(c->d, c->rounds), "no contribution");
    c->taken_in[c->rounds] = c->stored;
    c->stored = 0;
    write_result(node_result(c->d, c->rounds), c->rounds);
    c->d->ops->publish(c->d, c->rounds);
    write_result(c->last, c->rounds++);
}

static void count_deposit(struct counted *c)
{
    enum deposit_outcome outcome;
    double value = (double)(UINT64_C(1) << c->deposits++ % DEPOSITS), sum;
    double *slot = node_send_slot(c->d);
    if (slot)
        *slot = value;
    EXPECT_OK(
        c->d->ops->deposit(c->d, slot ? NULL : (const void *[]){&value}, &outcome));
    c->stored += value;
    expect_pending(c->d, count_pending(c), "after a deposit");
    if (c->rounds == c->read)
        count_round(c);
    pcoll_round round;
    uint64_t masks[ROUND_MASKS];
    bool moved;
    EXPECT_OK(c->d->ops->deliver(c->d, c->read++, UINT64_MAX, (void *[]){&sum}, &round,
                                 masks, &moved));
    EXPECT_OK(c->d->ops->change(c->d, member_finish));
}

static void count_recovery(struct counted *c, bool undone)
{
    const struct round_header *last = c->rounds ? c->last : NULL;
    struct domain *old = c->d;
    if (undone)
        EXPECT(old->ops->freeze(old, c->rounds), "no contribution");
    c->d = new_single(0);
    c->d->ops->begin_at(c->d, old, c->rounds, last);
    EXPECT_OK(c->d->ops->inherit(c->d, old, c->rounds, last));
    old->ops->destroy(old);
}

static void test_pending(uint64_t seed)
{
    struct counted *c = calloc(1, sizeof *c);
    c->d = new_single(0);
    c->last = calloc(1, shape.slot_bytes);
    expect_pending(c->d, 0, "before the first deposit");
    for (int step = 0; step < STEPS; step++) {
        uint32_t draw = splitmix_below(seed, (uint64_t)step, 16);
        if (draw == 0 || draw == 1)
            count_recovery(c, draw);
        else if (draw < 9 && c->d->ops->admits(c->d))
            count_round(c);
        else
            count_deposit(c);
        expect_pending(c->d, count_pending(c), "after a step");
        tests++;
    }
    c->d->ops->destroy(c->d);
    free(c->last);
    free(c);
}

int main(void)
{
    pcoll_buffer buffer = {.count = 1, .dtype = PCOLL_FLOAT64};
    pcoll_options_init(&options);
    options.deliver = PCOLL_DELIVER_ALL;
    options.history = HISTORY;
    EXPECT_OK(round_shape_init(&shape, RANKS, &buffer, 1, NULL));
    for (uint64_t rounds = 1; rounds <= MOST_ROUNDS; rounds++)
        for (uint64_t read = rounds > HISTORY ? rounds - HISTORY + 1 : 0; read < rounds;
             read++)
            for (uint32_t turn = 0; turn < RANKS; turn++)
                test_nothing_is_spoiled(rounds, read, turn);
    options.deliver = PCOLL_DELIVER_ONE;
    for (uint64_t seed = 0; seed < 20; seed++) {
        options.owned_send = seed % 2;
        test_pending(seed);
    }
    round_shape_destroy(&shape);
    printf("successors: all tests passed\n");
    return 0;
}
