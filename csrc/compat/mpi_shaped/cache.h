/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of the two drop-ins (PCOLL_Allreduce and the interposer) on a communicator, kept as
 * an attribute: the options of its calls, and the handles of earlier calls. The record ends with
 * the communicator, without waiting for other ranks (runtime/user_object.h).
 *
 * The cache is a function of the calls on the communicator, which are the same on all its ranks in
 * the same order. So all ranks find or miss together, and create and free handles in step. In
 * partial rounds the key contains the call site, so late contributions of two sums in one loop do
 * not mix. MPI does not require it to be the same: ranks that call from sites that are new to them
 * notice that the sites differ when they create the handle. A program must not, in one call, come
 * from a new site on some ranks and from a known one on others.
 *
 * One thread at a time uses a communicator for collectives, so a record needs no lock.
 */
#pragma once

#include <mpi.h>
#include <stdbool.h>

#include "include/partialcoll.h"

#ifdef OPEN_MPI
enum { CACHE_OPEN_MPI = 1 };
#else
enum { CACHE_OPEN_MPI = 0 };
#endif

/* Buffers of a call may be on a device, as for a CUDA-aware MPI: the data is complete when the
 * call is made, and when it returns. The core gets host memory instead, on each rank by itself. */
struct mirror_buffer {
    pcoll_mirror *mirror; /* NULL: the buffer has never been on a device. */
    int32_t device;
    void *memory;
    uint64_t room;
};

/* The buffers of one handle, as the last call gave them. Zeros at first. */
struct mirror_buffers {
    struct mirror_buffer send, recv;
    uint64_t result; /* Address on the device, or 0 if the result is on the host. */
    uint64_t bytes;
};

/* Replace *send and *recv by host memory where they are on a device, and copy what is to be sent.
 * The same address twice means in place. */
int mirror_buffers_pull(struct mirror_buffers *b, MPI_Datatype type, uint64_t count,
                        const void **send, void **recv);
/* Copy the result to where the program wants it. */
int mirror_buffers_push(struct mirror_buffers *b);
void mirror_buffers_free(struct mirror_buffers *b);

/*
 * The part of a key that a datatype and an op make. Three sorts:
 *   the core's      dtype and op are known; the handles of MPI are null.
 *   MPI's own       predefined for MPI alone, so its handles never change.
 *   of a user       an op of a user. Op and datatype may change at each call, and have different
 *                   handles on each rank. Only the size of an element is the same, so all share a
 *                   handle of ours, which gets the op with every call.
 */
struct signature {
    int32_t dtype, op;
    MPI_Datatype mpi_type;
    MPI_Op mpi_op;
    bool of_user;
    uint64_t element; /* of a user: bytes of one element */
};

enum found {
    FOUND,
    FOUND_UNDEFINED, /* MPI refuses this pair, or is to judge it. */
    FOUND_ORDERED,   /* The op does not commute. */
    FOUND_GAPS       /* Elements have gaps. */
};

/* Find the signature of a call, the same on all its ranks. MPI must run, and the handles must not
 * be null. */
enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s);
/* Return whether two signatures share a handle. */
bool signature_same(const struct signature *a, const struct signature *b);
/* Describe `count` elements for the core. The result points into *s. */
pcoll_buffer signature_buffer(const struct signature *s, uint64_t count);

/* The settings of the rounds of a communicator. A quorum is the text of a policy
 * (docs/semantics.md) with the modifiers history= and deliver= (docs/interposer.md), each at most
 * once. A choice is a quorum and the other settings that the environment has for both drop-ins. */

enum { QUORUM_TEXT = 200 }; /* Bytes of the longest text, with its end. */

struct quorum {
    pcoll_policy policy;
    uint32_t history; /* 0 stands for 8. */
    int32_t deliver;  /* enum pcoll_deliver */
};
#define QUORUM_FULL ((struct quorum){.policy.kind = PCOLL_FULL})

/* Parse a text. PCOLL_EINVAL leaves *quorum unchanged. */
int quorum_parse(const char *text, struct quorum *quorum);
bool quorum_same(const struct quorum *a, const struct quorum *b);
/* Return a number by which ranks compare their quorums. */
uint64_t quorum_hash(const struct quorum *quorum);
/* Return whether a round may complete without some ranks, and needs the agent. */
bool quorum_is_partial(const struct quorum *quorum);

/* Zeros and QUORUM_FULL are the defaults. */
struct choice {
    struct quorum quorum;  /* PARTIALCOLL_QUORUM */
    int32_t algorithm;     /* PARTIALCOLL_ALGORITHM */
    int32_t domain;        /* PARTIALCOLL_DOMAIN */
    uint32_t domain_ranks; /* The number of ranks that PARTIALCOLL_DOMAIN may name. */
    int32_t progress;      /* PARTIALCOLL_PROGRESS */
    bool asked; /* An algorithm or a domain is given: complete rounds are ours. */
};

enum choice_variable {
    CHOICE_ALGORITHM,
    CHOICE_DOMAIN,
    CHOICE_QUORUM,
    CHOICE_PROGRESS,
    CHOICE_VARIABLES
};
extern const char *const choice_names[CHOICE_VARIABLES];

/* Read one variable of the environment, if it is set. PCOLL_EINVAL. */
int choice_read(struct choice *choice, enum choice_variable variable);
/* Return a number by which ranks compare the algorithm and the domain. */
uint64_t choice_hash(const struct choice *choice);

