/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Others take the numbers of those who have died (docs/faults.md): an object moves to a new
 * communicator, of those who live on its own, `from`, and newcomers, who have none. By a thread
 * of the application in each; collective over them all.
 *
 *   pause    `from` is polled no more, and no recovery begins there: what its objects share
 *            stands still.
 *   regroup  a transport of all. Whoever gets here has paused.
 *   settle   have all got as far? The same answer on all that live.
 *   …        the object makes its successor on `to`, which takes over its state and leaves the
 *            old one as it is (recovery.h: rebuild, inherit).
 *   settle   once more: that decides.
 *   commit   the object is on `to`, which goes on like any other when ranks die. What was under
 *            way on `from` never ends, so what else is there recovers; if that is nothing, `from`
 *            is given up. (No communicator is made then: Open MPI 5.0 does not bear a death
 *            meanwhile.)
 *   cancel   nothing has been: `from` is polled again, and recovers if that is what it takes.
 *
 * Who meets a death in between revokes `to`, which tells all: they settle for no.
 */
#ifndef PCOLL_RUNTIME_GROWTH_H
#define PCOLL_RUNTIME_GROWTH_H

#include "runtime/communicator.h"

struct growth {
    struct communicator *from; /* NULL: a newcomer */
    struct communicator *to; /* of this thread's until commit; recovers from then on */
    bool paused;
};

/* What a rank does that cannot take part: the others are told. Fails. */
int growth_refuse(const void *comm);
/* Up to the first answer. Rank i of *comm, an MPI_Comm, has number numbers[i] of so many. If it
 * fails, nothing has been, on all. */
int growth_begin(struct growth *g, const void *comm, const uint32_t *numbers,
                 uint32_t ranks);
/* PCOLL_OK if rc is, on all; else an error on all, which is rc where that is one. */
int growth_settle(struct growth *g, int rc);
/* What was moved is registered there, and no more on `from`. */
void growth_commit(struct growth *g);
/* Nothing is registered on `to`. */
void growth_cancel(struct growth *g);

#endif
