/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of earlier epochs: transports whose requests are not all over, and what MPI may
 * still write to. Things are added by whoever recovers and by the application, transports retired
 * and buried by whoever recovers, or, while nobody does, by a thread that keeps others from it.
 */
#ifndef PCOLL_RUNTIME_GRAVES_H
#define PCOLL_RUNTIME_GRAVES_H

#include <pthread.h>

#include "transport/transport.h"

enum { GRAVES_TRANSPORTS = 64 };

struct graves {
    pthread_mutex_t mutex; /* for the things */
    struct grave *first;
    struct transport *old[GRAVES_TRANSPORTS];
    int olds;
};

void graves_init(struct graves *g);
void graves_destroy(struct graves *g);
/* To be freed with `end`, when no retired transport is left. */
void graves_add(struct graves *g, void (*end)(void *), void *what);
/* It has been revoked. One more than can be looked after is lost. */
void graves_retire(struct graves *g, struct transport *t);
/* Free what can be freed by now. */
void graves_bury(struct graves *g);
/* The same, with a moment's patience. */
void graves_await(struct graves *g);

#endif
