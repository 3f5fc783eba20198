/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of a call that may be on a device, as a CUDA-aware MPI takes them: what is
 * there is complete when the call is made, and when it returns. The core is given memory
 * of the host in their place. Each rank for itself: the calls of the others do not change.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_CACHE_H
#define PCOLL_COMPAT_MPI_SHAPED_CACHE_H

#include <mpi.h>
#include <stdbool.h>

#include "compat/mpi_shaped/quorum.h"
#include "compat/mpi_shaped/signature.h"
#include "include/partialcoll.h"

/* One buffer and what stands for it. */
struct mirror_buffer {
    pcoll_mirror *mirror; /* NULL: none has been on a device */
    int32_t device;
    void *memory;
    uint64_t room;
};

/* Those of one handle; zeros at first. What they were last, as the program gave them. */
struct mirror_buffers {
    struct mirror_buffer send, recv;
    uint64_t result; /* on a device; 0: it is the host's */
    uint64_t bytes;
};

/* *send and *recv (the same address: in place) become the host's, with what is to be
 * sent. Nothing is done if they are. */
int mirror_buffers_pull(struct mirror_buffers *b, MPI_Datatype type, uint64_t count,
                        const void **send, void **recv);
/* The result is where the program wants it. */
int mirror_buffers_push(struct mirror_buffers *b);
void mirror_buffers_free(struct mirror_buffers *b);

/*
 * What is kept on a communicator for calls that look like MPI_Allreduce: when its
 * rounds may complete, and the handles of earlier calls. An attribute, freed with the
 * communicator, which waits for no other rank (runtime/process.h).
 *
 * What the cache holds is a function of the calls on that communicator, which are the
 * same on all its ranks in the same order. So all ranks find or miss together, and
 * handles, whose making and freeing is collective, are made and freed in step. The place
 * of a call, which MPI does not want to be the same, is part of the key in partial
 * rounds: ranks that call from places that are new to them find out in the making that
 * these differ; a program may not, in one call, come from a new place on some ranks and
 * from a known one on others.
 *
 * One thread at a time uses a communicator for collectives (MPI says so), so a record
 * needs no lock.
 */

struct cache_key {
    struct quorum quorum;
    uint64_t count;
    struct signature signature;
    int32_t progress, domain;
    uint32_t domain_ranks;
    int32_t algorithm;     /* Rabenseifner's may become the ring: algorithm_of */
    const void *call_site; /* NULL: calls from all places share a handle */
    const char *refusal;   /* why this rank makes none: the others are told; or NULL */
};

struct cache_entry {
    struct cache_key key;
    pcoll_handle *handle; /* NULL: it could not be made, on any rank */
    uint64_t last_use, bytes;
    struct mirror_buffers mirrors; /* of calls with buffers on a device */
    struct cache_entry *next;
};

/* Newest first. */
struct cache {
    struct cache_entry *entries;
    uint32_t length;
    uint64_t calls, bytes;
    bool
        places_differ; /* ranks make the same call from several places of the program */
};

struct savings;

/* What PCOLL_Allreduce does on a communicator. */
struct call_choice {
    struct quorum quorum;
    int32_t progress, algorithm, domain;
    uint32_t domain_ranks;
    bool asked; /* for an algorithm or a domain: complete rounds are ours */
};

struct record {
    struct cache cache;
    struct quorum quorum;
    bool settled;  /* what follows is known */
    bool intra;    /* an intra-communicator */
    bool of_world; /* all of its processes are in this MPI_COMM_WORLD */
    bool alike;    /* its ranks have the same algorithm and domain */
    bool partial;  /* its rounds need not wait for everybody */
    bool admitted; /* its ranks have room for its handles, or ... */
    bool refused;  /* ... one of them has not */
    int level;     /* MPI's thread level, the lowest of its ranks */
    int size;
    char wanted[96];           /* text of a policy given for this communicator, or "" */
    struct savings *savings;   /* freed with the record */
    struct call_choice choice; /* of PCOLL_Allreduce, as are: */
    pcoll_full_facts facts;
    struct short_call {
        int count;
        MPI_Datatype type;
        MPI_Op op;
    } short_call; /* the last one that is always MPI's; its count is 0 if there is none */
    struct mirror_buffers mirrors; /* of calls that MPI does */
    void *more;                    /* of the interposer */
    void (*free_more)(void *more); /* local */
};

/* The record of a communicator, or NULL. Local. */
struct record *record_find(MPI_Comm comm);
/* The same, made if there is none; NULL without memory. Local. */
struct record *record_make(MPI_Comm comm);

/* Before MPI_Comm_free: what is kept on it ends here. Local. */
void record_part(MPI_Comm comm);

/* A number for what MPI demands to be the same on all ranks of a call: count, datatype, op. */
uint64_t cache_hash(const struct cache_key *key);
bool cache_same_key(const struct cache_key *a, const struct cache_key *b);
/* A handle for this key. Collective. */
int cache_create(MPI_Comm comm, const struct cache_key *key, pcoll_handle **handle);

/* The end of one, NULL included. Collective. */
void cache_free_handle(pcoll_handle *handle);

/* Bytes of a handle for this key on so many ranks; UINT64_MAX for an impossible one. */
uint64_t cache_bytes(const struct cache_key *key, int ranks);

/* The entry of this key, now the most recently used, or NULL. Local. Counts the call. Where places
 * differ, the key of a call from a new place becomes that of all such. */
struct cache_entry *cache_find(struct cache *cache, struct cache_key *key);
/* Make a handle and keep it; the key may become one of all places. Collective. If that fails,
 * *entry has no handle and stays as a reminder; NULL without memory. */
int cache_make(struct cache *cache, MPI_Comm comm, struct cache_key *key,
               struct cache_entry **entry);
/* Take out the entry just made or found. Collective if it has a handle. */
void cache_forget_newest(struct cache *cache);
/* Take out the entry used least recently and free its handle. Collective. */
void cache_evict(struct cache *cache);
/* When that one was last used. The cache is not empty. */
uint64_t cache_oldest_use(struct cache *cache);

/* Start, and in a replay wait until it may be. */
int cache_start(pcoll_handle *handle, const void *send);
/* Wait for a round and deliver it; with deliver=all also the others that are complete by then and
 * that this rank has not seen. */
int cache_take(pcoll_handle *handle, const struct cache_key *key, MPI_Datatype type,
               void *recv);
/* Start, wait and deliver; the key is the call's, with the op of this time. In place:
 * the same address twice. */
int cache_run(struct cache_entry *entry, const struct cache_key *key, MPI_Datatype type,
              const void *send, void *recv);

/*
 * What our rounds would have saved so far, for each signature of complete rounds on a
 * communicator: the calls of a signature are MPI's until that pays for a handle
 * (pcoll_full_pays).
 *
 * A communicator has a few rows. Signatures that meet in a row push each other out, on all
 * ranks alike, so each needs longer to pay.
 */

struct savings_row {
    uint64_t signature, ns;
};

/* The row of this signature: *added, if it has pushed out another one or the row was empty.
 * NULL without memory. *s is made at the first call. Local. */
struct savings_row *savings_find(struct savings **s, const struct cache_key *key,
                                 bool *added);

/* Of partial rounds: is this the first call of this signature? A handle for a signature that
 * comes only once would cost much and serve no round. Signatures that share a bit count as one.
 * *s is as above. Local. */
bool savings_is_first(struct savings **s, const struct cache_key *key);

#endif
