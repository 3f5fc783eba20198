/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <string.h>

#include "check.h"

static uint64_t rounds(const struct ledger *l)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < l->ranks; r++)
        most = l->frozen[r] > most ? l->frozen[r] : most;
    return most;
}

void ledger_clear(struct ledger *l, uint32_t ranks)
{
    if (!l->round) {
        l->round = calloc(LEDGER_MAX_ROUNDS, sizeof *l->round);
        l->seen = calloc(LEDGER_MAX_ROUNDS, sizeof *l->seen);
        l->first_arrival = calloc(LEDGER_MAX_ROUNDS, sizeof *l->first_arrival);
        l->first_absent = calloc(LEDGER_MAX_ROUNDS, sizeof *l->first_absent);
        EXPECT(l->round && l->seen && l->first_arrival && l->first_absent,
               "no memory for a ledger");
    }
    memset(l->round, 0, (rounds(l) + 1) * sizeof *l->round);
    memset(l->seen, 0, rounds(l) * sizeof *l->seen);
    memset(l->first_arrival, 0, (rounds(l) + 1) * sizeof *l->first_arrival);
    memset(l->first_absent, 0, (rounds(l) + 1) * sizeof *l->first_absent);
    memset(l->frozen, 0, sizeof l->frozen);
    memset(l->account, 0, sizeof l->account);
    memset(l->sent, 0, sizeof l->sent);
    memset(l->received, 0, sizeof l->received);
    for (uint32_t r = 0; r < ranks; r++)
        l->account[r].taken_in = -1;
    memset(l->died_in, 0xff, sizeof l->died_in);
    memset(l->entered_in, 0, sizeof l->entered_in);
    memset(l->begins, 0, sizeof l->begins);
    l->epoch = 0;
    l->ranks = ranks;
}
