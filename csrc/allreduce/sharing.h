/* SPDX-License-Identifier: Apache-2.0 */
/* The domain of a handle: a rank on its own, or one in memory that the ranks of a node
 * share. */
#ifndef PCOLL_ALLREDUCE_SHARING_H
#define PCOLL_ALLREDUCE_SHARING_H

#include "allreduce/endpoint.h"

/* Where the ranks are that may share memory for a handle with these options; NULL:
 * nobody does. */
const uint64_t *sharing_hosts(const struct communicator *c,
                              const pcoll_options *options);

/* Give the endpoint its domain. Collective; an error on every rank or on none. */
int sharing_settle(struct communicator *c, struct endpoint *v,
                   const pcoll_options *options);

#endif
