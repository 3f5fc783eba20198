/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a simulated world. world.c creates and runs it, app.c plays the ranks'
 * applications, invariants.c checks their results. */
#pragma once

#include "allreduce/endpoint.h"
#include "runtime/recovery.h"
#include "spy.h"
#include "world.h"

enum { WORLD_SEED = 7 }; /* of the draws */

enum app_phase {
    THINKING,
    WAITING,
    JOINING,
    FREEING,
    RENEWING,
    MEETING,
    DONE,
    GROWING, /* until newcomers have come */
    GROWN,
    NEW_HERE /* a newcomer */
};

/* The reason for a sim_wake. WAKE_DOORBELL has the handle from bit WAKE_HANDLE on. */
enum wake_token {
    WAKE_AGENT,
    WAKE_CALL,
    WAKE_STALLED,
    WAKE_DOORBELL,
    WAKE_PAUSED, /* its application continues */
    WAKE_PAUSED_AGENT,
    WAKE_PAUSED_RECOVERY,
    WAKE_DETECT /* it detects a death */
};
enum { WAKE_HANDLE = 8 };

/* The application of one rank. Handles are numbered through all generations. */
struct app {
    enum app_phase phase;
    bool rung; /* shared memory: it must check whether its round is complete */
    bool asks; /* it has asked to close its handle */
    int handle;
    int generation;
    uint64_t votes; /* of the agreement before the next generation */
    struct agreement agreement;
    uint64_t call;  /* loops done */
    uint64_t calls; /* loops to do */
    int joins_left;
    bool leaves;
    bool stalled;
    double *send, *recv;
};

/* The recovery of one rank, step by step as in runtime/recovery.h. */
enum recovery_step {
    RUNNING,
    STOPPING,  /* its threads leave their current calls */
    PAUSING,   /* the same, because its application requests newcomers */
    PAUSED,    /* until all live ranks have paused and newcomers come */
    SHRINKING, /* until all live ranks shrink */
    INVENTORY, /* the inventory is exchanged */
    BUILDING,  /* the successor of `handle` is created; … */
    SHARING,   /* … the result of its last round is being sent */
    BUILT,     /* in a barrier */
    INHERITED  /* in another barrier */
};

struct recovery {
    enum recovery_step step;
    bool stopped;      /* its application must not use shared state */
    bool fails;        /* another rank has died */
    uint32_t epoch;    /* current epoch, or the one about to be entered */
    int64_t enters_at; /* … at this time */
    bool grows;        /* with newcomers, if the vote succeeds */
    struct communicator *to;
    struct agreement agreement;
    struct inventory *inventory; /* by handle */
    int handle;
    struct recovery_plan plan;
    uint64_t *shared; /* a message, as words */
    struct endpoint *successor[WORLD_MAX_HANDLES];
    struct round_header *resumes[WORLD_MAX_HANDLES];
};

/* The vote on taking in newcomers, as in runtime/recovery.h. */
enum vote { NO_VOTE, AGAINST, IN_FAVOR };
struct world_growth {
    enum vote voted[LEDGER_MAX_RANKS], settled; /* NO_VOTE: not yet */
    bool newcomer[LEDGER_MAX_RANKS];
};

/* The domains of a handle from round `from` on. */
struct world_layout {
    uint64_t from;
    uint32_t domain[LEDGER_MAX_RANKS], domains;
};

/* Objects to be freed at the end, because late messages may still reach them. */
struct kept {
    void (*end)(void *what);
    void *what;
    struct kept *next;
};

