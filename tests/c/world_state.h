/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a simulated world: world.c builds and runs it, app.c plays the ranks'
 * applications, invariants.c looks at what they are given. */
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
    GROWING, /* until others have come */
    GROWN,
    NEW_HERE /* as one of them */
};

/* What sim_wake was called for. WAKE_DOORBELL: and the handle, from WAKE_HANDLE bits on. */
enum wake_token {
    WAKE_AGENT,
    WAKE_CALL,
    WAKE_STALLED,
    WAKE_DOORBELL,
    WAKE_PAUSED, /* its application goes on */
    WAKE_PAUSED_AGENT,
    WAKE_PAUSED_RECOVERY,
    WAKE_DETECT /* it hears of a death */
};
enum { WAKE_HANDLE = 8 };

/* The application of one rank: phase, and which handle it is at. Handles are numbered
 * through all generations. */
struct app {
    enum app_phase phase;
    bool rung; /* shared memory: it is to look whether its round is complete */
    bool asks; /* it has asked for its handle to be closed */
    int handle;
    int generation;
    uint64_t votes; /* for the agreement before the next generation */
    struct agreement agreement;
    uint64_t call;  /* loops done */
    uint64_t calls; /* loops to do */
    int joins_left;
    bool leaves;
    bool stalled;
    double *send, *recv;
};

/* Of one rank; step by step as in runtime/recovery.h. */
enum recovery_step {
    RUNNING,
    STOPPING,  /* its threads leave what they are in */
    PAUSING,   /* the same, as its application asks for others */
    PAUSED,    /* until all who live have, and others come */
    SHRINKING, /* until all who live do */
    CENSUS,    /* is taken */
    BUILDING,  /* the successor of `handle`; … */
    SHARING,   /* … the result of its last round is on its way */
    BUILT,     /* a barrier */
    INHERITED  /* another one */
};

struct recovery {
    enum recovery_step step;
    bool stopped;      /* its application is kept from what others see */
    bool fails;        /* somebody else has died */
    uint32_t epoch;    /* that it is in, or about to enter */
    int64_t enters_at; /* … at this time */
    bool grows;        /* with others; it is to be settled whether that is to be */
    struct communicator *to;
    struct agreement agreement;
    struct census *census; /* by handle */
    int handle;
    struct recovery_plan plan;
    uint64_t *shared; /* a message, as words */
    struct endpoint *successor[WORLD_MAX_HANDLES];
    struct round_header *resumes[WORLD_MAX_HANDLES];
};

/* Others are taken in, or not: as runtime/recovery.h. */
enum vote { NO_VOTE, AGAINST, IN_FAVOR };
struct world_growth {
    enum vote voted[LEDGER_MAX_RANKS], settled; /* NO_VOTE: not yet */
    bool newcomer[LEDGER_MAX_RANKS];
};

/* The domains of a handle, of rounds from this one on. */
struct world_layout {
    uint64_t from;
    uint32_t domain[LEDGER_MAX_RANKS], domains;
};

