/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCOLL_GOSSIP_WINDOW_MPI_H
#define PCOLL_GOSSIP_WINDOW_MPI_H

#include "window.h"

/* Collective, on *comm: everybody's memory of so many bytes. */
int window_mpi_create(const void *comm, size_t bytes, struct window **out);

#endif
