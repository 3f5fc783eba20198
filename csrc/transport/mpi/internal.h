/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the transport over MPI, for its files: mpi_transport.c (the seam), create.c,
 * requests.c (the list of what is under way), native.c. */
#ifndef PCOLL_TRANSPORT_MPI_INTERNAL_H
#define PCOLL_TRANSPORT_MPI_INTERNAL_H

#include <mpi.h>

#include "transport/mpi/mpi_transport.h"

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
};

struct mpi_transport {
    struct transport base;
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
    bool trees; /* agreements are over a tree of messages: tree.h */
};

/* MPI's names of what it knows of ours (reduction.c), else its null handles. */
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

/* mpi_transport.c: the send just posted joins the list; its receiver is told. */
void mpi_begin_send(struct mpi_transport *m, uint32_t peer);
/* As mpi_check, of a call on its communicator: rank_failure.h. */
int mpi_check_in(const struct mpi_transport *m, int mpi_error, const char *what);
/* Wait without burning a core: others may need it to get here. */
int mpi_patient_wait(const struct mpi_transport *m, MPI_Request *request,
                     const char *what);
/* create.c: its communicator is there, all else is not. Collective. */
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

/* native.c, as in the seam. */
int mpi_native_open(struct transport *t, struct channel **channel);
int mpi_native_opened(struct transport *t, struct channel *channel);
void mpi_native_close(struct transport *t, struct channel *channel);
int mpi_native_call(struct transport *t, struct channel *channel,
                    const struct native_call *call, uint64_t cookie);

#endif
