/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window over MPI: passive target, one lock_all for life. Its memory is allocated
 * by MPI: with memory of the user's, both MPIs make an access wait until the target
 * calls MPI. Within a node nobody's help is needed; between nodes the target's agent
 * gives it.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_transport.h"

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

static MPI_Win window_mpi_win(struct window *w)
{
    return window_mpi_of(w)->win;
}

/* Sleep for *us microseconds, and longer the next time. */
static void window_mpi_back_off(long *us)
{
    nanosleep(&(struct timespec){.tv_nsec = *us * 1000}, NULL);
    *us = *us < 100 ? 2 * *us : 200;
}

/* Return whether this error says that the peer has died. */
static bool window_mpi_has_died(int error, uint32_t peer)
{
    const struct failed_ranks *who = fail_last_ranks();
    for (int i = 0; error == PCOLL_EFAILED && i < who->count; i++)
        if (who->rank[i] == (int32_t)peer)
            return true;
    return false;
}

/*
 * After an error: wait until MPI no longer uses the buffers of this rank's accesses to
 * this peer, and return the error. A request is tested by itself until it completes, or
 * until its test fails, which ends it as well. A dead peer sends nothing more, and some
 * MPIs never complete a request to it: do not wait for those.
 */
static int window_mpi_abandon(struct window_mpi *m, uint32_t peer, int error)
{
    bool dead = window_mpi_has_died(error, peer);
    for (long us = 10; m->under_way;) {
        int done = 0, last = m->under_way - 1;
        if (mpi_test(&m->requests[last], &done) != MPI_SUCCESS || done || dead)
            m->under_way = last;
        else
            window_mpi_back_off(&us);
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
        int rc = mpi_check_on(m->comm, mpi_test_all(m->under_way, m->requests, &done),
                              "MPI_Testall");
        if (rc != PCOLL_OK)
            return window_mpi_abandon(m, peer, rc);
        if (done)
            m->under_way = 0;
        else
            window_mpi_back_off(&us);
    }
    return PCOLL_OK;
}

/* Make room for one more request. */
static int window_mpi_make_room(struct window *w, uint32_t peer)
{
    return window_mpi_of(w)->under_way == MAX_REQUESTS
               ? window_mpi_wait_patiently(window_mpi_of(w), peer)
               : PCOLL_OK;
}

/* Return where the next request goes. */
static MPI_Request *window_mpi_next_request(struct window *w)
{
    return &window_mpi_of(w)->requests[window_mpi_of(w)->under_way];
}

/* Count an access to a far peer that MPI has begun, or has refused with this error. */
static int window_mpi_begun(struct window *w, uint32_t peer, int mpi_error,
                            const char *what)
{
    int rc = mpi_check_on(window_mpi_of(w)->comm, mpi_error, what);
    window_mpi_of(w)->under_way += rc == PCOLL_OK;
    return rc == PCOLL_OK ? rc : window_mpi_abandon(window_mpi_of(w), peer, rc);
}

/* The same for a near peer, where MPI keeps the requests. */
static int window_mpi_begun_near(struct window *w, uint32_t peer, int mpi_error,
                                 const char *what)
{
    int rc = mpi_check(mpi_error, what);
    return rc == PCOLL_OK ? rc : window_mpi_abandon(window_mpi_of(w), peer, rc);
}

static MPI_Datatype window_mpi_type_of(int dtype)
{
    return dtype == PCOLL_INT64     ? MPI_INT64_T
           : dtype == PCOLL_FLOAT64 ? MPI_DOUBLE
                                    : MPI_FLOAT;
}

