/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's view of the rounds: which round its call stands for, whether a deposit
 * arrives or is stored, and which results the rank has read.
 *
 * Rounds are counted:   delivered <= complete <= frozen <= complete + 1
 *   frozen     rounds whose contribution was taken here (activated)
 *   complete   rounds that are complete here
 *   delivered  rounds that the application has read or lost
 *
 * The thread that closes a round changes the first two; with a fabric that is the leader's
 * driver. The owner changes the third. The owner of this struct is the rank's application,
 * or the thread that holds its handle (allreduce/staging.h), or a recovery while the gate is
 * closed. All other threads change only the descriptor (below), by compare-and-swap.
 *
 * This is a state machine without I/O and without memory of its own.
 */
#pragma once

#include "base/check.h"
#include "include/partialcoll.h"
#include "protocol/round.h"

/*
 * The slots of one rank:
 *
 *   pending  the slot with the deposit that the next activation takes, or NO_SLOT
 *   frozen   the slot that the round in progress reads, or NO_SLOT. There is at most one,
 *            because a round is activated only after the previous one is complete.
 *   user     with library-owned send buffers: the slot that the application fills
 *   held     a set of slots: their deposits are in rounds that the application has not read.
 *            Other slots are written first, so that node_pending finds these deposits.
 *
 * Only the owner of the member writes slots, and only slots that are none of these, so
 * it writes a deposit without a lock. A carry reads `pending` while it writes the sum to
 * another slot. If an activation freezes `pending` meanwhile, the plan no longer holds,
 * and the new deposit is written alone: no deposit is counted twice. This takes three
 * slots, or four if the application fills one in place.
 *
 * Only the owner calls these functions. A round freezes a deposit by a swap of the descriptor.
 */
enum { NO_SLOT = -1, MAX_SLOTS = 4 };

struct contribution {
    enum pcoll_late late;
    int slots;
    int pending, frozen, user;
    unsigned held;
};

/* A plan for writing a deposit. */
struct deposit_plan {
    int target;  /* The slot to write. */
    int carried; /* The slot whose deposit is added to the new one, or NO_SLOT. */
};

void contribution_init(struct contribution *c, enum pcoll_late late, bool owned_send);
int contribution_slots(bool owned_send);
struct deposit_plan contribution_plan(const struct contribution *c);
/* Return whether a plan that was made earlier still holds. Otherwise plan again. */
static inline bool contribution_plan_holds(const struct contribution *c,
                                           struct deposit_plan plan)
{
    return plan.carried == NO_SLOT || plan.carried == c->pending;
}

/* The deposit was written by the plan: make it the pending one. */
void contribution_publish(struct contribution *c, struct deposit_plan plan);

enum { NO_ROUND = -1 };

struct member {
    uint32_t rank;
    enum pcoll_deliver deliver;
    uint32_t history;
    struct contribution contribution;
    uint64_t frozen, complete, delivered;

    bool started;      /* A call is outstanding: started and not finished. */
    uint64_t call;     /* deliver="one": the round that the next call stands for. */
    uint64_t wanted;   /* The outstanding call is ready when complete >= wanted. */
    bool arrived;      /* The pending deposit arrived at the open round. */
    int64_t taken_in;  /* The round that took the last deposit, or NO_ROUND. */
    int64_t reading;   /* The round whose result is being copied, or NO_ROUND. */
    bool joining;      /* The rank contributes nothing until all have joined. */
    bool left;         /* The rank has left for good. */
    bool retired;      /* The handle is being freed: no result is read any more. */
    int64_t joined_in; /* The round at which all ranks had joined, until it is read. */
    bool joined;       /* The round that was read last is that round. */
    uint64_t events;   /* See allreduce/event_log.h. */
    uint64_t calls;    /* Finished calls. */
    uint64_t seen;     /* Complete rounds that the last read knew of. */
    uint64_t lost;     /* Lost rounds that were not reported yet. A successor's
                               member keeps them. */
    pcoll_stats stats;
};

/* Check the order of the counts. The owner reads `frozen` first, then `complete`. */
static inline bool member_counts_hold(const struct member *m)
{
    return m->delivered <= m->complete && m->frozen <= m->complete + 1;
}

void member_init(struct member *m, uint32_t rank, const pcoll_options *options);
/* Application: begin a call. PCOLL_ESTATE: a call is outstanding, or the rank has left. */
int member_begin(struct member *m);

enum deposit_outcome { DEPOSIT_ARRIVED, DEPOSIT_STORED, DEPOSIT_DROPPED };
/* Return whether a deposit would be dropped. Once true, that stays true for the call. */
bool member_drops(const struct member *m);
/* Publish a deposit that was written by the plan, and decide whether it arrives or is stored. */
enum deposit_outcome member_publish(struct member *m, struct deposit_plan plan);
/* Choose the next result to read, at most `last`, as if only `horizon` rounds were
 * complete, and count the rounds lost before it. False: there is none. The slot of that
 * round is not reused before member_read_end. */
bool member_read_begin(struct member *m, uint64_t last, uint64_t horizon,
                       uint64_t *round);
/* End the read. *lost: rounds lost since the last read. */
void member_read_end(struct member *m, uint64_t *lost);
/* Return whether the last deposit is in a round up to this one. */
bool member_included(const struct member *m, uint64_t round);
/* Finish a call, join, or leave. PCOLL_ESTATE: it is not allowed in this state. */
int member_finish(struct member *m);
int member_join(struct member *m);
int member_leave(struct member *m);

