/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever has slots on a communicator: the context calls it when something has
 * happened that concerns it. The executor of an allreduce is one, that of a user's
 * schedule another; each embeds this as its first member.
 */
#ifndef PCOLL_ALLREDUCE_PARTICIPANT_H
#define PCOLL_ALLREDUCE_PARTICIPANT_H

#include "../transport/transport.h"

struct participant;

/* All called by the driver. */
struct participant_ops {
    /* Look around: it was kicked, its alarm has come, or an agreement is over. */
    int (*run)(struct participant *p);
    /* Its message with this number in the cookie is over. */
    int (*done)(struct participant *p, int op, size_t bytes);
    int (*control)(struct participant *p, uint32_t source,
                   const struct control *message);
    /* It is this one's turn to close. */
    int (*begin_close)(struct participant *p);
    /* Watched ones only, in every poll: has somebody in another process asked it to
     * run? */
    bool (*attention)(struct participant *p);
};

struct participant {
    const struct participant_ops *ops;
    uint32_t slot, slots;            /* the first of its slots, and how many */
    int64_t alarm;                   /* INT64_MAX: none */
    struct participant *next_kicked; /* under context.kicked_mutex */
    bool kicked;
    struct participant *next_closing;
    bool watched;
    struct participant *next_watched;
};

static inline struct participant participant_init(const struct participant_ops *ops)
{
    return (struct participant){.ops = ops, .slots = 1, .alarm = INT64_MAX};
}

/* The cookie of one of its messages. */
static inline uint64_t participant_cookie(const struct participant *p, int op)
{
    return (uint64_t)p->slot << 32 | (uint32_t)op;
}

#endif
