/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch of hosts finds out which hosts are lost. MPI need not report that: a host that has
 * vanished sends nothing, and whoever waits for a message from it would wait for ever.
 *
 * Evidence. Between each two hosts some processes hold idle TCP connections (group.h, link.h).
 * The kernel asks the other end now and then whether it still has the connection (TCP
 * keepalive), and the kernel there answers. So a process that is stopped is not lost, nor one
 * whose threads are all busy. A process that ends closes its connection, which says nothing of
 * its host. A host from which no answer has come within the timeout, be it down, suspended or
 * cut off, is lost for good.
 *
 * News. A process that finds out tells its local peers (local.h) and the other ends of its
 * connections. Each of them does the same, so all members of a group know within a moment. News
 * counts only about hosts of the groups of this process. A peer sends news about a host of a
 * group only after all members have announced it: watch_announce comes before the exchange of
 * cards, which no rank completes before all have begun it.
 *
 * Trust. Everything that arrives is checked with a secret that only ranks of the job have
 * (card.h). A stranger can make the watch drop things, which costs a bounded amount of work and
 * of descriptors, but cannot make a host lost. What is dropped is reported once, on standard
 * error.
 *
 * Threads. One thread does all this. It sleeps in poll(): only connecting and losing wake it. It
 * calls no MPI. `lost` is written by it alone, under the mutex, and read without the mutex by
 * drivers that poll: a stale value costs a poll. Everything else is under the mutex. The thread
 * does a bounded amount of work between two releases of the mutex.
 */
#ifndef PCOLL_WATCH_WATCH_H
#define PCOLL_WATCH_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/doorbell.h"
#include "watch/group.h"

struct watch;

/* Read PARTIALCOLL_HOST_TIMEOUT, in seconds; 0: no host is watched. PCOLL_EINVAL. */
int watch_timeout(double *seconds);

/* Create a watch, which starts nothing before the first card. Threads that sleep on the doorbell
 * are woken when a host is lost. With `cuts` the connections of this process to a lost host are
 * shut down, so that an MPI that continues when ranks die learns that the ranks there have.
 * PCOLL_ENOMEM. */
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
void watch_each_lost(struct watch *w,
                     void (*each)(void *arg, const struct watch_group *g,
                                  uint32_t rank),
                     void *arg);

#endif
