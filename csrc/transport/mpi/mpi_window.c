/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window over MPI: passive target, one lock_all for its whole life. MPI allocates its memory:
 * with memory of the program, both MPIs make an access wait until the target calls MPI. Within a
 * node an access needs no help of the target. Between nodes the target's agent gives it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/mpi/mpi_internal.h"

enum { MAX_REQUESTS = 16 };

struct window_mpi {
    struct window base;
    MPI_Win win;
    MPI_Comm comm;
    size_t bytes;
    bool *far;
    MPI_Request requests[MAX_REQUESTS];
    int under_way;
};

static struct window_mpi *window_mpi_of(struct window *w)
{
    return (struct window_mpi *)w;
}

/*
 * After an error: wait until MPI no longer uses the buffers of this rank's accesses to
 * this peer, and return the error. A request is tested by itself until it completes, or
 * until its test fails, which ends it as well. A dead peer sends nothing more, and some
 * MPIs never complete a request to it: do not wait for those.
 */
static int window_mpi_abandon(struct window_mpi *m, uint32_t peer, int error)
{
    const struct failed_ranks *who = fail_last_ranks();
    bool dead = false;
    for (int i = 0; error == PCOLL_EFAILED && i < who->count; i++)
        dead = dead || who->rank[i] == (int32_t)peer;
    for (long us = 10; m->under_way;) {
        int done = 0, last = m->under_way - 1;
        if (mpi_test(&m->requests[last], &done) != MPI_SUCCESS || done || dead)
            m->under_way = last;
        else
            mpi_back_off(&us, 200);
    }
    if (!window_is_far(&m->base, peer))
        MPI_Win_flush_local((int)peer, m->win);
    return error;
}

/* Wait for all requests, without burning a core. */
static int window_mpi_wait_patiently(struct window_mpi *m, uint32_t peer)
{
    long us = 10;
    for (int done = 0; m->under_way;) {
        int rc = mpi_check_on(
            m->comm,
            TESTED(MPI_Testall(m->under_way, m->requests, &done, MPI_STATUSES_IGNORE)),
            "MPI_Testall");
        if (rc != PCOLL_OK)
            return window_mpi_abandon(m, peer, rc);
        if (done)
            m->under_way = 0;
        else
            mpi_back_off(&us, 200);
    }
    return PCOLL_OK;
}

static const char *const window_mpi_names[] = {[WINDOW_GET] = "MPI_Get",
                                               [WINDOW_PUT] = "MPI_Put",
                                               [WINDOW_ADD] = "MPI_Accumulate",
                                               [WINDOW_SUMS] = "MPI_Get_accumulate"};

/* Access a near peer (request NULL: MPI keeps it) or a far one. */
static int window_mpi_call(enum window_access kind, MPI_Win win, int peer, MPI_Aint at,
                           const void *from, void *into, MPI_Datatype type, int n,
                           MPI_Request *request)
{
#define NEAR_OR_FAR(near, far, ...)                                                    \
    (request ? far(__VA_ARGS__, request) : near(__VA_ARGS__))
    MPI_Op op = from ? MPI_SUM : MPI_NO_OP;
    switch (kind) {
    case WINDOW_GET:
        return NEAR_OR_FAR(MPI_Get, MPI_Rget, into, n, type, peer, at, n, type, win);
    case WINDOW_PUT:
        return NEAR_OR_FAR(MPI_Put, MPI_Rput, from, n, type, peer, at, n, type, win);
    case WINDOW_ADD:
        return NEAR_OR_FAR(MPI_Accumulate, MPI_Raccumulate, from, n, type, peer, at, n,
                           type, op, win);
    case WINDOW_SUMS:
        break;
    }
    return NEAR_OR_FAR(MPI_Get_accumulate, MPI_Rget_accumulate, from, from ? n : 0,
                       type, into, n, type, peer, at, n, type, op, win);
#undef NEAR_OR_FAR
}

/* WINDOW_SUMS: `into` gets what was there before `from`, if not NULL, is added. MPI counts in int; a
 * message is a chunk, far below. */
