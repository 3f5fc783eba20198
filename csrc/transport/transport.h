/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the protocol and what moves its messages: transport/mpi over MPI, and
 * transport/sim in virtual time.
 *
 * No call blocks. An operation that was begun ends as an event of poll(). One thread at a time
 * calls (the holder of the drive lock). Messages of one (sender, receiver, tag) keep their order,
 * and so do the control messages of one (sender, receiver). (The simulator shuffles the events of
 * one poll all the same: allreduces do not need their order, groups do.)
 */
#pragma once

#include "base/bitset.h"

/* A short message that is always received, whatever its round. */
struct control {
    uint32_t handle; /* Slot of the handle on its communicator. */
    uint16_t kind;   /* The handle defines it, and the rest. */
    uint16_t edge;
    uint64_t round;
    uint64_t value[4];
};

enum transport_event_kind {
    TRANSPORT_DONE,    /* A send or receive is complete: cookie, bytes. */
    TRANSPORT_CONTROL, /* A control message has arrived: source, control. */
    TRANSPORT_AGREED   /* An agreement is complete: cookie. */
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

/* A handle's private channel for collectives of the MPI library; see `open`. */
struct channel;

/* An allreduce of the MPI library, in place. */
struct native_call {
    void *data;
    uint64_t count;
    int32_t dtype, op; /* Predefined ones of the public header. */
    /* For transports without an MPI library: out = a op b on `count` elements. */
    void (*reduce)(void *out, const void *a, const void *b, size_t count);
};

struct transport_ops {
    /* The buffer must stay until the event. At most 64 times INT_MAX bytes; a message is at most
     * as long as the receive that it matches. */
    int (*send)(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                size_t bytes, uint64_t cookie);
    int (*recv)(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                size_t capacity, uint64_t cookie);
    /* The message is copied. There is no event. */
    int (*control)(struct transport *t, uint32_t peer, const struct control *message);
    /* Collective, in the same order on all ranks: the values become their maximum or sum over all
     * ranks. They must stay until the event. */
    int (*agree)(struct transport *t, uint64_t *values, int count, enum agree_op op,
                 uint64_t cookie);
    /* Collective, in the same order on all ranks. The channel may be used when `opened` returns
     * PCOLL_OK instead of PCOLL_EAGAIN. `close` is collective, too. */
    int (*open)(struct transport *t, struct channel **channel);
    int (*opened)(struct transport *t, struct channel *channel);
    void (*close)(struct transport *t, struct channel *channel);
    /* Collective, in the same order on all ranks of the channel. TRANSPORT_DONE. */
    int (*native)(struct transport *t, struct channel *channel,
                  const struct native_call *call, uint64_t cookie);
    /* Return the number of events since the last call, or a negative error. The events stay until
     * the next call. */
    int (*poll)(struct transport *t, const struct transport_event **events);
    /* Return the number of sends and native calls that progress only while they are polled. */
    int (*pending)(const struct transport *t);
    /* Return the time in nanoseconds of some clock. */
    int64_t (*now)(const struct transport *t);
    /* Have this rank polled at this time. NULL: runtime/progress.c does. */
    void (*alarm)(struct transport *t, int64_t at);
    void (*destroy)(struct transport *t); /* Collective. */
};

struct transport {
    const struct transport_ops *ops;
    uint32_t rank, size;
    uint32_t living;        /* Number of ranks that have not died. */
    const uint64_t *failed; /* Set of those that have died. NULL: none. */
    uint32_t tags;          /* Usable tags are 0 to tags - 1. */
    uint64_t number;        /* Names it among all of these ranks; 0: it has no name. */
    bool off_node;          /* Some peer cannot wake this rank: poll now and then. */
    bool threads;           /* Several threads may call MPI at once. */
    /* By rank: equal values can share memory; process ids; doorbells (NULL for this rank). The
     * arrays are NULL where no ranks can share memory. */
    const uint64_t *hosts, *pids;
    struct doorbell_page *const *doorbells;
};

static inline bool transport_lives(const struct transport *t, uint32_t rank)
{
    return !t->failed || !bitset_has(t->failed, rank);
}

/* Return the lowest living rank. */
static inline uint32_t transport_lowest(const struct transport *t)
{
    uint32_t rank = 0;
    while (!transport_lives(t, rank))
        rank++;
    return rank;
}
