/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window over MPI: passive target, one lock_all for life. Its memory is allocated
 * by MPI: with memory of the user's, both MPIs make an access wait until the target
 * calls MPI. Within a node nobody's help is needed; between nodes the target's agent
 * gives it.
 */
#include "window_mpi.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "../transport/mpi.h"

struct window_mpi {
    struct window base;
    MPI_Win win;
    MPI_Comm comm;
};

static MPI_Win win_of(struct window *w)
{
    return ((struct window_mpi *)w)->win;
}

static MPI_Datatype type_of(int dtype)
{
    return dtype == PCOLL_INT64     ? MPI_INT64_T
           : dtype == PCOLL_FLOAT64 ? MPI_DOUBLE
                                    : MPI_FLOAT;
}

/* MPI counts in int; a message is a chunk, far below. */
static int get(struct window *w, uint32_t peer, size_t offset, void *into, size_t bytes)
{
    return mpi_check(MPI_Get(into, (int)bytes, MPI_BYTE, (int)peer, (MPI_Aint)offset,
                             (int)bytes, MPI_BYTE, win_of(w)),
                     "MPI_Get");
}

static int put(struct window *w, uint32_t peer, size_t offset, const void *from,
               size_t bytes)
{
    return mpi_check(MPI_Put(from, (int)bytes, MPI_BYTE, (int)peer, (MPI_Aint)offset,
                             (int)bytes, MPI_BYTE, win_of(w)),
                     "MPI_Put");
}

static int add(struct window *w, uint32_t peer, size_t offset, const void *from,
               int dtype, size_t count)
{
    return mpi_check(MPI_Accumulate(from, (int)count, type_of(dtype), (int)peer,
                                    (MPI_Aint)offset, (int)count, type_of(dtype),
                                    MPI_SUM, win_of(w)),
                     "MPI_Accumulate");
}

static int get_sums(struct window *w, uint32_t peer, size_t offset, void *into,
                    int dtype, size_t count)
{
    return mpi_check(MPI_Get_accumulate(NULL, 0, type_of(dtype), into, (int)count,
                                        type_of(dtype), (int)peer, (MPI_Aint)offset,
                                        (int)count, type_of(dtype), MPI_NO_OP,
                                        win_of(w)),
                     "MPI_Get_accumulate");
}

static int complete(struct window *w, uint32_t peer)
{
    return mpi_check(MPI_Win_flush_local((int)peer, win_of(w)), "MPI_Win_flush_local");
}

static int flush(struct window *w, uint32_t peer)
{
    return mpi_check(MPI_Win_flush((int)peer, win_of(w)), "MPI_Win_flush");
}

static int fetch_add(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before)
{
    int rc = mpi_check(MPI_Fetch_and_op(&delta, before, MPI_INT64_T, (int)peer,
                                        (MPI_Aint)offset, delta ? MPI_SUM : MPI_NO_OP,
                                        win_of(w)),
                       "MPI_Fetch_and_op");
    return rc == PCOLL_OK ? flush(w, peer) : rc;
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    int rc = mpi_check(MPI_Compare_and_swap(&desired, &expected, before, MPI_INT64_T,
                                            (int)peer, (MPI_Aint)offset, win_of(w)),
                       "MPI_Compare_and_swap");
    return rc == PCOLL_OK ? flush(w, peer) : rc;
}

static int sync(struct window *w)
{
    return mpi_check(MPI_Win_sync(win_of(w)), "MPI_Win_sync");
}

/* Collective; all are known to be here. */
static void destroy(struct window *w)
{
    struct window_mpi *m = (struct window_mpi *)w;
    if (m->win != MPI_WIN_NULL) {
        MPI_Win_unlock_all(m->win);
        MPI_Win_free(&m->win);
    }
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    free(m);
}

static const struct window_ops ops = {.get = get,
                                      .put = put,
                                      .add = add,
                                      .get_sums = get_sums,
                                      .complete = complete,
                                      .flush = flush,
                                      .fetch_add = fetch_add,
                                      .compare_swap = compare_swap,
                                      .sync = sync,
                                      .destroy = destroy};

/* Without it a store of ours would not be seen by a get of theirs. */
static int check_model(MPI_Win win)
{
    int *model, known = 0;
    MPI_Win_get_attr(win, MPI_WIN_MODEL, &model, &known);
    return known && *model == MPI_WIN_UNIFIED
               ? PCOLL_OK
               : fail(PCOLL_EMPI, "gossip buffers need windows of MPI's unified memory "
                                  "model, which this MPI does not give");
}

static int allocate(struct window_mpi *m, size_t bytes)
{
    int rc = mpi_check(MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, m->comm,
                                        &m->base.memory, &m->win),
                       "MPI_Win_allocate");
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Win_set_errhandler(m->win, MPI_ERRORS_RETURN),
                       "MPI_Win_set_errhandler");
    if (rc == PCOLL_OK)
        rc = check_model(m->win);
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
    m->win = MPI_WIN_NULL;
    m->comm = MPI_COMM_NULL;
    mpi_comm_shape(comm, &m->base.rank, &m->base.size);
    int rc = mpi_check(MPI_Comm_dup(*(const MPI_Comm *)comm, &m->comm), "MPI_Comm_dup");
    if (rc == PCOLL_OK)
        rc = mpi_check(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN),
                       "MPI_Comm_set_errhandler");
    if (rc == PCOLL_OK)
        rc = allocate(m, bytes);
    if (rc != PCOLL_OK) {
        free(m); /* what MPI has made of it is lost: the others may not free theirs */
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}