static int window_mpi_access(struct window *w, enum window_access kind, uint32_t peer,
                             size_t offset, const void *from, void *into, int dtype,
                             size_t count)
{
    struct window_mpi *m = window_mpi_of(w);
    MPI_Request *request = NULL;
    int rc;
    if (window_is_far(w, peer)) {
        if (m->under_way == MAX_REQUESTS &&
            (rc = window_mpi_wait_patiently(m, peer)) != PCOLL_OK)
            return rc;
        request = &m->requests[m->under_way];
    }
    rc = mpi_check_on(m->comm,
                      window_mpi_call(kind, m->win, (int)peer, (MPI_Aint)offset, from,
                                      into, mpi_type_of(dtype), (int)count, request),
                      window_mpi_names[kind]);
    if (rc != PCOLL_OK)
        return window_mpi_abandon(m, peer, rc);
    m->under_way += request != NULL;
    return PCOLL_OK;
}

static int window_mpi_complete(struct window *w, uint32_t peer)
{
    if (window_is_far(w, peer))
        return window_mpi_wait_patiently(window_mpi_of(w), peer);
    return TRY(MPI_Win_flush_local, (int)peer, window_mpi_of(w)->win);
}

static int window_mpi_begin_get(struct window *w, uint32_t peer, size_t offset,
                                void *into, size_t bytes, struct window_get *g)
{
    struct window_mpi *m = window_mpi_of(w);
    MPI_Request request = MPI_REQUEST_NULL;
    int rc =
        mpi_check_on(m->comm,
                     window_mpi_call(WINDOW_GET, m->win, (int)peer, (MPI_Aint)offset,
                                     NULL, into, MPI_BYTE, (int)bytes, &request),
                     "MPI_Rget");
    memcpy(&g->request, &request, sizeof request); /* a number or a pointer */
    return rc;
}

static int window_mpi_is_over(struct window *w, struct window_get *g, bool *over)
{
    MPI_Request request;
    int done = 0;
    memcpy(&request, &g->request, sizeof request);
    int rc =
        mpi_check_on(window_mpi_of(w)->comm, mpi_test(&request, &done), "MPI_Test");
    memcpy(&g->request, &request, sizeof request);
    *over = done;
    return rc;
}

static int window_mpi_flush(struct window *w, uint32_t peer)
{
    struct window_mpi *m = window_mpi_of(w);
    return window_mpi_wait_patiently(m, peer)
               ?: TRY_ON(m->comm, MPI_Win_flush, (int)peer, m->win);
}

static int window_mpi_fetch_add(struct window *w, uint32_t peer, size_t offset,
                                int64_t delta, int64_t *before)
{
    int rc;
    if (window_is_far(w, peer))
        rc = window_mpi_access(w, WINDOW_SUMS, peer, offset, delta ? &delta : NULL,
                               before, PCOLL_INT64, 1);
    else
        rc = TRY(MPI_Fetch_and_op, &delta, before, MPI_INT64_T, (int)peer,
                 (MPI_Aint)offset, delta ? MPI_SUM : MPI_NO_OP, window_mpi_of(w)->win);
    return rc ?: window_mpi_flush(w, peer);
}

static int window_mpi_compare_swap(struct window *w, uint32_t peer, size_t offset,
                                   int64_t expected, int64_t desired, int64_t *before)
{
    return TRY(MPI_Compare_and_swap, &desired, &expected, before, MPI_INT64_T,
               (int)peer, (MPI_Aint)offset, window_mpi_of(w)->win)
               ?: window_mpi_flush(w, peer);
}

static int window_mpi_sync_stores(struct window *w)
{
    return TRY(MPI_Win_sync, window_mpi_of(w)->win);
}

/* Give back the whole pages inside this rank's memory, of a file or of this process alone. The
 * window still exists, but MPI keeps nothing of its own between these addresses. */
static void window_mpi_retire(struct window *w)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)w->memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)w->memory + window_mpi_of(w)->bytes) / page * page;
    if (end > begin && madvise((void *)begin, end - begin, MADV_REMOVE))
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static void window_mpi_destroy(struct window *w)
{
    struct window_mpi *m = window_mpi_of(w);
    if (m->win != MPI_WIN_NULL) {
        MPI_Win_unlock_all(m->win);
        MPI_Win_free(&m->win);
    }
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    free(m->far);
    free(m);
}

