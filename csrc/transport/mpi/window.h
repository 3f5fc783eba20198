/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCOLL_TRANSPORT_MPI_WINDOW_H
#define PCOLL_TRANSPORT_MPI_WINDOW_H

#include "transport/window.h"

/* Collective, on *comm: everybody's memory of so many bytes. */
int window_mpi_create(const void *comm, size_t bytes, struct window **out);

#endif
