/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a recovery (recovery.h), for its files. */
#ifndef PCOLL_RUNTIME_RECOVERY_STATE_H
#define PCOLL_RUNTIME_RECOVERY_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/lock.h"
#include "runtime/recovery.h"
#include "transport/transport.h"

/*
 * What is left of earlier epochs: transports whose requests are not all over, and what MPI may
 * still write to. Things are added by whoever recovers and by the application, transports retired
 * and buried by whoever recovers, or, while nobody does, by a thread that keeps others from it.
 *
 * They are buried an epoch later: Open MPI ends the process when what is left of a request fails
 * after it has been freed, and it may be over for the program before it is for MPI.
 */

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

enum { PARTING = 1, ABLE = 2, WHOLE = 4 }; /* the last word */

struct recovery {
    pthread_t thread;
    uint64_t given; /* an MPI_Comm */
    bool gave;
    _Atomic bool parting;      /* this rank is at the end; … */
    bool parted;               /* … all are, as a recovery has found */
    bool called_off;           /* there is nothing to recover */
    bool able;                 /* else it cannot recover, and nobody does */
    struct reason why;         /* it cannot; empty: it can */
    bool whole;                /* no host is lost, as far as those who are left know */
    bool over;                 /* that has been agreed */
    struct transport *current; /* of the last epoch, or attempt */
    struct graves graves;
    struct communicator *spent; /* of earlier attempts, through next_spent */
    struct user_object **objects;
    uint32_t count;
};

/* recovery.c: is there something to go on for, and can all? Who has no answer goes on with
 * the others, to ask them again. */
int recovery_last_word(struct recovery *r);
/* A host of which nothing is heard may be going on by itself. So those go on who are most; of
 * two halves the one with the lowest rank. */
bool recovery_may_go_on(const struct recovery *r, const struct transport *before,
                        const struct transport *left);
/* Those on lost hosts left out, is that enough to go on? And does MPI leave them out? What it
 * would send to them may wait for ever inside of MPI. */
int recovery_check_hosts(struct recovery *r);

/* recovery_steps.c: those of this communicator, into r. */
int recovery_list_objects(struct communicator *c, struct recovery *r);
/* Their successors, from the census to the inheritance. Collective. */
int recovery_build(struct communicator *to, struct recovery *r);
/* Its application goes on with each. */
void recovery_go_on(struct communicator *c, struct recovery *r);

#endif
