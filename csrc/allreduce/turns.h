/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is in a replay of recorded arrivals (arrivals.h); without one it is
 * always this rank's. The application's. */
#ifndef PCOLL_ALLREDUCE_TURNS_H
#define PCOLL_ALLREDUCE_TURNS_H

#include "handle.h"

/* A deposit, join or leave: PCOLL_EAGAIN while it is not this rank's turn. */
int turns_await(pcoll_handle *h);
/* A read up to round `last`: the same; as if no more than *horizon rounds were
 * complete. */
int turns_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon);
void turns_note_read(pcoll_handle *h);
/* The outstanding call may end. */
bool turns_are_over(pcoll_handle *h);
/* Rounds complete that the outstanding call is to know of, and no more. */
uint64_t turns_complete(pcoll_handle *h, const struct member *m);

#endif
