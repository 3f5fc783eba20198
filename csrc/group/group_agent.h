/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce on one rank. It combines modules that each answer one question: grid.h (which
 * ranks meet), matchmaking.h (who forms a group), group_data.c (the data) and group_wire.h
 * (messages, which ranks take part, and does the round count).
 *
 * Phases. Each phase returns the phase that follows, and group_agent.c enters it.
 *
 *   IDLE      A round has ended: leave, return, or look for the next group.
 *   ASKING    The rank has returned, and asks the others for their round. It joins the latest of
 *             them. Ranks that are away answer as well: if all ranks have left, only they know how
 *             far the rounds had progressed.
 *   MATCHING  The rank looks for the group of `round` while the application computes.
 *   ROUND     The rank is in a group. Its contribution is the application's if that has started.
 *             Otherwise it is null: the rank only reduces its part for the others. It is null if
 *             the rank leaves, or if the others pass it over because they have waited for half
 *             their timeout. Then come the data and the decision.
 *   AWAY      The rank has left.
 *
 * Closing. No rank begins anything, but messages may be under way. The ranks sum up what they have
 * sent and received until two sums in a row agree in both (Mattern's four counters).
 *
 * Dead ranks. The live ranks stop, and begin again without the dead (group_agent_restart). Messages
 * under way are lost; windows stay as they were.
 *
 *   round         The word of its group decides it. It cannot change any more once a live member
 *                 has read it here. The round counts if all members had everything they needed, the
 *                 dead ones included. Otherwise it is void if one of its members has died. If none
 *                 has, the round is undone: the contribution goes into the next round.
 *   matchmaking   It begins again in a round that no rank has begun yet, so that old content of
 *                 windows is not taken for a part of it.
 *   membership    Each live rank states its own status. The status of a dead rank never changes
 *                 again. No rank is suspected.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "group/group_wire.h"
#include "kernels/reduce.h"
#include "protocol/group/grid.h"
#include "runtime/communicator.h"
#include "runtime/user_object.h"
#include "schedule/sched.h"

struct group;

/* Allocate an array of `count` zeros; NULL: no memory. */
#define GROUP_ALLOCATE(array, count) ((array) = calloc((count), sizeof *(array)))

/*
 * The data of a group's round on one rank: a butterfly (algorithms/butterfly.c) on the schedule
 * engine, whose fetches are gets from the windows of the members. A get from a near member is
 * complete when it returns. The driver polls gets from far members. One thread at a time drives it.
 */

/* A group as one of its members sees it. Arrays are indexed by position in the list. */
struct group_members {
    uint32_t members, position;
    uint32_t *rank;
    double *share;
    uint64_t *bound; /* Member i reduces elements bound[i] to bound[i + 1] - 1. */
};

/* A get that is not complete. */
struct group_fetch {
    int op; /* The operation that it belongs to. */
    size_t bytes;
    struct window_get get;
};

/* The state of a member of this rank's group in one round, as this rank knows it. */
struct group_member {
    bool known, contributes;    /* It has said whether it contributes, and it does. */
    int input_there, part_done; /* The operation of its notice, or -1. */
    int64_t received_at;        /* Time of its last notice in this round; own clock. */
    int64_t begun;              /* Time of its first fetch. */
    double rate;                /* Bytes per second; 0: not measured. */
};

/* Memory that MPI may still write to after a void round. */
struct group_abandoned {
    struct group_fetch *fetches;
    uint32_t count;
    char *landing, *fetched;
    struct group_abandoned *next;
};

struct group_data {
    struct group *owner;
    struct window *window;
    struct group_layout place;
    const struct dtype *dtype;
    reduce_fn *add;
    size_t held; /* Bytes of an element of a sum. */
    uint32_t max_members;
    size_t piece; /* Elements of a piece. */

    struct group_members group;
    bool *empty;                /* By member: it has no part to reduce. */
    struct group_member *state; /* By member. */
    uint32_t active;            /* Members that contribute. */
    struct sched *sched;        /* NULL: no round. */
    struct engine engine;
    int start, *scratch;

    char *landing; /* The result, in the application's dtype. */
    char *fetched; /* One piece of a near member's input, then two of each far one. */
    char *sums[2]; /* Sums of even and odd pieces. */
    char *widened; /* A piece in the dtype of sums, if that differs. */
    struct group_fetch *fetches;
    uint32_t under_way; /* Fetches that are not complete. */
    size_t max_fetches;
    struct group_abandoned *abandoned;
    uint64_t bytes_fetched;
    struct group_meter { /* The speed at which the inputs of far members arrive. */
        int64_t began;   /* Time of the first fetch in ns; 0: none. */
        uint64_t bytes;  /* Received in all. */
        double download; /* Highest rate of all members together, bytes per second. */
    } meter;
};

/* Allocate memory. The caller has set owner, window, place, dtype and max_members. PCOLL_ENOMEM. */
int group_data_init(struct group_data *r);
void group_data_destroy(struct group_data *r);
size_t group_data_bytes(const struct group_data *r);
/* Make the schedule for the group that the caller has filled in. */
int group_data_prepare(struct group_data *r);
/* Start. `own`: this rank contributes, and its input is in its window. */
int group_data_start(struct group_data *r, bool own);
/* A member's notice has arrived: it contributes or not; its part is reduced. */
void group_data_input(struct group_data *r, uint32_t member, bool contributes);
void group_data_part(struct group_data *r, uint32_t member);
/* Issue all operations that are ready. */
int group_data_run(struct group_data *r);
/* Poll the fetches from far members; *ended: at least one has completed. */
int group_data_poll(struct group_data *r, bool *ended);
/* Return whether the round waits for a notice of this member, about its part or its input. */
bool group_data_waits_for(const struct group_data *r, uint32_t member, bool part);
/* End a round. The memory of fetches that are not complete is freed when they are. PCOLL_ENOMEM. */
int group_data_end(struct group_data *r);

/* Return whether this rank contributes. Only a rank that contributes gets the result. */
static inline bool group_data_contributes(const struct group_data *r)
{
    return r->state[r->group.position].contributes;
}

enum group_phase { PHASE_IDLE, PHASE_ASKING, PHASE_MATCHING, PHASE_ROUND, PHASE_AWAY };

/*
 * How a rank finds the group of its next round. With static keys the ranks of the line are known:
 * the rank waits for the live ones, and the lowest of them leads. With dynamic keys a rank declares
 * itself in the directory (group_wire.h), and asks it at growing intervals who has the same key.
 */
struct group_inquiry {
    int64_t time;      /* The priority that the rank declares. */
    int64_t at, pause; /* Time of the next query, and the interval; ns. */
    bool waits;        /* For an answer from another node. */
    bool declared;     /* This rank has an entry in the directory of the round. */
    uint32_t counted;  /* Ranks that have declared themselves, under any key. */
    uint32_t found;    /* Entries that the query has found so far. */
    struct match_entry *entries; /* With static keys: the ranks of the line. */
};

struct group_matching {
    bool members_changed; /* Since candidates were offered. */
    int64_t began;
    int64_t stay_until; /* The rank leaves, but waits for a list until then; 0: no. */
    int64_t nudge_at;   /* When to nudge the ranks that are missing; 0: not yet. */
    bool application;   /* nudge_at was set while the application waited. */
    uint32_t opened;    /* seq of the last own group whose decision is open. */
};

/* Return whether the rank is live and on the same line as this one. */
bool group_matching_is_on_line(const struct group *g, uint32_t rank);

enum group_contribution { CONTRIBUTION_OPEN, CONTRIBUTION_OWN, CONTRIBUTION_NULL };

/* The notices of a rank about its newest group, which this rank may not know yet. */
struct group_notice {
    struct group_name name;
    uint32_t bits; /* enum group_notice_bit */
    uint32_t rate;
};

/*
 * The current round, from the list of members to the outcome. Times are by the rank's own clock.
 *
 * Silence. T is the timeout. Each member sends the others a heartbeat four times in T while the
 * round lasts. A member that has contributed for T/2 passes over the members whose application has
 * not started: it asks their agents to go on without it. A member that has sent nothing for T is
 * suspected, and the round is aborted. A rank that has waited for its group for T/2 nudges the
 * ranks that it waits for: they may be in an earlier round in which no application has started.
 */
struct group_round {
    struct group_name name;
    struct group_data data;
    struct group_notice *notices; /* By rank. */
    enum group_contribution contribution;
    enum decision decision;
    bool marked;         /* This rank has voted that it is done. */
    bool passed;         /* Another member asks to go on without the application. */
    bool passed_over;    /* This rank has asked the others for that. */
    uint32_t chain;      /* Lowest chain of the members. */
    bool early;          /* The group was known before the application started. */
    int64_t began;       /* When this rank contributed. */
    int64_t heartbeat;   /* When it sent the last heartbeat; time of the process. */
    int64_t voted;       /* When it last voted or read the decision. */
    int64_t abort_after; /* Earliest time of the next vote to abort. */
    int64_t backoff;     /* Interval between polls of far fetches; ns. */
};

/* Send a member the notice that belongs to an edge of the butterfly. */
int group_round_notify(struct group *g, uint32_t member, int edge);
/* Send the members a heartbeat if one is due. */
int group_round_heartbeat(struct group *g);
/* Set the bandwidth that this rank tells the others from the next matchmaking on. */
void group_round_set_bandwidth(struct group *g, double bandwidth);

/* State that application and driver share. The application owns the input in the window while no
 * deposit is outstanding. The driver owns `outcome` and the landing, in rounds with a contribution,
 * until it increments `finished`; then the application owns them until it starts again. */
struct group_shared {
    _Atomic uint64_t started, finished;
    uint64_t consumed;       /* Driver: deposits that a round has used. */
    uint64_t last_index;     /* Driver: 1 + last round with a deposit of this rank. */
    _Atomic bool wants_away; /* The last call was leave, not rejoin. */
    bool closing;            /* The object is being freed. */
    _Atomic uint64_t shown_round; /* The round that the application sees. */
    struct pcoll_group_round outcome;
    uint32_t *outcome_ranks;
    double *outcome_shares;
    pcoll_group_stats stats; /* Under the drive lock. */
};

struct group {
    struct object base; /* First, so that the object can be converted back. */
    struct communicator *communicator;
    pcoll_group_options options;
    struct group_layout place;
    struct window *window;
    bool left; /* The window has been left behind. */

    struct grid grid;
    uint64_t *cells; /* By rank. With dynamic keys only this rank's is current. */
    uint64_t cell;   /* Of this rank. */
    bool dynamic;

    enum group_phase phase;
    uint64_t round;
    uint32_t chain; /* Complete rounds in a row. */
    struct membership membership;
    struct match match;

    struct group_clock clock;
    struct group_traffic wire;
    struct group_bandwidth { /* Of this rank's link. */
        float told;          /* As announced to other ranks; 0: none. */
        double measured;     /* Average over rounds, bytes per second; 0: none. */
        uint32_t rounds;     /* Rounds that were measured. */
    } bandwidth;
    struct group_remote remote;
    struct group_inquiry inquiry;
    struct group_matching matching;
    struct group_rejoin {
        bool suspected;     /* Other ranks suspect this one, so it has to return. */
        uint64_t highest;   /* Highest round of the answers. */
        uint32_t answers;   /* Answers received. */
        int64_t wait_until; /* When to stop waiting for answers. */
    } rejoin;
    struct group_round now;
    struct group_drain { /* The exchange of message counts while the object closes. */
        struct agreement agreement;
        uint64_t *counts; /* Two. MPI may write to them after the group is freed. */
        uint64_t before;  /* Both counts of the last sum; UINT64_MAX: they differed. */
        bool agreeing;
        int64_t again_at; /* When to sum up again; INT64_MAX: no. */
    } drain;
    struct group_shared shared;
    bool driven;           /* The object is complete, and no recovery is under way. */
    bool queued;           /* The object waits for its turn to close. */
    struct group_restart { /* What the live ranks have exchanged after a death. */
        uint64_t *words;   /* By rank: group_agent_state_word, or 0 for a dead rank. */
        uint64_t round;    /* The round that all continue with. */
        struct communicator *communicator; /* The new one. */
    } restart;
};

struct pcoll_group {
    struct user_object base; /* First, so that the object can be converted back. */
    struct group group;
    bool waiting; /* The application has started and not yet waited. */
};

/* group_agent.c: what the communicator calls. */
extern const struct object_ops group_agent_ops;
/* Run the phases as far as possible. */
int group_agent_drive(struct object *p);
/* Return the status of this rank as a word for the others. */
uint64_t group_agent_state_word(const struct group *g);
/* Check the words of all ranks, 0 for the dead ones. PCOLL_EPROTOCOL. */
int group_agent_check_words(const struct group *g, const uint64_t *words,
                            uint64_t round);
/* All live ranks are stopped. Continue with their words, in a round that no rank has begun. */
int group_agent_restart(struct group *g, const uint64_t *words, uint64_t round);

/* group_object.c. Check the options and make everything that needs no window. */
int group_object_prepare(struct group *g, uint32_t rank, uint32_t ranks);
/* The window exists: make the rest. */
int group_object_attach(struct group *g);
/* Free everything but the window. */
void group_object_dispose(struct group *g);

static inline int64_t group_agent_timeout_ns(const struct group *g)
{
    return g->options.timeout_us * 1000;
}

static inline bool group_agent_was_started(const struct group *g)
{
    return atomic_load(&g->shared.started) > g->shared.consumed;
}

/* Return whether the rank leaves. It first finishes a started round, unless it is freed. */
static inline bool group_agent_leaves(const struct group *g)
{
    return g->shared.closing ||
           (atomic_load(&g->shared.wants_away) && !group_agent_was_started(g));
}

/* Return the line of this rank in the current round. */
static inline uint64_t group_agent_line(const struct group *g)
{
    return grid_line(&g->grid, g->cell, grid_axis(&g->grid, g->round));
}
