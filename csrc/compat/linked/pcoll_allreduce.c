/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PCOLL_Allreduce: shaped like MPI_Allreduce, for one call to be swapped. The policy
 * comes from the communicator or the environment, the handle from the communicator's
 * cache, by the place of the call and the signature.
 *
 * Complete rounds are MPI's unless ours are faster (pcoll_full_pays). All ranks must choose
 * alike. So the first call on a communicator, after each PCOLL_Comm_set_quorum, compares what
 * the communicator and the environment ask for, and the first complete round of each
 * signature compares the signature: one MPI_Allreduce. Ranks that differ in anything all go on
 * to make a handle, which says to each what differs.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/random.h"
#include "compat/mpi_shaped/cache.h"
#include "include/partialcoll.h"

/* MPI's error class for a result of the core: never success, also where another process or
 * thread has had MPI's own. */
static int linked_error_class(int rc)
{
    switch (rc) {
    case PCOLL_OK:
        return MPI_SUCCESS;
    case PCOLL_EINVAL:
        return MPI_ERR_ARG;
    case PCOLL_ENOMEM:
        return MPI_ERR_NO_MEM;
    case PCOLL_EMPI:
    case PCOLL_EFAILED:
        return pcoll_last_mpi_error() ? pcoll_last_mpi_error() : MPI_ERR_OTHER;
    default:
        return MPI_ERR_OTHER;
    }
}

/* As MPI does: call the error handler, return the code if it comes back. One that ends
 * the program knows MPI's message only, so ours goes before it. */
static int linked_raise(MPI_Comm comm, int code)
{
    MPI_Errhandler handler;
    if (MPI_Comm_get_errhandler(comm, &handler) == MPI_SUCCESS) {
        if (handler == MPI_ERRORS_ARE_FATAL)
            fprintf(stderr, "partialcoll: PCOLL_Allreduce: %s\n", pcoll_last_error());
        MPI_Errhandler_free(&handler);
    }
    MPI_Comm_call_errhandler(comm, code);
    return code;
}

static int linked_bad(int code, const char *message)
{
    fail(PCOLL_EINVAL, "%s", message);
    return code;
}

static int linked_check_reduction(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    switch (signature_find(type, op, s)) {
    case FOUND:
        return MPI_SUCCESS;
    case FOUND_ORDERED:
        return linked_bad(MPI_ERR_OP,
                          "op: expected one that was created as commutative");
    case FOUND_GAPS:
        return linked_bad(MPI_ERR_TYPE, "datatype: expected one without gaps");
    case FOUND_UNKNOWN:
    case FOUND_UNDEFINED:
        break;
    }
    return linked_bad(MPI_ERR_OP, "datatype and op: MPI does not define this pair");
}

/* MPI's own error code for what is wrong with the arguments here. */
static int linked_check(const void *send, const void *recv, int count,
                        MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                        struct cache_key *key)
{
    int inter;
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return linked_bad(MPI_ERR_COMM, "comm: expected an intra-communicator");
    if (count < 0)
        return linked_bad(MPI_ERR_COUNT, "count: expected at least 0, got less");
    if (type == MPI_DATATYPE_NULL)
        return linked_bad(MPI_ERR_TYPE,
                          "datatype: expected one, got MPI_DATATYPE_NULL");
    if (op == MPI_OP_NULL)
        return linked_bad(MPI_ERR_OP, "op: expected one, got MPI_OP_NULL");
    int code = linked_check_reduction(type, op, &key->signature);
    if (code != MPI_SUCCESS)
        return code;
    if (recv == MPI_IN_PLACE || (count > 0 && (!recv || !send || send == recv)))
        return linked_bad(MPI_ERR_BUFFER, "buffers: expected two that are apart, or "
                                          "MPI_IN_PLACE as the first");
    key->count = (uint64_t)count;
    return MPI_SUCCESS;
}

/* PARTIALCOLL_PROGRESS, for rounds that need not wait for everybody; a round of all
 * ranks moves while they are in the call, so it needs nobody else. */
