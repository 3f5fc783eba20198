/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the transport over MPI, for its files. */
#ifndef PCOLL_TRANSPORT_MPI_MPI_INTERNAL_H
#define PCOLL_TRANSPORT_MPI_MPI_INTERNAL_H

#include <mpi.h>

#include "transport/mpi/mpi_transport.h"
#include "watch/watch.h"

enum {
    CONTROL_TAG = 0,
    TREE_TAG = 1,
    FIRST_DATA_TAG = 2,
    CONTROL_RECEIVES = 8,
    BLOCK = 64,        /* unit of data messages */
    LARGE_BLOCKS = 128 /* from here on MPI may want the receiver's help */
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

/* What belongs to requests[i]. */
struct request_info {
    enum request_kind kind;
    uint32_t peer;
    uint64_t cookie;
    bool large;
    bool at_once;            /* a send that was over when it was posted */
    struct control *control; /* of one that is sent */
    /* Where MPI goes on when a rank dies: a send, or a large receive, kept out of the list that MPI tests. */
    MPI_Request held;
    bool went; /* it was over when it was last looked at */
};

struct mpi_transport {
    struct transport base;
    /* The watch of the hosts of its ranks (mpi_create.c) belongs to the process; NULL: there is none. */
    struct watch *watch;
    struct watch_group group; /* of size 0: there is one host, or no watch */
    uint64_t *neighborhoods;
    struct watch_card *cards;
    uint32_t lost;    /* hosts, as last looked at */
    int rank_failure; /* MPI's error for it */
    MPI_Comm comm;
    MPI_Comm made; /* by a call that is under way */
    MPI_Datatype block;
    MPI_Request *requests; /* the first CONTROL_RECEIVES are the control receives */
    struct request_info *info;
    int *done; /* indices, for MPI_Testsome */
    MPI_Status *statuses;
    struct transport_event
        *events; /* those handed out last: only a poll may move them */
    int events_capacity;
    int count, capacity;
    int pending_sends;                /* and native calls */
    struct doorbell_page **doorbells; /* of peers on this machine, else NULL */
    uint64_t *hosts, *pids;
    /* Where ranks have died: MPI's numbers by rank, and the other way round. NULL: they are
     * the same. */
    int *numbers;
    uint32_t *ranks;
    uint64_t *failed;
    struct control inbox[CONTROL_RECEIVES]; /* a ring */
    bool arrived[CONTROL_RECEIVES];
    uint32_t sources[CONTROL_RECEIVES];
    int next_control;
    int freed; /* sends, in this poll */
    bool
        survives; /* MPI goes on when a rank dies; see tree_agree for agreements then */
};

/* MPI's names of what it knows of ours (mpi_reduction.c), else its null handles. */
MPI_Datatype mpi_type_of(int dtype);
MPI_Op mpi_op_of(int op);

extern const struct transport_ops mpi_ops; /* mpi_transport.c */

static inline int mpi_number_of(const struct mpi_transport *m, uint32_t rank)
{
    return m->numbers ? m->numbers[rank] : (int)rank;
}

static inline uint32_t mpi_rank_of(const struct mpi_transport *m, int number)
{
    return m->ranks ? m->ranks[number] : (uint32_t)number;
}

/*
 * Where MPI goes on when a rank dies, sends need care. Open MPI frees a request that it has found to
 * be over, also when it has ended with an error, and ends the process when it meets what is left
 * of such a send later ("Send error after request freed"). So they are synchronous, which are over
 * when they have gone through; and MPI is only asked whether they are, until a test of the control
 * receives after that shows that nobody has died and nothing was revoked before: then they have
 * ended well and are freed. Those of a communicator that has failed never are. The same
 * goes for receives of messages that come in parts ("Recv error after request freed").
 */

/* Begin a send. */
static inline int mpi_isend(const struct mpi_transport *m, const void *data, int count,
                            MPI_Datatype type, int peer, int tag, MPI_Request *request)
{
    return (m->survives ? MPI_Issend : MPI_Isend)(data, count, type, peer, tag, m->comm,
                                                  request);
}

/* mpi_transport.c: ring this rank, if it is on this machine. */
void mpi_ring(struct mpi_transport *m, uint32_t peer);
/* The send just posted joins the list; its receiver is told. */
void mpi_begin_send(struct mpi_transport *m, uint32_t peer);
/* The request just posted is kept out of the list that MPI tests. Which of these are over? */
void mpi_hold_back(struct mpi_transport *m);
void mpi_look_at_held(struct mpi_transport *m);
/* As mpi_check, of a call on its communicator: mpi_calls.h. */
int mpi_check_in(const struct mpi_transport *m, int mpi_error, const char *what);
/* PCOLL_EFAILED if a member has died, or the communicator was revoked. */
int mpi_damage(const struct mpi_transport *m);
/* A member has died, and nobody here knows which: PCOLL_EFAILED. */
int mpi_fail_somebody(void);
/* mpi_create.c: watch the hosts of its ranks, whose numbers are in `neighborhoods`. Collective. */
int mpi_watch_hosts(struct mpi_transport *m);
void mpi_end_watch(struct mpi_transport *m);
/* mpi_create.c: PCOLL_EFAILED, with who is there, if one of them is lost. */
int mpi_check_hosts(const struct mpi_transport *m);
/* The same, once for each. */
int mpi_check_hosts_anew(struct mpi_transport *m);
/* mpi_create.c: so many numbers of each rank; those of the dead are zero. */
int mpi_exchange(struct mpi_transport *m, const uint64_t *mine, int count,
                 uint64_t *all);
/* mpi_tree.c: wait without burning a core: others may need it to get here. */
int mpi_patient_wait(const struct mpi_transport *m, MPI_Request *request,
                     const char *what);
/* mpi_create.c: what MPI can on this communicator. */
void mpi_describe(MPI_Comm comm, struct transport *t);
/* mpi_recovery.c: MPIX_Comm_shrink, MPI's error. */
int mpi_shrink_comm(MPI_Comm comm, MPI_Comm *out);
/* All are through with what made it. */
void mpi_await_all(MPI_Comm comm);
/* `made` is a communicator of the same ranks, where ranks may die; PCOLL_EFAILED, on all, if one
 * has. Collective. */
int mpi_copy_whole(struct mpi_transport *m);
/* mpi_create.c: its communicator is there, all else is not. Collective. */
int mpi_settle(struct mpi_transport *m, const struct doorbell *own);
/* Nothing is under way. */
void mpi_free_transport(struct mpi_transport *m);

/* Room for so many requests. */
int mpi_reserve(struct mpi_transport *m, int wanted);
/* Where the next request goes; it is in the list once m->count is counted up. */
int mpi_next_request(struct mpi_transport *m, struct request_info info,
                     MPI_Request **request);
/* Take finished requests out of the list, the last ones into their places. */
void mpi_compact_requests(struct mpi_transport *m);

/* mpi_transport.c: as in the seam. */
int mpi_native_open(struct transport *t, struct channel **channel);
int mpi_native_opened(struct transport *t, struct channel *channel);
void mpi_native_close(struct transport *t, struct channel *channel);
int mpi_native_call(struct transport *t, struct channel *channel,
                    const struct native_call *call, uint64_t cookie);

/*
 * Agreements and broadcasts over a binomial tree of messages of our own, for an MPI that goes on
 * when a rank dies. Open MPI's own non-blocking collectives free the sends of one that such a
 * death has ended, and end the process when one of these fails later ("Send error after request
 * freed").
 *
 * Position p in the tree is MPI's number in the communicator. An agreement: each takes the
 * values of its children, hands them to its parent, and takes the outcome from there. Messages
 * of two positions keep their order, so agreements may follow each other without a number.
 */

struct tree_agreement;

/* As `agree` of the seam. */
int tree_agree(struct mpi_transport *m, uint64_t *values, int count, enum agree_op op,
               uint64_t cookie);
/* A receive of one is over: *over when it is all, and cookie is then the agreement's. */
int tree_received(struct mpi_transport *m, struct tree_agreement *a, bool *over,
                  uint64_t *cookie);
/* A send of one is over. */
void tree_sent(struct tree_agreement *a);

/* A word to one number and from another (-1: none), so that MPI knows how to reach it. */
int tree_meet(struct mpi_transport *m, int to, int from);
/* The maximum, waited for here; nobody polls the transport yet. */
int tree_max(struct mpi_transport *m, uint64_t *values, int count);
/* The bytes of this number for all, likewise; a multiple of 64. */
int tree_broadcast(struct mpi_transport *m, int root, void *data, size_t bytes);

#endif
