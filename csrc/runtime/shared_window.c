/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window (transport/window.h) in memory that the ranks of one host share, where ranks may die
 * and the others live on. No step takes a lock, so a rank that dies in the middle of a step
 * delays no other. (In windows of MPI it can: Open MPI's component sm adds under a lock that a
 * dead rank never opens.) What the dead have written stays readable.
 *
 * The users of a window decide which rank writes what. Words are changed by single atomic steps,
 * sums by a compare-and-swap for each pair of elements (of 4 bytes) or element (of 8 bytes, and
 * the last of an odd number). The boundaries are the same for all ranks, because chunks begin at
 * multiples of 8 bytes. Bytes are copied without synchronization: a rank that reads them while
 * they are written has to notice that, as in any window.
 *
 * Words are sequentially consistent; complete, flush and sync are fences between bytes and words.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/lock.h"
#include "domain/domain.h"
#include "runtime/agreement.h"
#include "transport/mpi/mpi_transport.h"

struct shared_window {
    struct window base;
    struct segment segment;
    size_t bytes; /* Size of each rank's part: whole pages. */
};

enum { SHARED_WINDOW_PAGE = 4096 };

static char *shared_window_at(struct window *w, uint32_t peer, size_t offset)
{
    struct shared_window *s = (struct shared_window *)w;
    CHECK(peer < w->size && offset <= s->bytes);
    return (char *)s->segment.memory + peer * s->bytes + offset;
}

/* Define a function that adds n elements, which make up one word, by one compare-and-swap. */
#define SHARED_WINDOW_ADD(name, word, element, n)                                      \
    static void name(_Atomic word *to, const element *by)                              \
    {                                                                                  \
        word before = atomic_load_explicit(to, memory_order_relaxed), after;           \
        element value[n];                                                              \
        do {                                                                           \
            memcpy(value, &before, sizeof value);                                      \
            for (int i = 0; i < (n); i++)                                              \
                value[i] += by[i];                                                     \
            memcpy(&after, value, sizeof after);                                       \
        } while (!atomic_compare_exchange_weak(to, &before, after));                   \
    }
SHARED_WINDOW_ADD(shared_window_add_double, uint64_t, double, 1)
SHARED_WINDOW_ADD(shared_window_add_pair, uint64_t, float, 2)
SHARED_WINDOW_ADD(shared_window_add_float, uint32_t, float, 1)

static void shared_window_add(_Atomic uint64_t *to, const void *from, int dtype,
                              size_t count)
{
    const float *by = from;
    for (size_t i = 0; dtype == PCOLL_FLOAT64 && i < count; i++)
        shared_window_add_double(to + i, (const double *)from + i);
    if (dtype == PCOLL_FLOAT64)
        return;
    for (size_t i = 0; i < count / 2; i++)
        if (by[2 * i] != 0 || by[2 * i + 1] != 0)
            shared_window_add_pair(to + i, by + 2 * i);
    if (count % 2)
        shared_window_add_float((_Atomic uint32_t *)(to + count / 2), by + count - 1);
}

static void shared_window_read(const _Atomic uint64_t *from, void *into, size_t bytes)
{
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = atomic_load_explicit(from + i, memory_order_relaxed);
        memcpy((char *)into + 8 * i, &word, sizeof word);
    }
    if (bytes % 8) {
        uint32_t last = atomic_load_explicit((const _Atomic uint32_t *)(from + words),
                                             memory_order_relaxed);
        memcpy((char *)into + 8 * words, &last, sizeof last);
    }
}

static int shared_window_access(struct window *w, enum window_access kind,
                                uint32_t peer, size_t offset, const void *from,
                                void *into, int dtype, size_t count)
{
    char *at = shared_window_at(w, peer, offset);
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)at;
    CHECK(kind == WINDOW_GET || kind == WINDOW_PUT || offset % sizeof *words == 0);
    switch (kind) {
    case WINDOW_GET:
        memcpy(into, at, count);
        break;
    case WINDOW_PUT:
        memcpy(at, from, count);
        break;
    case WINDOW_ADD:
        shared_window_add(words, from, dtype, count);
        break;
    case WINDOW_SUMS:
        shared_window_read(words, into, count * (dtype == PCOLL_FLOAT32 ? 4 : 8));
        break;
    }
    return PCOLL_OK;
}

static int shared_window_sync(struct window *w)
{
    (void)w;
    fence_all();
    return PCOLL_OK;
}

static int shared_window_complete(struct window *w, uint32_t peer)
{
    (void)peer;
    return shared_window_sync(w);
}