static int linked_choose_progress(const struct quorum *quorum, int32_t *progress)
{
    const char *text = environment_get("PARTIALCOLL_PROGRESS");
    *progress = PCOLL_PROGRESS_MANUAL;
    if (!quorum_is_partial(quorum) || (text && !strcmp(text, "manual")))
        return PCOLL_OK;
    *progress = PCOLL_PROGRESS_AGENT;
    if (!text || !strcmp(text, "agent"))
        return PCOLL_OK;
    *progress = PCOLL_PROGRESS_SPIN;
    if (!strcmp(text, "spin"))
        return PCOLL_OK;
    return fail(PCOLL_EINVAL,
                "PARTIALCOLL_PROGRESS: expected agent, manual or spin, got \"%.50s\"",
                text);
}

/* PARTIALCOLL_ALGORITHM, else auto. */
static int linked_choose_algorithm(int32_t *algorithm)
{
    const char *text = environment_get("PARTIALCOLL_ALGORITHM");
    *algorithm = PCOLL_ALGORITHM_AUTO;
    return text ? pcoll_algorithm_parse(text, algorithm) : PCOLL_OK;
}

/* PARTIALCOLL_DOMAIN, else the ranks of a node. */
static int linked_choose_domain(int32_t *domain, uint32_t *domain_ranks)
{
    const char *text = environment_get("PARTIALCOLL_DOMAIN");
    *domain = PCOLL_DOMAIN_NODE;
    *domain_ranks = 0;
    return text ? pcoll_domain_parse(text, domain, domain_ranks) : PCOLL_OK;
}

/* The communicator's own policy, else PARTIALCOLL_QUORUM, else full. */
static int linked_choose_quorum(struct record *record, struct quorum *quorum)
{
    const char *text = environment_get("PARTIALCOLL_QUORUM");
    if (record->wanted[0])
        *quorum = record->quorum;
    else if (text)
        return quorum_parse(text, quorum);
    else
        *quorum = (struct quorum){.policy.kind = PCOLL_FULL};
    return PCOLL_OK;
}

/* What the communicator and the environment say about its calls, until the next
 * PCOLL_Comm_set_quorum. */
static int linked_choose(struct record *record)
{
    struct call_choice *choice = &record->choice;
    int rc = linked_choose_quorum(record, &choice->quorum);
    if (rc == PCOLL_OK)
        rc = linked_choose_progress(&choice->quorum, &choice->progress);
    if (rc == PCOLL_OK)
        rc = linked_choose_algorithm(&choice->algorithm);
    if (rc == PCOLL_OK)
        rc = linked_choose_domain(&choice->domain, &choice->domain_ranks);
    choice->asked = environment_get("PARTIALCOLL_ALGORITHM") ||
                    environment_get("PARTIALCOLL_DOMAIN");
    record->partial = quorum_is_partial(&choice->quorum);
    return rc;
}

/* The key of a call: by the communicator's choice. */
static int linked_complete_key(const struct record *record, struct cache_key *key)
{
    const struct call_choice *choice = &record->choice;
    key->quorum = choice->quorum;
    key->progress = choice->progress;
    key->algorithm = choice->algorithm;
    key->domain = choice->domain;
    key->domain_ranks = choice->domain_ranks;
    if (!record->partial)
        key->call_site = NULL; /* nothing is late, so nothing can mix */
    else if (key->signature.of_user)
        return fail(PCOLL_EINVAL,
                    "op: expected a predefined one, got one of your own; a "
                    "round that does not wait for everybody may need it "
                    "after the call: use pcoll_allreduce_create");
    return PCOLL_OK;
}

static uint64_t linked_hash_choice(const struct call_choice *choice)
{
    uint64_t hash = quorum_hash(&choice->quorum);
    hash = splitmix_mix(hash ^ (uint64_t)choice->algorithm);
    hash = splitmix_mix(hash ^ ((uint64_t)choice->domain << 32 | choice->domain_ranks));
    return splitmix_mix(hash ^ (uint64_t)choice->asked);
}

/* Return whether the values are the same on all ranks of the communicator. Collective. */
static bool linked_are_alike(MPI_Comm comm, uint64_t hash)
{
    uint64_t both[] = {hash, ~hash};
    return PMPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_UINT64_T, MPI_BOR, comm) ==
               MPI_SUCCESS &&
           both[0] == ~both[1];
}

