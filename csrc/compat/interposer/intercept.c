/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls are taken over, and by which handle: see interposer.h. The limits are measured with
 * `bench/run.py interposer`: docs/interposer.md. */
#include <mpi.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "compat/interposer/interposer.h"
#include "runtime/user_object.h"

/* Where complete rounds are ours, elements have at most this many bytes. (Elements for which the
 * core has loops have at most 32.) */
enum { LARGEST_ELEMENT = 64 };

struct full_facts full_facts;
_Atomic int full_reasons = 1; /* MPI has not begun. */

void full_watch(int change)
{
    CHECK(change == 1 || change == -1);
    atomic_fetch_add(&full_reasons, change);
}

/* Compare the ranks' settings and thread levels. Collective. */
static void full_compare(int rank)
{
    const struct settings *s = settings();
    struct quorum quorum = s->all ? s->choice.quorum : QUORUM_FULL;
    full_facts.choice = s->choice;
    full_facts.choice.quorum = QUORUM_FULL;
    if (record_is_same(MPI_COMM_WORLD, quorum_hash(&quorum)))
        full_facts.choice.quorum = quorum;
    else if (rank == 0)
        report_warn("rank 0: the ranks disagree about PARTIALCOLL_ALL or "
                    "PARTIALCOLL_QUORUM: all of them wait for each other");
    full_facts.alike = record_is_same(MPI_COMM_WORLD, choice_hash(&s->choice));
    full_facts.choice.asked &= full_facts.alike;
    if (!full_facts.alike && rank == 0)
        report_warn("rank 0: the ranks disagree about PARTIALCOLL_ALGORITHM or "
                    "PARTIALCOLL_DOMAIN: complete rounds are left to MPI");
    PMPI_Query_thread(&full_facts.level);
    PMPI_Allreduce(MPI_IN_PLACE, &full_facts.level, 1, MPI_INT, MPI_MIN,
                   MPI_COMM_WORLD);
}

void full_begin(void)
{
    int rank, size;
    uint64_t least = UINT64_MAX;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Comm_group(MPI_COMM_WORLD, &full_facts.all);
    full_compare(rank);
    if (record_gather_facts(MPI_COMM_WORLD, &full_facts.full) != PCOLL_OK)
        report_warn("rank %d: ignored: %s", rank, pcoll_last_error());
    if (rank == 0 && full_facts.full.tables_differ)
        report_warn("rank 0: the ranks have different tables of bench tune: the "
                    "built-in one says which complete rounds are left to MPI");
    for (int ranks = 2; ranks <= size; ranks++) {
        uint64_t from = pcoll_full_from(&full_facts.full, (uint32_t)ranks);
        least = from < least ? from : least;
    }
    full_facts.short_bytes = least;
    full_facts.few = least == UINT64_MAX ? least : least / LARGEST_ELEMENT;
    if (full_facts.choice.asked || quorum_is_partial(&full_facts.choice.quorum))
        full_watch(1);
    full_watch(-1);
}

/* Return whether all processes of the communicator are in this MPI_COMM_WORLD. All of its ranks
 * find the same answer: if it mixes processes of two worlds, each of them has a foreign one. */
static bool comm_policy_is_of_world(MPI_Comm comm, int size)
{
    MPI_Group group;
    int same, *ranks = malloc(2 * (size_t)size * sizeof *ranks);
    bool inside = ranks;
    PMPI_Comm_group(comm, &group);
    PMPI_Group_compare(group, full_facts.all, &same);
    for (int i = 0; ranks && i < size; i++)
        ranks[i] = i;
    if (ranks && same == MPI_UNEQUAL) {
        PMPI_Group_translate_ranks(group, size, ranks, full_facts.all, ranks + size);
        for (int i = 0; i < size; i++)
            inside &= ranks[size + i] != MPI_UNDEFINED;
    }
    PMPI_Group_free(&group);
    free(ranks);
    return inside;
}

