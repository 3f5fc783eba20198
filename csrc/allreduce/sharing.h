/* SPDX-License-Identifier: Apache-2.0 */
/* The domain of a handle: a rank on its own, or one in memory that the ranks of a node
 * share. */
#ifndef PCOLL_ALLREDUCE_SHARING_H
#define PCOLL_ALLREDUCE_SHARING_H

#include "allreduce/endpoint.h"

/* Set spec->hosts and spec->most: where the ranks are, and how many of them may share
 * memory for a handle with these options. */
void sharing_place(const struct communicator *c, const pcoll_options *options,
                   struct endpoint_spec *spec);

/* Give the endpoint its domain. Collective; an error on every rank or on none. */
int sharing_settle(struct communicator *c, struct endpoint *v,
                   const pcoll_options *options);

#endif
