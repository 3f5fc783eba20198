/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a host still there? MPI need not say: of a host that has vanished there comes nothing,
 * and who waits for it would wait for ever.
 *
 * The evidence is the kernel's: between each two hosts some processes hold connections, over
 * which nothing is said. The kernel asks at the other end now and then whether it still has the
 * connection (TCP keepalive), and the other kernel answers. So a process that is stopped is not
 * lost, nor one whose threads are all busy, even if it is the only one of its host; one that
 * ends closes its connection, which says nothing of its host. A host from which no answer has
 * come for the time set, be it down, suspended or cut off, is lost, for good.
 *
 * Who finds out tells the processes of its own host, through sockets in their kernel, and those
 * it has connections to. All do the same, so within a moment all know.
 *
 * A thread of its own does all this, and sleeps: only connecting and losing wake it. It calls no
 * MPI. `lost` is written by it alone, under the mutex, and read without it by who polls: a
 * stale value costs a poll. Everything else is under the mutex.
 */
#ifndef PCOLL_WATCH_WATCH_H
#define PCOLL_WATCH_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/doorbell.h"
#include "watch/party.h"

struct watch;

/* What PARTIALCOLL_HOST_TIMEOUT says, in seconds; 0: nobody watches. PCOLL_EINVAL. */
int watch_timeout(double *seconds);

/* Nothing is begun before the first card. Whoever sleeps on the doorbell is rung when a host
 * is lost. With `cuts` this process's connections to a lost host are shut down, so that an
 * MPI that goes on when ranks die learns that those there have. PCOLL_ENOMEM. */
int watch_create(double timeout, struct doorbell_page *doorbell, bool cuts,
                 struct watch **out);
void watch_destroy(struct watch **w);

/* How the others reach this process; all zero if they cannot. */
struct watch_card watch_own_card(struct watch *w);
void watch_join(struct watch *w, struct watch_party *p);
void watch_leave(struct watch *w, struct watch_party *p);

/* So many hosts are lost; it only grows. */
uint32_t watch_lost(const struct watch *w);
/* For each rank of a lost host, in each party that there is. */
void watch_each_lost(struct watch *w,
                     void (*each)(void *arg, const struct watch_party *p,
                                  uint32_t rank),
                     void *arg);

#endif
