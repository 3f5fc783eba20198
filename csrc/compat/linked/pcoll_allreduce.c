/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PCOLL_Allreduce: shaped like MPI_Allreduce, so that one call can be replaced. The policy
 * comes from the communicator or the environment, the handle from the communicator's
 * cache, by call site and signature.
 *
 * Complete rounds are MPI's unless ours are faster (record_judge). All ranks must choose
 * alike. So the first call on a communicator, after each PCOLL_Comm_set_quorum, compares what
 * the communicator and the environment ask for, and the first complete round of each
 * signature compares the signature: one MPI_Allreduce. If ranks differ in anything, all of them
 * make a handle, which tells each rank what differs.
 */
#include <mpi.h>

#include "include/partialcoll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "compat/mpi_shaped/cache.h"

PCOLL_API int MPI_Finalize(void);
PCOLL_API int MPI_Comm_free(MPI_Comm *comm);

/* Return MPI's error class for a result of the core. It is never success, also where another
 * process or thread has had MPI's own error. */
static int linked_error_class(int rc)
{
    bool of_mpi = rc == PCOLL_EMPI || rc == PCOLL_EFAILED;
    return rc == PCOLL_OK                     ? MPI_SUCCESS
           : rc == PCOLL_EINVAL               ? MPI_ERR_ARG
           : rc == PCOLL_ENOMEM               ? MPI_ERR_NO_MEM
           : of_mpi && pcoll_last_mpi_error() ? pcoll_last_mpi_error()
                                              : MPI_ERR_OTHER;
}

/* Call the error handler, as MPI does, and return the code if it returns. A handler that ends
 * the program knows MPI's message only, so ours is printed before. */
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

/* Return MPI's own error code for what is wrong with the arguments. */
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
    switch (signature_find(type, op, &key->signature)) {
    case FOUND:
        break;
    case FOUND_ORDERED:
        return linked_bad(MPI_ERR_OP,
                          "op: expected one that was created as commutative");
    case FOUND_GAPS:
        return linked_bad(MPI_ERR_TYPE, "datatype: expected one without gaps");
    default:
        return linked_bad(MPI_ERR_OP, "datatype and op: MPI does not define this pair");
    }
    if (recv == MPI_IN_PLACE || (count > 0 && (!recv || !send || send == recv)))
        return linked_bad(MPI_ERR_BUFFER, "buffers: expected two that are apart, or "
                                          "MPI_IN_PLACE as the first");
    key->count = (uint64_t)count;
    return MPI_SUCCESS;
}

/* Read what the environment says about the calls of a communicator. A round of all ranks
 * progresses while they are in the call, so it needs no agent. */
static int linked_choose(struct record *r)
{
    struct choice *choice = &r->choice;
    *choice = (struct choice){
        .quorum = r->has_quorum ? choice->quorum : QUORUM_FULL,
        .progress = PCOLL_PROGRESS_AGENT,
    };
    int rc = PCOLL_OK;
    int end = r->has_quorum ? CHOICE_QUORUM : CHOICE_PROGRESS;
    for (int i = 0; i < end && rc == PCOLL_OK; i++)
        rc = choice_read(choice, (enum choice_variable)i);
    r->partial = quorum_is_partial(&choice->quorum);
    if (!r->partial)
        choice->progress = PCOLL_PROGRESS_MANUAL;
    else if (rc == PCOLL_OK)
        rc = choice_read(choice, CHOICE_PROGRESS);
    return rc;
}

/* Prepare a communicator for its calls, and compare whether its ranks ask for the same.
 * Collective. */
static int linked_settle(struct record *r, MPI_Comm comm)
{
    int rc = linked_choose(r);
    r->last_short.count = 0;
    MPI_Comm_size(comm, &r->size);
    record_gather_facts(comm, &r->facts); /* A table that cannot be read is none. */
    uint64_t hash =
        splitmix_mix(quorum_hash(&r->choice.quorum)) ^ choice_hash(&r->choice);
    r->settled =
        record_is_same(comm, hash ^ (uint64_t)(rc != PCOLL_OK)) && rc == PCOLL_OK;
    return rc;
}

/* Let MPI reduce. Buffers on a device go through the host, as in rounds of ours. */
static int linked_pass(struct record *r, const void *send, void *recv, int count,
                       MPI_Datatype type, MPI_Op op, MPI_Comm comm, int *code)
{
    bool in_place = send == MPI_IN_PLACE;
    void *to = recv;
    if (in_place)
        send = recv;
    int rc = mirror_buffers_pull(&r->mirrors, type, (uint64_t)count, &send, &to);
    if (rc != PCOLL_OK)
        return rc;
    *code = PMPI_Allreduce(in_place ? MPI_IN_PLACE : send, to, count, type, op, comm);
    return *code == MPI_SUCCESS ? mirror_buffers_push(&r->mirrors) : PCOLL_OK;
}

