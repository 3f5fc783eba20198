/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over MPI: one duplicated communicator, point-to-point messages in units of 64
 * bytes where possible (so that int counts reach 128 GiB), one tag for control messages with a few
 * receives always posted for it, the other tags for data.
 *
 * After every message to a rank on this machine its doorbell is rung. It is rung again when a send
 * that MPI did not deliver at once has completed, and when a large receive is posted or complete,
 * because the sender may have to do something about it.
 *
 * One thread at a time: the holder of the drive lock.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/mpi/mpi_internal.h"

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

/* Enlarge an array. */
static bool mpi_enlarge(void *array, int capacity, size_t each)
{
    void *old, *larger;
    memcpy(&old, array, sizeof old);
    if ((larger = realloc(old, (size_t)capacity * each)))
        memcpy(array, &larger, sizeof larger);
    return larger;
}

int mpi_reserve(struct mpi_transport *m, int wanted)
{
    if (wanted <= m->capacity)
        return PCOLL_OK;
    int capacity = m->capacity ? 2 * m->capacity : 64;
    if (!mpi_enlarge(&m->requests, capacity, sizeof *m->requests) ||
        !mpi_enlarge(&m->info, capacity, sizeof *m->info) ||
        !mpi_enlarge(&m->done, capacity, sizeof *m->done) ||
        !mpi_enlarge(&m->statuses, capacity, sizeof *m->statuses))
        return fail(PCOLL_ENOMEM, "no memory for %d requests", capacity);
    m->capacity = capacity;
    return PCOLL_OK;
}

static int mpi_next_request(struct mpi_transport *m, struct request_info info,
                            MPI_Request **request)
{
    int rc = mpi_reserve(m, m->count + 1);
    if (rc != PCOLL_OK)
        return rc;
    info.held = MPI_REQUEST_NULL;
    m->info[m->count] = info;
    *request = &m->requests[m->count];
    return PCOLL_OK;
}

int mpi_post(struct mpi_transport *m, struct request_info info, bool sends, void *data,
             int count, MPI_Datatype type, int tag)
{
    MPI_Request *request;
    int number = mpi_number_of(m, info.peer), rc = mpi_next_request(m, info, &request);
    if (rc != PCOLL_OK)
        return rc;
    int error = sends ? mpi_isend(m, data, count, type, number, tag, request)
                      : MPI_Irecv(data, count, type, number, tag, m->comm, request);
    return mpi_check_in(m, error, sends ? "MPI_Isend" : "MPI_Irecv");
}

/* Begin a collective of MPI in place, and add it to the list. */
static int mpi_reduce(struct mpi_transport *m, struct request_info info, void *data,
                      int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    MPI_Request *request;
    int rc = mpi_next_request(m, info, &request);
    if (rc == PCOLL_OK)
        rc = TRY_IN(m, MPI_Iallreduce, MPI_IN_PLACE, data, count, type, op, comm,
                    request);
    m->count += rc == PCOLL_OK;
    return rc;
}

/* Take finished requests out of the list. The order stays. */
static void mpi_compact_requests(struct mpi_transport *m)
{
    int kept = CONTROL_RECEIVES;
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL && m->info[i].held == MPI_REQUEST_NULL)
            continue;
        m->requests[kept] = m->requests[i];
        m->info[kept++] = m->info[i];
    }
    m->count = kept;
}

/* Wake a rank, if it is on this machine. */
static void mpi_ring(struct mpi_transport *m, uint32_t peer)
{
    if (m->doorbells[peer])
        doorbell_ring(m->doorbells[peer]);
}

/* Keep the request just posted out of the list that MPI tests (mpi_internal.h). */
static void mpi_hold_back(struct mpi_transport *m)
{
    m->info[m->count].held = m->requests[m->count];
    m->requests[m->count] = MPI_REQUEST_NULL;
}

void mpi_begin_send(struct mpi_transport *m, uint32_t peer)
{
    struct request_info *info = &m->info[m->count];
    int over = 0;
    mpi_get_status(m->requests[m->count], &over);
    if (m->survives)
        mpi_hold_back(m);
    info->at_once = over;
    m->count++;
    m->pending_sends += !over;
    mpi_ring(m, peer);
}

/*
 * MPI's own allreduce, as one operation of a schedule. Each handle that uses it has its own
 * communicator: ranks may activate two handles in different orders, but not the rounds of one.
 */

