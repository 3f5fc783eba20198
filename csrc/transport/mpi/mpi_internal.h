/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the transport over MPI, for its files. */
#pragma once

#include <mpi.h>

#include "transport/mpi/mpi_transport.h"
#include "watch/watch.h"

enum {
    CONTROL_TAG = 0,
    TREE_TAG = 1,
    FIRST_DATA_TAG = 2,
    CONTROL_RECEIVES = 8,
    BLOCK = 64,        /* unit of data messages */
    LARGE_BLOCKS = 128 /* From this length on MPI may need the receiver's help. */
};

enum request_kind {
    CONTROL_RECV,
    CONTROL_SEND,
    DATA_SEND,
    DATA_RECV,
    AGREEMENT,
    TREE_RECV,
    TREE_SEND,
    NATIVE
};

/* About requests[i]. */
struct request_info {
    enum request_kind kind;
    uint32_t peer;
    uint64_t cookie;
    bool large;
    bool at_once;            /* A send that was complete when it was posted. */
    struct control *control; /* What is sent. */
    MPI_Request held;        /* Kept out of the list that MPI tests: see below. */
    bool went; /* The held request was complete when it was last queried. */
};

struct mpi_transport {
    struct transport base;
    struct watch *watch;      /* The watch of the hosts, of the process, or NULL. */
    struct watch_group group; /* Its size is 0 if there is one host, or no watch. */
    uint64_t *neighborhoods;
    struct watch_card *cards;
    uint32_t lost; /* The number of lost hosts at the last poll. */
    MPI_Comm comm;
    MPI_Comm made; /* The result of a call under way. */
    MPI_Datatype block;
    MPI_Request *requests; /* The first CONTROL_RECEIVES are the control receives. */
    struct request_info *info;
    int *done; /* Indices, for MPI_Testsome. */
    MPI_Status *statuses;
    struct transport_event *events; /* Those returned last. Only a poll moves them. */
    int events_capacity;
    int count, capacity;
    int pending_sends;                /* And native calls. */
    struct doorbell_page **doorbells; /* Of peers on this machine, else NULL. */
    uint64_t *hosts, *pids;
    /* After deaths: MPI's numbers by rank, and ranks by MPI's numbers. NULL: both are
     * the same. */
    int *numbers;
    uint32_t *ranks;
    uint64_t *failed;
    struct control inbox[CONTROL_RECEIVES]; /* a ring */
    bool arrived[CONTROL_RECEIVES];
    uint32_t sources[CONTROL_RECEIVES];
    int next_control;
    bool survives; /* MPI continues when a rank dies. */
};

static inline struct mpi_transport *mpi_transport_of(const struct transport *t)
{
    return (struct mpi_transport *)t;
}

static inline int mpi_number_of(const struct mpi_transport *m, uint32_t rank)
{
    return m->numbers ? m->numbers[rank] : (int)rank;
}

static inline uint32_t mpi_rank_of(const struct mpi_transport *m, int number)
{
    return m->ranks ? m->ranks[number] : (uint32_t)number;
}

/*
 * If MPI continues after deaths, sends need care. Open MPI frees a request that it finds
 * complete, also if it ended with an error, and ends the process when it meets the rest of such a
 * send later ("Send error after request freed"). So sends are synchronous there: they complete
 * only when they are received. They are also held: MPI is only asked whether they are complete,
 * until a later test of the control receives shows that no rank had died and nothing was revoked
 * before. Then they have succeeded and are freed. Sends of a communicator that has failed are
 * never freed. The same applies to receives of messages in several parts ("Recv error after
 * request freed").
 */

/* Begin a send. */
static inline int mpi_isend(const struct mpi_transport *m, const void *data, int count,
                            MPI_Datatype type, int peer, int tag, MPI_Request *request)
{
    return (m->survives ? MPI_Issend : MPI_Isend)(data, count, type, peer, tag, m->comm,
                                                  request);
}

/* mpi_transport.c */

extern const struct transport_ops mpi_ops;
/* Make room for `wanted` requests. */
int mpi_reserve(struct mpi_transport *m, int wanted);
/* Send to info.peer or receive from it, as the next request, which is in the list once m->count is
 * increased. */
