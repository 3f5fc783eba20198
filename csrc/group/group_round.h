/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's round on one rank, from the list to the outcome: this rank's contribution,
 * the data (group_data.h), what the other members say (notices), the decision (group_round.c)
 * and what comes of it (group_round.c). Who is waited for and for how long: group_round.c.
 */
#ifndef PCOLL_GROUP_ROUND_H
#define PCOLL_GROUP_ROUND_H

#include <stdint.h>

#include "group/group_data.h"
#include "group/group_wire.h"

/* How fast the link of this rank is: what it tells the others, given or measured. */
struct group;

enum { KIB = 1024 };

struct group_bandwidth {
    float told;      /* to the others; 0: none */
    double measured; /* in the last rounds, bytes per second; 0: none */
    uint32_t rounds; /* that were measured */
};

/* Driver: what the others are told from the next matchmaking on. */
void group_round_set_bandwidth(struct group *g, double bandwidth);
/* A round is over. */
void group_round_measure_bandwidth(struct group *g);

enum group_phase;

enum group_contribution { CONTRIBUTION_OPEN, CONTRIBUTION_OWN, CONTRIBUTION_NULL };

/* The last that has come of a rank about a group, also before this rank knows of it. */
struct group_notice {
    struct group_name name;
    uint32_t bits; /* enum group_notice_bit */
    uint32_t rate; /* with PART: how fast it fetched this rank's input, KiB/s, or 0 */
};

/* The round that is under way; times by the own clock. */
struct group_round {
    struct group_name name;
    struct group_data data;
    struct group_notice *notices; /* by rank */
    double *bandwidths;           /* room for those of a group */
    enum group_contribution contribution;
    enum decision decision;
    bool marked;          /* this rank has voted: done */
    bool passed;          /* asked to go on without the application */
    bool passed_over;     /* has asked the others */
    uint32_t chain;       /* the shortest of the members' */
    bool early;           /* it was known before the application came */
    int64_t began;        /* ns, since when it contributes */
    int64_t heartbeat;    /* when it last sent one; on the process's clock */
    int64_t voted;        /* when it last voted, or looked at the decision */
    int64_t abort_after;  /* no vote to abort before */
    int64_t *received_at; /* by member: the last notice of it */
    int64_t backoff;      /* between polls of far fetches */
};

/* group_round.c */
int group_round_begin(struct group *g);
/* *next: the phase that follows, or this one. */
int group_round_continue(struct group *g, enum group_phase *next);
/* When to go on without being told. */
int64_t group_round_alarm(struct group *g);
/* PCOLL_EPROTOCOL: it says that a round counts in which this rank has not voted. */
int group_round_on_notice(struct group *g, uint32_t source, struct group_name name,
                          uint32_t bits, uint32_t rate);
/* Somebody waits in that round: do not wait for the application in one before it. */
int group_round_on_nudge(struct group *g, uint64_t round);
group_data_notice_fn group_round_notify; /* of a struct group */

/* group_round.c */
/* A decision is known. PCOLL_EPROTOCOL: the round would count without this rank. */
int group_round_check_decision(const struct group *g, enum decision decision);
int group_round_vote(struct group *g, enum decision_vote vote);
/* Vote to abort. Whoever has not voted for it may go: it cannot count without it. */
int group_round_abort(struct group *g);
/* A far member votes here, in the memory of its leader. */
int group_round_on_vote(struct group *g, uint32_t source, struct group_name name,
                        enum decision_vote vote, uint32_t members);
/* A group of this rank's is aborted, says one who may know no other member. */
int group_round_on_abort(struct group *g, struct group_name name);
/* Somebody is on a list that it does not follow (any more): its group is aborted, and
 * its members need not wait until they find out. In any phase. */
int group_round_refuse(struct group *g);

/* group_round.c: let the members know that this rank is there, if it is time. */
int group_round_heartbeat(void *group);
/* Who has contributed waits, but not for ever. */
int group_round_watch_members(struct group *g);

/* group_round.c: the round is decided. */
int group_round_finish(struct group *g);

#endif
