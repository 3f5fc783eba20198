/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements and broadcasts over a binomial tree of messages of our own, for an MPI that goes on
 * when a rank dies. Open MPI's own non-blocking collectives free the sends of one that such a
 * death has ended, and end the process when one of these fails later ("Send error after request
 * freed").
 *
 * Position p in the tree is MPI's number in the communicator. An agreement: each takes the
 * values of its children, hands them to its parent, and takes the outcome from there. Messages
 * of two positions keep their order, so agreements may follow each other without a number.
 */
#ifndef PCOLL_TRANSPORT_MPI_TREE_H
#define PCOLL_TRANSPORT_MPI_TREE_H

#include "transport/mpi/internal.h"

struct tree_agreement;

/* As `agree` of the seam. */
int tree_agree(struct mpi_transport *m, uint64_t *values, int count, enum agree_op op,
               uint64_t cookie);
/* A receive of one is over: *over when it is all, and cookie is then the agreement's. */
int tree_received(struct mpi_transport *m, struct tree_agreement *a, bool *over,
                  uint64_t *cookie);
/* A send of one is over. */
void tree_sent(struct tree_agreement *a);

/* A word to one number and from another (-1: none), so that MPI knows how to reach it. */
int tree_meet(struct mpi_transport *m, int to, int from);
/* The maximum, waited for here; nobody polls the transport yet. */
int tree_max(struct mpi_transport *m, uint64_t *values, int count);
/* The bytes of this number for all, likewise; a multiple of 64. */
int tree_broadcast(struct mpi_transport *m, int root, void *data, size_t bytes);

#endif