struct channel {
    MPI_Comm comm;
    MPI_Request opening;
};

static int mpi_native_open(struct transport *t, struct channel **out)
{
    struct mpi_transport *m = mpi_transport_of(t);
    struct channel *c = malloc(sizeof *c);
    if (!c)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->comm = MPI_COMM_NULL;
    /* PMPI: the interposer's replacement waits (interposer.h). */
    int rc = mpi_check_in(m, PMPI_Comm_idup(m->comm, &c->comm, &c->opening),
                          "MPI_Comm_idup");
    if (rc != PCOLL_OK)
        free(c);
    else
        *out = c;
    return rc;
}

static int mpi_native_opened(struct transport *t, struct channel *c)
{
    struct mpi_transport *m = mpi_transport_of(t);
    int over = 0;
    int rc = mpi_check_in(m, mpi_test(&c->opening, &over), "MPI_Comm_idup");
    if (rc == PCOLL_OK && over)
        MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    return rc == PCOLL_OK && !over ? PCOLL_EAGAIN : rc;
}

static void mpi_native_close(struct transport *t, struct channel *c)
{
    (void)t;
    if (c->opening != MPI_REQUEST_NULL) /* It failed: MPI may still write to it. */
        return;
    MPI_Comm_free(&c->comm);
    free(c);
}

static int mpi_native_call(struct transport *t, struct channel *c,
                           const struct native_call *call, uint64_t cookie)
{
    struct mpi_transport *m = mpi_transport_of(t);
    int rc = mpi_reduce(m, (struct request_info){.kind = NATIVE, .cookie = cookie},
                        call->data, (int)call->count, mpi_type_of(call->dtype),
                        mpi_op_of(call->op), c->comm);
    m->pending_sends += rc == PCOLL_OK; /* It progresses only while it is polled. */
    return rc;
}

/* Sender and receiver may choose different counts and types. A type that is made here MPI keeps as
 * long as the message uses it. */
static int mpi_post_data(struct mpi_transport *m, struct request_info info, void *data,
                         size_t bytes, uint32_t tag)
{
    int blocks = (int)(bytes / BLOCK), rest = (int)(bytes % BLOCK);
    bool makes = rest && bytes > INT_MAX;
    int rc = PCOLL_OK, count = makes ? 1 : rest ? (int)bytes : blocks;
    MPI_Datatype type = rest ? MPI_BYTE : m->block;
    if (makes)
        rc = TRY(MPI_Type_create_struct, 2, (int[]){blocks, rest},
                 (MPI_Aint[]){0, (MPI_Aint)(bytes - (size_t)rest)},
                 (MPI_Datatype[]){m->block, MPI_BYTE}, &type)
                 ?: TRY(MPI_Type_commit, &type);
    if (rc != PCOLL_OK)
        return rc;
    rc = mpi_post(m, info, info.kind == DATA_SEND, data, count, type,
                  FIRST_DATA_TAG + (int)tag);
    if (makes)
        MPI_Type_free(&type);
    return rc;
}

static int mpi_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                    size_t bytes, uint64_t cookie)
{
    struct mpi_transport *m = mpi_transport_of(t);
    struct request_info info = {.kind = DATA_SEND, .peer = peer, .cookie = cookie};
    int rc = mpi_post_data(m, info, (void *)(uintptr_t)data, bytes, tag);
    if (rc == PCOLL_OK)
        mpi_begin_send(m, peer);
    return rc;
}

static int mpi_recv(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                    size_t capacity, uint64_t cookie)
{
    struct mpi_transport *m = mpi_transport_of(t);
    bool large = capacity >= LARGE_BLOCKS * BLOCK;
    struct request_info info = {
        .kind = DATA_RECV, .peer = peer, .cookie = cookie, .large = large};
    int rc = mpi_post_data(m, info, data, capacity, tag);
    if (rc != PCOLL_OK)
        return rc;
    if (large && m->survives)
        mpi_hold_back(m);
    m->count++;
    if (large)
        mpi_ring(m, peer);
    return PCOLL_OK;
}