/* To be freed at the end, since messages that are late still come there. */
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
    /* By handle: its domains in each epoch, the memory of each. */
    struct world_layout layout[WORLD_MAX_HANDLES][LEDGER_MAX_EPOCHS];
    void *memory[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct way {
        struct world *world;
        int handle;
    } way[WORLD_MAX_MADE]; /* from a domain to its world */
    /* By rank: somebody holds the progress lock; when it is free the agent is to look.
     */
    bool driving[LEDGER_MAX_RANKS], again[LEDGER_MAX_RANKS];
    uint64_t expected_next[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    uint64_t joined_at[WORLD_MAX_MADE][2]; /* round after the first, second join, +1 */
    struct world_report report;
    uint64_t deliveries, steps;

    bool dead[LEDGER_MAX_RANKS], buried[LEDGER_MAX_RANKS]; /* of earlier epochs */
    uint32_t epoch;                                        /* the newest */
    bool revoked;                                          /* all are told */
    struct recovery recovery[LEDGER_MAX_RANKS];
    struct world_growth growth; /* the newest */
    /* By handle and rank: asked to close; closed and freed, or without a successor. */
    bool asked[WORLD_MAX_MADE][LEDGER_MAX_RANKS],
        gone[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct kept *kept, *kept_memory;
};

/* How handle k was asked for. */
static inline const struct world_handle *handle_of(const struct world *w, int k)
{
    return &w->o.handle[k % w->o.handles];
}

/* The domains that a round was done in. */
static inline const struct world_layout *layout_of(const struct world *w, int k,
                                                   uint64_t round)
{
    const struct world_layout *of = w->layout[k % w->o.handles];
    uint32_t epoch = w->ledger[k].epoch;
    while (epoch && (of[epoch].from > round || !of[epoch].domains))
        epoch--;
    return &of[epoch];
}

/* The lowest rank that lives. */
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

/* Make all handles of a generation on a rank; take the ones before it away. */
void world_make_handles(struct world *w, uint32_t rank, int generation);

/* What a handle is made of. */
pcoll_options world_options_of(const struct world *w, int k);
pcoll_buffer world_buffer_of(const struct world *w, int k);
/* Give an endpoint that has been made its domain. */
void world_settle(struct world *w, int k, uint32_t rank, struct endpoint *v,
                  const pcoll_options *options);
/* Where the ranks that live are to be in this epoch. */
void world_lay_out(struct world *w, uint32_t epoch);
/* Free it at the end: memory after everything else. */
void world_keep(struct world *w, void (*end)(void *what), void *what);
void *world_memory(struct world *w, size_t bytes);
void world_end_communicator(void *communicator);

/* crash.c */
/* Another step of this rank. True: it is dead. */
bool crash_step(struct world *w, uint32_t rank);
bool crash_unburied(const struct world *w);
/* It hears of whoever has died, some time. */
void crash_tell(struct world *w, uint32_t rank, int64_t latest);
/* It does. */
void crash_detected(struct world *w, uint32_t rank);

/* recover.c */
/* One step of its recovery, if it can make one; none of its threads is in another. */
bool recover_advance(struct world *w, uint32_t rank);
/* Those who live go on together, when all have stopped. */
void recover_shrink(struct world *w);
/* A new communicator, of those who live. */
void recover_begin_epoch(struct world *w);
/* Its successor takes the place of its endpoint, if it has one, which has been followed. */
void recover_replace(struct world *w, int k, uint32_t rank);
/* Whatever it has begun is not to be. */
void recover_abandon(struct world *w, uint32_t rank);
/* What its agent polls; NULL: nothing. */
struct communicator *recover_polled(struct world *w, uint32_t rank);

/* grow.c */
/* Those who live have paused: others come. */
void grow_begin(struct world *w);
/* As far as it can get it has; the same answer for all that live, when all have voted. */
void grow_vote(struct world *w, uint32_t rank, bool in_favor);
void grow_settle(struct world *w);
/* It is not to be, and this rank goes on as before. */
void grow_call_off(struct world *w, uint32_t rank);

/* app.c */
/* Others have come, or it is one of them, at the round of this number. */
void app_grown(struct world *w, uint32_t rank, uint64_t round);
void app_begin(struct world *w, uint32_t rank);
/* A domain in shared memory wakes it, because of a round of handle k. */
void app_ring(struct world *w, int k, uint32_t rank);
/* Its agent is to look, soon. */
void app_alert(struct world *w, uint32_t rank);
/* Its wake-up of this token has come. */
void app_woken(struct world *w, uint32_t rank, uint64_t token);
/* Whatever it does: it is told if the token is that of a doorbell. */
bool app_rung(struct world *w, uint32_t rank, uint64_t token);
/* One step, if it can make one. */
bool app_advance(struct world *w, uint32_t rank);
const char *app_phase_name(enum app_phase phase);

/* misuse.c: try what is not allowed at this moment. */
void app_misuse(struct world *w, uint32_t rank);

/* invariants.c: a rank was given a round of handle k, with these masks. */
void check_delivery(struct world *w, int k, uint32_t rank, const pcoll_round *r,
                    const uint64_t *masks);
/* Its handle k is closed: nothing may be under way to it any more. */
void check_closed(struct world *w, int k, uint32_t rank);
/* Its n-th join of handle k ended with this round. */
void check_joined(struct world *w, int k, int n, uint32_t rank, const pcoll_round *r);
/* Nothing is left to happen. */
void check_nobody_waits(struct world *w);
/* All handles are closed. */
void check_end(struct world *w);
