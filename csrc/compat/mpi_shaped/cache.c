/* SPDX-License-Identifier: Apache-2.0 */
/* See cache.h: buffers on devices, the record of a communicator, its handles. */
#include "compat/mpi_shaped/cache.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allreduce/handle.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "transport/mpi/mpi_transport.h"

enum { SLICE_US = 1000000 }; /* Waits continue after that. */

/* Repeat a call that stops waiting after a while. */
#define CACHE_INSIST(call)                                                             \
    ({                                                                                 \
        int rc_;                                                                       \
        do                                                                             \
            rc_ = (call);                                                              \
        while (rc_ == PCOLL_EAGAIN);                                                   \
        rc_;                                                                           \
    })

static void mirror_buffer_end(struct mirror_buffer *b)
{
    (void)pcoll_mirror_free(&b->mirror);
    free(b->memory);
    *b = (struct mirror_buffer){0};
}

/* Allocate pinned memory of `bytes` bytes for this device. */
static int mirror_buffer_make(struct mirror_buffer *b, int device, uint64_t bytes)
{
    if (b->mirror && b->device == device && b->room >= bytes)
        return PCOLL_OK;
    mirror_buffer_end(b);
    void *memory = memory_allocate(bytes, true);
    if (!memory)
        return fail(PCOLL_ENOMEM, "no memory for a buffer's copy on the host");
    int rc = pcoll_mirror_create(device, &b->mirror)
                 ?: pcoll_mirror_pin(b->mirror, memory, bytes);
    b->memory = memory;
    b->device = device;
    b->room = bytes;
    if (rc != PCOLL_OK)
        mirror_buffer_end(b);
    return rc;
}

static int mirror_buffer_await(const struct mirror_buffer *b)
{
    return CACHE_INSIST(pcoll_mirror_wait(b->mirror, SLICE_US));
}

/* Replace *address by host memory if it is on a device, and copy its bytes there if they are
 * read. *original becomes the address on the device, or 0. */
static int mirror_buffer_replace(struct mirror_buffer *b, const void **address,
                                 uint64_t bytes, bool read, uint64_t *original)
{
    int32_t device = -1;
    uint64_t from = (uintptr_t)*address;
    *original = 0;
    if (pcoll_device_of(from, &device) != PCOLL_OK || device < 0)
        return PCOLL_OK;
    int rc = mirror_buffer_make(b, device, bytes);
    if (rc != PCOLL_OK)
        return rc;
    *original = from;
    *address = b->memory;
    pcoll_piece piece = {b->memory, from, bytes};
    if (read)
        rc = pcoll_mirror_pull(b->mirror, &piece, 1, 0);
    return rc ?: mirror_buffer_await(b);
}

int mirror_buffers_pull(struct mirror_buffers *b, MPI_Datatype type, uint64_t count,
                        const void **send, void **recv)
{
    MPI_Aint lower, extent;
    uint64_t sent;
    b->result = 0;
    if (!count || !pcoll_device_in_use())
        return PCOLL_OK;
    MPI_Type_get_extent(type, &lower, &extent);
    b->bytes = count * (uint64_t)extent;
    bool in_place = *send == *recv;
    const void *result = *recv;
    int rc = mirror_buffer_replace(&b->recv, &result, b->bytes, in_place, &b->result);
    *recv = (void *)(uintptr_t)result;
    if (in_place)
        *send = result;
    else if (rc == PCOLL_OK)
        rc = mirror_buffer_replace(&b->send, send, b->bytes, true, &sent);
    return rc;
}

int mirror_buffers_push(struct mirror_buffers *b)
{
    if (!b->result)
        return PCOLL_OK;
    pcoll_piece piece = {b->recv.memory, b->result, b->bytes};
    return pcoll_mirror_push(b->recv.mirror, &piece, 1, 0)
               ?: mirror_buffer_await(&b->recv);
}

void mirror_buffers_free(struct mirror_buffers *b)
{
    mirror_buffer_end(&b->send);
    mirror_buffer_end(&b->recv);
}

static void record_end(void *record)
{
    struct record *r = record;
    for (struct cache_entry *e = r->cache.entries, *next; e; e = next) {
        next = e->next;
        if (e->handle)
            handle_retire(e->handle);
        mirror_buffers_free(&e->mirrors);
        free(e);
    }
    if (r->free_more)
        r->free_more(r->more);
    mirror_buffers_free(&r->mirrors);
    free(r);
}

