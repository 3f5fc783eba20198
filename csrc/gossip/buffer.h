/* SPDX-License-Identifier: Apache-2.0 */
/* A gossip buffer as its users have it. */
#ifndef PCOLL_GOSSIP_BUFFER_H
#define PCOLL_GOSSIP_BUFFER_H

#include "../allreduce/runtime.h"
#include "memory.h"
#include "spent_window.h"

struct pcoll_gossip {
    struct runtime_entry entry; /* first: found again from it */
    struct participant base;    /* for its place in the order of closing */
    struct context *context;
    struct gossip_memory *memory; /* NULL: freed */
    struct spent_window *spent;   /* room for it, until it has closed */
    uint32_t max_uncollected;
    bool closing; /* asked for */
    _Atomic bool closed;
    _Atomic bool busy;
};

/* For one thread at a time: PCOLL_ESTATE if another is inside, or it is freed. */
int gossip_enter(pcoll_gossip *g);
/* Returns rc. */
int gossip_leave(pcoll_gossip *g, int rc);

/* At MPI_Finalize. */
void gossip_begin_end(struct runtime_entry *entry);
void gossip_end(struct runtime_entry *entry);

/* When its turn has come. */
extern const struct participant_ops gossip_participant;

/* All but the window. */
void gossip_dispose(struct gossip_memory **m);

#endif
