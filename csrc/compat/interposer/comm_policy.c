/* SPDX-License-Identifier: Apache-2.0 */
/* See comm_policy.h. */
#include "compat/interposer/comm_policy.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "compat/interposer/full.h"
#include "compat/interposer/process.h"
#include "compat/interposer/settings.h"

/* Are all processes of the communicator in this MPI_COMM_WORLD? All of its ranks find the same
 * answer: if it mixes processes of two worlds, each of them has a foreign one. */
static bool comm_policy_is_of_world(MPI_Comm comm, int size)
{
    MPI_Group group;
    int same, *ranks = malloc(2 * (size_t)size * sizeof *ranks);
    bool inside = ranks;
    PMPI_Comm_group(comm, &group);
    PMPI_Group_compare(group, full_facts()->all, &same);
    for (int i = 0; ranks && i < size; i++)
        ranks[i] = i;
    if (ranks && same == MPI_UNEQUAL) {
        PMPI_Group_translate_ranks(group, size, ranks, full_facts()->all, ranks + size);
        for (int i = 0; i < size; i++)
            inside &= ranks[size + i] != MPI_UNDEFINED;
    }
    PMPI_Group_free(&group);
    free(ranks);
    return inside;
}

void comm_policy_settle(struct record *r, MPI_Comm comm)
{
    static atomic_bool warned;
    int inter, rank;
    r->settled = true;
    PMPI_Comm_test_inter(comm, &inter);
    r->intra = !inter;
    if (inter)
        return;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &r->size);
    r->of_world = comm_policy_is_of_world(comm, r->size);
    r->alike = full_facts()->alike;
    r->level = full_facts()->level;
    if (!r->wanted[0])
        r->quorum = full_facts()->quorum;
    r->partial = quorum_is_partial(&r->quorum);
    if (r->partial && r->level < MPI_THREAD_MULTIPLE && rank == 0 &&
        !atomic_exchange(&warned, true))
        report_warn("rank 0: a quorum needs MPI_THREAD_MULTIPLE, and MPI runs with less: "
             "these calls are left to MPI. With PARTIALCOLL_QUORUM set, MPI_Init asks "
             "for it");
}

/* The policy that `text` names, or the environment's. */
static struct quorum comm_policy_read(const char *text, int rank)
{
    static atomic_bool warned;
    struct quorum quorum = full_facts()->quorum;
    if (quorum_parse(text, &quorum) != PCOLL_OK && rank == 0 &&
        !atomic_exchange(&warned, true))
        report_warn("rank 0: the info key partialcoll_quorum is ignored: %s",
             pcoll_last_error());
    return quorum;
}

void comm_policy_agree(MPI_Comm comm, const char *text)
{
    static atomic_bool warned;
    struct record local = {0}, *r = startup_is_running() ? record_find(comm) : &local;
    if (!startup_is_running())
        return;
    if (!r)
        r = &local;
    comm_policy_settle(r, comm);
    if (!r->intra || !r->of_world)
        return;
    int rank;
    PMPI_Comm_rank(comm, &rank);
    struct quorum quorum = text ? comm_policy_read(text, rank) : r->quorum;
    uint64_t hash = quorum_hash(&quorum), values[] = {text != NULL, hash, ~hash};
    PMPI_Allreduce(MPI_IN_PLACE, values, 3, MPI_UINT64_T, MPI_MAX, comm);
    if (!values[0])
        return;
    if (values[1] != ~values[2]) {
        quorum = (struct quorum){.policy.kind = PCOLL_FULL};
        if (rank == 0 && !atomic_exchange(&warned, true))
            report_warn("rank 0: the ranks of a communicator disagree about "
                 "partialcoll_quorum: all of them wait for each other there");
    }
    if (!(r = record_make(comm)))
        return;
    full_watch(1); /* for as long as MPI runs */
    r->quorum = quorum;
    snprintf(r->wanted, sizeof r->wanted, "agreed");
    comm_policy_settle(r, comm);
}
