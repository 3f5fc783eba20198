/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an endpoint, for its files: endpoint.c (rounds), endpoint_create.c,
 * endpoint_closing.c. */
#ifndef PCOLL_ALLREDUCE_ENDPOINT_PARTS_H
#define PCOLL_ALLREDUCE_ENDPOINT_PARTS_H

#include "allreduce/endpoint.h"

extern const struct object_ops endpoint_ops;

/* It is this one's turn to close: the barrier begins. */
int endpoint_enter_closing(struct endpoint *v);
/* Next step of closing, if the agreement of the last one is over. */
int endpoint_continue_closing(struct endpoint *v);
/* All rounds are over: the last messages. */
int endpoint_drain(struct endpoint *v);

#endif
