/* SPDX-License-Identifier: Apache-2.0 */
/* Making the transport over MPI: a communicator of our own, the doorbells of the ranks
 * on this machine, the receives for control messages. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/rank_failure.h"
#include "transport/mpi/ulfm.h"

static int mpi_post_control_receives(struct mpi_transport *m)
{
    int rc = mpi_reserve(m, CONTROL_RECEIVES);
    for (int i = 0; i < CONTROL_RECEIVES && rc == PCOLL_OK; i++) {
        m->info[i] =
            (struct request_info){.kind = CONTROL_RECV, .held = MPI_REQUEST_NULL};
        rc = mpi_check(MPI_Recv_init(&m->inbox[i], sizeof m->inbox[i], MPI_BYTE,
                                     MPI_ANY_SOURCE, CONTROL_TAG, m->comm,
                                     &m->requests[i]),
                       "MPI_Recv_init");
        if (rc == PCOLL_OK)
            rc = mpi_check_in(m, MPI_Start(&m->requests[i]), "MPI_Start");
        if (rc == PCOLL_OK)
            m->count = i + 1;
    }
    return rc;
}

struct card {
    uint64_t neighborhood, pid, fd, cookie;
};

/* Ranks of one neighborhood can share memory if each of them can reach all of the
 * others: they are named by the first of them. */
static int mpi_find_hosts(struct mpi_transport *m, const struct card *all,
                          bool reaches_all)
{
    uint32_t size = m->base.size;
    uint64_t mine = reaches_all | (uint64_t)m->base.off_node << 1;
    uint64_t *reach = calloc(size, sizeof *reach);
    int rc = reach ? mpi_exchange(m, &mine, 1, reach)
                   : fail(PCOLL_ENOMEM, "no memory for %u ranks", size);
    for (uint32_t i = 0; i < size && rc == PCOLL_OK; i++) {
        uint32_t first = size;
        bool together = true;
        for (uint32_t j = 0; j < size; j++) {
            if (all[j].neighborhood != all[i].neighborhood ||
                !transport_lives(&m->base, j))
                continue;
            first = first < j ? first : j;
            together = together && (reach[j] & 1);
        }
        m->base.off_node =
            m->base.off_node || reach[i] >> 1; /* alike: auto goes by it */
        m->hosts[i] = together ? first : i;
        m->pids[i] = all[i].pid;
    }
    free(reach);
    return rc;
}

/* Exchange where everybody's doorbell is; open those of this machine. */
static int mpi_open_doorbells(struct mpi_transport *m, const struct doorbell *own)
{
    struct card mine = {doorbell_neighborhood(), (uint64_t)getpid(), (uint64_t)own->fd,
                        own->page->cookie};
    struct card *all = calloc(m->base.size, sizeof *all);
    if (!all)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    bool reaches_all = true;
    int rc = mpi_exchange(m, (const uint64_t *)&mine, 4, (uint64_t *)all);
    for (uint32_t i = 0; i < m->base.size && rc == PCOLL_OK; i++) {
        m->neighborhoods[i] = all[i].neighborhood;
        if (i == m->base.rank || !transport_lives(&m->base, i))
            continue;
        bool near = all[i].neighborhood == mine.neighborhood;
        if (near)
            m->doorbells[i] = doorbell_open(all[i].pid, all[i].fd, all[i].cookie);
        if (!m->doorbells[i])
            m->base.off_node = true;
        reaches_all = reaches_all && (!near || m->doorbells[i]);
    }
    if (rc == PCOLL_OK)
        rc = mpi_find_hosts(m, all, reaches_all);
    free(all);
    return rc;
}

static uint32_t mpi_usable_tags(MPI_Comm comm)
{
    int *upper, known = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &upper, &known);
    return (uint32_t)(known ? *upper : 32767) - FIRST_DATA_TAG + 1;
}