struct record *record_find(MPI_Comm comm)
{
    return mpi_state(&comm, MPI_STATE_OF_CALLS);
}

struct record *record_make(MPI_Comm comm)
{
    struct record *record = record_find(comm);
    if (record || !(record = calloc(1, sizeof *record)))
        return record;
    record->choice.quorum = QUORUM_FULL;
    lock_take(&mpi_states);
    int rc = mpi_set_state(&comm, MPI_STATE_OF_CALLS, record, record_end);
    lock_release(&mpi_states);
    if (rc == PCOLL_OK)
        return record;
    free(record);
    return NULL;
}

void record_part(MPI_Comm comm)
{
    if (comm != MPI_COMM_NULL && mpi_is_running())
        mpi_comm_part(&comm);
}

/* An allreduce of ORs tells whether a number and its complement are complements on all ranks. */
bool record_is_same(MPI_Comm comm, uint64_t number)
{
    uint64_t both[] = {number, ~number};
    return PMPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_UINT64_T, MPI_BOR, comm) ==
               MPI_SUCCESS &&
           both[0] == ~both[1];
}

int record_gather_facts(MPI_Comm comm, pcoll_full_facts *facts)
{
    int size, level = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&level);
    int rc = pcoll_full_look(CACHE_OPEN_MPI, level == MPI_THREAD_MULTIPLE, facts);
    MPI_Comm_size(comm, &size);
    PMPI_Allreduce(MPI_IN_PLACE, facts->words, PCOLL_FULL_WORDS, MPI_UINT64_T, MPI_BOR,
                   comm);
    pcoll_full_settle(facts, (uint32_t)size);
    return rc;
}

void record_complete_key(const struct record *r, const void *call_site,
                         struct cache_key *key)
{
    key->choice = r->choice;
    key->call_site = r->partial ? call_site : NULL; /* else nothing is late */
}

/* With an op of the user our rounds are faster only than those of an MPI whose ranks spin. */
static bool record_may_be_faster(const struct record *r, bool of_user)
{
    return !of_user || r->facts.spins;
}

bool record_is_faster(const struct record *r, uint64_t bytes, bool of_user)
{
    return r->choice.asked || (record_may_be_faster(r, of_user) &&
                               bytes >= pcoll_full_from(&r->facts, (uint32_t)r->size));
}

/* Return a number for what MPI requires to be the same on all ranks: count, datatype, op. */
static uint64_t cache_hash(const struct cache_key *key)
{
    const struct signature *s = &key->signature;
    uint64_t hash = splitmix_mix((uint64_t)s->dtype << 32 | (uint64_t)s->op);
    return splitmix_mix(splitmix_mix(hash ^ s->element) ^ key->count);
}

enum record_verdict record_judge(struct record *r, MPI_Comm compare,
                                 const struct cache_key *key, uint64_t bytes)
{
    if (r->choice.asked)
        return RECORD_OURS;
    uint64_t hash = cache_hash(key), signature = hash | 1;
    struct savings_row *row = &r->savings[hash >> 1 & (ROWS - 1)];
    if (row->signature != signature) {
        *row = (struct savings_row){.signature = 0};
        if (compare != MPI_COMM_NULL && !record_is_same(compare, hash))
            return RECORD_DIFFERS;
        row->signature = signature;
    }
    return record_may_be_faster(r, key->signature.of_user) &&
                   pcoll_full_pays(&r->facts, (uint32_t)r->size, bytes,
                                   r->cache.length > 0, &row->ns)
               ? RECORD_OURS
               : RECORD_MPIS;
}

bool record_is_first(struct record *r, const struct cache_key *key)
{
    uint64_t hash = cache_hash(key), bit = (uint64_t)1 << (hash & 63);
    uint64_t *word = &r->seen[(hash >> 6) % SEEN_WORDS];
    bool first = !(*word & bit);
    *word |= bit;
    return first;
}

void cache_free_handle(pcoll_handle *handle)
{
    (void)CACHE_INSIST(pcoll_handle_free(&handle, SLICE_US));
}

/* Return a number of the call site that is the same on all ranks: the name of the program or
 * library and the offset in it. Addresses differ, since each rank loads its objects elsewhere. */
