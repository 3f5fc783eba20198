/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over MPI. One duplicated communicator, point-to-point messages in units
 * of 64 bytes where that goes (so that int counts reach 128 GiB), one tag for control
 * messages with a few receives always posted for it, the other tags for data.
 *
 * After every message to a rank on this machine its bell is rung; again when a send
 * that MPI did not deliver at once has gone through, and when a large receive is posted
 * or over, because the sender may have to do something about it.
 *
 * One thread at a time: the holder of the progress lock.
 */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../base/clock.h"
#include "../base/error.h"
#include "mpi.h"

enum {
    CONTROL_TAG = 0,
    FIRST_DATA_TAG = 1,
    CONTROL_RECEIVES = 8,
    BLOCK = 64,        /* unit of data messages */
    LARGE_BLOCKS = 128 /* from here on MPI may want the receiver's help */
};

enum request_kind { CONTROL_RECV, CONTROL_SEND, DATA_SEND, DATA_RECV, AGREEMENT };

/* What belongs to requests[i]. */
struct request_info {
    enum request_kind kind;
    uint32_t peer;
    uint64_t cookie;
    bool large;
    bool at_once;            /* a send that was over when it was posted */
    struct control *control; /* buffer of a control message */
};

struct mpi_transport {
    struct transport base;
    MPI_Comm comm;
    MPI_Datatype block;
    MPI_Request *requests; /* the first CONTROL_RECEIVES are the control receives */
    struct request_info *info;
    int *done; /* indices, for MPI_Testsome */
    MPI_Status *statuses;
    struct transport_event
        *events; /* those handed out last: only a poll may move them */
    int events_capacity;
    int count, capacity;
    int pending_sends;
    struct bell_page **bells; /* of peers on this machine, else NULL */
    struct control inbox[CONTROL_RECEIVES];
};

static struct mpi_transport *of(struct transport *t)
{
    return (struct mpi_transport *)t;
}

int mpi_check(int mpi_error, const char *what)
{
    if (mpi_error == MPI_SUCCESS)
        return PCOLL_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(mpi_error, text, &length);
    fail_set_mpi_error(mpi_error);
    return fail(PCOLL_EMPI, "%s: %s", what, text);
}

static void ring(struct mpi_transport *m, uint32_t peer)
{
    if (m->bells[peer])
        bell_ring(m->bells[peer]);
}

static int reserve(struct mpi_transport *m, int wanted)
{
    if (wanted <= m->capacity)
        return PCOLL_OK;
    int capacity = m->capacity ? 2 * m->capacity : 64;
    void *requests = realloc(m->requests, (size_t)capacity * sizeof *m->requests);
    if (requests)
        m->requests = requests;
    void *info = realloc(m->info, (size_t)capacity * sizeof *m->info);
    if (info)
        m->info = info;
    void *done = realloc(m->done, (size_t)capacity * sizeof *m->done);
    if (done)
        m->done = done;
    void *statuses = realloc(m->statuses, (size_t)capacity * sizeof *m->statuses);
    if (statuses)
        m->statuses = statuses;
    if (!requests || !info || !done || !statuses)
        return fail(PCOLL_ENOMEM, "no memory for %d requests", capacity);
    m->capacity = capacity;
    return PCOLL_OK;
}

/* Where the next request goes; it is in the list once m->count is counted up. */
static int next_request(struct mpi_transport *m, struct request_info info,
                        MPI_Request **request)
{
    int rc = reserve(m, m->count + 1);
    if (rc != PCOLL_OK)
        return rc;
    m->info[m->count] = info;
    *request = &m->requests[m->count];
    return PCOLL_OK;
}

/* The send just posted joins the list; its receiver is told. */
static void begin_send(struct mpi_transport *m, uint32_t peer)
{
    int over = 0;
    MPI_Request_get_status(m->requests[m->count], &over, MPI_STATUS_IGNORE);
    m->info[m->count++].at_once = over;
    m->pending_sends += !over;
    ring(m, peer);
}

/* How MPI is told of so many bytes. Sender and receiver may choose differently. */
struct extent {
    int count;
    MPI_Datatype type;
    bool made; /* for this message */
};