struct world {
    struct world_options o;
    struct sim *sim;
    struct communicator *communicator[LEDGER_MAX_RANKS];
    struct endpoint *endpoint[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct ledger *ledger; /* of each handle */
    struct app app[LEDGER_MAX_RANKS];
    /* By handle: its domains in each epoch, and the memory of each domain. */
    struct world_layout layout[WORLD_MAX_HANDLES][LEDGER_MAX_EPOCHS];
    void *memory[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct way {
        struct world *world;
        int handle;
    } way[WORLD_MAX_MADE]; /* from a domain to its world */
    /* By rank: the progress lock is held; the agent must run when it is free. */
    bool driving[LEDGER_MAX_RANKS], again[LEDGER_MAX_RANKS];
    uint64_t expected_next[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    uint64_t joined_at[WORLD_MAX_MADE][2]; /* 1 + the round of the first and second
                                            * join */
    struct world_report report;
    uint64_t deliveries, steps;

    bool dead[LEDGER_MAX_RANKS], handled[LEDGER_MAX_RANKS]; /* handled: died in an
                                                            * earlier epoch */
    uint32_t epoch;                                         /* the newest */
    bool revoked;                                           /* all are notified */
    struct recovery recovery[LEDGER_MAX_RANKS];
    struct world_growth growth; /* the newest */
    /* By handle and rank: close requested; closed and freed, or without a successor. */
    bool asked[WORLD_MAX_MADE][LEDGER_MAX_RANKS],
        gone[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct kept *kept, *kept_memory;
};

/* The options of handle k. */
static inline const struct world_handle *handle_of(const struct world *w, int k)
{
    return &w->o.handle[k % w->o.handles];
}

/* The domains of a round. */
static inline const struct world_layout *layout_of(const struct world *w, int k,
                                                   uint64_t round)
{
    const struct world_layout *of = w->layout[k % w->o.handles];
    uint32_t epoch = w->ledger[k].epoch;
    while (epoch && (of[epoch].from > round || !of[epoch].domains))
        epoch--;
    return &of[epoch];
}

/* The lowest live rank. */
static inline uint32_t world_first(const struct world *w)
{
    uint32_t rank = 0;
    while (w->dead[rank])
        rank++;
    return rank;
}

static inline bool is_recovering(const struct world *w, uint32_t rank)
{
    return w->recovery[rank].step != RUNNING;
}

/* Create all handles of a generation on a rank, after freeing the previous ones. */
void world_make_handles(struct world *w, uint32_t rank, int generation);

/* The arguments of a handle. */
pcoll_options world_options_of(const struct world *w, int k);
pcoll_buffer world_buffer_of(const struct world *w, int k);
/* Create the domain of a new endpoint. */
void world_settle(struct world *w, int k, uint32_t rank, struct endpoint *v,
                  const pcoll_options *options);
/* Compute the domains of the live ranks in this epoch. */
void world_lay_out(struct world *w, uint32_t epoch);
/* Free an object at the end: memory after everything else. */
void world_keep(struct world *w, void (*end)(void *what), void *what);
void *world_memory(struct world *w, size_t bytes);
void world_end_communicator(void *communicator);

/* crash.c */
/* Count a step of this rank. Return true if it is dead. */
bool crash_step(struct world *w, uint32_t rank);
bool crash_unhandled(const struct world *w);
/* Notify the rank of a death at a random time within `latest`. */
void crash_tell(struct world *w, uint32_t rank, int64_t latest);
/* The rank detects a death. */
void crash_detected(struct world *w, uint32_t rank);

/* recover.c */
/* Make one step of the rank's recovery, if possible. None of its threads may be in
 * another step. */
bool recover_advance(struct world *w, uint32_t rank);
/* Let the live ranks shrink when all have stopped. */
void recover_shrink(struct world *w);
/* Begin an epoch with a new communicator of the live ranks. */
void recover_begin_epoch(struct world *w);
/* Replace the endpoint of a rank by its successor, if there is one. */
void recover_replace(struct world *w, int k, uint32_t rank);
/* Discard everything that an unfinished recovery has created. */
void recover_abandon(struct world *w, uint32_t rank);
/* Return the communicator that the agent polls, or NULL. */
struct communicator *recover_polled(struct world *w, uint32_t rank);

/* grow.c */
/* When all live ranks have paused, start newcomers. */
void grow_begin(struct world *w);
/* Vote when this rank is done. All live ranks get the same answer. */
void grow_vote(struct world *w, uint32_t rank, bool in_favor);
void grow_settle(struct world *w);
/* The vote failed: this rank continues as before. */
void grow_call_off(struct world *w, uint32_t rank);

/* app.c */
/* Continue after growth at this round, as a newcomer or as an old rank. */
void app_grown(struct world *w, uint32_t rank, uint64_t round);
void app_begin(struct world *w, uint32_t rank);
/* A domain in shared memory wakes the rank for a round of handle k. */
void app_ring(struct world *w, int k, uint32_t rank);
/* Let the rank's agent run soon. */
void app_alert(struct world *w, uint32_t rank);
/* A wake-up with this token arrives. */
void app_woken(struct world *w, uint32_t rank, uint64_t token);
/* Return whether the token is a doorbell. The rank is notified in any phase. */
bool app_rung(struct world *w, uint32_t rank, uint64_t token);
/* Make one step, if possible. */
bool app_advance(struct world *w, uint32_t rank);
const char *app_phase_name(enum app_phase phase);

/* misuse.c: make calls that are not allowed in the current state. */
void app_misuse(struct world *w, uint32_t rank);

/* invariants.c: check a delivered round of handle k with its masks. */
void check_delivery(struct world *w, int k, uint32_t rank, const pcoll_round *r,
                    const uint64_t *masks);
/* Handle k of the rank is closed: nothing to it may be in progress. */
void check_closed(struct world *w, int k, uint32_t rank);
/* The n-th join of handle k ended with this round. */
void check_joined(struct world *w, int k, int n, uint32_t rank, const pcoll_round *r);
/* Check, when nothing is left to happen, that no rank waits. */
void check_none_waits(struct world *w);
/* Check the end, when all handles are closed. */
void check_end(struct world *w);
