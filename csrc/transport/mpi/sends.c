/* SPDX-License-Identifier: Apache-2.0 */
/* Sends from their beginning to what MPI says of them; see internal.h. */
#include "transport/mpi/completion.h"
#include "transport/mpi/internal.h"

void mpi_ring(struct mpi_transport *m, uint32_t peer)
{
    if (m->doorbells[peer])
        doorbell_ring(m->doorbells[peer]);
}

void mpi_hold_back(struct mpi_transport *m)
{
    m->info[m->count].held = m->requests[m->count];
    m->requests[m->count] = MPI_REQUEST_NULL;
}

void mpi_begin_send(struct mpi_transport *m, uint32_t peer)
{
    struct request_info *info = &m->info[m->count];
    int over = 0;
    mpi_get_status(m->requests[m->count], &over);
    if (m->survives)
        mpi_hold_back(m);
    info->at_once = over;
    m->count++;
    m->pending_sends += !over;
    mpi_ring(m, peer);
}

void mpi_look_at_held(struct mpi_transport *m)
{
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        int over = 0;
        if (m->info[i].held == MPI_REQUEST_NULL)
            continue;
        mpi_get_status(m->info[i].held, &over);
        m->info[i].went = over;
    }
}
