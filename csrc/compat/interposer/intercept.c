/* SPDX-License-Identifier: Apache-2.0 */
/* Deciding about a call, and doing it. */
#include "compat/interposer/intercept.h"

#include <stddef.h>

#include "compat/interposer/comm_policy.h"
#include "compat/interposer/core_call.h"
#include "compat/interposer/full.h"
#include "compat/interposer/info.h"
#include "compat/interposer/process.h"
#include "compat/mpi_shaped/savings.h"
#include "compat/interposer/settings.h"
#include "runtime/process.h"

/* Of the handles that full calls share, on one communicator. When it is full, a new
 * signature takes the place of one that has not been used for long; if there is none,
 * the program has more signatures than are worth keeping, and MPI does the call. */
enum { MAX_HANDLES = 512, LONG_UNUSED = 1000 };
static const uint64_t most_bytes = (uint64_t)1 << 29;

/* Nothing that MPI would refuse, as far as one sees without asking it. */
static bool intercept_is_plausible(const struct call *c)
{
    return c->comm != MPI_COMM_NULL && c->count > 0 && c->recv && c->send &&
           c->recv != MPI_IN_PLACE && c->send != c->recv &&
           c->type != MPI_DATATYPE_NULL && c->op != MPI_OP_NULL;
}

static enum outcome intercept_find_signature(const struct call *c, struct signature *s)
{
    switch (signature_find(c->type, c->op, s)) {
    case FOUND:
        return s->of_user && !startup_type_works(c->type) ? PASSED_ARGUMENTS : TAKEN;
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

static uint64_t intercept_payload(const struct call *c)
{
    int size = 0;
    PMPI_Type_size(c->type, &size);
    return (uint64_t)c->count * (uint64_t)size;
}

/* Of a complete round: is it ours? */
static enum outcome intercept_judge_full(const struct call *c, const struct record *r,
                               const struct signature *s)
{
    if (full_facts()->asked)
        return r->alike ? TAKEN : PASSED_REFUSED;
    return !s->of_user && full_is_faster(r->size, intercept_payload(c)) ? TAKEN : PASSED_FULL;
}

/* Can this call be a complete round of a communicator on which nothing is kept? Then no
 * record is made: a new communicator costs what MPI's does. */
static bool intercept_is_short(const struct call *c)
{
    const struct full_facts *f = full_facts();
    return !f->asked && !quorum_is_partial(&f->quorum) && intercept_payload(c) < f->short_bytes;
}

enum outcome intercept_plan(const struct call *c, struct record **record,
                            struct cache_key *key)
{
    *key = (struct cache_key){.count = (uint64_t)c->count};
    if (core_is_inside())
        return PASSED_NESTED;
    if (!startup_is_running())
        return PASSED_OUTSIDE;
    if (c->count == 0)
        return PASSED_NO_ELEMENTS;
    if (!intercept_is_plausible(c))
        return PASSED_ARGUMENTS;
    if (!atomic_load_explicit(&full_reasons, memory_order_relaxed) && intercept_is_short(c))
        return PASSED_FULL;
    info_arrived(c->comm);
    struct record *r = *record = record_find(c->comm);
    if (!r && intercept_is_short(c))
        return PASSED_FULL;
    enum outcome outcome = intercept_find_signature(c, &key->signature);
    if (outcome != TAKEN)
        return outcome;
    if (!r && !(r = *record = record_make(c->comm)))
        return PASSED_REFUSED;
    if (!r->settled)
        comm_policy_settle(r, c->comm);
    if (!r->intra)
        return PASSED_INTERCOMM;
    if (!r->of_world)
        return PASSED_OTHER_WORLD;
    if (!r->partial) {
        outcome = intercept_judge_full(c, r, &key->signature);
        if (outcome != TAKEN)
            return outcome;
    }
    if (!r->alike)
        return PASSED_REFUSED;
    if (r->partial && r->level < MPI_THREAD_MULTIPLE)
        return PASSED_THREADS;
    if (r->partial && key->signature.of_user)
        return PASSED_OP_OF_USER;
    key->quorum = r->quorum;
    key->algorithm = settings()->algorithm;
    key->domain = settings()->domain;
    key->domain_ranks = settings()->domain_ranks;
    key->progress = r->partial ? PCOLL_PROGRESS_AGENT : PCOLL_PROGRESS_MANUAL;
    key->call_site = r->partial ? c->call_site : NULL;
    return TAKEN;
}

/* Communicators with handles, each of which has a duplicate. The limit leaves most of those that
 * MPI can make (2,046 in MPICH) to the program, and bounds what a poll costs. */
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

/* Is there room for one more, or can some be made? */
static bool intercept_make_room(struct record *r, const struct cache_key *key)
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

static enum outcome intercept_find_handle(const struct call *c, struct record *r,
                                struct cache_key *key, struct cache_entry **entry)
{
    *entry = cache_find(&r->cache, key);
    if (!*entry && r->partial && savings_is_first(&r->savings, key))
        return PASSED_FIRST;
    if (!*entry && !full_pays(r, key, intercept_payload(c)))
        return PASSED_FULL;
    if (!*entry && !intercept_admit(r, c->comm))
        return PASSED_LIMIT;
    if (!*entry && !intercept_make_room(r, key))
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
    outcome = intercept_find_handle(c, record, &key, &entry);
    if (outcome == TAKEN)
        rc = cache_run(entry, &key, c->type,
                       c->send == MPI_IN_PLACE ? c->recv : c->send, c->recv);
    core_leave(before);
    *error = rc == PCOLL_OK ? MPI_SUCCESS : core_raise(c->comm, rc);
    return outcome;
}
