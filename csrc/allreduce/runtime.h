/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has once: the progress engine, the contexts and the handles, kept as
 * an attribute of MPI_COMM_SELF, so that MPI_Finalize begins with ending them.
 */
#ifndef PCOLL_ALLREDUCE_RUNTIME_H
#define PCOLL_ALLREDUCE_RUNTIME_H

#include "context.h"

struct runtime;

/* A handle in the list of those that have to end before MPI does. */
struct runtime_entry {
    void (*begin_end)(struct runtime_entry *); /* start to close, do not wait */
    void (*end)(struct runtime_entry *);       /* wait, free all but the entry */
    uint32_t slot;    /* on its communicator: the same on all ranks */
    int32_t progress; /* as asked for: enum pcoll_progress */
    struct runtime_entry *next;
    struct runtime *runtime;
};

/* How many handles this process has asked for before. */
uint64_t runtime_next_number(void);

/* The context of *comm: made at the first call, which is then collective. */
int runtime_context(const void *comm, struct context **out);

/* See to it that somebody makes progress as asked for (enum pcoll_progress); `here`: in
 * this process, else only check. PCOLL_ETHREAD where MPI's thread level is too low for
 * an agent. */
int runtime_start_agent(struct context *c, int progress, bool here);

/* Entries are kept in the order of their slots, and end in it: the same on all ranks
 * for the handles of one communicator, whichever threads made them. */
void runtime_add(struct runtime_entry *entry);
void runtime_remove(struct runtime_entry *entry);

/* A handle has gone: its context follows if the communicator has gone as well. */
void runtime_release(struct context *c);

/* In a forked child nothing of ours works: its agent stayed with the parent. */
bool runtime_forked(void);

#endif
