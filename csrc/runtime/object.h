/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever has slots on a communicator: the context calls it when something has
 * happened that concerns it. The executor of an allreduce is one, that of a user's
 * schedule another; each embeds this as its first member.
 */
#ifndef PCOLL_RUNTIME_OBJECT_H
#define PCOLL_RUNTIME_OBJECT_H

#include "transport/transport.h"

struct object;

/* All called by the driver. */
struct object_ops {
    /* Look around: it was notified, its alarm has come, or an agreement is over. */
    int (*run)(struct object *p);
    /* Its message with this number in the cookie is over. */
    int (*done)(struct object *p, int op, size_t bytes);
    int (*control)(struct object *p, uint32_t source, const struct control *message);
    /* It is this one's turn to close. */
    int (*begin_close)(struct object *p);
    /* Watched ones only, in every poll: has somebody in another process asked it to
     * run? */
    bool (*attention)(struct object *p);
};

struct object {
    const struct object_ops *ops;
    uint32_t slot, slots; /* the first of its slots, and how many */
    int64_t alarm;        /* INT64_MAX: none */
    bool in_vain; /* what its alarm was for has not come: it looks again later */
    struct object *next_notified; /* under context.notified_mutex */
    bool notified;
    struct object *next_closing;
    _Atomic bool closed; /* nothing of it comes any more */
    bool watched;
    struct object *next_watched;
};

static inline struct object object_init(const struct object_ops *ops)
{
    return (struct object){.ops = ops, .slots = 1, .alarm = INT64_MAX};
}

/* The cookie of one of its messages. */
static inline uint64_t object_cookie(const struct object *p, int op)
{
    return (uint64_t)p->slot << 32 | (uint32_t)op;
}

#endif
