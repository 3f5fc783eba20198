/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle whose buffers are on a device. Its deposits lie in slots of the library and
 * its results stay there, and both are what copies go to and come from, so that bytes
 * cross the bus once and are not copied on the host. Starting begins the copy to the
 * slot and returns; the rank arrives when the copy is over, whoever sees that.
 *
 * Protocol. `state` says who may touch the member of this rank, which everywhere else is
 * the application's:
 *
 *   ARRIVED  no copy is under way: the application. Only it goes on to COPYING.
 *   COPYING  nobody. Who changes it to HELD by a swap, may:
 *   HELD     that thread, application or driver. It looks at the copy. If that is over,
 *            it makes the deposit and stores ARRIVED; if not, it stores COPYING again.
 *
 * So a deposit is made once, and a member is never touched by two threads; each change
 * of hands is a release by who stores and an acquire by who swaps or reads ARRIVED
 * (sequentially consistent, all of them). The driver only tries, and tries again when
 * its alarm comes: it never waits for the application. The application waits for a
 * driver that holds, which is for as long as a deposit takes; while it waits for its
 * round it only tries, too. What it reads of `state` while a driver holds may be old:
 * then it takes the call for one that has not arrived, and looks again.
 *
 * A slot is written by the copy while it is neither pending nor frozen (its deposit is
 * not made before the end of the copy). A result is read by the copy to the device while
 * what lets it go is held back: the next deposit of this rank is made when both lanes are
 * idle, and the application delivers nothing more, does not leave and does not end the
 * handle before staging_landed().
 */
#ifndef PCOLL_ALLREDUCE_STAGING_H
#define PCOLL_ALLREDUCE_STAGING_H

#include "domain/domain.h"

struct staging;

/* Of the host's memory, beside the domain's, at most. */
uint64_t staging_bytes(const struct payload *p);
/* PCOLL_ESTATE: there is no driver of devices. */
int staging_create(int device, struct staging **out);
/* Waits for copies under way; before the memory of the domain goes. NULL is allowed, as
 * in all of these that do not begin a copy: the buffers are the host's. */
void staging_destroy(struct staging **s);

/* Application, ARRIVED: begin to copy the buffers that are on the device, after what
 * `stream` has been given; those on the host are copied at once. */
int staging_begin(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream);
/* Application, after the round has been delivered: begin to copy its result to these
 * buffers, likewise; `stream` waits for it. PCOLL_EAGAIN: the last one is under way. */
int staging_fetch(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream);

/* Application, ARRIVED: is no result being copied to the device (any more)? */
bool staging_landed(struct staging *s);
/* Is there no deposit that waits for its copy? */
bool staging_arrived(const struct staging *s);
/* Make the deposit if its copy is over, which the driver has to hear of then. *made: by
 * this call. staging_arrived(), afterwards. */
bool staging_try(struct staging *s, struct domain *d, bool *made,
                 enum deposit_outcome *outcome);
/* When to look again (clock_ns). */
int64_t staging_next_look(const struct staging *s);

/* Application: nobody makes the deposit between these two. */
void staging_hold(struct staging *s);
void staging_release(struct staging *s);

/* What a copy or the deposit behind it has failed with, with its message. */
int staging_failure(const struct staging *s);

#endif