void mpi_describe(MPI_Comm comm, struct transport *t)
{
    int level;
    MPI_Query_thread(&level);
    t->tags = mpi_usable_tags(comm);
    t->threads = level == MPI_THREAD_MULTIPLE;
}

/* MPI may have no communicator left (MPICH: 2,046), which is no reason to end the program. */
static int mpi_copy_comm(struct mpi_transport *m)
{
    MPI_Request request;
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(m->comm, &handler);
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    int rc =
        mpi_check_in(m, MPI_Comm_idup(m->comm, &m->made, &request), "MPI_Comm_idup");
    MPI_Comm_set_errhandler(m->comm, handler);
    MPI_Errhandler_free(&handler);
    return rc == PCOLL_OK ? mpi_patient_wait(m, &request, "MPI_Comm_idup") : rc;
}

static int mpi_duplicate_comm(MPI_Comm comm, struct mpi_transport *m)
{
    m->comm = comm; /* until there is ours */
    int rc = pcoll_tells_of_failures() ? mpi_copy_whole(m) : mpi_copy_comm(m);
    if (rc != PCOLL_OK)
        return rc;
    m->comm = m->made;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    int rank, size;
    MPI_Comm_rank(m->comm, &rank);
    MPI_Comm_size(m->comm, &size);
    m->base = (struct transport){.ops = &mpi_ops,
                                 .rank = (uint32_t)rank,
                                 .size = (uint32_t)size,
                                 .living = (uint32_t)size};
    mpi_describe(comm, &m->base);
    return PCOLL_OK;
}

int mpi_settle(struct mpi_transport *m, const struct doorbell *own)
{
    m->survives = pcoll_tells_of_failures();
    MPI_Type_contiguous(BLOCK, MPI_BYTE, &m->block);
    int rc = mpi_check(MPI_Type_commit(&m->block), "MPI_Type_commit");
    m->doorbells = calloc(m->base.size, sizeof *m->doorbells);
    m->hosts = calloc(m->base.size, sizeof *m->hosts);
    m->pids = calloc(m->base.size, sizeof *m->pids);
    m->neighborhoods = calloc(m->base.size, sizeof *m->neighborhoods);
    if (rc == PCOLL_OK)
        rc = m->doorbells && m->hosts && m->pids && m->neighborhoods
                 ? mpi_open_doorbells(m, own)
                 : fail(PCOLL_ENOMEM, "no memory for the doorbells");
    m->base.hosts = m->hosts;
    m->base.pids = m->pids;
    m->base.doorbells = m->doorbells;
    if (rc == PCOLL_OK)
        rc = mpi_watch_hosts(m);
    return rc == PCOLL_OK ? mpi_post_control_receives(m) : rc;
}

int transport_mpi_create(const void *comm, const struct doorbell *own,
                         struct watch *watch, struct transport **out)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    m->block = MPI_DATATYPE_NULL;
    m->watch = watch;
    int rc = mpi_duplicate_comm(*(const MPI_Comm *)comm, m);
    if (rc != PCOLL_OK) {
        free(m);
        return rc;
    }
    rc = mpi_settle(m, own);
    if (rc == PCOLL_EFAILED)
        ulfm_revoke(m->comm); /* who waits for this rank is told */
    if (rc != PCOLL_OK) {
        mpi_ops.destroy(&m->base);
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}

void mpi_free_transport(struct mpi_transport *m)
{
    mpi_end_watch(m);
    for (uint32_t i = 0; m->doorbells && i < m->base.size; i++)
        if (m->doorbells[i])
            doorbell_close(m->doorbells[i]);
    if (m->block != MPI_DATATYPE_NULL)
        MPI_Type_free(&m->block);
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    free(m->doorbells);
    free(m->hosts);
    free(m->pids);
    free(m->neighborhoods);
    free(m->cards);
    free(m->numbers);
    free(m->ranks);
    free(m->failed);
    free(m->requests);
    free(m->info);
    free(m->done);
    free(m->statuses);
    free(m->events);
    free(m);
}