static uint64_t cache_call_site_hash(const void *return_address)
{
    Dl_info object;
    if (!dladdr(return_address, &object) || !object.dli_fname)
        return 1; /* Code made at run time is one site. */
    const char *slash = strrchr(object.dli_fname, '/');
    uint64_t name = splitmix_text(0, slash ? slash + 1 : object.dli_fname);
    uint64_t offset =
        (uint64_t)((const char *)return_address - (const char *)object.dli_fbase);
    return splitmix_mix(name ^ offset) | 1;
}

static pcoll_options cache_options_of(const struct cache_key *key)
{
    const struct choice *choice = &key->choice;
    bool partial = quorum_is_partial(&choice->quorum);
    uint32_t history = choice->quorum.history ? choice->quorum.history : 8;
    /* Rabenseifner's algorithm cuts at multiples of 64 bytes, and must not cut an element. */
    bool ring = choice->algorithm == PCOLL_ALGORITHM_RABENSEIFNER &&
                key->signature.of_user && 64 % key->signature.element;
    return (pcoll_options){
        .policy = choice->quorum.policy,
        .algorithm = ring ? PCOLL_ALGORITHM_RING : choice->algorithm,
        .domain = choice->domain,
        .domain_ranks = choice->domain_ranks,
        .deliver = partial ? choice->quorum.deliver : PCOLL_DELIVER_ONE,
        .late = key->signature.op == PCOLL_SUM ? PCOLL_LATE_CARRY : PCOLL_LATE_LATEST,
        .progress = choice->progress,
        .history = partial ? history : 1, /* In full rounds no rank is behind. */
        .name = key->call_site ? cache_call_site_hash(key->call_site) : 0,
    };
}

/* All ranks must find the same number, so it depends on the key alone. A file says what `auto`
 * stands for, and a node may lack that file. */
uint64_t cache_bytes(const struct cache_key *key, int ranks)
{
    uint64_t bytes;
    pcoll_buffer buffer = signature_buffer(&key->signature, key->count);
    pcoll_options options = cache_options_of(key);
    if (options.algorithm == PCOLL_ALGORITHM_AUTO)
        options.algorithm = PCOLL_ALGORITHM_RECDBL;
    int rc = pcoll_memory_estimate((uint32_t)ranks, &buffer, 1, &options, &bytes);
    return rc == PCOLL_OK ? bytes : UINT64_MAX;
}

bool cache_same_key(const struct cache_key *a, const struct cache_key *b)
{
    const struct choice *c = &a->choice, *d = &b->choice;
    return a->count == b->count && signature_same(&a->signature, &b->signature) &&
           a->call_site == b->call_site && c->progress == d->progress &&
           c->algorithm == d->algorithm && c->domain == d->domain &&
           c->domain_ranks == d->domain_ranks && quorum_same(&c->quorum, &d->quorum);
}

static struct cache_entry *cache_find_entry(struct cache *cache,
                                            const struct cache_key *key)
{
    for (struct cache_entry **at = &cache->entries; *at; at = &(*at)->next) {
        struct cache_entry *e = *at;
        if (!cache_same_key(&e->key, key))
            continue;
        e->last_use = cache->calls;
        *at = e->next;
        e->next = cache->entries;
        cache->entries = e;
        return e;
    }
    return NULL;
}

struct cache_entry *cache_find(struct cache *cache, struct cache_key *key)
{
    cache->calls++;
    struct cache_entry *found = cache_find_entry(cache, key);
    if (found || !key->call_site || !cache->sites_differ)
        return found;
    key->call_site = NULL;
    return cache_find_entry(cache, key);
}

int cache_create(MPI_Comm comm, const struct cache_key *key, pcoll_handle **handle)
{
    pcoll_buffer buffer = signature_buffer(&key->signature, key->count);
    pcoll_options options = cache_options_of(key);
    if ((options.invalid = key->refusal != NULL))
        pcoll_refuse(key->refusal);
    return pcoll_allreduce_create(&comm, &buffer, 1, &options, handle);
}

