/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's view of the rounds: which round its call stands for, whether a deposit
 * arrives or is stored, which results it has been given, whether it holds the next
 * round back.
 *
 * Rounds are counted, not named:   delivered <= complete <= frozen <= complete + 1
 *   frozen     rounds whose contribution was taken here (activated)
 *   complete   rounds that are over here
 *   delivered  rounds given to the application, or lost
 * The first two are moved by whoever drives the fabric, the third by the application;
 * the owner (domain/) holds one lock around every function here. "Publish the deposit
 * and choose between stored and arrived" is member_publish, one step under that lock.
 *
 * Pure state machine: no I/O, no memory.
 */
#ifndef PCOLL_PROTOCOL_MEMBER_H
#define PCOLL_PROTOCOL_MEMBER_H

#include "protocol/contribution.h"
#include "protocol/round.h"

enum { NO_ROUND = -1 };

struct member {
    uint32_t rank;
    enum pcoll_deliver deliver;
    uint32_t history;
    struct contribution contribution;
    uint64_t frozen, complete, delivered;

    bool started;           /* a call is outstanding: started, not finished */
    uint64_t call;          /* deliver="one": the round the next call stands for */
    uint64_t wanted;        /* the outstanding call is over when complete >= wanted */
    bool arrived;           /* the pending deposit arrived at the open round */
    int64_t taken_in;       /* round that took the last deposit, or NO_ROUND */
    int64_t reading;        /* round whose result is being copied out, or NO_ROUND */
    bool joining, left;     /* contributes nothing any more (for now, for good) */
    bool retired;           /* being freed: will read nothing any more */
    bool live;              /* as of the last complete round */
    int64_t joined_in;      /* round with which all had joined, until it is read */
    bool joined;            /* the last round read was that one */
    uint64_t events;        /* see allreduce/event_log.h */
    uint64_t calls;         /* ended */
    uint64_t frozen_events; /* events when the last round was frozen */
    uint64_t seen;          /* complete rounds that the last read knew of */
    uint64_t lost;          /* rounds, not told of yet; a successor's member has them */
    bool
        holds_back; /* a round was refused because of this rank: notify when it moves */
    pcoll_stats stats;
};

/* As the counts are seen by whoever they belong to: `complete` may be read later than
 * `frozen`, never earlier. */
static inline bool member_counts_hold(const struct member *m)
{
    return m->delivered <= m->complete && m->frozen <= m->complete + 1;
}

void member_init(struct member *m, uint32_t rank, const pcoll_options *options);

/* Application: begin a call. PCOLL_ESTATE if one is outstanding or the rank has left.
 */
int member_begin(struct member *m);

enum deposit_outcome { DEPOSIT_ARRIVED, DEPOSIT_STORED, DEPOSIT_DROPPED };
/* The deposit is written: hand it in. */
enum deposit_outcome member_publish(struct member *m, struct deposit_plan plan);

/* Is the outstanding call's round complete? */
bool member_ready(const struct member *m);

/* The next result to copy out, at most `last`, as if no more than `horizon` rounds were
 * complete; counts what was lost before it. False if there is none. The slot of that
 * round is not reused until member_read_end. */
bool member_read_begin(struct member *m, uint64_t last, uint64_t horizon,
                       uint64_t *round);
/* True if somebody waited for this rank to move on. `lost`: rounds since the last one read. */
bool member_read_end(struct member *m, uint64_t *lost);

/* Is the last deposit in one of the rounds up to this one? */
bool member_included(const struct member *m, uint64_t round);

int member_finish(struct member *m);
int member_join(struct member *m);
int member_leave(struct member *m);

/* Driver: has this rank arrived at the open round (or has it to tell that it goes
 * away)? */
bool member_arrived(const struct member *m);
/* May the open round be activated, as far as this rank's results are concerned? */
bool member_admits(struct member *m);
/* Activation: fill this rank's bits of the header, return its slot or NO_SLOT. */
int member_freeze(struct member *m, struct round_header *h, uint32_t ranks);
/* The round that was frozen is over everywhere it matters. */
void member_complete(struct member *m, const struct round_header *h, uint32_t ranks);

#endif
