/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls are taken over, and by which handle: see interposer.h. The limits are measured with
 * `bench/run.py interposer`: docs/interposer.md. Below, persistent allreduces. */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "allreduce/handle.h"
#include "base/check.h"
#include "base/lock.h"
#include "compat/interposer/interposer.h"
#include "runtime/user_object.h"

/* The interposer takes complete rounds only if elements have at most this many bytes. (Elements for
 * which the core has loops have at most 32.) */
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
static bool comm_policy_is_of_world(MPI_Comm comm)
{
    MPI_Group group, inside;
    int same;
    PMPI_Comm_group(comm, &group);
    PMPI_Group_intersection(group, full_facts.all, &inside);
    PMPI_Group_compare(group, inside, &same);
    PMPI_Group_free(&inside);
    PMPI_Group_free(&group);
    return same != MPI_UNEQUAL;
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
    r->of_world = comm_policy_is_of_world(comm);
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

/* Decide about a call. TAKEN fills in record and key. */
static enum outcome intercept_plan(const struct call *c, struct record **record,
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
    if (!r->partial &&
        !record_is_faster(r, intercept_payload(c), key->signature.of_user))
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

/* Return whether the communicator may have a duplicate, for handles. Its ranks agree once.
 * Collective. */
static bool intercept_admit(struct record *r, MPI_Comm comm)
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
        cache_make(&r->cache, c->comm, key, true, entry);
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

/*
 * Persistent allreduces.
 *
 * For the program and for MPI, a persistent allreduce that was taken over is a persistent receive
 * of an empty message from this very process. Starting it starts our round, too. When the round
 * is complete, the completion thread puts the result into the program's buffer and sends the
 * message. So every function of MPI that waits for requests or tests them works unchanged,
 * on any mixture of requests, and the round advances whatever the program does meanwhile. That
 * takes MPI_THREAD_MULTIPLE.
 *
 * Each request has a token, and each token a handle. MPI_Request_free is local, so it cannot free
 * the handle. A later MPI_Allreduce_init, which is collective, reuses the handle, or frees it,
 * if all ranks have freed their request by then: each communicator has as many places for tokens
 * as a word has bits, so one allreduce compares them. When the communicator is freed, idle
 * handles are retired (runtime/user_object.h).
 *
 * A token belongs to the program while the program has its request (`live`), and to the completion
 * thread from the start of a round until it is complete (`active`). It is idle if neither holds.
 * Started tokens reach the thread through `incoming`; `mine` is the thread's own list.
 */

enum { PLACES = 64, TAGS = 32768 }; /* Every MPI has that many tags. */

struct token {
    struct cache_key key;
    pcoll_handle *handle;
    MPI_Request request;
    MPI_Comm comm;
    int tag; /* of its messages, kept for later requests; 0: not yet */
    const void *send;
    void *recv;
    MPI_Datatype type; /* predefined */
    struct mirror_buffers mirrors;
    void *result; /* `recv`, or memory of the host that replaces it */
    _Atomic bool live, active;
    struct token *next_active;
};

static struct {
    struct lock mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stop;
    _Atomic(struct token *) incoming;
    struct token *mine;
    struct token *by_tag[TAGS];
    int tags;               /* no token has this tag or a higher one */
    _Atomic int count_live; /* Most programs have none, and need no lock then. */
    MPI_Comm self;          /* for the messages */
} persistent = {.mutex = LOCK_INIT(LOCK_PERSISTENT),
                .changed = PTHREAD_COND_INITIALIZER,
                .self = MPI_COMM_NULL};

/* The completion thread. */

static bool persistent_is_over(struct token *t)
{
    uint64_t complete, delivered;
    return atomic_load(&t->handle->base.communicator->failure) ||
           pcoll_handle_rounds(t->handle, &complete, &delivered) != PCOLL_OK ||
           complete > delivered;
}

static bool persistent_has_work(void *unused)
{
    (void)unused;
    bool work = atomic_load(&persistent.incoming) != NULL;
    for (struct token *t = persistent.mine; t && !work; t = t->next_active)
        work = persistent_is_over(t);
    return work;
}

/* Complete the request, also without a result: the error handler has told the program. */
static void persistent_complete(struct token *t, int rc)
{
    if (rc != PCOLL_OK)
        core_raise(t->comm, rc);
    int tag = t->tag; /* Once the token is not active, it may be freed. */
    atomic_store(&t->active, false);
    PMPI_Send(NULL, 0, MPI_BYTE, 0, tag, persistent.self);
}

/* Sleep until a token is active and add new ones to the list. Return false at the end. */
static bool persistent_collect(void)
{
    lock_take(&persistent.mutex);
    while (!atomic_load(&persistent.incoming) && !persistent.mine && !persistent.stop)
        pthread_cond_wait(&persistent.changed, &persistent.mutex.mutex);
    struct token *t = atomic_exchange(&persistent.incoming, NULL);
    lock_release(&persistent.mutex);
    for (struct token *next; t; t = next) {
        next = t->next_active;
        t->next_active = persistent.mine;
        persistent.mine = t;
    }
    return persistent.mine != NULL;
}

static void *persistent_main(void *unused)
{
    (void)unused;
    core_inside = true;
    while (persistent_collect()) {
        progress_wait(persistent.mine->handle->base.communicator->progress,
                      persistent_has_work, NULL, 1000000);
        for (struct token **at = &persistent.mine; *at;) {
            struct token *t = *at;
            if (!persistent_is_over(t)) {
                at = &t->next_active;
                continue;
            }
            *at = t->next_active; /* before the program may start it again */
            int rc = cache_take(t->handle, &t->key, t->type, t->result);
            persistent_complete(t,
                                rc == PCOLL_OK ? mirror_buffers_push(&t->mirrors) : rc);
        }
    }
    return NULL;
}

void persistent_stop(void)
{
    if (!persistent.running)
        return;
    lock_take(&persistent.mutex);
    persistent.stop = true;
    pthread_cond_signal(&persistent.changed);
    lock_release(&persistent.mutex);
    pthread_join(persistent.thread, NULL);
    PMPI_Comm_free(&persistent.self);
    persistent.running = false;
}

/* Requests. */

/* Return whether MPI_Wait notices completion by another thread. MPI_Wait of MPICH 4.0.2 (which
 * Debian 12 has) and older never returns when another thread of its own process sends the
 * message. */
static bool persistent_works(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, major, minor, patch = 0;
    PMPI_Get_library_version(text, &length);
    if (sscanf(text, "MPICH Version: %d.%d.%d", &major, &minor, &patch) < 2)
        return true;
    return major > 4 || (major == 4 && (minor > 0 || patch > 2));
}

/* Start the thread if it does not run, and give the token a tag that no other token has. Under
 * the mutex. Return MPI's error code. */
static int persistent_prepare(struct token *t)
{
    if (!persistent.running) {
        int rc = PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &persistent.self);
        if (rc != MPI_SUCCESS)
            return rc;
        if (thread_start(&persistent.thread, persistent_main, NULL)) {
            PMPI_Comm_free(&persistent.self);
            return MPI_ERR_OTHER;
        }
        persistent.running = true;
    }
    for (int tag = 1; tag < TAGS && !t->tag; tag++)
        if (!persistent.by_tag[tag])
            t->tag = tag;
    if (!t->tag)
        return MPI_ERR_OTHER;
    persistent.by_tag[t->tag] = t;
    persistent.tags = t->tag < persistent.tags ? persistent.tags : t->tag + 1;
    return MPI_SUCCESS;
}

/* Make an inactive request for a token. Return MPI's error code. */
static int persistent_make_request(struct token *t)
{
    lock_take(&persistent.mutex);
    int rc = persistent_prepare(t);
    if (rc == MPI_SUCCESS)
        rc = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, t->tag, persistent.self, &t->request);
    if (rc == MPI_SUCCESS) {
        atomic_store(&t->live, true);
        atomic_fetch_add(&persistent.count_live, 1);
    }
    lock_release(&persistent.mutex);
    return rc;
}