static int extent_of(struct mpi_transport *m, size_t bytes, struct extent *e)
{
    *e = (struct extent){.count = (int)(bytes / BLOCK), .type = m->block};
    if (bytes % BLOCK == 0)
        return PCOLL_OK;
    int rest = (int)(bytes % BLOCK);
    if (bytes <= INT_MAX) {
        *e = (struct extent){.count = (int)bytes, .type = MPI_BYTE};
        return PCOLL_OK;
    }
    *e = (struct extent){.count = 1, .made = true};
    int rc = mpi_check(
        MPI_Type_create_struct(2, (int[]){(int)(bytes / BLOCK), rest},
                               (MPI_Aint[]){0, (MPI_Aint)(bytes - (size_t)rest)},
                               (MPI_Datatype[]){m->block, MPI_BYTE}, &e->type),
        "MPI_Type_create_struct");
    return rc == PCOLL_OK ? mpi_check(MPI_Type_commit(&e->type), "MPI_Type_commit")
                          : rc;
}

/* MPI keeps a type for as long as a message uses it. */
static void extent_end(struct extent *e)
{
    if (e->made)
        MPI_Type_free(&e->type);
}

static int mpi_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                    size_t bytes, uint64_t cookie)
{
    struct mpi_transport *m = of(t);
    MPI_Request *request;
    int rc = next_request(m,
                          (struct request_info){.kind = DATA_SEND,
                                                .peer = peer,
                                                .cookie = cookie,
                                                .large = bytes >= LARGE_BLOCKS * BLOCK},
                          &request);
    struct extent e;
    if (rc == PCOLL_OK)
        rc = extent_of(m, bytes, &e);
    if (rc != PCOLL_OK)
        return rc;
    rc = mpi_check(MPI_Isend(data, e.count, e.type, (int)peer,
                             FIRST_DATA_TAG + (int)tag, m->comm, request),
                   "MPI_Isend");
    extent_end(&e);
    if (rc != PCOLL_OK)
        return rc;
    begin_send(m, peer);
    return PCOLL_OK;
}

static int mpi_recv(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                    size_t capacity, uint64_t cookie)
{
    struct mpi_transport *m = of(t);
    MPI_Request *request;
    bool large = capacity >= LARGE_BLOCKS * BLOCK;
    int rc = next_request(
        m,
        (struct request_info){
            .kind = DATA_RECV, .peer = peer, .cookie = cookie, .large = large},
        &request);
    struct extent e;
    if (rc == PCOLL_OK)
        rc = extent_of(m, capacity, &e);
    if (rc != PCOLL_OK)
        return rc;
    rc = mpi_check(MPI_Irecv(data, e.count, e.type, (int)peer,
                             FIRST_DATA_TAG + (int)tag, m->comm, request),
                   "MPI_Irecv");
    extent_end(&e);
    if (rc != PCOLL_OK)
        return rc;
    m->count++;
    if (large)
        ring(m, peer);
    return PCOLL_OK;
}

/* Most are over at once: they never enter the list. */
static int mpi_control(struct transport *t, uint32_t peer,
                       const struct control *message)
{
    struct mpi_transport *m = of(t);
    struct control *copy = malloc(sizeof *copy);
    if (!copy)
        return fail(PCOLL_ENOMEM, "no memory for a control message");
    *copy = *message;
    MPI_Request *request;
    int over = 0;
    int rc = next_request(
        m, (struct request_info){.kind = CONTROL_SEND, .peer = peer, .control = copy},
        &request);
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Isend(copy, sizeof *copy, MPI_BYTE, (int)peer, CONTROL_TAG,
                                 m->comm, request),
                       "MPI_Isend");
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Test(request, &over, MPI_STATUS_IGNORE), "MPI_Test");
    if (rc != PCOLL_OK || over)
        free(copy);
    if (rc != PCOLL_OK)
        return rc;
    m->count += !over;
    m->pending_sends += !over;
    ring(m, peer);
    return PCOLL_OK;
}

static int64_t mpi_now(const struct transport *t)
{
    (void)t;
    return clock_ns();
}

static int mpi_agree(struct transport *t, uint64_t *values, int count, enum agree_op op,
                     uint64_t cookie)
{
    struct mpi_transport *m = of(t);
    MPI_Request *request;
    int rc = next_request(m, (struct request_info){.kind = AGREEMENT, .cookie = cookie},
                          &request);
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_UINT64_T,
                                      op == AGREE_SUM ? MPI_SUM : MPI_MAX, m->comm,
                                      request),
                       "MPI_Iallreduce");
    if (rc == PCOLL_OK)
        m->count++;
    return rc;
}

