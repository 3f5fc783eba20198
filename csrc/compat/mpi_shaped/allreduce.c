/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PCOLL_Allreduce: shaped like MPI_Allreduce, for one call to be swapped. The policy
 * comes from the communicator or the environment, the handle from the communicator's
 * cache, by the place of the call and the signature.
 */
#include <mpi.h> /* first: the declarations want it */

#include "include/partialcoll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "compat/mpi_shaped/cache.h"

/* MPI's error class for a result of the core: never success, also where another process or
 * thread has had MPI's own. */
static int error_class(int rc)
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
static int raise(MPI_Comm comm, int code)
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

static int bad(int code, const char *message)
{
    fail(PCOLL_EINVAL, "%s", message);
    return code;
}

static int check_reduction(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    switch (signature_find(type, op, s)) {
    case FOUND:
        return MPI_SUCCESS;
    case FOUND_ORDERED:
        return bad(MPI_ERR_OP, "op: expected one that was created as commutative");
    case FOUND_GAPS:
        return bad(MPI_ERR_TYPE, "datatype: expected one without gaps");
    case FOUND_UNKNOWN:
    case FOUND_UNDEFINED:
        break;
    }
    return bad(MPI_ERR_OP, "datatype and op: MPI does not define this pair");
}

/* MPI's own error code for what is wrong with the arguments here. */
static int check(const void *send, const void *recv, int count, MPI_Datatype type,
                 MPI_Op op, MPI_Comm comm, struct cache_key *key)
{
    int inter;
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return bad(MPI_ERR_COMM, "comm: expected an intra-communicator");
    if (count < 0)
        return bad(MPI_ERR_COUNT, "count: expected at least 0, got less");
    if (type == MPI_DATATYPE_NULL)
        return bad(MPI_ERR_TYPE, "datatype: expected one, got MPI_DATATYPE_NULL");
    if (op == MPI_OP_NULL)
        return bad(MPI_ERR_OP, "op: expected one, got MPI_OP_NULL");
    int code = check_reduction(type, op, &key->signature);
    if (code != MPI_SUCCESS)
        return code;
    if (recv == MPI_IN_PLACE || (count > 0 && (!recv || !send || send == recv)))
        return bad(MPI_ERR_BUFFER, "buffers: expected two that are apart, or "
                                   "MPI_IN_PLACE as the first");
    key->count = (uint64_t)count;
    return MPI_SUCCESS;
}

/* PARTIALCOLL_PROGRESS, for rounds that need not wait for everybody; a round of all
 * ranks moves while they are in the call, so it needs nobody else. */
static int choose_progress(const struct quorum *quorum, int32_t *progress)
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
static int choose_algorithm(int32_t *algorithm)
{
    const char *text = environment_get("PARTIALCOLL_ALGORITHM");
    *algorithm = PCOLL_ALGORITHM_AUTO;
    return text ? pcoll_algorithm_parse(text, algorithm) : PCOLL_OK;
}

/* PARTIALCOLL_DOMAIN, else the ranks of a node. */
static int choose_domain(int32_t *domain, uint32_t *domain_ranks)
{
    const char *text = environment_get("PARTIALCOLL_DOMAIN");
    *domain = PCOLL_DOMAIN_NODE;
    *domain_ranks = 0;
    return text ? pcoll_domain_parse(text, domain, domain_ranks) : PCOLL_OK;
}

/* The communicator's own policy, else PARTIALCOLL_QUORUM, else full. */
static int choose_quorum(struct record *record, struct quorum *quorum)
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

/* What the communicator and the environment say about this call. */
static int choose(struct record *record, struct cache_key *key)
{
    int rc = choose_quorum(record, &key->quorum);
    if (rc == PCOLL_OK)
        rc = choose_progress(&key->quorum, &key->progress);
    if (!quorum_is_partial(&key->quorum))
        key->call_site = NULL; /* nothing is late, so nothing can mix */
    if (rc == PCOLL_OK)
        rc = choose_algorithm(&key->algorithm);
    if (rc == PCOLL_OK)
        rc = choose_domain(&key->domain, &key->domain_ranks);
    if (rc == PCOLL_OK && key->signature.of_user && quorum_is_partial(&key->quorum))
        rc = fail(PCOLL_EINVAL, "op: expected a predefined one, got one of your own; a "
                                "round that does not wait for everybody may need it "
                                "after the call: use pcoll_allreduce_create");
    return rc;
}

/* What could not be made is not kept: the next call tries again. */
static int make(struct cache *cache, MPI_Comm comm, struct cache_key *key,
                struct cache_entry **entry)
{
    int rc = cache_make(cache, comm, key, entry);
    if (rc != PCOLL_OK && *entry)
        cache_forget_newest(cache);
    return rc;
}

/* This rank has no handle to make, perhaps this one alone: those who make one are told. */
static int refuse(struct record *record, MPI_Comm comm, struct cache_key *key, int rc)
{
    char why[512];
    struct cache_entry *entry;
    snprintf(why, sizeof why, "%s", pcoll_last_error());
    key->refusal = why;
    key->quorum = (struct quorum){.policy.kind = PCOLL_FULL};
    make(&record->cache, comm, key, &entry);
    return fail(rc, "%s", why);
}

static int reduce(const void *send, void *recv, MPI_Datatype type, MPI_Comm comm,
                  struct record *record, struct cache_key *key)
{
    int rc = choose(record, key);
    if (rc != PCOLL_OK)
        return refuse(record, comm, key, rc);
    struct cache_entry *entry = cache_find(&record->cache, key);
    if (!entry)
        rc = make(&record->cache, comm, key, &entry);
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
        return running ? raise(MPI_COMM_SELF, MPI_ERR_COMM) : MPI_ERR_OTHER;
    }
    struct record *record = record_make(comm);
    if (!record)
        return raise(comm, MPI_ERR_NO_MEM);
    int code = check(sendbuf, recvbuf, count, type, op, comm, &key);
    if (code == MPI_SUCCESS)
        code = error_class(reduce(sendbuf, recvbuf, type, comm, record, &key));
    return code == MPI_SUCCESS ? code : raise(comm, code);
}

int PCOLL_Comm_set_quorum(MPI_Comm comm, const char *quorum)
{
    struct quorum parsed = {.policy.kind = PCOLL_FULL};
    if (comm == MPI_COMM_NULL)
        return raise(MPI_COMM_SELF, bad(MPI_ERR_COMM, "comm: expected a communicator"));
    struct record *record = record_make(comm);
    if (!record)
        return raise(comm, MPI_ERR_NO_MEM);
    size_t length = quorum ? strlen(quorum) : 0;
    if (length && quorum_parse(quorum, &parsed) != PCOLL_OK)
        return raise(comm, MPI_ERR_ARG);
    if (length >= sizeof record->wanted)
        return raise(comm, bad(MPI_ERR_ARG, "quorum: expected a shorter text"));
    memcpy(record->wanted, quorum ? quorum : "", length + 1);
    record->quorum = parsed;
    return MPI_SUCCESS;
}
