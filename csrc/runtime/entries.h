/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of this process that have to end before MPI does, in the order of their slots: the
 * same on all ranks for those of one communicator, whichever threads made them. */
#ifndef PCOLL_RUNTIME_ENTRIES_H
#define PCOLL_RUNTIME_ENTRIES_H

#include <stdbool.h>
#include <stdint.h>

/* A handle in the list of those that have to end before MPI does. */
struct entry {
    void (*begin_end)(struct entry *); /* start to close, do not wait */
    void (*end)(struct entry *);     /* wait, free all but the entry, and this one, too,
                                          if its owner has let go of it */
    bool (*reclaim)(struct entry *); /* driver: free it if it has closed; did it? */
    uint32_t slot;                   /* on its communicator: the same on all ranks */
    int32_t progress;                /* as asked for: enum pcoll_progress */
    struct entry *next, *next_retired;
};

void entries_add(struct entry *entry);
void entries_remove(struct entry *entry);
/* Call it for each, with `arg`. Nothing is added or removed meanwhile by others. */
void entries_each(void (*visit)(struct entry *, void *), void *arg);
/* The first one; NULL: none. For the end of the process, when nobody else is there. */
struct entry *entries_first(void);
/* Has somebody asked for an agent that spins? */
bool entries_spin(void);

#endif
