/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a vertex, for its files: vertex.c (rounds), vertex_create.c,
 * vertex_closing.c. */
#ifndef PCOLL_ALLREDUCE_VERTEX_PARTS_H
#define PCOLL_ALLREDUCE_VERTEX_PARTS_H

#include "vertex.h"

extern const struct participant_ops vertex_ops;

int vertex_send_control(struct vertex *v, uint32_t rank, uint16_t kind, int edge);

/* Next step of closing, if the agreement of the last one is over. */
int vertex_continue_closing(struct vertex *v);
/* All rounds are over: the last messages. */
int vertex_drain(struct vertex *v);
int vertex_begin_close(struct participant *p);

#endif
