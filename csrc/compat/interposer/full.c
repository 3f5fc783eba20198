/* SPDX-License-Identifier: Apache-2.0 */
/* See full.h. The limits are measured with `bench/run.py interposer`: docs/interposer.md. */
#include "compat/interposer/full.h"

#include "base/check.h"
#include "base/random.h"
#include "compat/interposer/settings.h"
#include "compat/mpi_shaped/savings.h"

/* Elements have at most so many bytes where complete rounds are ours: those that the core
 * has loops for have 32 at most. */
enum { LARGEST_ELEMENT = 64 };

static struct full_facts facts;
_Atomic int full_reasons = 1; /* MPI has not begun */

const struct full_facts *full_facts(void)
{
    return &facts;
}

void full_watch(int change)
{
    CHECK(change == 1 || change == -1);
    atomic_fetch_add(&full_reasons, change);
}

bool full_is_faster(int ranks, uint64_t bytes)
{
    return facts.asked || bytes >= pcoll_full_from(&facts.full, (uint32_t)ranks);
}

static uint64_t full_hash_settings(const struct settings *s)
{
    return splitmix_mix(
        splitmix_mix((uint64_t)s->algorithm << 32 | (uint64_t)s->domain) ^
        ((uint64_t)s->domain_ranks << 1 | s->asked));
}

/* Compare the ranks' hosts, cores and tables of `bench tune`. Collective. */
static void full_place(int rank, int size)
{
    pcoll_full_facts *full = &facts.full;
#ifdef OPEN_MPI
    int rc = pcoll_full_look(1, full);
#else
    int rc = pcoll_full_look(0, full);
#endif
    if (rc != PCOLL_OK)
        report_warn("rank %d: ignored: %s", rank, pcoll_last_error());
    PMPI_Allreduce(MPI_IN_PLACE, full->words, PCOLL_FULL_WORDS, MPI_UINT64_T, MPI_BOR,
                   MPI_COMM_WORLD);
    pcoll_full_settle(full, (uint32_t)size);
    if (rank == 0 && full->tables_differ)
        report_warn("rank 0: the ranks have different tables of bench tune: the built-in one "
             "says which complete rounds are left to MPI");
}

static void full_compare(int rank)
{
    const struct settings *s = settings();
    struct quorum quorum =
        s->all ? s->quorum : (struct quorum){.policy.kind = PCOLL_FULL};
    uint64_t hash = quorum_hash(&quorum), form = full_hash_settings(s);
    PMPI_Query_thread(&facts.level);
    uint64_t values[] = {hash, ~hash, form, ~form, ~(uint64_t)facts.level};
    PMPI_Allreduce(MPI_IN_PLACE, values, 5, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    bool agreed = values[0] == ~values[1];
    facts.quorum = agreed ? quorum : (struct quorum){.policy.kind = PCOLL_FULL};
    facts.alike = values[2] == ~values[3];
    facts.asked = facts.alike && s->asked;
    facts.level = (int)~values[4];
    if (rank == 0 && !agreed)
        report_warn("rank 0: the ranks disagree about PARTIALCOLL_ALL or PARTIALCOLL_QUORUM: "
             "all of them wait for each other");
    if (rank == 0 && !facts.alike)
        report_warn("rank 0: the ranks disagree about PARTIALCOLL_ALGORITHM or "
             "PARTIALCOLL_DOMAIN: complete rounds are left to MPI");
}

void full_begin(void)
{
    int rank, size;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Comm_group(MPI_COMM_WORLD, &facts.all);
    full_compare(rank);
    full_place(rank, size);
    uint64_t least = UINT64_MAX;
    for (int ranks = 2; ranks <= size; ranks++) {
        uint64_t from = pcoll_full_from(&facts.full, (uint32_t)ranks);
        least = from < least ? from : least;
    }
    facts.short_bytes = least;
    facts.few = least == UINT64_MAX ? least : least / LARGEST_ELEMENT;
    if (facts.asked || quorum_is_partial(&facts.quorum))
        full_watch(1);
    full_watch(-1);
}

void full_end(void)
{
    full_watch(1);
    PMPI_Group_free(&facts.all);
}

bool full_pays(struct record *r, const struct cache_key *key, uint64_t bytes)
{
    bool added;
    if (facts.asked || quorum_is_partial(&key->quorum))
        return true;
    struct savings_row *row = savings_find(&r->savings, key, &added);
    return row && pcoll_full_pays(&facts.full, (uint32_t)r->size, bytes,
                                  r->cache.length > 0, &row->ns);
}
