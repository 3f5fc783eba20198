/* SPDX-License-Identifier: Apache-2.0 */
/* A gossip buffer as its users have it. */
#ifndef PCOLL_GOSSIP_OBJECT_H
#define PCOLL_GOSSIP_OBJECT_H

#include "gossip/gossip_memory.h"
#include "runtime/spent_window.h"
#include "runtime/user_object.h"

struct pcoll_gossip {
    struct user_object base; /* first: found again from it */
    struct object object;    /* for its place in the order of closing */
    struct gossip_memory *memory;
    struct spent_window *spent; /* room for it, until it has closed */
    uint32_t max_uncollected;
    int64_t look_at; /* for ranks that have died, by clock_ns; 0: never */
};

/* Its part in going on without the dead. */
extern const struct recoverable gossip_recoverable;

extern const struct user_object_kind gossip_kind;
/* When its turn has come. */
extern const struct object_ops gossip_object;

#endif
