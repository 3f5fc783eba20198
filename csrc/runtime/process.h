/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has once: the progress engine, the contexts and the handles, kept as
 * an attribute of MPI_COMM_SELF, so that MPI_Finalize begins with ending them.
 */
#ifndef PCOLL_RUNTIME_PROCESS_H
#define PCOLL_RUNTIME_PROCESS_H

#include "runtime/communicator.h"
#include "runtime/entries.h"

struct process;

/* How many handles this process has asked for before. */
uint64_t process_next_number(void);

/* Return the watch of the hosts of its peers; NULL before the first object. */
struct watch *process_watch(void);

/* The context of *comm, one for each of the two: made at the first call, which is then
 * collective. PCOLL_EINVAL where its objects cannot go on when a rank dies. */
int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out);
/* See to it that somebody makes progress as asked for (enum pcoll_progress); `here`: in
 * this process, else only check. PCOLL_ETHREAD where MPI's thread level is too low for
 * an agent. */
int process_start_agent(struct communicator *c, int progress, bool here);

/* Entries are kept in the order of their slots, and end in it: the same on all ranks
 * for the handles of one communicator, whichever threads made them. */
void process_add(struct entry *entry);
void process_remove(struct entry *entry);

/* The progress engine, which is made if there is none. */
int process_progress(struct progress **out);
/* A context of no communicator of the program's: it goes with its last handle, or … */
int process_adopt(struct communicator *c);
/* … is forgotten, by who frees it. */
void process_disown(struct communicator *c);

/* A handle goes between these two, and its context follows it if it is the last one and the
 * communicator has gone as well. Handles may go in several threads at once: one of them is the
 * last, and no other touches `c` after it. */
void process_begin_release(void);
void process_release(struct communicator *c);

/* In a forked child nothing of ours works: its agent stayed with the parent. */
bool process_forked(void);
/* Once, to know it from then on. */
void process_note_forks(void);

#endif