int mpi_post(struct mpi_transport *m, struct request_info info, bool sends, void *data,
             int count, MPI_Datatype type, int tag);
/* Add the send just posted to the list, and wake its receiver. */
void mpi_begin_send(struct mpi_transport *m, uint32_t peer);

/* mpi_create.c */

struct card;
/* Make the rest of a transport that has its communicator, and free the cards of its ranks. NULL: they
 * are exchanged first. Collective. */
int mpi_settle(struct mpi_transport *m, const struct doorbell *own, struct card *cards);
/* Fill in what MPI can do on this communicator. */
void mpi_describe(MPI_Comm comm, struct transport *t);
/* Free a transport under whose requests nothing is under way. */
void mpi_free_transport(struct mpi_transport *m);
/* Do what mpi_check_hosts does; set *numbers to the set of all ranks on lost hosts, by MPI's
 * numbers, or to NULL. The caller frees it. */
int mpi_find_lost(const struct mpi_transport *m, uint64_t **numbers);

/* mpi_recovery.c */

/* mpi_check for a call on m's communicator: PCOLL_EFAILED, with ranks as numbered here. */
int mpi_check_in(const struct mpi_transport *m, int mpi_error, const char *what);
/* Make m->made, a communicator of the same ranks, where ranks may die. PCOLL_EFAILED, on all, if
 * one has died. Collective. */
int mpi_copy_whole(struct mpi_transport *m);

/* mpi_reduction.c: MPI's types and operations, or its null handles. */

MPI_Datatype mpi_type_of(int dtype);
MPI_Op mpi_op_of(int op);

/*
 * mpi_recovery.c: agreements and broadcasts over a binomial tree of our own messages, for an MPI that
 * continues when a rank dies. A death in Open MPI's own non-blocking collectives frees their sends,
 * and ends the process when one of these fails later ("Send error after request freed").
 *
 * Position p in the tree is MPI's number in the communicator. In an agreement each position takes
 * the values of its children, passes the sum to its parent, and takes the outcome from there.
 * Messages between two positions keep their order, so agreements may follow each other without
 * numbers.
 */

struct tree_agreement;

/* `agree` of transport.h. */
int tree_agree(struct mpi_transport *m, uint64_t *values, int count, enum agree_op op,
               uint64_t cookie);
/* Handle a complete receive of an agreement. If that completes it, *over is true and *cookie is
 * the agreement's. */
int tree_received(struct mpi_transport *m, struct tree_agreement *a, bool *over,
                  uint64_t *cookie);
/* Handle a complete send of an agreement. */
void tree_sent(struct tree_agreement *a);

/* The rest waits until a thread polls the transport. */

/* Wait for a request without burning a core: other ranks may need it to get here. */
int mpi_patient_wait(const struct mpi_transport *m, MPI_Request *request,
                     const char *what);
/* Send a word to one number and receive one from another (-1: none), so that MPI knows how to
 * reach it. */
int tree_meet(struct mpi_transport *m, int to, int from);
/* Compute the maximum. */
int tree_max(struct mpi_transport *m, uint64_t *values, int count);

/*
 * Calls of MPI that need care.
 *
 * Exclusion. Where ranks may die, one thread at a time is in MPI. Open MPI (5.0 at least) has a
 * lock around its agreements, which MPIX_Comm_iagree and MPIX_Comm_shrink take. If another thread
 * receives a message for an agreement meanwhile, in any call that makes progress, Open MPI
 * postpones the message and overwrites its content by the addresses of its copy. The outcome is
 * then arbitrary, living ranks count as dead, or the process ends. So all tests of requests
 * exclude what begins an agreement. They cannot exclude calls of the program's own threads:
 * docs/faults.md. Where MPI does not report failures, there are no agreements and no lock.
 *
 * A test, or the beginning of an agreement, waits for no other rank: other threads wait until
 * the call returns, however long that takes. MPIX_Comm_shrink waits for other ranks, whose calls
 * may wait for ours. A thread that has waited during 200 ms of such a call goes on without the
 * lock (docs/locking.md says what can happen then).
 */

