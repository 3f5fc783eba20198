/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's round on one rank, from the list of members to the outcome: the
 * contribution of this rank, the data (group_data.h), the notices of the other members,
 * the decision (group_window.h) and its consequences.
 *
 * Silence. T is the timeout. Each member sends the others a heartbeat four times in T
 * while the round lasts. A member that has contributed for T/2 passes over the members
 * whose application has not started: it asks their agents to go on without it. A member
 * that has sent nothing for T is suspected, and the round is aborted. A rank that has
 * waited for its group for T/2 nudges the ranks that it waits for (group_matching.c),
 * because they may be in an earlier round in which no application has started yet.
 */
#ifndef PCOLL_GROUP_ROUND_H
#define PCOLL_GROUP_ROUND_H

#include "group/group_data.h"
#include "group/group_wire.h"

enum group_phase;

/* The bandwidth of this rank's link, as it tells the others. */
struct group_bandwidth {
    float told;      /* As told to the others; 0: none. */
    double measured; /* Average over rounds, bytes per second; 0: none. */
    uint32_t rounds; /* Rounds that were measured. */
};

enum group_contribution { CONTRIBUTION_OPEN, CONTRIBUTION_OWN, CONTRIBUTION_NULL };

/* The notices of a rank about its newest group. A notice may arrive before this rank
 * knows the group. */
struct group_notice {
    struct group_name name;
    uint32_t bits; /* enum group_notice_bit */
    uint32_t rate; /* With PART: how fast the rank fetched this rank's input, KiB/s. */
};

/* The current round. Times are those of the rank's own clock. */
struct group_round {
    struct group_name name;
    struct group_data data;
    struct group_notice *notices; /* By rank. */
    double *bandwidths;           /* By member; memory for computing shares. */
    enum group_contribution contribution;
    enum decision decision;
    bool marked;          /* This rank has voted that it is done. */
    bool passed;          /* Another member asks to go on without the application. */
    bool passed_over;     /* This rank has asked the others for that. */
    uint32_t chain;       /* Lowest chain of the members. */
    bool early;           /* The group was known before the application started. */
    int64_t began;        /* When this rank contributed. */
    int64_t heartbeat;    /* When it sent the last heartbeat; time of the process. */
    int64_t voted;        /* When it last voted or read the decision. */
    int64_t abort_after;  /* Earliest time of the next vote to abort. */
    int64_t *received_at; /* By member: when its last notice arrived. */
    int64_t backoff;      /* Interval between polls of far fetches; ns. */
};

int group_round_begin(struct group *g);
/* Do what is due. *next is the phase that follows, or PHASE_ROUND. */
int group_round_continue(struct group *g, enum group_phase *next);
/* Return when to call group_round_continue without a message, or INT64_MAX. */
int64_t group_round_alarm(struct group *g);
/* Finish a round that is decided. */
int group_round_finish(struct group *g);

/* A notice has arrived. PCOLL_EPROTOCOL: it says that a round counts in which this rank
 * has not voted. */
int group_round_on_notice(struct group *g, uint32_t source, struct group_name name,
                          uint32_t bits, uint32_t rate);
/* A rank waits in `round`: do not wait for the application in an earlier round. */
int group_round_on_nudge(struct group *g, uint64_t round);
/* A far member votes in the window of this rank, which leads the group. */
int group_round_on_vote(struct group *g, uint32_t source, struct group_name name,
                        enum decision_vote vote, uint32_t members);
/* A group that this rank leads is aborted. The sender may not know its members. */
int group_round_on_abort(struct group *g, struct group_name name);
/* Send a notice to a member; `arg` is a struct group. */
group_data_notice_fn group_round_notify;
/* Send the members a heartbeat if one is due; `arg` is a struct group. */
int group_round_heartbeat(void *arg);

int group_round_vote(struct group *g, enum decision_vote vote);
/* Vote to abort. A member that has not marked itself done then leaves the round,
 * because the round cannot count without it. */
int group_round_abort(struct group *g);
/* Abort the groups whose list names a member that does not keep it (match_refused), so
 * that their members need not wait for the timeout. In any phase. */
int group_round_refuse(struct group *g);
/* Pass over late applications, read the decision, and suspect silent members. */
int group_round_watch_members(struct group *g);

/* Set the bandwidth that this rank tells the others from the next matchmaking on. */
void group_round_set_bandwidth(struct group *g, double bandwidth);
/* Measure the bandwidth of a round that has ended. */
void group_round_measure_bandwidth(struct group *g);

#endif