int cache_make(struct cache *cache, MPI_Comm comm, struct cache_key *key, bool reminds,
               struct cache_entry **entry)
{
    struct cache_entry *e = *entry = calloc(1, sizeof *e);
    if (!e)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    int size, rc = cache_create(comm, key, &e->handle);
    if (rc != PCOLL_OK) {
        /* A failure is one of all ranks. If they differ in the call site alone, calls from new
         * sites are the same call from now on. */
        struct cache_key anywhere = *key;
        anywhere.call_site = NULL;
        if ((rc = cache_create(comm, &anywhere, &e->handle)) == PCOLL_OK) {
            cache->sites_differ = true;
            *key = anywhere;
        }
    }
    if (rc != PCOLL_OK && !reminds) {
        free(e);
        return rc;
    }
    MPI_Comm_size(comm, &size);
    e->key = *key;
    e->bytes = rc == PCOLL_OK ? cache_bytes(key, size) : 0;
    cache->bytes += e->bytes;
    e->last_use = cache->calls;
    e->next = cache->entries;
    cache->entries = e;
    cache->length++;
    return rc;
}

bool cache_evict(struct cache *cache, uint64_t calls)
{
    struct cache_entry **last = &cache->entries, *e;
    while ((*last)->next)
        last = &(*last)->next;
    e = *last;
    if (e->last_use + calls > cache->calls)
        return false;
    *last = NULL;
    cache->length--;
    cache->bytes -= e->bytes;
    cache_free_handle(e->handle);
    mirror_buffers_free(&e->mirrors);
    free(e);
    return true;
}

int cache_start(pcoll_handle *handle, const void *send)
{
    /* A replay waits for the turn of this rank. */
    return CACHE_INSIST(pcoll_handle_start(handle, &send));
}

/* Deliver the rounds that are complete after a wait, oldest first: their sum, or the newest. */
static int cache_take_all(pcoll_handle *handle, const struct cache_key *key,
                          MPI_Datatype type, void *recv)
{
    static atomic_bool warned;
    bool adds = key->signature.op == PCOLL_SUM;
    pcoll_round round;
    uint64_t complete, delivered, last = UINT64_MAX, lost = 0;
    int size, rc = pcoll_handle_rounds(handle, &complete, &delivered);
    MPI_Type_size(type, &size);
    void *next = recv, *memory = NULL;
    while (rc == PCOLL_OK) {
        rc = CACHE_INSIST(pcoll_handle_deliver(handle, last, &next, &round, NULL));
        if (rc != PCOLL_OK)
            break;
        lost += round.lost;
        size_t step = (size_t)size;
        for (uint64_t at = 0, n; next != recv && at < key->count; at += n) {
            n = key->count - at < INT_MAX ? key->count - at : INT_MAX;
            MPI_Reduce_local((char *)next + at * step, (char *)recv + at * step, (int)n,
                             type, MPI_SUM);
        }
        last = complete - 1;
        if (adds && !memory && !(next = memory = malloc(key->count * (size_t)size)))
            rc = fail(PCOLL_ENOMEM, "no memory for the rounds of a call");
    }
    if (lost && !atomic_exchange(&warned, true))
        fprintf(stderr,
                "partialcoll: a call with deliver=all lost %llu rounds that were older "
                "than history=: what they added up to is in no result of this rank\n",
                (unsigned long long)lost);
    free(memory);
    return rc == PCOLL_EEMPTY ? PCOLL_OK : rc;
}

int cache_take(pcoll_handle *handle, const struct cache_key *key, MPI_Datatype type,
               void *recv)
{
    pcoll_round round;
    if (key->choice.quorum.deliver == PCOLL_DELIVER_ONE)
        return CACHE_INSIST(pcoll_handle_take(handle, SLICE_US, &recv, &round, NULL));
    return CACHE_INSIST(pcoll_handle_wait(handle, SLICE_US))
               ?: cache_take_all(handle, key, type, recv)
               ?: pcoll_handle_finish(handle);
}

int cache_run(struct cache_entry *entry, const struct cache_key *key, MPI_Datatype type,
              const void *send, void *recv)
{
    const struct signature *s = &key->signature;
    int rc = mirror_buffers_pull(&entry->mirrors, type, key->count, &send, &recv);
    if (rc == PCOLL_OK && s->of_user)
        rc = pcoll_handle_set_reduction(entry->handle, 0, &s->mpi_type, &s->mpi_op);
    return rc
               ?: cache_start(entry->handle, send)
               ?: cache_take(entry->handle, key, type, recv)
               ?: mirror_buffers_push(&entry->mirrors);
}