struct failed_ranks;

/*
 * ULFM (User-Level Failure Mitigation), MPI's extension for ranks that die: Open MPI 5 with
 * `mpiexec --with-ft ulfm`. Elsewhere pcoll_tells_of_failures() is 0, and the other functions say
 * that there is no such operation. They are MPI's, with the exclusion.
 */

/* Return the error of a call that failed because a rank has died; MPI_ERR_OTHER without ULFM. */
int ulfm_rank_failure(void);
bool ulfm_is_revoked(MPI_Comm comm);
int ulfm_revoke(MPI_Comm comm);
int ulfm_shrink(MPI_Comm comm, MPI_Comm *out);
int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request);

/* Return the set of the ranks in `comm` that have died, as far as MPI knows; NULL if it does not
 * say, or without memory. The caller frees the set. */
uint64_t *mpi_find_failed(MPI_Comm comm);
/* Fill in who->rank and who->count: the lowest of `size` ranks that are in the set, or none (NULL).
 */
void mpi_name_ranks(const uint64_t *set, uint32_t size, struct failed_ranks *who);
/* The same for the set of mpi_find_failed. */
void mpi_name_failed(MPI_Comm comm, struct failed_ranks *who);

/* Return the number in `to` of a member of `from`, or MPI_UNDEFINED. */
int mpi_translate(MPI_Comm from, int number, MPI_Comm to);

/* Like mpi_check (mpi_transport.h), for a call on this communicator: PCOLL_EFAILED, and which
 * ranks, if it failed because ranks have died. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what);

/*
 * MPI's tests with the exclusion, and without giving up the core.
 *
 * Open MPI gives up the core inside every test that finds nothing, once it knows that ranks share
 * cores. Where ranks only wait, that costs nothing. Beside a thread that computes it costs that
 * thread's whole time slice, which no doorbell can cut short, and the driver holds the drive
 * lock meanwhile. Our waits yield and sleep by themselves (runtime/progress.c), so their tests
 * switch this off. The switch is Open MPI's own and no part of MPI: where it is not found, nothing
 * changes. It is one flag of the process, which other threads read in their own tests: during one
 * of ours, they may poll again without a yield.
 *
 * Protocol. Whether idle tests yield is looked up once and does not change while MPI runs. Only if
 * they do, any number of threads write the flag: off before each test and on after it. The
 * last write of each thread is "on", so the last of all is. Another thread's "on" during a test
 * costs a yield. Another copy of this file in the process that looks the flag up during a
 * test never writes it.
 */
#define TESTED(test)                                                                   \
    ({                                                                                 \
        bool alone_ = completion_enter();                                              \
        completion_leave(alone_, (test));                                              \
    })
bool completion_enter(void);
int completion_leave(bool alone, int rc);

static inline int mpi_test(MPI_Request *request, int *done)
{
    return TESTED(MPI_Test(request, done, MPI_STATUS_IGNORE));
}
static inline int mpi_get_status(MPI_Request request, int *done)
{
    return TESTED(MPI_Request_get_status(request, done, MPI_STATUS_IGNORE));
}
/* Sleep for *us microseconds, and twice as long the next time, but not longer than `most`. */
void mpi_back_off(long *us, long most);

/* Call a function of MPI and return its checked result: mpi_check, mpi_check_in, mpi_check_on. */
#define TRY(function, ...) mpi_check(function(__VA_ARGS__), #function)
#define TRY_IN(m, function, ...) mpi_check_in(m, function(__VA_ARGS__), #function)
#define TRY_ON(comm, function, ...) mpi_check_on(comm, function(__VA_ARGS__), #function)

/* A datatype. Predefined ones may have gaps inside (MPI_DOUBLE_INT): these may travel. In a derived
 * one a gap may hold data of the program, so such datatypes cannot be reduced. */
struct mpi_layout {
    MPI_Count size, lb, extent;
    bool derived, gaps;
};
int mpi_layout_of(MPI_Datatype type, struct mpi_layout *layout);
