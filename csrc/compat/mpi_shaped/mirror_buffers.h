/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of a call that may be on a device, as a CUDA-aware MPI takes them: what is
 * there is complete when the call is made, and when it returns. The core is given memory
 * of the host in their place. Each rank for itself: the calls of the others do not change.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_MIRROR_BUFFERS_H
#define PCOLL_COMPAT_MPI_SHAPED_MIRROR_BUFFERS_H

#include <mpi.h>

#include "include/partialcoll.h"

/* One buffer and what stands for it. */
struct mirror_buffer {
    pcoll_mirror *mirror; /* NULL: none has been on a device */
    int32_t device;
    void *memory;
    uint64_t room;
};

/* Those of one handle; zeros at first. What they were last, as the program gave them. */
struct mirror_buffers {
    struct mirror_buffer send, recv;
    uint64_t result; /* on a device; 0: it is the host's */
    uint64_t bytes;
};

/* *send and *recv (the same address: in place) become the host's, with what is to be
 * sent. Nothing is done if they are. */
int mirror_buffers_pull(struct mirror_buffers *b, MPI_Datatype type, uint64_t count,
                        const void **send, void **recv);
/* The result is where the program wants it. */
int mirror_buffers_push(struct mirror_buffers *b);
void mirror_buffers_free(struct mirror_buffers *b);

#endif