/* Fill in what follows from the communicator and from full_facts. Local. */
static void comm_policy_settle(struct record *r, MPI_Comm comm)
{
    static atomic_bool warned;
    struct quorum own = r->choice.quorum;
    int inter, rank;
    r->settled = true;
    PMPI_Comm_test_inter(comm, &inter);
    r->intra = !inter;
    if (inter)
        return;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &r->size);
    r->of_world = comm_policy_is_of_world(comm, r->size);
    r->facts = full_facts.full;
    r->choice = full_facts.choice;
    if (r->has_quorum)
        r->choice.quorum = own;
    r->partial = quorum_is_partial(&r->choice.quorum);
    r->choice.progress = r->partial ? PCOLL_PROGRESS_AGENT : PCOLL_PROGRESS_MANUAL;
    if (r->partial && full_facts.level < MPI_THREAD_MULTIPLE && rank == 0 &&
        !atomic_exchange(&warned, true))
        report_warn(
            "rank 0: a quorum needs MPI_THREAD_MULTIPLE, and MPI runs with less: "
            "these calls are left to MPI. With PARTIALCOLL_QUORUM set, MPI_Init asks "
            "for it");
}

void comm_policy_agree(MPI_Comm comm, const char *text)
{
    static atomic_bool ignored, warned;
    if (!startup_is_running())
        return;
    struct record unkept = {.choice.quorum = QUORUM_FULL}, *r = record_find(comm);
    if (!r)
        r = &unkept;
    comm_policy_settle(r, comm);
    if (!r->intra || !r->of_world)
        return;
    int rank, given = text != NULL;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Allreduce(MPI_IN_PLACE, &given, 1, MPI_INT, MPI_MAX, comm);
    if (!given)
        return;
    struct quorum quorum = text ? full_facts.choice.quorum : r->choice.quorum;
    if (text && quorum_parse(text, &quorum) != PCOLL_OK && rank == 0 &&
        !atomic_exchange(&ignored, true))
        report_warn("rank 0: the info key partialcoll_quorum is ignored: %s",
                    pcoll_last_error());
    if (!record_is_same(comm, quorum_hash(&quorum))) {
        quorum = QUORUM_FULL;
        if (rank == 0 && !atomic_exchange(&warned, true))
            report_warn("rank 0: the ranks of a communicator disagree about "
                        "partialcoll_quorum: all of them wait for each other there");
    }
    if (!(r = record_make(comm)))
        return;
    full_watch(1); /* for as long as MPI runs */
    r->choice.quorum = quorum;
    r->has_quorum = true;
    comm_policy_settle(r, comm);
}

static uint64_t intercept_payload(const struct call *c)
{
    int size = 0;
    PMPI_Type_size(c->type, &size);
    return (uint64_t)c->count * (uint64_t)size;
}

/* Return whether this call is MPI's on a communicator on which nothing is kept. Then no record is
 * made: a new communicator costs what MPI's does. */
static bool intercept_is_short(const struct call *c)
{
    return !full_facts.choice.asked && !quorum_is_partial(&full_facts.choice.quorum) &&
           intercept_payload(c) < full_facts.short_bytes;
}

enum outcome intercept_plan(const struct call *c, struct record **record,
                            struct cache_key *key)
{
    *key = (struct cache_key){.count = (uint64_t)c->count};
    if (core_inside)
        return PASSED_NESTED;
    if (!startup_is_running())
        return PASSED_OUTSIDE;
    if (c->count == 0)
        return PASSED_NO_ELEMENTS;
    /* Would MPI accept the arguments, as far as that shows without asking MPI? */
    if (c->comm == MPI_COMM_NULL || c->count < 0 || !c->recv || !c->send ||
        c->recv == MPI_IN_PLACE || c->send == c->recv || c->type == MPI_DATATYPE_NULL ||
        c->op == MPI_OP_NULL)
        return PASSED_ARGUMENTS;
    if (!atomic_load_explicit(&full_reasons, memory_order_relaxed) &&
        intercept_is_short(c))
        return PASSED_FULL;
    info_arrived(c->comm);
    struct record *r = *record = record_find(c->comm);
    if (!r && intercept_is_short(c))
        return PASSED_FULL;
    enum found found = signature_find(c->type, c->op, &key->signature);
    if (found != FOUND)
        return found == FOUND_ORDERED ? PASSED_ORDERED
               : found == FOUND_GAPS  ? PASSED_GAPS
                                      : PASSED_ARGUMENTS;
    if (key->signature.of_user && !startup_type_works(c->type))
        return PASSED_ARGUMENTS;
    if (!r && !(r = *record = record_make(c->comm)))
        return PASSED_REFUSED;
    if (!r->settled)
        comm_policy_settle(r, c->comm);
    if (!r->intra)
        return PASSED_INTERCOMM;
    if (!r->of_world)
        return PASSED_OTHER_WORLD;
    if (!r->partial && !r->choice.asked &&
        (key->signature.of_user || !record_is_faster(r, intercept_payload(c))))
        return PASSED_FULL;
    if (!full_facts.alike)
        return PASSED_REFUSED;
    if (r->partial && full_facts.level < MPI_THREAD_MULTIPLE)
        return PASSED_THREADS;
    if (r->partial && key->signature.of_user)
        return PASSED_OP_OF_USER;
    record_complete_key(r, c->call_site, key);
    return TAKEN;
}

