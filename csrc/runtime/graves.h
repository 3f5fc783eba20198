/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of earlier epochs: transports whose requests are not all over, and what MPI may
 * still write to. Things are added by whoever recovers and by the application, transports retired
 * and buried by whoever recovers, or, while nobody does, by a thread that keeps others from it.
 *
 * They are buried an epoch later: Open MPI ends the process when what is left of a request fails
 * after it has been freed, and it may be over for the program before it is for MPI.
 */
#ifndef PCOLL_RUNTIME_GRAVES_H
#define PCOLL_RUNTIME_GRAVES_H

#include "transport/transport.h"
#include "base/lock.h"

enum { GRAVES_TRANSPORTS = 64 };

struct graves {
    struct lock mutex; /* for the things */
    struct grave *first;
    struct transport *old[GRAVES_TRANSPORTS];
    int olds;
    uint32_t retired; /* ever */
};

void graves_init(struct graves *g);
void graves_destroy(struct graves *g);
/* To be freed with `end`, when no retired transport is left; not before another one has been
 * retired, if one that is in use may write to it. */
void graves_add(struct graves *g, void (*end)(void *), void *what, bool in_use);
/* It has been revoked. One more than can be looked after is lost. */
void graves_retire(struct graves *g, struct transport *t);
/* Free what can be freed by now. */
void graves_bury(struct graves *g);
/* All of it is somebody else's to bury. */
void graves_leave(struct graves *g, struct graves *heir);

#endif
