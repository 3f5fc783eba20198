/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that completes persistent requests.
 *
 * A persistent allreduce that was taken over is, for the program and for MPI, a
 * persistent receive of an empty message from this very process. Starting it starts our
 * round too; when that is complete the completion thread puts the result into the
 * program's buffer and sends the message. So every function of MPI that waits for
 * requests or tests them works unchanged, on any mixture of requests, and the round
 * advances whatever the program does meanwhile. It takes MPI_THREAD_MULTIPLE.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_COMPLETION_THREAD_H
#define PCOLL_COMPAT_INTERPOSER_COMPLETION_THREAD_H

#include <mpi.h>
#include <stdbool.h>

#include "compat/mpi_shaped/cache.h"

/* A persistent allreduce. The program owns it until it frees the request, the
 * completion thread from the start of a round until it is complete. */
struct token {
    struct cache_key key;
    pcoll_handle *handle;
    MPI_Request request;
    MPI_Comm comm;
    bool has_tag;
    int tag; /* of the message to ourselves */
    const void *send;
    void *recv;
    MPI_Datatype type;             /* predefined */
    struct mirror_buffers mirrors; /* where these are on a device */
    void *result;                  /* recv, or the host's in its place */
    _Atomic bool live;             /* the program has not freed it */
    _Atomic bool active;           /* a round is under way */
    struct token *next_live, *next_active;
};

/* Does this MPI notice what another thread completes? */
bool completion_thread_works(void);
/* Begin an inactive request for this token. MPI's error code. */
int completion_thread_init_request(struct token *token);
/* The token, idle, is about to go. */
void completion_thread_give_tag_back(struct token *token);
/* The request has been started: start the round. */
int completion_thread_start(struct token *token);
/* The thread ends. Nothing may be active. */
void completion_thread_stop(void);

#endif