/* The most communicators with handles, each of which has a duplicate. The limit leaves most of
 * those that MPI can make (2,046 in MPICH) to the program, and bounds what a poll costs. */
enum { MAX_COMMUNICATORS = 256 };

bool intercept_admit(struct record *r, MPI_Comm comm)
{
    if (!r->admitted && !r->refused) {
        int full = process_communicators() >= MAX_COMMUNICATORS;
        PMPI_Allreduce(MPI_IN_PLACE, &full, 1, MPI_INT, MPI_MAX, comm);
        r->refused = full;
        r->admitted = !full;
    }
    return r->admitted;
}

/* Handles that complete rounds share, on one communicator. When it is full, a new signature takes
 * the place of one that was not used in the last calls. If there is none, the program has more
 * signatures than are worth keeping, and MPI does the call. */
enum { MAX_HANDLES = 512, UNUSED_CALLS = 1000 };
static const uint64_t most_bytes = (uint64_t)1 << 29;

/* Make room for one more handle. */
static bool intercept_make_room(struct record *r, const struct cache_key *key)
{
    struct cache *cache = &r->cache;
    uint64_t bytes = cache_bytes(key, r->size);
    if (r->partial) /* Late contributions must not be lost. */
        return true;
    if (bytes > most_bytes)
        return false;
    while (cache->length >= MAX_HANDLES || cache->bytes + bytes > most_bytes)
        if (!cache_evict(cache, UNUSED_CALLS))
            return false;
    return true;
}

static enum outcome intercept_find_handle(const struct call *c, struct record *r,
                                          struct cache_key *key,
                                          struct cache_entry **entry)
{
    *entry = cache_find(&r->cache, key);
    if (!*entry) {
        if (r->partial && record_is_first(r, key))
            return PASSED_FIRST;
        if (!r->partial &&
            record_judge(r, MPI_COMM_NULL, key, intercept_payload(c)) != RECORD_OURS)
            return PASSED_FULL;
        if (!intercept_admit(r, c->comm))
            return PASSED_LIMIT;
        if (!intercept_make_room(r, key))
            return PASSED_CACHE;
        cache_make(&r->cache, c->comm, key, entry);
    }
    return *entry && (*entry)->handle ? TAKEN : PASSED_REFUSED;
}

enum outcome intercept_run(const struct call *c, int *error)
{
    struct record *record;
    struct cache_key key;
    struct cache_entry *entry;
    enum outcome outcome = intercept_plan(c, &record, &key);
    if (outcome != TAKEN)
        return outcome;
    int rc = PCOLL_OK;
    core_inside = true;
    outcome = intercept_find_handle(c, record, &key, &entry);
    if (outcome == TAKEN)
        rc = cache_run(entry, &key, c->type,
                       c->send == MPI_IN_PLACE ? c->recv : c->send, c->recv);
    core_inside = false;
    *error = rc == PCOLL_OK ? MPI_SUCCESS : core_raise(c->comm, rc);
    return outcome;
}