static _Atomic int64_t *shared_window_word(struct window *w, uint32_t peer,
                                           size_t offset)
{
    CHECK(offset % sizeof(int64_t) == 0);
    return (_Atomic int64_t *)(void *)shared_window_at(w, peer, offset);
}

static int shared_window_fetch_add(struct window *w, uint32_t peer, size_t offset,
                                   int64_t delta, int64_t *before)
{
    *before = atomic_fetch_add(shared_window_word(w, peer, offset), delta);
    return PCOLL_OK;
}

static int shared_window_compare_swap(struct window *w, uint32_t peer, size_t offset,
                                      int64_t expected, int64_t desired,
                                      int64_t *before)
{
    *before = expected;
    atomic_compare_exchange_strong(shared_window_word(w, peer, offset), before,
                                   desired);
    return PCOLL_OK;
}

/* Pages of the segment that a rank gives back are given back for all ranks. */
static void shared_window_retire(struct window *w)
{
    madvise(shared_window_at(w, w->rank, 0), ((struct shared_window *)w)->bytes,
            MADV_REMOVE);
}

static void shared_window_destroy(struct window *w)
{
    segment_close(&((struct shared_window *)w)->segment);
    free(w);
}

static const struct window_ops shared_window_ops = {
    .access = shared_window_access,
    .complete = shared_window_complete,
    .flush = shared_window_complete,
    .fetch_add = shared_window_fetch_add,
    .compare_swap = shared_window_compare_swap,
    .sync = shared_window_sync,
    .retire = shared_window_retire,
    .destroy = shared_window_destroy};

/* Opening. */

/* One rank makes the segment, the others open it through its file, which all may close when all
 * have the segment or a rank has failed. */
static int shared_window_create(struct communicator *c, size_t bytes,
                                struct window **out)
{
    const struct transport *t = c->transport;
    uint32_t maker = transport_lowest(t);
    bool makes = maker == t->rank;
    uint64_t *fds, cookie = makes ? progress_doorbell(c->progress)->page->cookie
                                  : t->doorbells[maker]->cookie;
    bytes = (bytes + SHARED_WINDOW_PAGE - 1) / SHARED_WINDOW_PAGE * SHARED_WINDOW_PAGE;
    size_t all = bytes * t->size;
    struct segment segment = {.fd = -1};
    struct shared_window *w = calloc(1, sizeof *w);
    int made = w ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a window");
    if (makes && w)
        made = segment_create(all, all, cookie, &segment);
    if (makes && w && made == PCOLL_ENOMEM)
        made =
            fail(made,
                 "windows need %zu bytes of shared memory on this host, and they are "
                 "not there: take smaller buffers, or a shorter queue",
                 all);
    int rc = agree_gather(c, (uint64_t)(segment.fd + 1), &fds);
    if (rc == PCOLL_OK && !makes && w)
        made =
            fds[maker]
                ? segment_open(t->pids[maker], fds[maker] - 1, all, cookie, &segment)
                : fail(PCOLL_ENOMEM, "rank %u could not make the shared memory", maker);
    rc = rc ?: agree_outcome(c, made);
    free(fds);
    segment_sealed(&segment);
    if (rc != PCOLL_OK && segment.memory)
        segment_close(&segment);
    if (rc != PCOLL_OK) {
        free(w);
        return rc;
    }
    *w = (struct shared_window){
        .base = {.ops = &shared_window_ops,
                 .rank = t->rank,
                 .size = t->size,
                 .local = true,
                 .memory = (char *)segment.memory + t->rank * bytes},
        .segment = segment,
        .bytes = bytes};
    *out = &w->base;
    return PCOLL_OK;
}

int shared_window_open(struct communicator *c, const void *comm, size_t bytes,
                       struct window **out)
{
    CHECK(c->progress && bytes);
    const struct transport *t = c->transport;
    uint64_t separate = !t->hosts; /* Not all ranks are on one host. */
    for (uint32_t r = 0; r < t->size && !separate; r++)
        separate = transport_lives(t, r) && t->hosts[r] != t->hosts[t->rank];
    if (!pcoll_tells_of_failures())
        return agree_outcome(c, window_mpi_create(comm, bytes, out));
    int rc = agree_max(c, &separate, 1);
    if (rc != PCOLL_OK)
        return rc;
    if (!separate)
        return shared_window_create(c, bytes, out);
    if (c->outage)
        return fail(PCOLL_EINVAL,
                    "on_failure: \"continue\" needs all ranks on one host for gossip "
                    "buffers and groups: between hosts they use windows of MPI, which "
                    "no rank's death survives");
    return agree_outcome(c, window_mpi_create(comm, bytes, out));
}
