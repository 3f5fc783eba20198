/* SPDX-License-Identifier: Apache-2.0 */
/* A gossip buffer as its users have it. */
#ifndef PCOLL_GOSSIP_OBJECT_H
#define PCOLL_GOSSIP_OBJECT_H

#include "runtime/process.h"
#include "gossip/memory.h"
#include "runtime/spent_window.h"

struct pcoll_gossip {
    struct process_entry entry; /* first: found again from it */
    struct object base;         /* for its place in the order of closing */
    struct communicator *communicator;
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
void gossip_begin_end(struct process_entry *entry);
void gossip_end(struct process_entry *entry);

/* When its turn has come. */
extern const struct object_ops gossip_object;

#endif