/* MPI counts in int; a message is a chunk, far below. */
static int window_mpi_get(struct window *w, uint32_t peer, size_t offset, void *into,
                          size_t bytes)
{
    MPI_Aint at = (MPI_Aint)offset;
    int n = (int)bytes, target = (int)peer;
    if (!window_is_far(w, peer))
        return window_mpi_begun_near(
            w, peer,
            MPI_Get(into, n, MPI_BYTE, target, at, n, MPI_BYTE, window_mpi_win(w)),
            "MPI_Get");
    int rc = window_mpi_make_room(w, peer);
    return rc == PCOLL_OK ? window_mpi_begun(w, peer,
                                             MPI_Rget(into, n, MPI_BYTE, target, at, n,
                                                      MPI_BYTE, window_mpi_win(w),
                                                      window_mpi_next_request(w)),
                                             "MPI_Rget")
                          : rc;
}

static int window_mpi_put(struct window *w, uint32_t peer, size_t offset,
                          const void *from, size_t bytes)
{
    MPI_Aint at = (MPI_Aint)offset;
    int n = (int)bytes, target = (int)peer;
    if (!window_is_far(w, peer))
        return window_mpi_begun_near(
            w, peer,
            MPI_Put(from, n, MPI_BYTE, target, at, n, MPI_BYTE, window_mpi_win(w)),
            "MPI_Put");
    int rc = window_mpi_make_room(w, peer);
    return rc == PCOLL_OK ? window_mpi_begun(w, peer,
                                             MPI_Rput(from, n, MPI_BYTE, target, at, n,
                                                      MPI_BYTE, window_mpi_win(w),
                                                      window_mpi_next_request(w)),
                                             "MPI_Rput")
                          : rc;
}

static int window_mpi_add(struct window *w, uint32_t peer, size_t offset,
                          const void *from, int dtype, size_t count)
{
    MPI_Aint at = (MPI_Aint)offset;
    MPI_Datatype type = window_mpi_type_of(dtype);
    int n = (int)count, target = (int)peer;
    if (!window_is_far(w, peer))
        return window_mpi_begun_near(w, peer,
                                     MPI_Accumulate(from, n, type, target, at, n, type,
                                                    MPI_SUM, window_mpi_win(w)),
                                     "MPI_Accumulate");
    int rc = window_mpi_make_room(w, peer);
    return rc == PCOLL_OK
               ? window_mpi_begun(w, peer,
                                  MPI_Raccumulate(from, n, type, target, at, n, type,
                                                  MPI_SUM, window_mpi_win(w),
                                                  window_mpi_next_request(w)),
                                  "MPI_Raccumulate")
               : rc;
}

/* `into` becomes what was there before `from` was added, or NULL was not. */
static int window_mpi_get_and_add(struct window *w, uint32_t peer, size_t offset,
                                  const void *from, void *into, int dtype, size_t count)
{
    MPI_Aint at = (MPI_Aint)offset;
    MPI_Datatype type = window_mpi_type_of(dtype);
    MPI_Op op = from ? MPI_SUM : MPI_NO_OP;
    int n = (int)count, target = (int)peer, given = from ? n : 0;
    if (!window_is_far(w, peer))
        return window_mpi_begun_near(w, peer,
                                     MPI_Get_accumulate(from, given, type, into, n,
                                                        type, target, at, n, type, op,
                                                        window_mpi_win(w)),
                                     "MPI_Get_accumulate");
    int rc = window_mpi_make_room(w, peer);
    return rc == PCOLL_OK
               ? window_mpi_begun(w, peer,
                                  MPI_Rget_accumulate(from, given, type, into, n, type,
                                                      target, at, n, type, op,
                                                      window_mpi_win(w),
                                                      window_mpi_next_request(w)),
                                  "MPI_Rget_accumulate")
               : rc;
}

static int window_mpi_get_sums(struct window *w, uint32_t peer, size_t offset,
                               void *into, int dtype, size_t count)
{
    return window_mpi_get_and_add(w, peer, offset, NULL, into, dtype, count);
}

static int window_mpi_complete(struct window *w, uint32_t peer)
{
    if (window_is_far(w, peer))
        return window_mpi_wait_patiently(window_mpi_of(w), peer);
    return mpi_check(MPI_Win_flush_local((int)peer, window_mpi_win(w)),
                     "MPI_Win_flush_local");
}