/* The first call: do the ranks ask for the same? `rc`: of this rank's own choice. Collective. */
static void linked_settle(struct record *record, MPI_Comm comm, int rc)
{
    pcoll_full_facts *facts = &record->facts;
    record->short_call.count = 0;
    MPI_Comm_size(comm, &record->size);
#ifdef OPEN_MPI
    pcoll_full_look(1, facts); /* a table that cannot be read is none */
#else
    pcoll_full_look(0, facts);
#endif
    uint64_t hash = linked_hash_choice(&record->choice) ^ (uint64_t)(rc != PCOLL_OK);
    PMPI_Allreduce(MPI_IN_PLACE, facts->words, PCOLL_FULL_WORDS, MPI_UINT64_T, MPI_BOR,
                   comm);
    pcoll_full_settle(facts, (uint32_t)record->size);
    record->alike = linked_are_alike(comm, hash);
    record->settled = record->alike && rc == PCOLL_OK;
}

enum whose { OURS, MPIS, DIFFERS };

/* A complete round: has its signature been compared, and does it pay for a handle? Collective if
 * the signature is new. */
static enum whose linked_judge(struct record *record, MPI_Comm comm,
                               const struct cache_key *key, uint64_t bytes)
{
    bool added;
    if (record->choice.asked)
        return OURS;
    struct savings_row *row = savings_find(&record->savings, key, &added);
    if (!row)
        return DIFFERS;
    if (added && !linked_are_alike(comm, cache_hash(key))) {
        row->signature = 0;
        return DIFFERS;
    }
    return !key->signature.of_user &&
                   pcoll_full_pays(&record->facts, (uint32_t)record->size, bytes,
                                   record->cache.length > 0, &row->ns)
               ? OURS
               : MPIS;
}

/* MPI reduces; buffers on a device go by way of the host, as in rounds of ours. */
static int linked_pass(struct record *record, const void *send, void *recv, int count,
                       MPI_Datatype type, MPI_Op op, MPI_Comm comm, int *code)
{
    const void *from = send == MPI_IN_PLACE ? recv : send;
    void *to = recv;
    int rc = mirror_buffers_pull(&record->mirrors, type, (uint64_t)count, &from, &to);
    if (rc != PCOLL_OK)
        return rc;
    *code =
        PMPI_Allreduce(send == MPI_IN_PLACE ? send : from, to, count, type, op, comm);
    return *code == MPI_SUCCESS ? mirror_buffers_push(&record->mirrors) : PCOLL_OK;
}

/* What could not be made is not kept: the next call tries again. */
static int linked_make(struct cache *cache, MPI_Comm comm, struct cache_key *key,
                       struct cache_entry **entry)
{
    int rc = cache_make(cache, comm, key, entry);
    if (rc != PCOLL_OK && *entry)
        cache_forget_newest(cache);
    return rc;
}

/* This rank has no handle to make, perhaps this one alone: those who make one are told. */
static int linked_refuse(struct record *record, MPI_Comm comm, struct cache_key *key,
                         int rc)
{
    char why[512];
    struct cache_entry *entry;
    snprintf(why, sizeof why, "%s", pcoll_last_error());
    key->refusal = why;
    key->quorum = (struct quorum){.policy.kind = PCOLL_FULL};
    linked_make(&record->cache, comm, key, &entry);
    return fail(rc, "%s", why);
}

/* Has the last call been the same, and so short that it is always MPI's? Loops do that; the other
 * arguments of such a call are good. */
static bool linked_is_short_again(const struct record *record, const void *send,
                                  const void *recv, int count, MPI_Datatype type,
                                  MPI_Op op)
{
    const struct short_call *s = &record->short_call;
    return record->settled && s->count == count && count > 0 && s->type == type &&
           s->op == op && send && recv && send != recv && recv != MPI_IN_PLACE &&
           !pcoll_device_in_use();
}

