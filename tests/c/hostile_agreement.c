/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile results of agreements, to which other ranks contribute: the inventory of a
 * recovery, the states of a group that restarts, mismatched schedules, and round headers.
 */
#include <string.h>

#include "group/group_agent.h"
#include "runtime/recovery.h"
#include "adding.h"
#include "check.h"
#include "hostile.h"

enum { RANKS = 70, SLOTS = 4, MESSAGES = 6 };

static struct hostile *h;

static uint32_t roll(uint32_t bound)
{
    return hostile_roll(h, bound);
}

/* Replace some words of a valid result. */
static void spoil(uint64_t *words, uint32_t count)
{
    for (uint32_t i = roll(4); i; i--)
        words[roll(count)] = hostile_word(h);
}

static int plan_inventory(void)
{
    struct inventory all[SLOTS];
    uint64_t own = roll(10);
    uint32_t slot = roll(SLOTS);
    struct recovery_plan plan;
    for (uint32_t i = 0; i < SLOTS; i++)
        all[i] = inventory_of(own + roll(2), roll(h->ranks));
    spoil((uint64_t *)(void *)all, INVENTORY_WORDS * SLOTS);
    int rc = inventory_plan(&all[slot], slot, h->ranks, own, &plan);
    EXPECT(rc != PCOLL_OK || all[slot].lacking || plan.source < h->ranks,
           "a plan with rank %u of %u", plan.source, h->ranks);
    EXPECT(rc != PCOLL_OK || plan.complete >= own, "fewer rounds than here");
    return rc;
}

static int check_header(void)
{
    static uint64_t memory[64];
    uint32_t words = (uint32_t)(round_header_bytes(h->ranks) / sizeof *memory);
    struct round_header *header = (struct round_header *)(memory + words) - 1;
    round_header_clear(header, roll(4));
    uint32_t rank = roll(h->ranks);
    round_add(header, h->ranks, ROUND_ACTIVE, rank, rank + 1);
    spoil(memory, words);
    int rc = round_header_check(header, h->ranks, roll(4));
    EXPECT(rc != PCOLL_OK || header->initiator < h->ranks ||
               header->initiator == ROUND_NOBODY,
           "a round of rank %u", header->initiator);
    EXPECT(rc != PCOLL_OK || round_count(header, h->ranks, ROUND_ACTIVE) <= h->ranks,
           "more ranks than there are");
    return rc;
}

/* Decode a header of many ranks in wire format with some words replaced. */
static int decode_header(void)
{
    static uint64_t memory[64], copy[64];
    uint32_t ranks = ROUND_PLAIN_RANKS + 1 + roll(200);
    size_t bytes = round_header_bytes(ranks);
    struct round_header *header =
        (struct round_header *)(memory + bytes / sizeof *memory) - 1;
    round_header_clear(header, roll(4));
    for (uint32_t i = roll(6), rank; i; i--) {
        rank = roll(ranks);
        round_add(header, ranks, (enum round_mask)roll(ROUND_MASKS), rank, rank + 1);
    }
    size_t encoded = round_header_length(header, ranks);
    EXPECT(bytes <= sizeof memory, "%zu bytes", bytes);
    memcpy(copy, (char *)(header + 1) - encoded, encoded);
    spoil(copy, (uint32_t)(encoded / sizeof *copy));
    const char *last = (char *)copy + encoded - sizeof *header;
    size_t claimed = round_header_length(last, ranks);
    EXPECT(claimed == bytes || claimed == sizeof *header, "%zu bytes", claimed);
    int rc = round_header_decode(header, copy, claimed < encoded ? claimed : encoded,
                                 ranks, roll(4));
    EXPECT(rc != PCOLL_OK || round_count(header, ranks, ROUND_ACTIVE) <= ranks,
           "more ranks than there are");
    return rc;
}

static int compare_messages(void)
{
    pcoll_buffer shape = {.count = 1, .dtype = PCOLL_INT64, .op = PCOLL_SUM};
    struct builder b = {.rank = roll(h->ranks), .size = h->ranks};
    uint64_t counts[RANKS], before, total, words[MESSAGE_WORDS * MESSAGES] = {0};
    int64_t memory[MESSAGES];
    int op;
    for (int i = 0; i < MESSAGES; i++)
        EXPECT_OK(builder_recv(&b, &memory[i], &shape, (int)roll(h->ranks),
                               (int)roll(3), NULL, &op));
    for (uint32_t i = 0; i < h->ranks; i++)
        counts[i] = MESSAGES;
    spoil(counts, h->ranks);
    int rc = builder_place_messages(&b, counts, &before, &total);
    EXPECT(rc != PCOLL_OK || before + MESSAGES <= total, "messages beyond all");
    builder_write_messages(&b, words);
    spoil(words, MESSAGE_WORDS * MESSAGES);
    int compared = builder_compare_messages(words, MESSAGES);
    EXPECT(compared == PCOLL_OK || compared == PCOLL_EMISMATCH, "%d", compared);
    builder_destroy(&b);
    return rc;
}

static int restart_group(void)
{
    static struct window window;
    struct membership_entry entries[RANKS] = {{0}};
    struct group g = {.window = &window, .round = roll(4)};
    uint64_t words[RANKS];
    window.rank = roll(h->ranks);
    window.size = h->ranks;
    g.membership = (struct membership){entries, h->ranks};
    for (uint32_t r = 0; r < h->ranks; r++)
        words[r] = group_agent_state_word(&g);
    spoil(words, h->ranks);
    int rc = group_agent_check_words(&g, words, g.round + roll(2));
    for (uint32_t r = 0; r < h->ranks && rc == PCOLL_OK; r++)
        EXPECT(!words[r] || words[r] & 1, "a state without a rank");
    return rc;
}

void hostile_agreements(struct hostile *hostile, uint64_t most)
{
    static int (*const kinds[])(void) = {plan_inventory, check_header, decode_header,
                                         compare_messages, restart_group};
    h = hostile;
    h->ranks = 1 + roll(RANKS);
    for (uint64_t i = 0; i < most; i++) {
        int rc = kinds[roll(5)]();
        hostile_note(h, rc);
        h->done += rc == PCOLL_OK;
    }
}
