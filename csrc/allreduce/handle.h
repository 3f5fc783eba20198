/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a handle, for those who make and end it. */
#ifndef PCOLL_ALLREDUCE_HANDLE_H
#define PCOLL_ALLREDUCE_HANDLE_H

#include "runtime.h"
#include "vertex.h"

struct pcoll_handle {
    struct runtime_entry entry; /* first: found again from it */
    struct context *context;
    struct vertex *vertex; /* NULL: ended */
    _Atomic bool busy;
};

/* What MPI_Finalize does with a handle that is alive. */
void handle_begin_end(struct runtime_entry *entry);
void handle_end(struct runtime_entry *entry);

#endif
