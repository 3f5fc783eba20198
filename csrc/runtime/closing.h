/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who closes next? On a communicator one object closes at a time, because their
 * agreements must not mix, and it must be the same one on all ranks. The ranks need not
 * ask for it in one order: one that is at MPI_Finalize closes all that it has left, the
 * others free theirs in whatever order their program does.
 *
 * So each rank votes for all that it is asked to close, and the one with the lowest
 * slot that all have voted for is next. If there is none, the ranks vote again a little
 * later: somebody may have been asked for more by then.
 *
 * The votes are those of an object of the communicator like any other, without slots.
 */
#ifndef PCOLL_RUNTIME_CLOSING_H
#define PCOLL_RUNTIME_CLOSING_H

#include "runtime/communicator.h"

/* Driver: p closes when it is its turn: then its begin_close is called. Once. */
int communicator_close(struct communicator *c, struct object *p);
/* Driver: p, whose turn it was, has closed. */
int communicator_closed(struct communicator *c, struct object *p);

#endif