/* Most control messages are sent at once, and never enter the list. */
static int mpi_control(struct transport *t, uint32_t peer,
                       const struct control *message)
{
    struct mpi_transport *m = mpi_transport_of(t);
    struct control *copy = malloc(sizeof *copy);
    int over = 0;
    if (!copy)
        return fail(PCOLL_ENOMEM, "no memory for a control message");
    *copy = *message;
    struct request_info info = {.kind = CONTROL_SEND, .peer = peer, .control = copy};
    int rc = mpi_post(m, info, true, copy, sizeof *copy, MPI_BYTE, CONTROL_TAG);
    if (rc == PCOLL_OK && m->survives) {
        mpi_begin_send(m, peer);
        return PCOLL_OK;
    }
    if (rc == PCOLL_OK)
        rc = mpi_check_in(m, mpi_test(&m->requests[m->count], &over), "MPI_Test");
    if (rc != PCOLL_OK || over)
        free(copy);
    if (rc != PCOLL_OK)
        return rc;
    m->count += !over;
    m->pending_sends += !over;
    mpi_ring(m, peer);
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
    struct mpi_transport *m = mpi_transport_of(t);
    if (m->survives && m->base.living > 1)
        return tree_agree(m, values, count, op, cookie);
    return mpi_reduce(m, (struct request_info){.kind = AGREEMENT, .cookie = cookie},
                      values, count, MPI_UINT64_T, op == AGREE_SUM ? MPI_SUM : MPI_MAX,
                      m->comm);
}

/* MPI may have delivered a send only now, after its ring. */
static void mpi_end_send(struct mpi_transport *m, const struct request_info *info)
{
    m->pending_sends -= !info->at_once;
    if (!info->at_once)
        mpi_ring(m, info->peer);
}

/* Handle a finished request, and make its event if it has one. */
static int mpi_take(struct mpi_transport *m, int i, const MPI_Status *status, int *made)
{
    const struct request_info info = m->info[i];
    struct transport_event event = {.kind = TRANSPORT_DONE, .cookie = info.cookie};
    struct tree_agreement *agreement = (struct tree_agreement *)(uintptr_t)info.cookie;
    MPI_Count bytes = 0;
    bool makes = info.kind != CONTROL_SEND && info.kind != TREE_SEND;
    int rc = PCOLL_OK;
    switch (info.kind) {
    case CONTROL_RECV: /* mpi_take_controls makes its event. */
        m->arrived[i] = true;
        m->sources[i] = mpi_rank_of(m, status->MPI_SOURCE);
        MPI_Get_elements_x(status, MPI_BYTE, &bytes);
        return bytes == sizeof(struct control) /* The objects check its content. */
                   ? PCOLL_OK
                   : fail(PCOLL_EPROTOCOL, "a control message of %d bytes came",
                          (int)bytes);
    case CONTROL_SEND:
        free(info.control);
        mpi_end_send(m, &info);
        break;
    case TREE_SEND:
        tree_sent(agreement);
        mpi_end_send(m, &info);
        break;
    case DATA_SEND:
        mpi_end_send(m, &info);
        break;
    case DATA_RECV:
        MPI_Get_elements_x(status, MPI_BYTE, &bytes);
        event.bytes = (size_t)bytes;
        if (info.large)
            mpi_ring(m, info.peer);
        break;
    case NATIVE:
        m->pending_sends--;
        break;
    case TREE_RECV:
        event.kind = TRANSPORT_AGREED;
        rc = tree_received(m, agreement, &makes, &event.cookie);
        break;
    case AGREEMENT:
        event.kind = TRANSPORT_AGREED;
        break;
    }
    if (makes)
        m->events[(*made)++] = event;
    return rc;
}

/* Make events of the next control messages. Their receives are posted in a ring, so messages fill
 * it in their order, but MPI may report a later one first. */
static int mpi_take_controls(struct mpi_transport *m, int *made)
{
    int rc = PCOLL_OK;
    while (m->arrived[m->next_control] && rc == PCOLL_OK) {
        int at = m->next_control;
        m->events[(*made)++] = (struct transport_event){.kind = TRANSPORT_CONTROL,
                                                        .source = m->sources[at],
                                                        .control = m->inbox[at]};
        m->arrived[at] = false;
        m->next_control = (at + 1) % CONTROL_RECEIVES;
        rc = TRY_IN(m, MPI_Start, &m->requests[at]);
    }
    return rc;
}

