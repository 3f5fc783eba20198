/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gossip buffer of the public header: creation, calls, recovery and end. The calls
 * (gossip_calls.c) also work in the simulator; gossip_object.c needs MPI.
 */
#ifndef PCOLL_GOSSIP_OBJECT_H
#define PCOLL_GOSSIP_OBJECT_H

#include "gossip/gossip_memory.h"
#include "runtime/communicator.h"
#include "runtime/user_object.h"

struct pcoll_gossip {
    struct user_object base; /* first: found again from it */
    struct object object;    /* takes part in the order of closing */
    struct gossip_memory *memory;
    struct spent_window
        *spent; /* where its window goes when it closes; NULL: it has closed */
    uint32_t max_uncollected;
    int64_t poll_at; /* next look for failures, clock_ns; 0: never */
};

/* Continuing without dead ranks. */
extern const struct recoverable gossip_recoverable;

extern const struct user_object_kind gossip_kind;
/* Closing in the agreed order. */
extern const struct object_ops gossip_object;

#endif
