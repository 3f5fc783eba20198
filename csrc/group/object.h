/* SPDX-License-Identifier: Apache-2.0 */
/* A grouped allreduce as its users have it. */
#ifndef PCOLL_GROUP_OBJECT_H
#define PCOLL_GROUP_OBJECT_H

#include "group/group.h"
#include "runtime/user_object.h"

struct pcoll_group {
    struct user_object base; /* first: found again from it */
    struct group group;
    bool waiting; /* the application has started and not yet waited */
};

/* Begin and end a call, as in user_object.h. */
static inline int group_object_enter(pcoll_group *p)
{
    return fail_if_null_as("group", p) ?: user_object_enter(&p->base);
}

/* Returns rc. */
static inline int group_object_leave(pcoll_group *p, int rc)
{
    return user_object_leave(&p->base, rc);
}

extern const struct user_object_kind group_create_kind;
/* Its part in going on without the dead. */
extern const struct recoverable group_create_recoverable;

#endif
