/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce on one rank, as the agent drives it, and as its application uses
 * it. It combines modules that each answer one question: grid.h (which ranks meet),
 * membership.h (which ranks take part), matchmaking.h (who forms a group), group_data.h
 * (the data) and group_window.h (does the round count).
 *
 * Phases. Each phase returns the phase that follows, and group_agent.c enters it.
 *
 *   IDLE      A round has ended: leave, return, or look for the next group.
 *   ASKING    The rank has returned, and asks the others for their round.
 *   MATCHING  The rank looks for the group of `round` while the application computes
 *             (group_matching.h).
 *   ROUND     The rank is in a group (group_round.h). Its contribution is the
 *             application's if that has started. Otherwise it is null: the rank only
 *             reduces its part for the others. It is null if the rank leaves, or if the
 *             others pass it over because they have waited for half their timeout. Then
 *             come the data and the decision.
 *   AWAY      The rank has left.
 *
 * Leaving and returning. A rank that returns asks the others which round they are at,
 * and joins the latest of these rounds. Ranks that are away answer as well: if all
 * ranks have left, only they know how far the rounds had progressed.
 *
 * Closing. No rank begins anything, but messages may be under way. The ranks sum up
 * what they have sent and received until two sums in a row agree in both (Mattern's
 * four counters). Then the window is left for later.
 *
 * Dead ranks. The live ranks stop, and begin anew without the dead
 * (group_agent_restart). Messages under way are lost; windows stay as they were.
 *
 *   round         The word of its group decides it. It cannot change any more once a
 *                 live member has read it here. The round counts if all members had
 *                 everything they needed, the dead ones included. Otherwise it is void
 *                 if one of its members has died. If none has, the round is undone: the
 *                 contribution goes into the next round.
 *   matchmaking   It begins again in a round that no rank has begun yet, so that old
 *                 content of windows is not taken for a part of it.
 *   membership    Each live rank states its own status. The status of a dead rank never
 *                 changes again. No rank is suspected.
 *
 * Layers, from the bottom: group_wire and group_window; group_data; group_matching and
 * group_round; group_agent; group_object and group_create.
 */
#ifndef PCOLL_GROUP_AGENT_H
#define PCOLL_GROUP_AGENT_H

#include "group/group_matching.h"
#include "group/group_round.h"
#include "group/group_wire.h"
#include "protocol/group/grid.h"
#include "runtime/communicator.h"
#include "runtime/user_object.h"
#include "base/lock.h"

enum group_phase { PHASE_IDLE, PHASE_ASKING, PHASE_MATCHING, PHASE_ROUND, PHASE_AWAY };

struct group_rejoin {
    bool suspected;     /* Other ranks suspect this one, so it has to return. */
    uint64_t highest;   /* Highest round of the answers. */
    uint32_t answers;   /* Answers received. */
    int64_t wait_until; /* When to stop waiting for answers. */
};

/* The exchange of message counts while the object closes. */
struct group_drain {
    struct agreement agreement;
    uint64_t *counts; /* Two. MPI may write to them after the group is freed. */
    uint64_t before[2];
    bool agreeing;
    int64_t again_at; /* When to sum up again; INT64_MAX: no. */
};

/* The state that the live ranks have exchanged after ranks have died. */
struct group_restart {
    uint64_t *words; /* By rank: group_agent_state_word, or 0 for a dead rank. */
    uint64_t round;  /* The round that all continue with. */
    struct communicator *communicator; /* The new one. */
};

/* State that application and driver share. The application owns the input in the window
 * while no deposit is outstanding. The driver owns `outcome` and the landing until it
 * increments `finished`; then the application owns them until it starts again. A round
 * with a null contribution does not touch them. */
struct group_shared {
    _Atomic uint64_t started, finished;
    uint64_t consumed;       /* Driver: deposits that a round has used. */
    uint64_t last_index;     /* Driver: 1 + last round with a deposit of this rank. */
    _Atomic bool wants_away; /* The last call was leave, not rejoin. */
    bool closing;            /* The object is being freed. */
    _Atomic uint64_t shown_round; /* The round that the application sees. */
    struct lock mutex;            /* Protects the fields below. */
    struct pcoll_group_round outcome;
    uint32_t *outcome_ranks;
    double *outcome_shares;
    pcoll_group_stats stats;
};

struct group {
    struct object base; /* First, so that the object can be converted back. */
    struct communicator *communicator;
    pcoll_group_options options;
    struct group_layout place;
    struct window *window;
    struct spent_window *spent; /* Memory for the closed window, until it has closed. */

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
    struct group_bandwidth bandwidth;
    struct group_remote remote;
    struct group_inquiry inquiry;
    struct group_matching matching;
    struct group_rejoin rejoin;
    struct group_round now;
    struct group_drain drain;
    struct group_shared shared;
    bool driven; /* The object is complete, and no recovery is under way. */
    bool queued; /* The object waits for its turn to close. */
    struct group_restart restart;
};

struct pcoll_group {
    struct user_object base; /* First, so that the object can be converted back. */
    struct group group;
    bool waiting; /* The application has started and not yet waited. */
};

/* group_agent.c: what the communicator calls. */
extern const struct object_ops group_agent_ops;
/* group_create.c: the end of a group, and its part in a recovery. */
extern const struct user_object_kind group_create_kind;

/* Run the phases as far as possible. */
int group_agent_drive(struct group *g);
/* The same for an object that closes. */
int group_agent_drain(struct group *g);
int group_agent_begin_close(struct object *p);

/* Announce that this rank has left. */
int group_agent_leave(struct group *g);
/* A rank has answered which round this rank may join. */
void group_agent_on_round(struct group *g, const struct group_message *m);
/* Return the round that a returning rank may join, as far as this rank knows. */
uint64_t group_agent_round_to_join(const struct group *g);

/* Return the status of this rank as a word for the others. */
uint64_t group_agent_state_word(const struct group *g);
/* Check the words of all ranks, 0 for the dead ones. PCOLL_EPROTOCOL. */
int group_agent_check_words(const struct group *g, const uint64_t *words,
                            uint64_t round);
/* Ranks have died, and all live ranks are stopped. Continue in `round`, which no rank
 * has begun, with these words. */
int group_agent_restart(struct group *g, const uint64_t *words, uint64_t round);

/* group_object.c. Check the options and make everything that needs no window. */
int group_object_prepare(struct group *g, uint32_t rank, uint32_t ranks);
/* The window exists: make the rest. */
int group_object_attach(struct group *g);
/* Free everything but the window. */
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

/* Does the rank leave? It finishes what it has started first, unless it is freed. */
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

#endif
