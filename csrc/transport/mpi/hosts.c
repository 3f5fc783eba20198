/* SPDX-License-Identifier: Apache-2.0 */
/* Who was on a lost host is dead, as this library has it; see host_watch.c. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/internal.h"

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