/* A request of MPI's is a number or a pointer. */
static MPI_Request window_mpi_request_of(const struct window_get *get)
{
    MPI_Request request;
    memcpy(&request, &get->request, sizeof request);
    return request;
}

static void window_mpi_keep_request(struct window_get *get, MPI_Request request)
{
    get->request = 0;
    memcpy(&get->request, &request, sizeof request);
}

static int window_mpi_begin_get(struct window *w, uint32_t peer, size_t offset,
                                void *into, size_t bytes, struct window_get *g)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = PCOLL_OK;
    if (window_is_far(w, peer))
        rc = mpi_check_on(window_mpi_of(w)->comm,
                          MPI_Rget(into, (int)bytes, MPI_BYTE, (int)peer,
                                   (MPI_Aint)offset, (int)bytes, MPI_BYTE,
                                   window_mpi_win(w), &request),
                          "MPI_Rget");
    else {
        rc = window_mpi_get(w, peer, offset, into, bytes);
        if (rc == PCOLL_OK)
            rc = window_mpi_complete(w, peer);
    }
    window_mpi_keep_request(g, request);
    return rc;
}

static int window_mpi_is_over(struct window *w, struct window_get *g, bool *over)
{
    MPI_Request request = window_mpi_request_of(g);
    int done = 0;
    int rc =
        mpi_check_on(window_mpi_of(w)->comm, mpi_test(&request, &done), "MPI_Test");
    window_mpi_keep_request(g, request);
    *over = done;
    return rc;
}

static int window_mpi_flush(struct window *w, uint32_t peer)
{
    int rc = window_mpi_wait_patiently(window_mpi_of(w), peer);
    return rc == PCOLL_OK ? mpi_check_on(window_mpi_of(w)->comm,
                                         MPI_Win_flush((int)peer, window_mpi_win(w)),
                                         "MPI_Win_flush")
                          : rc;
}

static int window_mpi_fetch_add(struct window *w, uint32_t peer, size_t offset,
                                int64_t delta, int64_t *before)
{
    int rc;
    if (window_is_far(w, peer))
        rc = window_mpi_get_and_add(w, peer, offset, delta ? &delta : NULL, before,
                                    PCOLL_INT64, 1);
    else
        rc = mpi_check(MPI_Fetch_and_op(&delta, before, MPI_INT64_T, (int)peer,
                                        (MPI_Aint)offset, delta ? MPI_SUM : MPI_NO_OP,
                                        window_mpi_win(w)),
                       "MPI_Fetch_and_op");
    return rc == PCOLL_OK ? window_mpi_flush(w, peer) : rc;
}

static int window_mpi_compare_swap(struct window *w, uint32_t peer, size_t offset,
                                   int64_t expected, int64_t desired, int64_t *before)
{
    int rc =
        mpi_check(MPI_Compare_and_swap(&desired, &expected, before, MPI_INT64_T,
                                       (int)peer, (MPI_Aint)offset, window_mpi_win(w)),
                  "MPI_Compare_and_swap");
    return rc == PCOLL_OK ? window_mpi_flush(w, peer) : rc;
}

static int window_mpi_sync_stores(struct window *w)
{
    return mpi_check(MPI_Win_sync(window_mpi_win(w)), "MPI_Win_sync");
}

/* Whole pages: of memory in a file, or else of this process's own. */
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

static const struct window_ops ops = {.get = window_mpi_get,
                                      .put = window_mpi_put,
                                      .add = window_mpi_add,
                                      .get_sums = window_mpi_get_sums,
                                      .complete = window_mpi_complete,
                                      .begin_get = window_mpi_begin_get,
                                      .over = window_mpi_is_over,
                                      .flush = window_mpi_flush,
                                      .fetch_add = window_mpi_fetch_add,
                                      .compare_swap = window_mpi_compare_swap,
                                      .sync = window_mpi_sync_stores,
                                      .retire = window_mpi_retire,
                                      .destroy = window_mpi_destroy};