struct cache_key {
    struct choice choice; /* cache_options_of may replace Rabenseifner's by the ring. */
    uint64_t count;
    struct signature signature;
    const void *call_site; /* NULL: calls from all sites share a handle. */
    const char *refusal;   /* Why this rank makes no handle, for the others, or NULL. */
};

struct cache_entry {
    struct cache_key key;
    pcoll_handle *handle; /* NULL: it could not be made, on any rank. */
    uint64_t last_use, bytes;
    struct mirror_buffers mirrors;
    struct cache_entry *next;
};

struct cache {
    struct cache_entry *entries; /* The most recently used is first. */
    uint32_t length;
    uint64_t calls, bytes;
    bool sites_differ; /* Ranks make the same call from several sites. */
};

enum { ROWS = 32, SEEN_WORDS = 64 };

struct record {
    struct cache cache;
    /* Time that rounds of this library would have saved, by signature. Signatures share rows: a new
     * one replaces the old one. */
    struct savings_row {
        uint64_t signature, ns; /* A signature of 0 is an empty row. */
    } savings[ROWS];
    uint64_t seen[SEEN_WORDS]; /* A bit for each hash of a signature that was called. */
    struct choice choice;      /* What its calls ask for. */
    pcoll_full_facts facts;    /* By these, complete rounds are ours or MPI's. */
    int size;
    bool has_quorum; /* The program has given one to this communicator. */
    bool settled;    /* The rest is known, until the program gives another quorum. */
    bool partial;    /* Rounds need not wait for all ranks. */

    /* Used by the interposer. */
    bool intra;    /* an intra-communicator */
    bool of_world; /* All of its processes are in this MPI_COMM_WORLD. */
    bool admitted; /* The ranks have room for its handles, or ... */
    bool refused;  /* ... one of them has not. */
    void *more;
    void (*free_more)(void *more); /* local */

    /* Used by PCOLL_Allreduce. */
    struct mirror_buffers mirrors; /* of calls that MPI does */
    struct {
        int count; /* 0: there was no such call. */
        MPI_Datatype type;
        MPI_Op op;
    } last_short; /* The last call that is always MPI's. */
};

/* Return the record of a communicator, or NULL. Local. */
struct record *record_find(MPI_Comm comm);
/* Return the record of a communicator, made if there is none; NULL without memory. Local. */
struct record *record_make(MPI_Comm comm);
/* End what is kept on a communicator, before MPI_Comm_free. Local. */
void record_part(MPI_Comm comm);

/* Return whether all ranks have the same number. Collective. */
bool record_is_same(MPI_Comm comm, uint64_t number);
/* Compare hosts, cores, thread levels and tables of `bench tune`: which complete rounds are ours? PCOLL_EINVAL if
 * this rank's table cannot be read, which then counts as none. Collective. */
int record_gather_facts(MPI_Comm comm, pcoll_full_facts *facts);

/* Fill in what the record says of a call. */
void record_complete_key(const struct record *r, const void *call_site,
                         struct cache_key *key);
/* Return whether our complete rounds of `bytes` bytes are faster than MPI's. of_user: with an op
 * of the user. Local. */
bool record_is_faster(const struct record *r, uint64_t bytes, bool of_user);
/* Count one more complete round of this signature: is it ours? Calls are MPI's until our rounds
 * would have saved what a handle costs (pcoll_full_pays). With a communicator in `compare`, its
 * ranks compare each signature that has no savings yet: RECORD_DIFFERS. With MPI_COMM_NULL this is
 * local. */
enum record_verdict { RECORD_MPIS, RECORD_OURS, RECORD_DIFFERS };
enum record_verdict record_judge(struct record *r, MPI_Comm compare,
                                 const struct cache_key *key, uint64_t bytes);
/* Return whether this is the first call of this signature, for partial rounds. Signatures that
 * share a bit count as one. Local. */
bool record_is_first(struct record *r, const struct cache_key *key);

bool cache_same_key(const struct cache_key *a, const struct cache_key *b);
/* Make a handle for this key. Collective. */
int cache_create(MPI_Comm comm, const struct cache_key *key, pcoll_handle **handle);
/* Free a handle, or nothing (NULL). Collective. */
void cache_free_handle(pcoll_handle *handle);
/* Return the bytes of a handle for this key on `ranks` ranks; UINT64_MAX if there is none. */
uint64_t cache_bytes(const struct cache_key *key, int ranks);

/* Count a call. Return the entry of its key, now the most recently used, or NULL. Where sites
 * differ, the key of a call from a new site becomes that of all sites. Local. */
struct cache_entry *cache_find(struct cache *cache, struct cache_key *key);
/* Make a handle and keep it; the key may become that of all sites. If that fails and the entry
 * `reminds`, it stays without a handle. *entry is NULL without memory. Collective. */
int cache_make(struct cache *cache, MPI_Comm comm, struct cache_key *key, bool reminds,
               struct cache_entry **entry);
/* Take out the entry used least recently, if the last `calls` calls have not used it, and return
 * whether they have not. The cache is not empty. Collective. */
bool cache_evict(struct cache *cache, uint64_t calls);

/* Start a round. */
int cache_start(pcoll_handle *handle, const void *send);
/* Wait for a round and deliver it. With deliver=all also deliver the other rounds that are
 * complete by then and that this rank has not seen. */
int cache_take(pcoll_handle *handle, const struct cache_key *key, MPI_Datatype type,
               void *recv);
/* Start, wait and deliver. The key is the call's, with its own op. The same address twice means in
 * place. */
int cache_run(struct cache_entry *entry, const struct cache_key *key, MPI_Datatype type,
              const void *send, void *recv);
