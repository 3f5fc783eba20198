/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window (transport/window.h) in memory that the ranks of one host share, where ranks may die
 * and the others live on. No step takes a lock, so a rank that dies in the middle of a step
 * delays no other. (In windows of MPI it can: Open MPI's component sm adds under a lock that a
 * dead rank never opens.) What the dead have written stays readable.
 *
 * The users of a window decide which rank writes what. Words are changed by single atomic steps,
 * sums by a compare-and-swap for each pair of elements (of 4 bytes) or element (of 8 bytes, and
 * the last of an odd number). The boundaries are the same for all ranks, because chunks begin at
 * multiples of 8 bytes. Bytes are copied without synchronization: a rank that reads them while
 * they are written has to notice that, as in any window.
 *
 * Words are sequentially consistent; `complete`, `flush` and `sync` are fences between bytes and
 * words.
 */
#pragma once

#include "runtime/communicator.h"
#include "transport/window.h"

/* Open the window of an object of this communicator: such a window where MPI continues when a
 * rank dies and all ranks are on one host, otherwise a window of MPI on *comm. PCOLL_EINVAL: the
 * object continues, and it would be a window of MPI. Collective; an error is one on all ranks. */
int shared_window_open(struct communicator *c, const void *comm, size_t bytes,
                       struct window **out);
