/* SPDX-License-Identifier: Apache-2.0 */
/* The requests under way, and what belongs to each. */
#include <stdlib.h>

#include "base/error.h"
#include "transport/mpi/internal.h"

int mpi_check(int mpi_error, const char *what)
{
    if (mpi_error == MPI_SUCCESS)
        return PCOLL_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(mpi_error, text, &length);
    fail_set_mpi_error(mpi_error);
    return fail(PCOLL_EMPI, "%s: %s", what, text);
}

int mpi_reserve(struct mpi_transport *m, int wanted)
{
    if (wanted <= m->capacity)
        return PCOLL_OK;
    int capacity = m->capacity ? 2 * m->capacity : 64;
    void *requests = realloc(m->requests, (size_t)capacity * sizeof *m->requests);
    if (requests)
        m->requests = requests;
    void *info = realloc(m->info, (size_t)capacity * sizeof *m->info);
    if (info)
        m->info = info;
    void *done = realloc(m->done, (size_t)capacity * sizeof *m->done);
    if (done)
        m->done = done;
    void *statuses = realloc(m->statuses, (size_t)capacity * sizeof *m->statuses);
    if (statuses)
        m->statuses = statuses;
    if (!requests || !info || !done || !statuses)
        return fail(PCOLL_ENOMEM, "no memory for %d requests", capacity);
    m->capacity = capacity;
    return PCOLL_OK;
}

int mpi_next_request(struct mpi_transport *m, struct request_info info,
                     MPI_Request **request)
{
    int rc = mpi_reserve(m, m->count + 1);
    if (rc != PCOLL_OK)
        return rc;
    info.held = MPI_REQUEST_NULL;
    m->info[m->count] = info;
    *request = &m->requests[m->count];
    return PCOLL_OK;
}

void mpi_compact_requests(struct mpi_transport *m)
{
    int kept = CONTROL_RECEIVES;
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL && m->info[i].held == MPI_REQUEST_NULL)
            continue;
        m->requests[kept] = m->requests[i];
        m->info[kept++] = m->info[i];
    }
    m->count = kept;
}
