/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has once: the progress engine, the watch of hosts, the communicators and the
 * objects of users. It is an attribute of MPI_COMM_SELF, so that MPI_Finalize begins with ending
 * them.
 *
 * Deferred reclamation. MPI_Comm_free waits for no other rank, so that ranks may free their
 * communicators in any order:
 *
 *   - An object whose owner is a communicator (the handles of PCOLL_Allreduce and of the
 *     interposer) is retired with it: it begins to close, and the driver frees it when it has
 *     closed on all ranks (communicator.h).
 *   - A struct communicator ends when the program has freed its MPI_Comm and its last object has
 *     ended. The ranks then part: the driver begins a barrier on the communicator, and destroys
 *     the transport when the barrier is complete. All ranks know then that nothing is under way
 *     there.
 *
 * The driver takes these steps whenever it polls (process_reclaim, a progress source). Each
 * step is local, or an agreement that only this communicator waits for, so the order in which
 * ranks retire does not matter. The transport's MPI_Comm_free is collective in name only: MPI-4.1,
 * section 7.4.3, expects it to be local, and it is in MPICH and Open MPI.
 *
 * A rank holds what it has retired until the slowest rank has retired it, too. MPI_Finalize
 * ends what is left, on all ranks: it begins everything before it waits for anything.
 *
 * The driver does not end communicators that recover (recovery.h), nor those on which gossip
 * buffers or groups have left windows. After the barrier their ranks agree once more, or free
 * windows, and these steps block until all ranks take them. Ranks that take them on several
 * communicators in different orders would wait for each other for ever. So the barrier also
 * decides when to take them: each rank says whether a thread of it waits, in the free of the last
 * object or of the MPI_Comm. If all ranks wait, each takes the steps at once, and that thread
 * waits for nothing else meanwhile. Otherwise some rank has left the communicator to MPI_Finalize,
 * and may wait there for other communicators: all ranks take the steps in MPI_Finalize, after
 * their last object has closed, on one communicator after the other, the youngest first. Threads
 * that wait return after the barrier. It completes, since each rank begins it when its
 * own last object has ended, also in MPI_Finalize.
 */
#ifndef PCOLL_RUNTIME_PROCESS_H
#define PCOLL_RUNTIME_PROCESS_H

#include "runtime/communicator.h"

/* Return how many handles this process has asked for before. */
uint64_t process_next_number(void);

/* Return the watch of the hosts of its peers; NULL before the first object. */
struct watch *process_watch(void);

/* Return in *out the state of this MPI_Comm for objects with this on_failure. An MPI_Comm has one
 * state for each value of on_failure; the first call with a value creates it, collectively.
 * PCOLL_EINVAL: objects cannot continue here. */
int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out);
/* Return the number of communicators of this process that are in use or not reclaimed yet. */
uint32_t process_communicators(void);
/* Start the agent if this progress (enum pcoll_progress) needs it and if it is to run `here`, in
 * this process. PCOLL_ETHREAD: MPI's thread level is too low for an agent. */
int process_start_agent(struct communicator *c, int progress, bool here);

/* Return the progress engine, which is made if there is none. */
int process_progress(struct progress **out);
/* Add a communicator that belongs to no MPI_Comm of the program. It ends with its last object, … */
void process_adopt(struct communicator *c);
/* … or this forgets it, and the caller frees it. */
void process_disown(struct communicator *c);

#endif