/* MPI itself has not failed: it cannot do what is needed. */
static int window_mpi_unfit(int failure)
{
    fail_set_mpi_error(MPI_SUCCESS);
    return failure;
}

/* Without it a store of ours would not be seen by a get of theirs. */
static int window_mpi_check_model(MPI_Win win)
{
    int *model, known = 0;
    MPI_Win_get_attr(win, MPI_WIN_MODEL, &model, &known);
    return known && *model == MPI_WIN_UNIFIED
               ? PCOLL_OK
               : window_mpi_unfit(fail(PCOLL_EMPI,
                                       "gossip buffers need windows of MPI's unified "
                                       "memory model, which this MPI does not give"));
}

/* Open MPI 4 ends the process in a compare-and-swap of 64 bits if its component rdma has
 * the window, which is the default where ranks share a node. Its name tells. */
static int window_mpi_check_swap(const struct window_mpi *m)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING], name[MPI_MAX_OBJECT_NAME];
    int length = 0;
    MPI_Get_library_version(library, &length);
    MPI_Win_get_name(m->win, name, &length);
    bool ends = strncmp(library, "Open MPI v4.", 12) == 0 &&
                strncmp(name, "rdma window", 11) == 0 && m->base.size > 1;
    return ends ? window_mpi_unfit(fail(
                      PCOLL_EMPI,
                      "windows of this MPI's one-sided component rdma fail at their "
                      "first compare-and-swap (%.*s); set OMPI_MCA_osc=sm, with all "
                      "ranks on one node, or take Open MPI 5",
                      (int)strcspn(library, ","), library))
                : PCOLL_OK;
}

/* Who is on another node, as MPI sees it. */
static int window_mpi_find_far(struct window_mpi *m)
{
    int size = (int)m->base.size;
    MPI_Comm node;
    MPI_Group all, near;
    int *ranks = malloc(2 * m->base.size * sizeof *ranks);
    m->far = calloc(m->base.size, sizeof *m->far);
    int rc = mpi_check(
        MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
    if (rc == PCOLL_OK && ranks && m->far) {
        for (int i = 0; i < size; i++)
            ranks[i] = i;
        MPI_Comm_group(m->comm, &all);
        MPI_Comm_group(node, &near);
        MPI_Group_translate_ranks(all, size, ranks, near, ranks + size);
        for (int i = 0; i < size; i++)
            m->far[i] = ranks[size + i] == MPI_UNDEFINED;
        m->base.far = m->far;
        MPI_Group_free(&all);
        MPI_Group_free(&near);
    }
    if (rc == PCOLL_OK)
        MPI_Comm_free(&node);
    bool had_room = ranks && m->far;
    free(ranks);
    return rc != PCOLL_OK || had_room ? rc
                                      : fail(PCOLL_ENOMEM, "no memory for a window");
}

static int window_mpi_allocate(struct window_mpi *m, size_t bytes)
{
    int rc = mpi_check(MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, m->comm,
                                        &m->base.memory, &m->win),
                       "MPI_Win_allocate");
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Win_set_errhandler(m->win, MPI_ERRORS_RETURN),
                       "MPI_Win_set_errhandler");
    if (rc == PCOLL_OK)
        rc = window_mpi_check_model(m->win);
    if (rc == PCOLL_OK)
        rc = window_mpi_check_swap(m);
    return rc == PCOLL_OK ? mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, m->win),
                                      "MPI_Win_lock_all")
                          : rc;
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
        mpi_check_on(*(const MPI_Comm *)comm,
                     MPI_Comm_dup(*(const MPI_Comm *)comm, &m->comm), "MPI_Comm_dup");
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN),
                       "MPI_Comm_set_errhandler");
    if (rc == PCOLL_OK)
        rc = window_mpi_find_far(m);
    if (rc == PCOLL_OK)
        rc = window_mpi_allocate(m, bytes);
    if (rc != PCOLL_OK) {
        free(m->far);
        free(m); /* what MPI has made of it is lost: the others may not free theirs */
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}