/* Return the error of a request. If a rank has died, sleeping ranks may not know: wake them. */
static int mpi_fail_poll(struct mpi_transport *m, int error, int finished)
{
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < finished; i++)
        if (m->statuses[i].MPI_ERROR != MPI_SUCCESS &&
            m->statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            error = m->statuses[i].MPI_ERROR;
    for (uint32_t i = 0; i < m->base.size; i++)
        mpi_ring(m, i);
    return mpi_check_in(m, error, "MPI_Testsome");
}

/* Free the held requests that are complete, among the first `known`: no rank had died when they
 * completed. `freed` becomes their number. */
static int mpi_free_held(struct mpi_transport *m, int known, int *freed, int *made)
{
    for (int i = CONTROL_RECEIVES; i < known; i++) {
        int over, rc;
        MPI_Status status;
        if (!m->info[i].went)
            continue;
        m->info[i].went = false;
        ++*freed;
        rc = mpi_check_in(m, TESTED(MPI_Test(&m->info[i].held, &over, &status)),
                          "MPI_Test");
        if (rc != PCOLL_OK || (rc = mpi_take(m, i, &status, made)) != PCOLL_OK)
            return rc;
    }
    return PCOLL_OK;
}

static int mpi_poll(struct transport *t, const struct transport_event **events)
{
    struct mpi_transport *m = mpi_transport_of(t);
    int finished, freed = 0, made = 0, known = m->count, rc = PCOLL_OK;
    uint32_t lost = watch_lost(m->watch);
    if (lost != m->lost) {
        m->lost = lost;
        rc = mpi_check_hosts(&m->base);
    }
    if (rc == PCOLL_OK && m->capacity > m->events_capacity) {
        if (!mpi_enlarge(&m->events, m->capacity, sizeof *m->events))
            rc = fail(PCOLL_ENOMEM, "no memory for %d events", m->capacity);
        m->events_capacity = rc == PCOLL_OK ? m->capacity : m->events_capacity;
    }
    if (rc != PCOLL_OK)
        return rc;
    for (int i = CONTROL_RECEIVES; m->survives && i < m->count; i++) {
        int over = 0;
        if (m->info[i].held != MPI_REQUEST_NULL)
            mpi_get_status(m->info[i].held, &over);
        m->info[i].went = over;
    }
    rc = TESTED(MPI_Testsome(m->count, m->requests, &finished, m->done, m->statuses));
    if (rc != MPI_SUCCESS)
        return mpi_fail_poll(m, rc, finished);
    finished = finished == MPI_UNDEFINED ? 0 : finished;
    if (m->survives)
        rc = mpi_free_held(m, known, &freed, &made);
    for (int i = 0; i < finished && rc == PCOLL_OK; i++)
        rc = mpi_take(m, m->done[i], &m->statuses[i], &made);
    if (rc == PCOLL_OK && !finished && !freed)
        return 0;
    if (rc == PCOLL_OK)
        rc = mpi_take_controls(m, &made);
    if (rc != PCOLL_OK)
        return rc;
    mpi_compact_requests(m);
    *events = m->events;
    return made;
}

static int mpi_pending_sends(const struct transport *t)
{
    return mpi_transport_of(t)->pending_sends;
}

static void mpi_destroy(struct transport *t)
{
    struct mpi_transport *m = mpi_transport_of(t);
    for (int i = 0; i < CONTROL_RECEIVES && i < m->count; i++) {
        if (!m->arrived[i]) {
            MPI_Cancel(&m->requests[i]);
            mpi_patient_wait(m, &m->requests[i], "MPI_Cancel");
        }
        MPI_Request_free(&m->requests[i]);
    }
    for (int i = CONTROL_RECEIVES; i < m->count; i++) {
        MPI_Request *request =
            m->info[i].held != MPI_REQUEST_NULL ? &m->info[i].held : &m->requests[i];
        mpi_patient_wait(m, request, "MPI_Test");
        free(m->info[i].control);
    }
    mpi_free_transport(m);
}

const struct transport_ops mpi_ops = {.send = mpi_send,
                                      .recv = mpi_recv,
                                      .control = mpi_control,
                                      .agree = mpi_agree,
                                      .open = mpi_native_open,
                                      .opened = mpi_native_opened,
                                      .close = mpi_native_close,
                                      .native = mpi_native_call,
                                      .poll = mpi_poll,
                                      .pending = mpi_pending_sends,
                                      .now = mpi_now,
                                      .destroy = mpi_destroy};