/* This rank, and perhaps no other one, makes no handle: tell the ranks that make one. */
static int linked_refuse(struct record *r, MPI_Comm comm, struct cache_key *key, int rc)
{
    char why[512];
    struct cache_entry *entry;
    snprintf(why, sizeof why, "%s", pcoll_last_error());
    key->refusal = why;
    key->choice.quorum = QUORUM_FULL;
    cache_make(&r->cache, comm, key, false, &entry);
    return fail(rc, "%s", why);
}

/* Return whether the last call was the same, and so short that it is always MPI's. Loops do
 * that. The other arguments of such a call are good. */
static bool linked_is_short_again(const struct record *r, const void *send,
                                  const void *recv, int count, MPI_Datatype type,
                                  MPI_Op op)
{
    return r->settled && r->last_short.count == count && count > 0 &&
           r->last_short.type == type && r->last_short.op == op && send && recv &&
           send != recv && recv != MPI_IN_PLACE && !pcoll_device_in_use();
}

/* *code: MPI's error, which its error handler has seen, where MPI did the call. */
static int linked_reduce(const void *send, void *recv, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm, struct record *r, struct cache_key *key,
                         int *code)
{
    int size, rc = r->settled ? PCOLL_OK : linked_settle(r, comm);
    record_complete_key(r, key->call_site, key);
    if (rc == PCOLL_OK && r->partial && key->signature.of_user)
        rc = fail(PCOLL_EINVAL, "op: expected a predefined one, got one of your own; a "
                                "round that does not wait for everybody may need it "
                                "after the call: use pcoll_allreduce_create");
    if (rc != PCOLL_OK)
        return linked_refuse(r, comm, key, rc);
    MPI_Type_size(type, &size);
    uint64_t bytes = key->count * (uint64_t)size;
    enum record_verdict verdict = !r->settled  ? RECORD_DIFFERS
                                  : r->partial ? RECORD_OURS
                                               : record_judge(r, comm, key, bytes);
    if (verdict == RECORD_MPIS) {
        if (!key->signature.of_user && !record_is_faster(r, bytes, false)) {
            r->last_short.count = (int)key->count;
            r->last_short.type = type;
            r->last_short.op = op;
        }
        return linked_pass(r, send, recv, (int)key->count, type, op, comm, code);
    }
    struct cache_entry *entry =
        verdict == RECORD_OURS ? cache_find(&r->cache, key) : NULL;
    if (!entry) {
        rc = cache_make(&r->cache, comm, key, false, &entry);
        if (rc != PCOLL_OK) /* The next call tries again. */
            return rc;
        if (!r->settled) /* The ranks differ in nothing that matters. */
            r->settled = r->choice.asked = true;
    }
    return cache_run(entry, key, type, send == MPI_IN_PLACE ? recv : send, recv);
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
    struct record *r = record_make(comm);
    if (!r)
        return linked_raise(comm, MPI_ERR_NO_MEM);
    if (linked_is_short_again(r, sendbuf, recvbuf, count, type, op))
        return PMPI_Allreduce(sendbuf, recvbuf, count, type, op, comm);
    int passed = MPI_SUCCESS,
        code = linked_check(sendbuf, recvbuf, count, type, op, comm, &key);
    if (code == MPI_SUCCESS)
        code = linked_error_class(
            linked_reduce(sendbuf, recvbuf, type, op, comm, r, &key, &passed));
    return code == MPI_SUCCESS ? passed : linked_raise(comm, code);
}

int PCOLL_Comm_set_quorum(MPI_Comm comm, const char *quorum)
{
    struct quorum parsed = QUORUM_FULL;
    if (comm == MPI_COMM_NULL)
        return linked_raise(MPI_COMM_SELF,
                            linked_bad(MPI_ERR_COMM, "comm: expected a communicator"));
    struct record *r = record_make(comm);
    if (!r)
        return linked_raise(comm, MPI_ERR_NO_MEM);
    if (quorum && *quorum && quorum_parse(quorum, &parsed) != PCOLL_OK)
        return linked_raise(comm, MPI_ERR_ARG);
    r->has_quorum = quorum && *quorum;
    r->choice.quorum = parsed;
    r->settled = false;
    return MPI_SUCCESS;
}

/* The interposer has its own MPI_Finalize and MPI_Comm_free. */

/* End the agent before MPI_Finalize begins. MPICH stops locking when it finalizes, and a thread
 * that is inside MPICH at that moment leaves with a lock held, on which MPICH aborts. The
 * attribute by which the rest ends is deleted too late for that. */
int MPI_Finalize(void)
{
    pcoll_quiet();
    return PMPI_Finalize();
}

/* End the record of the communicator while all its ranks are in this call. MPICH deletes
 * attributes when the last request on the communicator is complete, at a different time on each
 * rank, but the end of the record waits for the other ranks. */
int MPI_Comm_free(MPI_Comm *comm)
{
    if (comm)
        record_part(*comm);
    return PMPI_Comm_free(comm);
}
