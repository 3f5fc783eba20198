/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has once: the progress engine, the contexts and the handles, kept as
 * an attribute of MPI_COMM_SELF, so that MPI_Finalize begins with ending them.
 *
 * Deferred reclamation. MPI_Comm_free waits for no other rank, so that ranks may free their
 * communicators in any order:
 *
 *   - An object whose owner is a communicator (the handles of PCOLL_Allreduce and of the
 *     interposer) is retired with it: it begins to close, and the driver frees it when it has
 *     closed on all ranks (communicator.h).
 *   - A context is done when its communicator has been freed and its last object has ended.
 *     The ranks then part: the driver begins a barrier on the context's own communicator, and
 *     destroys the transport when the barrier is complete. All ranks know then that nothing is
 *     under way there.
 *
 * The driver takes these steps whenever it polls (process_reclaim, a progress source). Each
 * step is local or an agreement that only this context waits for, so the order in which ranks
 * retire does not matter. The transport's MPI_Comm_free is collective in name only: MPI-4.1,
 * section 7.4.3, expects it to be local, and it is in MPICH and Open MPI.
 *
 * A rank holds what it has retired until the slowest rank has retired it, too. MPI_Finalize
 * ends what is left, on all ranks: it begins everything before it waits for anything.
 *
 * The driver does not reclaim contexts that recover (recovery.h), since their ranks part by a
 * blocking agreement, nor contexts on which gossip buffers have left windows: freeing a window
 * is a barrier, and ranks without an agent may not drive meanwhile. The thread that frees the
 * last object or the communicator waits there. If that was the driver, MPI_Finalize ends them.
 */
#ifndef PCOLL_RUNTIME_PROCESS_H
#define PCOLL_RUNTIME_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/communicator.h"

/* The objects of this process that have to end before MPI does, in the order of their slots: the
 * same on all ranks for those of one communicator, whichever threads made them. */

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

struct process;

/* How many handles this process has asked for before. */
uint64_t process_next_number(void);

/* Return the watch of the hosts of its peers; NULL before the first object. */
struct watch *process_watch(void);

/* The context of *comm, one for each of the two: made at the first call, which is then
 * collective. PCOLL_EINVAL where its objects cannot go on when a rank dies. */
int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out);
/* Return the number of contexts of this process: those in use, and those not reclaimed yet. */
uint32_t process_communicators(void);
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

/* Driver: the owner of an object that does not recover has let go of it, and it closes. */
void process_retire(struct entry *entry);
/* Driver: the last object of `c` may have ended. Its ranks part then, if the communicator has
 * been freed as well. */
void process_part(struct communicator *c);
/* Between these two `c` stays, whatever ends on it. */
void process_hold(struct communicator *c);
void process_release(struct communicator *c);

/* In a forked child nothing of ours works: its agent stayed with the parent. */
bool process_forked(void);
/* Once, to know it from then on. */
void process_note_forks(void);

/*
 * What a rank tells the command that has started its job (`partialcoll run`, `partialcoll
 * bench`; partialcoll/tools/job.py). PARTIALCOLL_JOB names the job's folder, which exists
 * on the host of the command alone; a rank of another host, or of another launcher, tells
 * nothing.
 *
 * "lock"   a file. A process that uses it holds a shared flock() until it ends, so that
 *          `partialcoll doctor` sees that the job lives, whatever namespace it is in.
 * "ranks"  a socket on which the command listens. A rank that uses the library connects
 *          to it, says "begin RANK", says "end" in MPI_Finalize, and keeps the connection
 *          until it ends. So the command knows which rank has ended without
 *          MPI_Finalize: MPICH's launcher kills the others then and may give status 0.
 *
 * A failure of any of this is ignored: the job runs without it.
 */

/* MPI runs, and this process uses the library for the first time. */
void job_begin(uint32_t rank);
/* MPI_Finalize has begun. */
void job_end(void);

#endif
