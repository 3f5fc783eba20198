/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/census.h"

#include "base/check.h"
#include "base/error.h"

/* A claim is a number whose maximum is wanted: among equals the lowest rank. */
enum { RANK_BITS = 20, MAX_RANK = (1 << RANK_BITS) - 1 };

void census_begin(struct census *s, uint64_t *words, uint64_t slots)
{
    CHECK(words);
    *s = (struct census){
        .lacking = words, .claim = words + slots, .least = words + 2 * slots};
    for (uint64_t i = 0; i < slots; i++) {
        s->lacking[i] = 1;
        s->claim[i] = s->least[i] = 0;
    }
}

void census_note(struct census *s, uint32_t slot, uint64_t complete, uint32_t rank)
{
    CHECK(rank <= MAX_RANK);
    s->lacking[slot] = 0;
    s->claim[slot] = complete << RANK_BITS | (MAX_RANK - rank);
    s->least[slot] = ~complete;
}

int census_plan(const struct census *s, uint32_t slot, uint32_t ranks, uint64_t own,
                struct recovery_plan *plan)
{
    uint64_t complete = s->claim[slot] >> RANK_BITS, least = ~s->least[slot];
    uint32_t source = MAX_RANK - (uint32_t)(s->claim[slot] & MAX_RANK);
    bool claimed = s->claim[slot] != 0;
    *plan = (struct recovery_plan){.slot = slot,
                                   .complete = complete,
                                   .source = source,
                                   .some_lack = claimed && least < complete};
    bool sound = claimed ? source < ranks && least <= complete : s->lacking[slot] != 0;
    return sound && own <= complete
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL,
                      "the ranks that are left agreed on %llu rounds of the object in "
                      "slot %u, by rank %u, which cannot be",
                      (unsigned long long)complete, slot, source);
}
