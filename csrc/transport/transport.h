/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between the protocol and whatever moves bytes: a handful of calls that transport/mpi
 * carries out with MPI and transport/sim in virtual time.
 *
 * Non-blocking throughout. What was begun ends as an event of poll(). One thread at a
 * time (the progress lock). Messages of one (sender, receiver, tag) keep their order,
 * and so do the control messages of one (sender, receiver). (The simulator shuffles
 * what one poll returns all the same: allreduces do not need that order, groups do.)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bitset.h"

/* A short message that is always received, whatever its round. */
struct control {
    uint32_t handle; /* slot of the handle on its communicator */
    uint16_t kind;   /* the handle's business */
    uint16_t edge;
    uint64_t round;
    uint64_t value[4];
};

enum transport_event_kind {
    TRANSPORT_DONE,    /* a send or receive is over: cookie, bytes */
    TRANSPORT_CONTROL, /* a control message came: source, control */
    TRANSPORT_AGREED   /* an agreement is over: cookie */
};

struct transport_event {
    enum transport_event_kind kind;
    uint64_t cookie;
    size_t bytes;
    uint32_t source;
    struct control control;
};

struct transport;
struct doorbell_page; /* base/doorbell.h */

enum agree_op { AGREE_MAX, AGREE_SUM };

/* A line of collectives of its own for a handle, see `open`. */
struct channel;

/* A vendor's allreduce, in place. */
struct native_call {
    void *data;
    uint64_t count;
    int32_t dtype, op; /* predefined ones of the public header */
    /* For transports without a vendor: out = a op b on so many elements. */
    void (*reduce)(void *out, const void *a, const void *b, size_t count);
};

struct transport_ops {
    /* The buffer must stay until the event. Any size up to 64 times INT_MAX; a message
     * is at most as long as the receive that it meets. */
    int (*send)(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                size_t bytes, uint64_t cookie);
    int (*recv)(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                size_t capacity, uint64_t cookie);
    /* Copied; no event. */
    int (*control)(struct transport *t, uint32_t peer, const struct control *message);
    /* Collective, in the same order on all ranks: values become their maximum or sum
     * over all ranks, element by element. values must stay until the event. */
    int (*agree)(struct transport *t, uint64_t *values, int count, enum agree_op op,
                 uint64_t cookie);
    /* A channel, in the same order on all ranks; it may be used when `opened` says
     * PCOLL_OK and not PCOLL_EAGAIN. Collective, so is the end. */
    int (*open)(struct transport *t, struct channel **channel);
    int (*opened)(struct transport *t, struct channel *channel);
    void (*close)(struct transport *t, struct channel *channel);
    /* Collective, in the same order on all ranks of the channel. TRANSPORT_DONE. */
    int (*native)(struct transport *t, struct channel *channel,
                  const struct native_call *call, uint64_t cookie);
    /* What has ended or come since the last call; the number, or a negative error. The
     * events stay until the next call. */
    int (*poll)(struct transport *t, const struct transport_event **events);
    /* What was begun, is not over, and may need looking after: sends, native calls. */
    int (*pending)(const struct transport *t);
    /* Time in nanoseconds, from whenever. */
    int64_t (*now)(const struct transport *t);
    /* Somebody is to poll at that time. NULL where progress/ sees to it. */
    void (*alarm)(struct transport *t, int64_t at);
    /* Collective. */
    void (*destroy)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    uint32_t rank, size;
    uint32_t living;        /* ranks that have not died */
    const uint64_t *failed; /* the others, a set; NULL: nobody */
    uint32_t tags;          /* usable tags are 0 … tags-1 */
    uint64_t number; /* Names it among all that have had these ranks; 0: it has none. */
    bool off_node;   /* some peer cannot wake us: look for messages now and then */
    bool threads;    /* several threads may call MPI at once */

    /* Who can share memory: ranks with equal values, and their process ids and
     * doorbells (the own one left out). NULL where nobody can. */
    const uint64_t *hosts, *pids;
    struct doorbell_page *const *doorbells;
};

static inline bool transport_lives(const struct transport *t, uint32_t rank)
{
    return !t->failed || !bitset_has(t->failed, rank);
}

/* Of those who live; there is this one. */
static inline uint32_t transport_lowest(const struct transport *t)
{
    uint32_t rank = 0;
    while (!transport_lives(t, rank))
        rank++;
    return rank;
}
