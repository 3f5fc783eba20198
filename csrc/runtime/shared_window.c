/* SPDX-License-Identifier: Apache-2.0 */
/* See shared_window.h. */
#include "runtime/shared_window.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/lock.h"
#include "domain/segment.h"
#include "runtime/agreement.h"
#include "transport/mpi/mpi_transport.h"

struct shared_window {
    struct window base;
    struct segment segment; /* of its memory, or none */
    char *memory;
    size_t bytes; /* of each rank: whole pages */
};

enum { PAGE = 4096 };

static struct shared_window *shared_window_of(struct window *w)
{
    return (struct shared_window *)w;
}

static char *shared_window_at(struct window *w, uint32_t peer, size_t offset)
{
    CHECK(peer < w->size && offset <= shared_window_of(w)->bytes);
    return shared_window_of(w)->memory + peer * shared_window_of(w)->bytes + offset;
}

static int shared_window_get(struct window *w, uint32_t peer, size_t offset, void *into,
                             size_t bytes)
{
    memcpy(into, shared_window_at(w, peer, offset), bytes);
    return PCOLL_OK;
}

static int shared_window_put(struct window *w, uint32_t peer, size_t offset,
                             const void *from, size_t bytes)
{
    memcpy(shared_window_at(w, peer, offset), from, bytes);
    return PCOLL_OK;
}

static void shared_window_add_double(_Atomic uint64_t *to, double by)
{
    uint64_t before = atomic_load_explicit(to, memory_order_relaxed), after;
    double value;
    do {
        memcpy(&value, &before, sizeof value);
        value += by;
        memcpy(&after, &value, sizeof after);
    } while (!atomic_compare_exchange_weak(to, &before, after));
}

static void shared_window_add_pair(_Atomic uint64_t *to, const float by[2])
{
    uint64_t before = atomic_load_explicit(to, memory_order_relaxed), after;
    float value[2];
    do {
        memcpy(value, &before, sizeof value);
        value[0] += by[0];
        value[1] += by[1];
        memcpy(&after, value, sizeof after);
    } while (!atomic_compare_exchange_weak(to, &before, after));
}

static void shared_window_add_float(_Atomic uint32_t *to, float by)
{
    uint32_t before = atomic_load_explicit(to, memory_order_relaxed), after;
    float value;
    do {
        memcpy(&value, &before, sizeof value);
        value += by;
        memcpy(&after, &value, sizeof after);
    } while (!atomic_compare_exchange_weak(to, &before, after));
}

static int shared_window_add(struct window *w, uint32_t peer, size_t offset,
                             const void *from, int dtype, size_t count)
{
    _Atomic uint64_t *to =
        (_Atomic uint64_t *)(void *)shared_window_at(w, peer, offset);
    CHECK(offset % sizeof *to == 0);
    if (dtype == PCOLL_FLOAT64) {
        for (size_t i = 0; i < count; i++)
            shared_window_add_double(to + i, ((const double *)from)[i]);
        return PCOLL_OK;
    }
    const float *by = from;
    for (size_t i = 0; i < count / 2; i++)
        if (by[2 * i] != 0 || by[2 * i + 1] != 0)
            shared_window_add_pair(to + i, by + 2 * i);
    if (count % 2)
        shared_window_add_float((_Atomic uint32_t *)(to + count / 2), by[count - 1]);
    return PCOLL_OK;
}

static int shared_window_get_sums(struct window *w, uint32_t peer, size_t offset,
                                  void *into, int dtype, size_t count)
{
    const _Atomic uint64_t *from =
        (const _Atomic uint64_t *)(const void *)shared_window_at(w, peer, offset);
    size_t bytes = count * (dtype == PCOLL_FLOAT32 ? 4 : 8), words = bytes / 8;
    CHECK(offset % sizeof *from == 0);
    for (size_t i = 0; i < words; i++) {
        uint64_t word = atomic_load_explicit(from + i, memory_order_relaxed);
        memcpy((char *)into + 8 * i, &word, sizeof word);
    }
    if (bytes % 8) {
        uint32_t last = atomic_load_explicit((const _Atomic uint32_t *)(from + words),
                                             memory_order_relaxed);
        memcpy((char *)into + 8 * words, &last, sizeof last);
    }
    return PCOLL_OK;
}

static int shared_window_fence(void)
{
    fence_all();
    return PCOLL_OK;
}

static int shared_window_complete(struct window *w, uint32_t peer)
{
    CHECK(peer < w->size);
    (void)w, (void)peer;
    return shared_window_fence();
}

static int shared_window_sync_stores(struct window *w)
{
    (void)w;
    return shared_window_fence();
}

static int shared_window_begin_get(struct window *w, uint32_t peer, size_t offset,
                                   void *into, size_t bytes, struct window_get *g)
{
    g->request = 0;
    int rc = shared_window_get(w, peer, offset, into, bytes);
    return rc == PCOLL_OK ? shared_window_fence() : rc;
}