/* Return the live token of a request, or NULL. If the program frees the request, the token lives no
 * more. */
static struct token *persistent_find(MPI_Request request, bool frees)
{
    struct token *found = NULL;
    if (!atomic_load(&persistent.count_live) || request == MPI_REQUEST_NULL)
        return NULL;
    lock_take(&persistent.mutex);
    for (int tag = 1; tag < persistent.tags && !found; tag++) {
        struct token *t = persistent.by_tag[tag];
        if (t && atomic_load(&t->live) && t->request == request)
            found = t;
    }
    if (found && frees) {
        atomic_fetch_sub(&persistent.count_live, 1);
        atomic_store(&found->live, false);
    }
    lock_release(&persistent.mutex);
    return found;
}

void persistent_forget(MPI_Request request)
{
    (void)persistent_find(request, true);
}

/* Start a round and hand the token over to the thread. */
static int persistent_start(struct token *t)
{
    const void *send = t->send == MPI_IN_PLACE ? t->recv : t->send;
    struct progress *p = t->handle->base.communicator->progress;
    t->result = t->recv;
    int rc = mirror_buffers_pull(&t->mirrors, t->type, t->key.count, &send, &t->result)
                 ?: cache_start(t->handle, send);
    atomic_store(&t->active, true);
    if (rc != PCOLL_OK) {
        persistent_complete(t, rc);
        return rc;
    }
    lock_take(&persistent.mutex);
    t->next_active = atomic_load(&persistent.incoming);
    atomic_store(&persistent.incoming, t);
    pthread_cond_signal(&persistent.changed);
    lock_release(&persistent.mutex);
    progress_lock(p);
    progress_wake_waiters(p);
    progress_unlock(p);
    return PCOLL_OK;
}

