/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce on one rank, as the agent drives it. It brings together
 * what each knows one thing: grid.h (with whom), membership.h (who is there),
 * matchmaking.h (who is together), group_data.h (the data), group_window.h (does it count).
 *
 * Phases (the driver's; each says which one follows, group_agent.c enters it):
 *
 *   IDLE      a round is over: leave, come back, or look for the next group
 *   ASKING    back again: asks the others which round they are at (group_agent.h)
 *   MATCHING  looks for the group of `round`: at once, while the application computes
 *             (group_matching.h, group_matching.h)
 *   ROUND     in a group. The contribution is the application's when it has started;
 *             it is none ("null": this rank only reduces its part for the others) if it
 *             leaves, or if the others pass it over since they have waited half their
 *             timeout. Then the data, then the decision (group_round.h).
 *   AWAY      left
 *
 * From the bottom to the top: clock, wire; remote, members, bandwidth; inquiry,
 * matching, rejoin, running; closing; drive; on_message. The bytes are group_data.h's. What
 * the application has and calls is above all these: group_agent.h.
 */
#ifndef PCOLL_GROUP_AGENT_H
#define PCOLL_GROUP_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "group/group_matching.h"
#include "group/group_round.h"
#include "group/group_window.h"
#include "group/group_wire.h"
#include "protocol/group/grid.h"
#include "protocol/group/matchmaking.h"
#include "protocol/group/membership.h"
#include "runtime/spent_window.h"
#include "runtime/user_object.h"
#include "base/lock.h"

/*
 * Leaving and coming back. One that is back asks the others which round they are at,
 * and joins the latest of them. Those who are away answer as well: if all have left,
 * they are the only ones who know how far the rounds had got.
 */
struct group;
struct group_message;
enum group_phase;

struct group_rejoin {
    bool suspected;     /* this rank, by others: it has to come back */
    uint64_t highest;   /* round that was answered, … */
    uint32_t answers;   /* … by so many … */
    int64_t wait_until; /* … and until when to wait for more */
};

int group_agent_leave(struct group *g);
int group_agent_begin_rejoin(struct group *g);
/* *next: the phase that follows, or this one. */
int group_agent_continue_rejoin(struct group *g, enum group_phase *next);
/* An answer. */
void group_agent_on_round(struct group *g, const struct group_message *m);
/* The round that one that comes back may join, for all that this rank knows. */
uint64_t group_agent_round_to_join(const struct group *g);

enum group_phase { PHASE_IDLE, PHASE_ASKING, PHASE_MATCHING, PHASE_ROUND, PHASE_AWAY };

/* Of closing: what all have sent and received (group_agent.c). */
struct group_drain {
    struct agreement agreement;
    uint64_t *counts; /* two, which MPI may write to when the group is no more */
    uint64_t before[2];
    bool agreeing;
    int64_t again_at; /* INT64_MAX: no */
};

/* When ranks have died: what each of the others has said of itself, and with which round all
 * go on (group_agent.c). */
struct group_restart {
    uint64_t *words; /* by rank */
    uint64_t round;
    struct communicator *communicator; /* the new one, until it is the old one's */
};

/* Between application and driver: counts, wishes, the outcome. The input in the window
 * is the application's while no deposit is outstanding. `outcome` and the landing are
 * the driver's until finished is counted up, then the application's until it starts
 * again: a round with a null contribution does not touch them. */
struct group_shared {
    _Atomic uint64_t started, finished;
    uint64_t consumed;   /* driver: deposits that a round has taken */
    uint64_t last_index; /* driver: the last round with a deposit of this rank, + 1 */
    _Atomic bool wants_away;      /* the last that leave or rejoin said */
    bool closing;                 /* asked for */
    _Atomic uint64_t shown_round; /* for the application */
    struct lock mutex;            /* of what follows */
    struct pcoll_group_round outcome;
    uint32_t *outcome_ranks;
    double *outcome_shares;
    pcoll_group_stats stats;
};

struct group {
    struct object base; /* first: found again from it */
    struct communicator *communicator;
    pcoll_group_options options;
    struct group_layout place;
    struct window *window;
    struct spent_window *spent; /* room for it, until it has closed */

    struct grid grid;
    uint64_t *cells; /* by rank; with dynamic keys the own one alone is true */
    uint64_t cell;   /* own */
    bool dynamic;

    enum group_phase phase; /* group_agent.c */
    uint64_t round;
    uint32_t chain; /* complete rounds in a row */
    struct membership membership;
    struct match match;

    struct group_clock clock;
    struct group_traffic wire;
    struct group_remote remote;
    struct group_bandwidth bandwidth;
    struct group_inquiry inquiry;
    struct group_matching matching;
    struct group_rejoin rejoin;
    struct group_round now;
    struct group_drain drain;
    struct group_shared shared;
    bool driven, queued; /* made, and not recovering; may close */
    struct group_restart restart;
};

/* The driver's part (group_agent.c). */
extern const struct object_ops group_agent_ops;

/* How it is with a rank that lives, in a word for the others. */
uint64_t group_agent_state_word(const struct group *g);
/* The words of all, which other ranks give: PCOLL_EPROTOCOL if they cannot be. */
int group_agent_check_words(const struct group *g, const uint64_t *words,
                            uint64_t round);
/* group_agent.c: ranks have died, and all who live stand still. By rank: such words, 0 of the
 * dead. All go on in this round, which nobody has begun. */
int group_agent_restart(struct group *g, const uint64_t *words, uint64_t round);

/* group_agent.c: go on as far as that is possible. */
int group_agent_drive(struct group *g);
/* group_agent.c: the same for one that closes. */
int group_agent_drain(struct group *g);
/* When its turn has come. */
int group_agent_begin_close(struct object *p);

/* group_object.c. The options are there: check them, make everything but what needs the
 * window; then the window is there. */
int group_object_prepare(struct group *g, uint32_t rank, uint32_t ranks);
int group_object_attach(struct group *g);
/* All but the window. */
void group_object_dispose(struct group *g);

static inline struct group *group_agent_of(struct object *p)
{
    return (struct group *)p;
}

static inline int64_t group_agent_timeout_ns(const struct group *g)
{
    return g->options.timeout_us * 1000;
}

static inline bool group_agent_was_started(const struct group *g)
{
    return atomic_load(&g->shared.started) > g->shared.consumed;
}

/* What it has started it finishes first, unless it is freed. */
static inline bool group_agent_leaves(const struct group *g)
{
    return g->shared.closing ||
           (atomic_load(&g->shared.wants_away) && !group_agent_was_started(g));
}

/* The line that it is on in this round. */
static inline uint64_t group_agent_line(const struct group *g)
{
    return grid_line(&g->grid, g->cell, grid_axis(&g->grid, g->round));
}

/* A grouped allreduce as its users have it. */

struct pcoll_group {
    struct user_object base; /* first: found again from it */
    struct group group;
    bool waiting; /* the application has started and not yet waited */
};

/* Begin and end a call, as in user_object.h. */
static inline int group_object_enter(pcoll_group *p)
{
    return fail_if_null_as("group", p) ?: user_object_enter(&p->base);
}

/* Returns rc. */
static inline int group_object_leave(pcoll_group *p, int rc)
{
    return user_object_leave(&p->base, rc);
}

extern const struct user_object_kind group_create_kind;
/* Its part in going on without the dead. */
extern const struct recoverable group_create_recoverable;

#endif