static const struct window_ops ops = {.access = window_mpi_access,
                                      .complete = window_mpi_complete,
                                      .begin_get = window_mpi_begin_get,
                                      .over = window_mpi_is_over,
                                      .flush = window_mpi_flush,
                                      .fetch_add = window_mpi_fetch_add,
                                      .compare_swap = window_mpi_compare_swap,
                                      .sync = window_mpi_sync_stores,
                                      .retire = window_mpi_retire,
                                      .destroy = window_mpi_destroy};

/* Check that a get of another rank sees the stores of this rank. A window that is unfit is no error
 * of MPI's. */
static int window_mpi_check_model(MPI_Win win)
{
    int *model, known = 0;
    MPI_Win_get_attr(win, MPI_WIN_MODEL, &model, &known);
    if (known && *model == MPI_WIN_UNIFIED)
        return PCOLL_OK;
    fail_set_mpi_error(MPI_SUCCESS);
    return fail(PCOLL_EMPI, "gossip buffers need windows of MPI's unified memory "
                            "model, which this MPI does not give");
}

/* Check that compare-and-swap works. Open MPI 4 ends the process in a compare-and-swap of 64 bits
 * if its component rdma has the window, which is the default where ranks share a node. The name
 * of the window tells. */
static int window_mpi_check_swap(const struct window_mpi *m)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING], name[MPI_MAX_OBJECT_NAME];
    int length = 0;
    MPI_Get_library_version(library, &length);
    MPI_Win_get_name(m->win, name, &length);
    if (strncmp(library, "Open MPI v4.", 12) || strncmp(name, "rdma window", 11) ||
        m->base.size == 1)
        return PCOLL_OK;
    fail_set_mpi_error(MPI_SUCCESS);
    return fail(PCOLL_EMPI,
                "windows of this MPI's one-sided component rdma fail at their "
                "first compare-and-swap (%.*s); set OMPI_MCA_osc=sm, with all "
                "ranks on one node, or take Open MPI 5",
                (int)strcspn(library, ","), library);
}

/* Find the ranks on other nodes, as MPI sees it. */
static int window_mpi_find_far(struct window_mpi *m)
{
    MPI_Comm node;
    if (!(m->far = calloc(m->base.size, sizeof *m->far)))
        return fail(PCOLL_ENOMEM, "no memory for a window");
    int rc = TRY(MPI_Comm_split_type, m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                 &node);
    if (rc != PCOLL_OK)
        return rc;
    for (int i = 0; i < (int)m->base.size; i++)
        m->far[i] = mpi_translate(m->comm, i, node) == MPI_UNDEFINED;
    m->base.far = m->far;
    MPI_Comm_free(&node);
    return PCOLL_OK;
}

static int window_mpi_allocate(struct window_mpi *m, size_t bytes)
{
    return TRY(MPI_Win_allocate, (MPI_Aint)bytes, 1, MPI_INFO_NULL, m->comm,
                                      &m->base.memory, &m->win)
               ?: TRY(MPI_Win_set_errhandler, m->win, MPI_ERRORS_RETURN)
               ?: window_mpi_check_model(m->win)
               ?: window_mpi_check_swap(m)
               ?: TRY(MPI_Win_lock_all, MPI_MODE_NOCHECK, m->win) ;
}

int window_mpi_create(const void *comm, size_t bytes, struct window **out)
{
    struct window_mpi *m = calloc(1, sizeof *m);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a window");
    m->base.ops = &ops;
    m->bytes = bytes;
    m->win = MPI_WIN_NULL;
    m->comm = MPI_COMM_NULL;
    mpi_comm_shape(comm, &m->base.rank, &m->base.size);
    int rc =
        TRY_ON(*(const MPI_Comm *)comm, MPI_Comm_dup, *(const MPI_Comm *)comm, &m->comm)
            ?: TRY(MPI_Comm_set_errhandler, m->comm, MPI_ERRORS_RETURN)
            ?: window_mpi_find_far(m)
            ?: window_mpi_allocate(m, bytes);
    if (rc != PCOLL_OK) {
        free(m->far);
        free(m); /* MPI's objects stay: other ranks may not be able to free theirs. */
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}
