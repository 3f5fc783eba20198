/* SPDX-License-Identifier: Apache-2.0 */
/* Deciding about a call, and doing it. */
#include "compat/interposer/intercept.h"

#include <stdatomic.h>
#include <string.h>

#include "base/random.h"
#include "compat/interposer/core_call.h"
#include "compat/interposer/info.h"
#include "compat/interposer/process.h"
#include "compat/interposer/settings.h"

/* Of the handles that full calls share, on one communicator. When it is full, a new
 * signature takes the place of one that has not been used for long; if there is none,
 * the program has more signatures than are worth keeping, and MPI does the call. */
enum { MAX_HANDLES = 512, LONG_UNUSED = 1000 };
static const uint64_t most_bytes = (uint64_t)1 << 29;

/* The policy of a communicator. */

static void choose_policy(struct record *r, int rank)
{
    static atomic_bool warned;
    const struct settings *s = settings();
    r->policy = s->all ? s->quorum : (pcoll_policy){.kind = PCOLL_FULL};
    if (!r->wanted[0] || pcoll_policy_parse(r->wanted, &r->policy) == PCOLL_OK)
        return;
    if (rank == 0 && !atomic_exchange(&warned, true))
        warn("rank 0: the info key partialcoll_quorum is ignored: %s",
             pcoll_last_error());
}

static uint64_t hash_policy(const pcoll_policy *policy)
{
    char text[160] = "";
    pcoll_policy_format(policy, text, sizeof text);
    return splitmix_text(0, text);
}

/* What decides how much memory a handle needs, by which each rank acts for itself. */
static uint64_t hash_settings(const struct settings *s)
{
    return splitmix_mix(
        splitmix_mix((uint64_t)s->algorithm << 32 | (uint64_t)s->domain) ^
        s->domain_ranks);
}

/* Compare policy and settings, find the lowest thread level. */
static void agree(struct record *r, MPI_Comm comm, int rank)
{
    static atomic_bool warned, told;
    uint64_t hash = hash_policy(&r->policy);
    uint64_t form = hash_settings(settings());
    uint64_t values[] = {hash, ~hash, ~(uint64_t)r->level, form, ~form};
    PMPI_Allreduce(MPI_IN_PLACE, values, 5, MPI_UINT64_T, MPI_MAX, comm);
    r->level = (int)~values[2];
    r->alike = values[3] == ~values[4];
    if (!r->alike && rank == 0 && !atomic_exchange(&told, true))
        warn(
            "rank 0: the ranks of a communicator disagree about "
            "PARTIALCOLL_ALGORITHM or PARTIALCOLL_DOMAIN: these calls are left to MPI");
    if (values[0] == ~values[1])
        return;
    r->policy = (pcoll_policy){.kind = PCOLL_FULL};
    if (rank == 0 && !atomic_exchange(&warned, true))
        warn("rank 0: the ranks of a communicator disagree about partialcoll_quorum or "
             "PARTIALCOLL_QUORUM: all of them wait for each other there");
}

static void settle(struct record *r, MPI_Comm comm)
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
    PMPI_Query_thread(&r->level);
    choose_policy(r, rank);
    agree(r, comm, rank);
    r->partial = policy_is_partial(&r->policy);
    if (r->partial && r->level < MPI_THREAD_MULTIPLE && rank == 0 &&
        !atomic_exchange(&warned, true))
        warn("rank 0: a quorum needs MPI_THREAD_MULTIPLE, and MPI runs with less: "
             "these calls are left to MPI. With PARTIALCOLL_QUORUM set, MPI_Init asks "
             "for it");
}

/* The decision. */

static bool mpi_runs(void)
{
    int initialized, finalized;
    PMPI_Initialized(&initialized);
    PMPI_Finalized(&finalized);
    return initialized && !finalized;
}

/* Nothing that MPI would refuse, as far as one sees without asking it. */
static bool plausible(const struct call *c)
{
    return c->comm != MPI_COMM_NULL && c->count > 0 && c->recv && c->send &&
           c->recv != MPI_IN_PLACE && c->send != c->recv &&
           c->type != MPI_DATATYPE_NULL && c->op != MPI_OP_NULL;
}

static enum outcome find_signature(const struct call *c, struct signature *s)
{
    switch (signature_find(c->type, c->op, s)) {
    case FOUND:
        return s->of_user && !process_type_works(c->type) ? PASSED_ARGUMENTS : TAKEN;
    case FOUND_ORDERED:
        return PASSED_ORDERED;
    case FOUND_GAPS:
        return PASSED_GAPS;
    case FOUND_UNKNOWN:
    case FOUND_UNDEFINED:
        break;
    }
    return PASSED_ARGUMENTS;
}

enum outcome intercept_plan(const struct call *c, struct record **record,
                            struct cache_key *key)
{
    *key = (struct cache_key){.count = (uint64_t)c->count};
    if (core_is_inside())
        return PASSED_NESTED;
    if (c->count == 0)
        return PASSED_NO_ELEMENTS;
    if (!plausible(c) || (!process_begun() && !mpi_runs()))
        return PASSED_ARGUMENTS;
    enum outcome outcome = find_signature(c, &key->signature);
    if (outcome != TAKEN)
        return outcome;
    info_arrived(c->comm);
    struct record *r = *record = record_make(c->comm);
    if (!r)
        return PASSED_REFUSED;
    if (!r->settled)
        settle(r, c->comm);
    if (!r->intra)
        return PASSED_INTERCOMM;
    if (!r->alike)
        return PASSED_REFUSED;
    if (r->partial && r->level < MPI_THREAD_MULTIPLE)
        return PASSED_THREADS;
    if (r->partial && key->signature.of_user)
        return PASSED_OP_OF_USER;
    key->policy = r->policy;
    key->algorithm = settings()->algorithm;
    key->domain = settings()->domain;
    key->domain_ranks = settings()->domain_ranks;
    key->progress = r->partial ? PCOLL_PROGRESS_AGENT : PCOLL_PROGRESS_MANUAL;
    key->call_site = r->partial ? c->call_site : NULL;
    return TAKEN;
}

/* Is there room for one more, or can some be made? */
static bool make_room(struct record *r, const struct cache_key *key)
{
    struct cache *cache = &r->cache;
    uint64_t bytes = cache_bytes(key, r->size);
    if (r->partial) /* what is late must not be forgotten */
        return true;
    if (bytes > most_bytes)
        return false;
    while (cache->length >= MAX_HANDLES || cache->bytes + bytes > most_bytes) {
        if (cache_oldest_use(cache) + LONG_UNUSED > cache->calls)
            return false;
        cache_evict(cache);
    }
    return true;
}

static enum outcome find_handle(const struct call *c, struct record *r,
                                struct cache_key *key, struct cache_entry **entry)
{
    *entry = cache_find(&r->cache, key);
    if (!*entry && !make_room(r, key))
        return PASSED_CACHE;
    if (!*entry)
        cache_make(&r->cache, c->comm, key, entry);
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
    bool before = core_enter();
    int rc = PCOLL_OK;
    outcome = find_handle(c, record, &key, &entry);
    if (outcome == TAKEN)
        rc = cache_run(entry, &key, c->type,
                       c->send == MPI_IN_PLACE ? c->recv : c->send, c->recv);
    core_leave(before);
    *error = rc == PCOLL_OK ? MPI_SUCCESS : core_raise(c->comm, rc);
    return outcome;
}
