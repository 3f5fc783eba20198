/* SPDX-License-Identifier: Apache-2.0 */
/* Where things lie in the shared memory of a domain. */
#ifndef PCOLL_DOMAIN_NODE_MEMORY_H
#define PCOLL_DOMAIN_NODE_MEMORY_H

#include "domain/node.h"

/* Point n at its memory; write what this member has to write before all begin. */
void node_map(struct node *n, const pcoll_options *options);

#endif