/*
 * Recovery (docs/faults.md). The surviving ranks have stopped, and only the owner changes this.
 *
 * Let C be the highest number of complete rounds of a surviving rank. All surviving ranks
 * take part in the data of every round. So each of them has completed C or C - 1 rounds.
 * A rank that has completed C - 1 rounds has frozen round C - 1 (counted from 0), and
 * receives the result of that round. No rank has seen a result of round C. What was
 * frozen for round C goes back to where it came from:
 *
 *   - The frozen deposit is pending again. It is combined with a newer one by the
 *     handle's rule for late deposits, so it is in exactly one round that is delivered.
 *   - A rank that waits for round C counts as arrived at it, even if its deposit came
 *     when the round was under way, or was dropped for that reason. The round begins
 *     again, and it may be that no other rank arrives any more.
 *   - A rank that joins announces it again: all ranks that had not joined may be dead.
 */

/* The slots, by their old numbers, whose sum in this order is pending after a recovery, or the only
 * one. The deposit belongs in slot `into`; NO_SLOT: nothing is pending. */
struct recovered_deposit {
    int into, older, newer;
};

/* Recover. `complete` is C, `last` the header of round C - 1 (NULL: C is 0). */
struct recovered_deposit member_recover(struct member *m, uint64_t complete,
                                        const struct round_header *last);
/* Set the state of a process that takes the number of a dead rank, after member_init: of a
 * rank that has made one call for each round, and has not read the last result. */
void member_enter(struct member *m, uint64_t complete, const struct round_header *last);

/*
 * The descriptor: one word with everything that a rank and the rank that activates a
 * round have to agree on, so that one compare-and-swap changes all of it. It has the
 * number of rounds that were activated here, the slot of the deposit for the next round,
 * the slot that the last round froze, whether the deposit arrived, and whether the rank
 * joins or has left.
 *
 * The swap orders a deposit and an activation: the deposit is in the round or is stored,
 * as a whole. A rank that is late for a round that was activated meanwhile finds the word
 * changed, because the word has the number of rounds, which only grows.
 *
 * The rank alone owns the rest of struct member.
 */

/* Bits from the lowest: pending, frozen slot (7: none), arrived, joining, left, 2^55 rounds. */
enum {
    DESCRIPTOR_NO_SLOT = 7,
    DESCRIPTOR_ARRIVED = 1 << 6,
    DESCRIPTOR_JOINING = 1 << 7,
    DESCRIPTOR_LEFT = 1 << 8,
    DESCRIPTOR_ROUNDS = 9
};

static inline uint64_t descriptor_of(const struct member *m)
{
    CHECK(m->contribution.pending < MAX_SLOTS && m->contribution.frozen < MAX_SLOTS);
    uint64_t pending = (uint64_t)m->contribution.pending & 7,
             frozen = (uint64_t)m->contribution.frozen & 7;
    uint64_t joining = m->joining && m->joined_in == NO_ROUND;
    return pending | frozen << 3 | (uint64_t)m->arrived << 6 | joining << 7 |
           (uint64_t)m->left << 8 | m->frozen << DESCRIPTOR_ROUNDS;
}

static inline uint64_t descriptor_rounds(uint64_t word)
{
    return word >> DESCRIPTOR_ROUNDS;
}

static inline int descriptor_slot(uint64_t three_bits)
{
    int slot = (int)(three_bits & 7);
    return slot == DESCRIPTOR_NO_SLOT ? NO_SLOT : slot;
}

static inline int descriptor_pending(uint64_t word)
{
    return descriptor_slot(word);
}

/* Load what other ranks may have changed. */
static inline void descriptor_load(uint64_t word, struct member *m)
{
    CHECK(descriptor_pending(word) == NO_SLOT ||
          descriptor_pending(word) != descriptor_slot(word >> 3));
    m->contribution.pending = descriptor_pending(word);
    m->contribution.frozen = descriptor_slot(word >> 3);
    m->arrived = word & DESCRIPTOR_ARRIVED;
    m->frozen = descriptor_rounds(word);
}

/* Return the word after an activation: one more round, with the pending deposit frozen. */
static inline uint64_t descriptor_freeze(uint64_t word)
{
    CHECK(descriptor_rounds(word) + 1 < (uint64_t)1 << (64 - DESCRIPTOR_ROUNDS));
    uint64_t gone = word & (DESCRIPTOR_JOINING | DESCRIPTOR_LEFT);
    return DESCRIPTOR_NO_SLOT | (word & 7) << 3 | gone |
           (descriptor_rounds(word) + 1) << DESCRIPTOR_ROUNDS;
}

/* Set the rank's bits in the header of an activation that swapped this word. */
static inline void descriptor_announce(uint64_t word, uint32_t rank,
                                       struct round_header *h, uint32_t ranks)
{
    CHECK(rank < ranks);
    bool active = descriptor_pending(word) != NO_SLOT;
    if (active)
        round_add(h, ranks, ROUND_ACTIVE, rank, rank + 1);
    if (active && !(word & DESCRIPTOR_ARRIVED))
        round_add(h, ranks, ROUND_STORED, rank, rank + 1);
    if (word & DESCRIPTOR_JOINING)
        round_add(h, ranks, ROUND_JOINED, rank, rank + 1);
    if (word & DESCRIPTOR_LEFT)
        round_add(h, ranks, ROUND_LEFT, rank, rank + 1);
}