static int shared_window_is_over(struct window *w, struct window_get *g, bool *over)
{
    (void)w, (void)g;
    *over = true;
    return PCOLL_OK;
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

/* Of the segment that all have: what is given back is so for all. */
static void shared_window_retire(struct window *w)
{
    madvise(shared_window_at(w, w->rank, 0), shared_window_of(w)->bytes, MADV_REMOVE);
}

static void shared_window_destroy(struct window *w)
{
    if (shared_window_of(w)->segment.memory)
        segment_close(&shared_window_of(w)->segment);
    free(w);
}

static const struct window_ops shared_window_ops = {
    .get = shared_window_get,
    .put = shared_window_put,
    .add = shared_window_add,
    .get_sums = shared_window_get_sums,
    .complete = shared_window_complete,
    .begin_get = shared_window_begin_get,
    .over = shared_window_is_over,
    .flush = shared_window_complete,
    .fetch_add = shared_window_fetch_add,
    .compare_swap = shared_window_compare_swap,
    .sync = shared_window_sync_stores,
    .retire = shared_window_retire,
    .destroy = shared_window_destroy};

int shared_window_create(void *memory, size_t bytes, uint32_t rank, uint32_t ranks,
                         struct window **out)
{
    CHECK(memory && rank < ranks);
    struct shared_window *s = calloc(1, sizeof *s);
    if (!s)
        return fail(PCOLL_ENOMEM, "no memory for a window");
    s->base = (struct window){.ops = &shared_window_ops,
                              .rank = rank,
                              .size = ranks,
                              .local = true,
                              .memory = (char *)memory + rank * bytes};
    s->memory = memory;
    s->bytes = bytes;
    *out = &s->base;
    return PCOLL_OK;
}

/* Where it comes from. */

static bool shared_window_on_one_host(const struct transport *t)
{
    bool one = t->hosts != NULL;
    for (uint32_t r = 0; r < t->size && one; r++)
        one = !transport_lives(t, r) || t->hosts[r] == t->hosts[t->rank];
    return one;
}

static uint64_t shared_window_cookie_of(const struct communicator *c, uint32_t rank)
{
    const struct transport *t = c->transport;
    return rank == t->rank ? progress_doorbell(c->progress)->page->cookie
                           : t->doorbells[rank]->cookie;
}

static int shared_window_make_segment(const struct communicator *c, size_t bytes,
                                      struct segment *s)
{
    int rc = segment_create(bytes, shared_window_cookie_of(c, c->transport->rank), s);
    if (rc == PCOLL_ENOMEM)
        rc = fail(rc,
                  "windows need %zu bytes of shared memory on this host, and they are "
                  "not there: take smaller buffers, or a shorter queue",
                  bytes);
    return rc;
}

/* All have it, or nobody; then its file may be closed. */
static int shared_window_share_segment(struct communicator *c, size_t bytes,
                                       struct segment *s)
{
    uint32_t maker = transport_lowest(c->transport);
    bool makes = maker == c->transport->rank;
    *s = (struct segment){.fd = -1};
    int made = makes ? shared_window_make_segment(c, bytes, s) : PCOLL_OK;
    uint64_t *fds;
    int rc = agree_gather(c, (uint64_t)(s->fd + 1), &fds);
    if (rc == PCOLL_OK) {
        if (!makes && !fds[maker])
            made =
                fail(PCOLL_ENOMEM, "rank %u could not make the shared memory", maker);
        else if (!makes)
            made = segment_open(c->transport->pids[maker], fds[maker] - 1, bytes,
                                shared_window_cookie_of(c, maker), s);
        rc = agree_outcome(c, made);
    }
    free(fds);
    segment_sealed(s);
    if (rc != PCOLL_OK && s->memory)
        segment_close(s);
    return rc;
}

static int shared_window_open_shared(struct communicator *c, size_t bytes,
                                     struct window **out)
{
    const struct transport *t = c->transport;
    struct segment s;
    size_t each = (bytes + PAGE - 1) / PAGE * PAGE;
    int rc = shared_window_share_segment(c, each * t->size, &s);
    if (rc != PCOLL_OK)
        return rc;
    struct window *w = NULL;
    rc = agree_outcome(c, shared_window_create(s.memory, each, t->rank, t->size, &w));
    if (w)
        shared_window_of(w)->segment = s;
    else
        segment_close(&s);
    if (w && rc != PCOLL_OK)
        w->ops->destroy(w);
    else
        *out = w;
    return rc;
}

int window_open(struct communicator *c, const void *comm, size_t bytes,
                struct window **out)
{
    CHECK(c->progress && bytes);
    uint64_t apart = !shared_window_on_one_host(c->transport);
    if (!pcoll_tells_of_failures())
        return agree_outcome(c, window_mpi_create(comm, bytes, out));
    int rc = agree_max(c, &apart, 1);
    if (rc != PCOLL_OK)
        return rc;
    if (!apart)
        return shared_window_open_shared(c, bytes, out);
    if (c->outage)
        return fail(PCOLL_EINVAL,
                    "on_failure: \"continue\" needs all ranks on one host for gossip "
                    "buffers and groups: between hosts they use windows of MPI, which "
                    "no rank's death survives");
    return agree_outcome(c, window_mpi_create(comm, bytes, out));
}