int persistent_started(int count, const MPI_Request *requests)
{
    int rc = MPI_SUCCESS;
    for (int i = 0; i < count; i++) {
        struct token *t = persistent_find(requests[i], false);
        if (t && persistent_start(t) != PCOLL_OK)
            rc = MPI_ERR_INTERN;
    }
    return rc;
}

/* Places. */

static bool persistent_is_idle(const struct token *t)
{
    return !t || (!atomic_load(&t->live) && !atomic_load(&t->active));
}

static bool persistent_fits(const struct token *t, const struct cache_key *key)
{
    return t && t->handle && cache_same_key(&t->key, key);
}

/* End the places with the communicator. Tokens whose requests the program still has outlive it,
 * and so do their handles, which end with MPI. */
static void persistent_free_places(void *more)
{
    struct token **places = more;
    for (int i = 0; i < PLACES; i++) {
        struct token *t = places[i];
        if (!t || !persistent_is_idle(t))
            continue;
        if (t->handle)
            handle_retire(t->handle);
        mirror_buffers_free(&t->mirrors);
        lock_take(&persistent.mutex);
        if (t->tag)
            persistent.by_tag[t->tag] = NULL;
        lock_release(&persistent.mutex);
        free(t);
    }
    free(places);
}

/* Return the place for a key among those that are idle on all ranks: one that has this key
 * already, else an empty one, else any; -1 if all are in use. Collective. */
static int persistent_choose_place(struct token *const *places, MPI_Comm comm,
                                   const struct cache_key *key)
{
    uint64_t idle = 0;
    int empty = -1, any = -1;
    for (int i = 0; i < PLACES; i++)
        idle |= (uint64_t)persistent_is_idle(places[i]) << i;
    PMPI_Allreduce(MPI_IN_PLACE, &idle, 1, MPI_UINT64_T, MPI_BAND, comm);
    for (int i = PLACES - 1; i >= 0; i--) {
        if (!(idle >> i & 1))
            continue;
        if (persistent_fits(places[i], key))
            return i;
        if (places[i])
            any = i;
        else
            empty = i;
    }
    return empty >= 0 ? empty : any;
}

/* Make a token with a handle for this key. Collective. */
static enum outcome persistent_make_token(const struct call *c, struct record *r,
                                          const struct cache_key *key,
                                          struct token **token)
{
    if (!r->more) {
        r->more = calloc(PLACES, sizeof(struct token *));
        r->free_more = persistent_free_places;
    }
    struct token **places = r->more;
    if (!places)
        return PASSED_REFUSED;
    if (!intercept_admit(r, c->comm))
        return PASSED_LIMIT;
    int at = persistent_choose_place(places, c->comm, key);
    if (at < 0)
        return PASSED_CACHE;
    struct token *t = places[at];
    *token = t;
    if (persistent_fits(t, key))
        return TAKEN;
    if (!t && !(t = *token = places[at] = calloc(1, sizeof *t)))
        return PASSED_REFUSED;
    cache_free_handle(t->handle);
    t->handle = NULL;
    t->key = *key;
    return cache_create(c->comm, key, &t->handle) == PCOLL_OK ? TAKEN : PASSED_REFUSED;
}

enum outcome persistent_init(const struct call *c, MPI_Request *request, int *error)
{
    struct record *record;
    struct cache_key key;
    struct token *t;
    enum outcome outcome = intercept_plan(c, &record, &key);
    if (outcome != TAKEN)
        return outcome;
    if (!record->partial && !record->choice.asked)
        return PASSED_FULL;
    if (full_facts.level < MPI_THREAD_MULTIPLE || !startup_is_running() ||
        !persistent_works())
        return PASSED_THREADS;
    if (key.signature.of_user) /* It may be freed before the request is started. */
        return PASSED_OP_OF_USER;
    key.choice.progress = PCOLL_PROGRESS_AGENT;
    core_inside = true;
    outcome = persistent_make_token(c, record, &key, &t);
    core_inside = false;
    if (outcome != TAKEN)
        return outcome;
    t->send = c->send;
    t->recv = c->recv;
    t->comm = c->comm;
    t->type = c->type;
    *error = persistent_make_request(t);
    if (*error == MPI_SUCCESS)
        *request = t->request;
    return TAKEN;
}