/* One that did not go at once may have been delivered only now, after its ring. */
static void end_send(struct mpi_transport *m, const struct request_info *info)
{
    m->pending_sends -= !info->at_once;
    if (!info->at_once)
        ring(m, info->peer);
}

/* The event of a finished request, if it makes one. */
static bool to_event(struct mpi_transport *m, int i, const MPI_Status *status,
                     struct transport_event *event)
{
    const struct request_info *info = &m->info[i];
    MPI_Count bytes = 0;
    switch (info->kind) {
    case CONTROL_RECV:
        *event = (struct transport_event){.kind = TRANSPORT_CONTROL,
                                          .source = (uint32_t)status->MPI_SOURCE,
                                          .control = *info->control};
        return true;
    case CONTROL_SEND:
        free(info->control);
        end_send(m, info);
        return false;
    case DATA_SEND:
        end_send(m, info);
        break;
    case DATA_RECV:
        MPI_Get_elements_x(status, MPI_BYTE, &bytes);
        if (info->large)
            ring(m, info->peer);
        break;
    case AGREEMENT:
        *event =
            (struct transport_event){.kind = TRANSPORT_AGREED, .cookie = info->cookie};
        return true;
    }
    *event = (struct transport_event){
        .kind = TRANSPORT_DONE, .cookie = info->cookie, .bytes = (size_t)bytes};
    return true;
}

/* Take finished requests out of the list, the last ones into their places. */
static void compact(struct mpi_transport *m)
{
    int kept = CONTROL_RECEIVES;
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL)
            continue;
        m->requests[kept] = m->requests[i];
        m->info[kept++] = m->info[i];
    }
    m->count = kept;
}

/* Room for an event of every request. */
static int reserve_events(struct mpi_transport *m)
{
    if (m->capacity <= m->events_capacity)
        return PCOLL_OK;
    void *events = realloc(m->events, (size_t)m->capacity * sizeof *m->events);
    if (!events)
        return fail(PCOLL_ENOMEM, "no memory for %d events", m->capacity);
    m->events = events;
    m->events_capacity = m->capacity;
    return PCOLL_OK;
}

static int mpi_poll(struct transport *t, const struct transport_event **events)
{
    struct mpi_transport *m = of(t);
    int finished;
    int rc = reserve_events(m);
    if (rc != PCOLL_OK)
        return rc;
    rc = mpi_check(MPI_Testsome(m->count, m->requests, &finished, m->done, m->statuses),
                   "MPI_Testsome");
    if (rc != PCOLL_OK)
        return rc;
    if (finished == MPI_UNDEFINED || finished == 0)
        return 0;
    int made = 0;
    for (int i = 0; i < finished; i++) {
        int at = m->done[i];
        made += to_event(m, at, &m->statuses[i], &m->events[made]);
        if (m->info[at].kind == CONTROL_RECV &&
            (rc = mpi_check(MPI_Start(&m->requests[at]), "MPI_Start")) != PCOLL_OK)
            return rc;
    }
    compact(m);
    *events = m->events;
    return made;
}

static int mpi_pending_sends(const struct transport *t)
{
    return ((const struct mpi_transport *)t)->pending_sends;
}

static void free_bells(struct mpi_transport *m)
{
    for (uint32_t i = 0; m->bells && i < m->base.size; i++)
        if (m->bells[i])
            bell_close(m->bells[i]);
    free(m->bells);
}

static void mpi_destroy(struct transport *t)
{
    struct mpi_transport *m = of(t);
    for (int i = 0; i < CONTROL_RECEIVES && i < m->count; i++) {
        MPI_Cancel(&m->requests[i]);
        MPI_Wait(&m->requests[i], MPI_STATUS_IGNORE);
        MPI_Request_free(&m->requests[i]);
    }
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        MPI_Wait(&m->requests[i], MPI_STATUS_IGNORE);
        free(m->info[i].control);
    }
    MPI_Type_free(&m->block);
    MPI_Comm_free(&m->comm);
    free_bells(m);
    free(m->requests);
    free(m->info);
    free(m->done);
    free(m->statuses);
    free(m->events);
    free(m);
}

