/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a simulated world: world.c builds and runs it, app.c plays the ranks'
 * applications, invariants.c looks at what they are given. */
#ifndef PCOLL_TESTS_WORLD_STATE_H
#define PCOLL_TESTS_WORLD_STATE_H

#include "allreduce/endpoint.h"
#include "spy.h"
#include "world.h"

enum { WORLD_SEED = 7 }; /* of the draws */

enum app_phase { THINKING, WAITING, JOINING, FREEING, RENEWING, MEETING, DONE };

/* What sim_wake was called for. WAKE_DOORBELL: and the handle, from WAKE_HANDLE bits
 * on. */
enum wake_token {
    WAKE_AGENT,
    WAKE_CALL,
    WAKE_STALLED,
    WAKE_DOORBELL,
    WAKE_PAUSED, /* its application goes on */
    WAKE_PAUSED_AGENT
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

struct world {
    struct world_options o;
    struct sim *sim;
    struct communicator *communicator[LEDGER_MAX_RANKS];
    struct endpoint *endpoint[WORLD_MAX_MADE][LEDGER_MAX_RANKS];
    struct ledger *ledger; /* of each handle */
    struct app app[LEDGER_MAX_RANKS];
    /* By handle: the domain of each rank, how many there are, the memory of each. */
    uint32_t domain[WORLD_MAX_HANDLES][LEDGER_MAX_RANKS];
    uint32_t domains[WORLD_MAX_HANDLES];
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
};

/* How handle k was asked for. */
static inline const struct world_handle *handle_of(const struct world *w, int k)
{
    return &w->o.handle[k % w->o.handles];
}

static inline const uint32_t *domain_of(const struct world *w, int k)
{
    return w->domain[k % w->o.handles];
}

static inline uint32_t domains_of(const struct world *w, int k)
{
    return w->domains[k % w->o.handles];
}

/* Make all handles of a generation on a rank; take the ones before it away. */
void world_make_handles(struct world *w, uint32_t rank, int generation);

/* app.c */
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

#endif
