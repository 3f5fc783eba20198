/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a handle, for those who make and end it. */
#ifndef PCOLL_ALLREDUCE_HANDLE_H
#define PCOLL_ALLREDUCE_HANDLE_H

#include "runtime/user_object.h"
#include "allreduce/endpoint.h"
#include "allreduce/staging.h"

struct pcoll_handle {
    struct user_object base;   /* first: found again from it */
    struct endpoint *endpoint; /* NULL: ended */
    bool started;              /* a call is outstanding; of whoever is in the handle */
};

/* Every call of the application begins and ends with these, as in user_object.h, and with
 * the member to itself (staging.h). */
static inline int handle_enter(pcoll_handle *h)
{
    int rc = user_object_enter_open(&h->base);
    if (rc == PCOLL_OK)
        staging_hold(h->endpoint->staging);
    return rc;
}

/* Returns rc. */
static inline int handle_leave(pcoll_handle *h, int rc)
{
    staging_release(h->endpoint ? h->endpoint->staging : NULL);
    return user_object_leave(&h->base, rc);
}

/* Those that wait: a deposit may be made meanwhile, by whoever sees its copy end. */
static inline int handle_enter_waiting(pcoll_handle *h)
{
    return user_object_enter_open(&h->base);
}

/* The state of this rank. */
struct member handle_member(pcoll_handle *h);

extern const struct user_object_kind handle_kind;

#endif