static const struct transport_ops mpi_ops = {.send = mpi_send,
                                             .recv = mpi_recv,
                                             .control = mpi_control,
                                             .agree = mpi_agree,
                                             .poll = mpi_poll,
                                             .pending_sends = mpi_pending_sends,
                                             .now = mpi_now,
                                             .destroy = mpi_destroy};

/* Wait without burning a core: others may need it to get here. */
static int patient_wait(MPI_Request *request, const char *what)
{
    long us = 10;
    for (;;) {
        int done;
        int rc = mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what);
        if (rc != PCOLL_OK || done)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
        us = us < 500 ? 2 * us : 1000;
    }
}

static int post_control_receives(struct mpi_transport *m)
{
    int rc = reserve(m, CONTROL_RECEIVES);
    for (int i = 0; i < CONTROL_RECEIVES && rc == PCOLL_OK; i++) {
        m->info[i] =
            (struct request_info){.kind = CONTROL_RECV, .control = &m->inbox[i]};
        rc = mpi_check(MPI_Recv_init(&m->inbox[i], sizeof m->inbox[i], MPI_BYTE,
                                     MPI_ANY_SOURCE, CONTROL_TAG, m->comm,
                                     &m->requests[i]),
                       "MPI_Recv_init");
        if (rc == PCOLL_OK)
            rc = mpi_check(MPI_Start(&m->requests[i]), "MPI_Start");
        if (rc == PCOLL_OK)
            m->count = i + 1;
    }
    return rc;
}

/* Exchange where everybody's bell is; open those of this machine. */
static int open_bells(struct mpi_transport *m, const struct bell *own)
{
    struct card {
        uint64_t neighbourhood, pid, fd, cookie;
    } mine = {bell_neighbourhood(), (uint64_t)getpid(), (uint64_t)own->fd,
              own->page->cookie};
    struct card *all = calloc(m->base.size, sizeof *all);
    if (!all)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    MPI_Request request;
    int rc = mpi_check(
        MPI_Iallgather(&mine, 4, MPI_UINT64_T, all, 4, MPI_UINT64_T, m->comm, &request),
        "MPI_Iallgather");
    if (rc == PCOLL_OK)
        rc = patient_wait(&request, "MPI_Iallgather");
    for (uint32_t i = 0; i < m->base.size && rc == PCOLL_OK; i++) {
        if (i == m->base.rank)
            continue;
        if (all[i].neighbourhood == mine.neighbourhood)
            m->bells[i] = bell_open(all[i].pid, all[i].fd, all[i].cookie);
        if (!m->bells[i])
            m->base.off_node = true;
    }
    free(all);
    return rc;
}

static uint32_t usable_tags(MPI_Comm comm)
{
    int *upper, known = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &upper, &known);
    return (uint32_t)(known ? *upper : 32767) - FIRST_DATA_TAG + 1;
}

static int duplicate(MPI_Comm comm, struct mpi_transport *m)
{
    MPI_Request request;
    int rc = mpi_check(MPI_Comm_idup(comm, &m->comm, &request), "MPI_Comm_idup");
    if (rc == PCOLL_OK)
        rc = patient_wait(&request, "MPI_Comm_idup");
    if (rc != PCOLL_OK)
        return rc;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    int rank, size, level;
    MPI_Comm_rank(m->comm, &rank);
    MPI_Comm_size(m->comm, &size);
    MPI_Query_thread(&level);
    m->base = (struct transport){.ops = &mpi_ops,
                                 .rank = (uint32_t)rank,
                                 .size = (uint32_t)size,
                                 .tags = usable_tags(comm),
                                 .threads = level == MPI_THREAD_MULTIPLE};
    MPI_Type_contiguous(BLOCK, MPI_BYTE, &m->block);
    return mpi_check(MPI_Type_commit(&m->block), "MPI_Type_commit");
}

int transport_mpi_create(const void *comm, const struct bell *own,
                         struct transport **out)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    int rc = duplicate(*(const MPI_Comm *)comm, m);
    if (rc != PCOLL_OK) {
        free(m);
        return rc;
    }
    m->bells = calloc(m->base.size, sizeof *m->bells);
    rc = m->bells ? open_bells(m, own) : fail(PCOLL_ENOMEM, "no memory for the bells");
    if (rc == PCOLL_OK)
        rc = post_control_receives(m);
    if (rc != PCOLL_OK) {
        mpi_destroy(&m->base);
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}
