/* SPDX-License-Identifier: Apache-2.0 */
/* See interposer.h. The limits are measured with `bench/run.py interposer`: docs/interposer.md. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/random.h"
#include "compat/interposer/interposer.h"
#include "compat/mpi_shaped/cache.h"
#include "runtime/process.h"

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
        report_warn(
            "rank 0: the ranks have different tables of bench tune: the built-in one "
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
        report_warn(
            "rank 0: the ranks disagree about PARTIALCOLL_ALL or PARTIALCOLL_QUORUM: "
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
        report_warn(
            "rank 0: a quorum needs MPI_THREAD_MULTIPLE, and MPI runs with less: "
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

/* Deciding about a call, and doing it. */

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
    return !s->of_user && full_is_faster(r->size, intercept_payload(c)) ? TAKEN
                                                                        : PASSED_FULL;
}

/* Can this call be a complete round of a communicator on which nothing is kept? Then no
 * record is made: a new communicator costs what MPI's does. */
static bool intercept_is_short(const struct call *c)
{
    const struct full_facts *f = full_facts();
    return !f->asked && !quorum_is_partial(&f->quorum) &&
           intercept_payload(c) < f->short_bytes;
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
    if (!atomic_load_explicit(&full_reasons, memory_order_relaxed) &&
        intercept_is_short(c))
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
                                          struct cache_key *key,
                                          struct cache_entry **entry)
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
