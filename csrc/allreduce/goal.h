/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a handle in GOAL. */
#ifndef PCOLL_ALLREDUCE_GOAL_H
#define PCOLL_ALLREDUCE_GOAL_H

#include "allreduce/endpoint.h"

/* A byte that is copied or reduced takes so many nanoseconds. malloc'ed. */
char *endpoint_goal(const struct endpoint *v, double ns_per_byte);

#endif
