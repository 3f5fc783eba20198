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
    bool started; /* a call is outstanding; of whoever is in the handle */
};

/* Every call of the application begins and ends with these. PCOLL_ESTATE: another
 * thread is in one, the handle is freed or being freed, or this is a forked child. */
int handle_enter(pcoll_handle *h);
/* The same for one that is being freed. */
int handle_enter_any(pcoll_handle *h);
/* Returns rc. */
int handle_leave(pcoll_handle *h, int rc);

/* The state of this rank. */
struct member handle_member(pcoll_handle *h);

/* What MPI_Finalize does with a handle that is alive. */
void handle_begin_end(struct runtime_entry *entry);
void handle_end(struct runtime_entry *entry);

#endif