/* *code: what MPI has said, and told its error handler, where it did the call. */
static int linked_reduce(const void *send, void *recv, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm, struct record *record, struct cache_key *key,
                         int *code)
{
    int size, rc = PCOLL_OK;
    if (!record->settled) {
        rc = linked_choose(record);
        linked_settle(record, comm, rc);
    }
    if (rc == PCOLL_OK)
        rc = linked_complete_key(record, key);
    if (rc != PCOLL_OK)
        return linked_refuse(record, comm, key, rc);
    enum whose whose = record->settled ? OURS : DIFFERS;
    if (record->settled && !record->partial) {
        MPI_Type_size(type, &size);
        whose = linked_judge(record, comm, key, key->count * (uint64_t)size);
    }
    if (whose == MPIS && !key->signature.of_user &&
        key->count * (uint64_t)size <
            pcoll_full_from(&record->facts, (uint32_t)record->size))
        record->short_call = (struct short_call){(int)key->count, type, op};
    if (whose == MPIS)
        return linked_pass(record, send, recv, (int)key->count, type, op, comm, code);
    struct cache_entry *entry = whose == OURS ? cache_find(&record->cache, key) : NULL;
    if (!entry) {
        rc = linked_make(&record->cache, comm, key, &entry);
        if (rc == PCOLL_OK &&
            !record->settled) /* they differ in nothing that matters */
            record->settled = record->choice.asked = true;
    }
    return rc == PCOLL_OK
               ? cache_run(entry, key, type, send == MPI_IN_PLACE ? recv : send, recv)
               : rc;
}

int PCOLL_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type,
                    MPI_Op op, MPI_Comm comm)
{
    struct cache_key key = {.call_site = __builtin_return_address(0)};
    int running = 0;
    MPI_Initialized(&running);
    if (!running || comm == MPI_COMM_NULL) {
        fail(PCOLL_EINVAL, "comm: expected a communicator of an MPI that runs");
        return running ? linked_raise(MPI_COMM_SELF, MPI_ERR_COMM) : MPI_ERR_OTHER;
    }
    struct record *record = record_make(comm);
    if (!record)
        return linked_raise(comm, MPI_ERR_NO_MEM);
    if (linked_is_short_again(record, sendbuf, recvbuf, count, type, op))
        return PMPI_Allreduce(sendbuf, recvbuf, count, type, op, comm);
    int passed = MPI_SUCCESS,
        code = linked_check(sendbuf, recvbuf, count, type, op, comm, &key);
    if (code == MPI_SUCCESS)
        code = linked_error_class(
            linked_reduce(sendbuf, recvbuf, type, op, comm, record, &key, &passed));
    return code == MPI_SUCCESS ? passed : linked_raise(comm, code);
}

int PCOLL_Comm_set_quorum(MPI_Comm comm, const char *quorum)
{
    struct quorum parsed = {.policy.kind = PCOLL_FULL};
    if (comm == MPI_COMM_NULL)
        return linked_raise(MPI_COMM_SELF,
                            linked_bad(MPI_ERR_COMM, "comm: expected a communicator"));
    struct record *record = record_make(comm);
    if (!record)
        return linked_raise(comm, MPI_ERR_NO_MEM);
    size_t length = quorum ? strlen(quorum) : 0;
    if (length && quorum_parse(quorum, &parsed) != PCOLL_OK)
        return linked_raise(comm, MPI_ERR_ARG);
    if (length >= sizeof record->wanted)
        return linked_raise(comm,
                            linked_bad(MPI_ERR_ARG, "quorum: expected a shorter text"));
    memcpy(record->wanted, quorum ? quorum : "", length + 1);
    record->quorum = parsed;
    record->settled = false;
    return MPI_SUCCESS;
}

/*
 * What ends in programs that are linked with us; the interposer has its own.
 *
 * MPI_Finalize: the agent is gone before it begins. MPICH stops locking when it finalizes, and a
 * thread that is inside it at that moment leaves with a lock held, on which MPICH aborts; the
 * attribute by which we end everything else is deleted too late for that.
 *
 * MPI_Comm_free: what is kept on the communicator goes while all its ranks are here. MPICH deletes
 * attributes when the last request on the communicator is over, which each rank comes to at a time
 * of its own, and ours wait for each other.
 */

PCOLL_API int MPI_Finalize(void);
PCOLL_API int MPI_Comm_free(MPI_Comm *comm);

int MPI_Finalize(void)
{
    pcoll_quiet();
    return PMPI_Finalize();
}

int MPI_Comm_free(MPI_Comm *comm)
{
    if (comm)
        record_part(*comm);
    return PMPI_Comm_free(comm);
}
