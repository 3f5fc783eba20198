/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks tell each other while a transport is made. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_internal.h"

int mpi_exchange(struct mpi_transport *m, const uint64_t *mine, int count,
                 uint64_t *all)
{
    MPI_Request request;
    if (m->survives) { /* their maximum, as all else is zero */
        memcpy(all + m->base.rank * (size_t)count, mine, (size_t)count * sizeof *all);
        return tree_max(m, all, (int)m->base.size * count);
    }
    int rc = mpi_check_in(m,
                          MPI_Iallgather(mine, count, MPI_UINT64_T, all, count,
                                         MPI_UINT64_T, m->comm, &request),
                          "MPI_Iallgather");
    return rc == PCOLL_OK ? mpi_patient_wait(m, &request, "MPI_Iallgather") : rc;
}

/* Who was on a lost host is dead, as this library has it. */

/* Members of a communicator on lost hosts, by their numbers there. */
struct mpi_search {
    MPI_Comm comm;
    struct failed_ranks who;
};

static void mpi_note_host(struct failed_ranks *who, const struct watch_card *card)
{
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &card->address[0], address, sizeof address);
    snprintf(who->host, sizeof who->host, "%.39s (%s)", card->host, address);
}

/* Once each, in their order. */
static void mpi_add_rank(struct failed_ranks *who, int rank)
{
    enum { MOST = sizeof who->rank / sizeof *who->rank };
    int at = 0;
    while (at < who->count && who->rank[at] < rank)
        at++;
    if (who->count == MOST || (at < who->count && who->rank[at] == rank))
        return;
    memmove(&who->rank[at + 1], &who->rank[at],
            (size_t)(who->count - at) * sizeof *who->rank);
    who->rank[at] = rank;
    who->count++;
}

/* The transport that knows where it is may be that of another communicator. */
static void mpi_find_lost(void *arg, const struct watch_group *g, uint32_t rank)
{
    struct mpi_search *s = arg;
    const struct mpi_transport *m = g->owner;
    int theirs = mpi_number_of(m, rank), ours;
    MPI_Group known, asked;
    MPI_Comm_group(m->comm, &known);
    MPI_Comm_group(s->comm, &asked);
    MPI_Group_translate_ranks(known, 1, &theirs, asked, &ours);
    MPI_Group_free(&known);
    MPI_Group_free(&asked);
    if (ours == MPI_UNDEFINED)
        return;
    if (!s->who.count)
        mpi_note_host(&s->who, &g->cards[rank]);
    mpi_add_rank(&s->who, ours);
}

int mpi_check_hosts(const struct mpi_transport *m)
{
    CHECK(m->comm != MPI_COMM_NULL);
    if (!watch_lost(m->watch))
        return PCOLL_OK;
    struct mpi_search s = {.comm = m->comm, .who.mpi_error = m->rank_failure};
    watch_each_lost(m->watch, mpi_find_lost, &s);
    for (int i = 0; i < s.who.count; i++)
        s.who.rank[i] = (int32_t)mpi_rank_of(m, s.who.rank[i]);
    return s.who.count ? fail_ranks(&s.who) : PCOLL_OK;
}

int mpi_check_hosts_anew(struct mpi_transport *m)
{
    CHECK(m->comm != MPI_COMM_NULL);
    uint32_t lost = watch_lost(m->watch);
    if (lost == m->lost)
        return PCOLL_OK;
    m->lost = lost;
    return mpi_check_hosts(m);
}

/* The ranks of a transport with several hosts watch each other's hosts. */

static bool host_watch_is_near(const struct mpi_transport *m, uint32_t rank)
{
    return m->neighborhoods[rank] == m->neighborhoods[m->base.rank];
}

static bool host_watch_has_one_host(const struct mpi_transport *m)
{
    for (uint32_t i = 0; i < m->base.size; i++)
        if (transport_lives(&m->base, i) && !host_watch_is_near(m, i))
            return false;
    return true;
}

enum { HOST_WATCH_MOST_MET = 512 };

/* At the first message to a rank Open MPI asks its host how to reach it, and waits for the answer
 * inside of that call, for ever if the host has vanished. So each rank exchanges a message with
 * all ranks of other hosts now. In a very large job that would take too long. */
static int host_watch_meet(struct mpi_transport *m)
{
    uint32_t living = m->base.living, own = (uint32_t)mpi_number_of(m, m->base.rank);
    int rc = PCOLL_OK;
    for (uint32_t k = 1; k < living && living <= HOST_WATCH_MOST_MET && rc == PCOLL_OK;
         k++) {
        int to = (int)((own + k) % living), from = (int)((own + living - k) % living);
        bool sends = !host_watch_is_near(m, mpi_rank_of(m, to));
        bool receives = !host_watch_is_near(m, mpi_rank_of(m, from));
        rc = tree_meet(m, sends ? to : -1, receives ? from : -1);
    }
    return rc;
}

int mpi_watch_hosts(struct mpi_transport *m)
{
    CHECK(m->neighborhoods && !m->group.size);
    enum { WORDS = sizeof(struct watch_card) / sizeof(uint64_t) };
    if (!m->watch || host_watch_has_one_host(m))
        return PCOLL_OK;
    m->rank_failure = ulfm_rank_failure();
    m->group = (struct watch_group){.rank = m->base.rank,
                                    .size = m->base.size,
                                    .hosts = m->neighborhoods,
                                    .owner = m};
    /* Announce the hosts before the exchange: see watch.h. */
    int rc = watch_announce(m->watch, &m->group);
    if (rc != PCOLL_OK)
        return rc;
    struct watch_card own = watch_own_card(m->watch);
    m->cards = calloc(m->base.size, sizeof *m->cards);
    rc = m->cards ? mpi_exchange(m, (const uint64_t *)(const void *)&own, WORDS,
                                 (uint64_t *)(void *)m->cards)
                  : fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    if (rc != PCOLL_OK)
        return rc;
    watch_join(m->watch, &m->group, m->cards);
    return host_watch_meet(m);
}

void mpi_end_watch(struct mpi_transport *m)
{
    if (m->group.size)
        watch_leave(m->watch, &m->group);
}

/* Making the transport over MPI: a communicator of our own, the doorbells of the ranks
 * on this machine, the receives for control messages. */

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
