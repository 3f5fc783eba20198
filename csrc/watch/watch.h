/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch of hosts finds out which hosts are lost. MPI need not report that: a host that has
 * vanished sends nothing, and a rank that waits for its message would wait forever.
 *
 * Evidence. Between each two hosts some processes hold idle TCP connections (link.h). The kernel
 * asks the other end now and then whether it still has the connection (TCP keepalive), and the
 * kernel there answers. So a process that is stopped is not lost, nor one whose threads are all
 * busy. A process that ends closes its connection, which says nothing about its host. A host from
 * which no answer arrives within the timeout (down, suspended or cut off) is lost permanently.
 *
 * News. A process that finds out tells the other processes of its host, by their pipes, and the other
 * ends of its connections. Each of them does the same, so all members of a group know within a
 * moment. News counts only about hosts of the groups of this process. A peer sends news about a host
 * of a group only after all members have announced it: watch_announce comes before the exchange of
 * cards, which no rank completes before all have begun it.
 *
 * Trust. Everything that arrives by a connection is checked with a secret that only ranks of the job
 * have. Only processes of the same user can open the pipe of a process. A stranger can make the watch
 * drop connections or news, at a bounded cost in work and descriptors, but cannot make a host lost.
 * The first drop is reported, once, on standard error.
 *
 * Threads. One thread does all this. It sleeps in poll(): only connecting and losing wake it. It
 * calls no MPI. `lost` is written by it alone, under the mutex, and read without the mutex by
 * drivers that poll: a stale value costs a poll. Everything else is under the mutex. The thread
 * does a bounded amount of work between two releases of the mutex.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/doorbell.h"

enum { CARD_ADDRESSES = 8 };

/* A tag of SipHash-2-4 (link.h), or a key, which may be a tag. */
struct siphash_tag {
    uint64_t word[2];
};

/*
 * The card of a process says how the watches of other processes reach it, and holds the secret
 * by which they prove that they belong to the job. Ranks exchange their cards by MPI messages,
 * word by word, so a card has the same size and byte order everywhere.
 *
 * Only `id` is public: it is sent in clear. It is drawn independently of `secret`.
 */
struct watch_card {
    uint64_t id;               /* Random, names the process. */
    struct siphash_tag secret; /* Random, known to the ranks that share a group. */
    uint64_t pid, wake, pipe;  /* Descriptor and inode of its pipe (card_tell). */
    uint32_t port;             /* TCP port of the listener; 0: no watch runs there. */
    uint32_t reserved;
    uint32_t address[CARD_ADDRESSES]; /* IPv4, as in sockaddr_in; 0: none. */
    char host[40];
};

_Static_assert(sizeof(struct watch_card) % sizeof(uint64_t) == 0, "sent in words");

/* Draw the random fields and fill in name and addresses of this host; false: there are none. The
 * setting PARTIALCOLL_INTERFACE selects the addresses; without it they are those of the interfaces
 * that MPI has been told to use, or of all interfaces but loopback. */
bool card_fill(struct watch_card *card);
/* Fill this memory with random bytes; false: the kernel has none. */
bool card_draw(void *into, size_t bytes);
bool card_has(const struct watch_card *card, uint32_t address);
/* Tell a process of this host and user that this host is lost, unless it ended or reads nothing. */
void card_tell(const struct watch_card *to, uint64_t host);
/* Shut down all connections of this process to the host of that card, unless it is the own one. */
void card_cut(const struct watch_card *theirs, const struct watch_card *own);

/*
 * A watch group: ranks that watch each other's hosts, those of one communicator. Between each two
 * hosts of a group two processes of each hold a connection to one of the other host (one, where
 * both hosts have one process). Hosts are counted in the order of their numbers. The k-th connection
 * between hosts a and b is held by member (b + k) of a and member (a + k) of b, to spread them.
 *
 * The caller owns the group, and keeps it from watch_announce to watch_leave.
 */
struct watch_group {
    uint32_t rank, size;
    const uint64_t *hosts; /* Number of each rank's host. */
    /* By rank, zero for the dead; NULL until watch_join. */
    const struct watch_card *cards;
    const void *owner;
    struct watch_group *next;
};

/* Call `each` for every peer on another host to which this rank holds a connection. */
typedef void watch_peer_fn(void *arg, const struct watch_card *peer, uint64_t host);
void watch_group_each_peer(const struct watch_group *g, watch_peer_fn *each, void *arg);

struct watch;

/* Read PARTIALCOLL_HOST_TIMEOUT, in seconds; 0: no host is watched. PCOLL_EINVAL. */
int watch_timeout(double *seconds);

/* Create a watch, which starts nothing before the first card. Threads that sleep on the doorbell are
 * woken when a host is lost. With `cuts` connections of this process to it are shut down, so that
 * an MPI that continues when ranks die learns that the ranks there have. PCOLL_ENOMEM. */
int watch_create(double timeout, struct doorbell_page *doorbell, bool cuts,
                 struct watch **out);
void watch_destroy(struct watch **w);

/* Return how others reach this process; all zero if the watch cannot run. */
struct watch_card watch_own_card(struct watch *w);
/* First make the hosts of the group known here, before the cards are exchanged. PCOLL_ENOMEM. */
int watch_announce(struct watch *w, struct watch_group *g);
/* Then connect to the other members. The caller keeps the cards until watch_leave. */
void watch_join(struct watch *w, struct watch_group *g, const struct watch_card *cards);
void watch_leave(struct watch *w, struct watch_group *g);

/* Return the number of lost hosts, which only grows. */
uint32_t watch_lost(const struct watch *w);
/* Call `each` for each rank of a lost host, in each group. */
typedef void watch_lost_fn(void *arg, const struct watch_group *g, uint32_t rank);
void watch_each_lost(struct watch *w, watch_lost_fn *each, void *arg);
