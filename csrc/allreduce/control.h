/* SPDX-License-Identifier: Apache-2.0 */
/* The control messages between the endpoints of a handle. */
#ifndef PCOLL_ALLREDUCE_CONTROL_H
#define PCOLL_ALLREDUCE_CONTROL_H

#include "allreduce/endpoint.h"

enum control_kind {
    CONTROL_ACTIVATE,
    CONTROL_LAST,
    CONTROL_ASK,
    CONTROL_ANSWER,
    CONTROL_REPORT /* to the coordinator of a round */
};

/* Of the current round; `edge` is the activation's. */
static inline int control_send(const struct endpoint *v, uint32_t rank,
                               enum control_kind kind, int edge)
{
    struct transport *t = v->communicator->transport;
    struct control message = {.handle = v->base.slot,
                              .kind = (uint16_t)kind,
                              .edge = (uint16_t)edge,
                              .round = v->engine.current};
    return t->ops->control(t, rank, &message);
}

#endif
