/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <string.h>

#include "../../csrc/base/splitmix.h"
#include "../../csrc/include/partialcoll.h"

static bool gone(const struct ledger_entry *e)
{
    return e->joined || e->left;
}

void reference_live(const struct ledger *l, uint64_t round, bool *live)
{
    bool anybody = round == 0;
    for (uint32_t r = 0; r < l->ranks; r++) {
        live[r] = round == 0 || !gone(&l->round[round - 1][r]);
        anybody = anybody || live[r];
    }
    for (uint32_t r = 0; r < l->ranks && !anybody; r++)
        live[r] = !l->round[round - 1][r].left;
}

/* Has arrived, or has come to say that it goes away. */
static bool came(const struct quorum_case *c, uint32_t rank)
{
    const struct ledger_entry *e = &c->ledger->round[c->round][rank];
    return c->live[rank] && (e->arrived || gone(e));
}

bool reference_solo(const struct quorum_case *c)
{
    return c->initiator >= 0 && came(c, (uint32_t)c->initiator);
}

bool reference_majority(const struct quorum_case *c)
{
    uint32_t ranks = c->ledger->ranks;
    uint32_t drawn = splitmix_below(c->stream, c->round, ranks);
    for (uint32_t i = 0; i < ranks && !c->live[drawn]; i++)
        drawn = (drawn + 1) % ranks;
    return c->initiator == (int32_t)drawn && came(c, drawn);
}

bool reference_full(const struct quorum_case *c)
{
    for (uint32_t r = 0; r < c->ledger->ranks; r++)
        if (c->live[r] && !came(c, r))
            return false;
    return true;
}

static double sum(double a, double b)
{
    return a + b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double greatest(double a, double b)
{
    return a > b ? a : b;
}

combine_fn *reference_op(int op)
{
    static combine_fn *const ops[] = {
        [PCOLL_SUM] = sum, [PCOLL_MIN] = least, [PCOLL_MAX] = greatest};
    return ops[op];
}

/* a (+) b into a, where either may be missing. */
static void absorb(struct ledger_entry *a, const struct ledger_entry *b,
                   combine_fn *combine)
{
    if (a->active && b->active)
        a->value = combine(a->value, b->value);
    else if (b->active)
        *a = *b;
}

/* Those beyond the power of two are folded in first, then neighbours at 1, 2, 4 …, the
 * lower on the left. */
double reference_recdbl(const struct ledger *l, uint64_t round, combine_fn *combine)
{
    struct ledger_entry v[LEDGER_MOST_RANKS];
    memcpy(v, l->round[round], sizeof v);
    uint32_t power = 1;
    while (2 * power <= l->ranks)
        power *= 2;
    for (uint32_t r = power; r < l->ranks; r++)
        absorb(&v[r - power], &v[r], combine);
    for (uint32_t hop = 1; hop < power; hop *= 2)
        for (uint32_t r = 0; r < power; r += 2 * hop)
            absorb(&v[r], &v[r + hop], combine);
    return v[0].value;
}
