/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging, for a handle whose buffers are on a device. Deposits lie in slots of the library and
 * results stay there. Copies go from and to these slots, so that bytes cross the bus once and are
 * not copied on the host. A start begins the copy to the slot and returns. The rank arrives when
 * a thread finds the copy complete.
 *
 * Protocol. `state` says which thread may touch the member of this rank, which everywhere else
 * belongs to the application:
 *
 *   ARRIVED  no copy is under way. The application may. Only it goes on to COPYING.
 *   COPYING  no thread may. The thread that swaps the state to HELD may from then on.
 *   HELD     that thread, application or driver. It polls the copy. If the copy is complete, it
 *            makes the deposit and stores ARRIVED. If not, it stores COPYING again.
 *
 * So a deposit is made once, and two threads never touch a member at the same time. Each change
 * of hands is a release by the thread that stores and an acquire by the thread that swaps or reads
 * ARRIVED. All accesses are sequentially consistent. The driver only tries, and tries again at its
 * alarm: it never waits for the application. The application waits for a driver that holds the
 * member, which takes as long as a deposit. While the application waits for its round it only
 * tries, too. A stale read of `state` while a driver holds is harmless: the application takes the
 * call for one that has not arrived, and polls again.
 *
 * The copy writes a slot while the slot is neither pending nor frozen, because the deposit is made
 * after the copy. While a result is copied to the device nothing may release it: the next deposit
 * of this rank is made when no copy is under way, and before staging_landed() the application
 * delivers nothing more, does not leave, and does not end the handle.
 */
#pragma once

#include "domain/domain.h"

struct staging;

/* Return the most bytes of host memory that staging takes besides the domain. */
uint64_t staging_bytes(const struct payload *p);
/* PCOLL_ESTATE: there is no driver of devices. */
int staging_create(int device, struct staging **out);

/* Wait for copies under way and free the staging, before the memory of the domain goes. *s may be
 * NULL. */
void staging_destroy(struct staging **s);

/* Application, ARRIVED: begin to copy the buffers that are on the device, after everything that
 * `stream` has been given. Buffers on the host are copied at once. */
int staging_begin(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream);
/* Application, after the round has been delivered: begin to copy its result to these buffers, as
 * above. `stream` waits for the copy. PCOLL_EAGAIN: the last copy is under way. */
int staging_fetch(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream);

/* Application, ARRIVED: return whether no result is being copied to the device. */
bool staging_landed(struct staging *s);
/* Return whether no deposit waits for its copy. */
bool staging_arrived(const struct staging *s);
/* Make the deposit if its copy is complete. Set *made if this call made it: the driver has to be
 * notified then. Return staging_arrived(). */
bool staging_try(struct staging *s, struct domain *d, bool *made,
                 enum deposit_outcome *outcome);
/* Return the time of the next poll (clock_ns). */
int64_t staging_next_poll(const struct staging *s);

/* Application: no other thread makes the deposit between these two. */
void staging_hold(struct staging *s);
void staging_release(struct staging *s);

/* Return the failure of a copy, or of the deposit after it, with its message. */
int staging_failure(const struct staging *s);
