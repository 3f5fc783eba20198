/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window (transport/window.h) in memory that the ranks of one host share, where ranks
 * may die and the others live on. No step takes a lock, so one that dies in the middle of
 * it holds nobody up, as it does in windows of MPI (Open MPI's component sm adds under a
 * lock that the dead never open). What the dead have written stays readable; a new one is
 * never needed.
 *
 * Who writes what is the business of who uses it. Words are changed by single atomic steps,
 * sums by a compare-and-swap for each pair of elements (of 4 bytes), or element (of 8, and
 * the last of an odd number): the boundaries are the same for all, since chunks begin at
 * multiples of 8 bytes. Bytes are copied as they are: who reads them while they are written
 * has to notice, as in any window.
 *
 * Orderings: words are sequentially consistent; `complete`, `flush` and `sync` are fences
 * between bytes and words.
 */
#ifndef PCOLL_RUNTIME_SHARED_WINDOW_H
#define PCOLL_RUNTIME_SHARED_WINDOW_H

#include "runtime/communicator.h"
#include "transport/window.h"

/* The window of an object of this communicator: such a one where MPI goes on when a rank
 * dies and all ranks are on one host, else MPI's, on *comm. PCOLL_EINVAL where the objects
 * go on, and it would be MPI's. Collective; an error on every rank or on none. */
int window_open(struct communicator *c, const void *comm, size_t bytes,
                struct window **out);

/* The same over memory that is there: each of `ranks` has so many bytes of it, one after
 * the other. PCOLL_ENOMEM. */
int shared_window_create(void *memory, size_t bytes, uint32_t rank, uint32_t ranks,
                         struct window **out);

#endif
