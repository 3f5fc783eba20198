/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/memory.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/codec/quantize.h"
#include "kernels/reduce.h"

#include "base/check.h"

static int make_codec(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    if (!l->bits)
        return PCOLL_OK;
    m->distances = malloc((l->blocks ? l->blocks : 1) * sizeof *m->distances);
    m->notes = malloc(l->chunk / LATTICE_BLOCK * sizeof *m->notes);
    m->planes = malloc(l->chunk / LATTICE_BLOCK * (l->low + l->high));
    m->key = malloc(LATTICE_BLOCK * sizeof *m->key);
    m->block = malloc(LATTICE_BLOCK * sizeof *m->block);
    if (!m->distances || !m->notes || !m->planes || !m->key || !m->block)
        return fail(PCOLL_ENOMEM, "no memory for the codec");
    for (size_t b = 0; b < l->blocks; b++)
        m->distances[b] = -1;
    return PCOLL_OK;
}

int gossip_memory_init(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    CHECK(l->chunk && l->chunk % LATTICE_BLOCK == 0 && l->sum >= l->element);
    size_t bytes = l->chunk * l->sum;
    m->fetched = malloc(l->chunk * l->element);
    m->theirs = malloc(bytes);
    m->ours = malloc(bytes);
    m->change = malloc(bytes);
    if (!m->fetched || !m->theirs || !m->ours || !m->change)
        return fail(PCOLL_ENOMEM, "no memory for a chunk");
    return make_codec(m);
}

enum { FAR_CHUNKS = 8 };

int gossip_memory_prepare(struct gossip_memory *m, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far)
{
    CHECK(rank < ranks);
    *m = (struct gossip_memory){
        .taken = 1,
        .margin = o->margin,
        .rotate = o->rotate != 0,
        .seed = splitmix_at(o->seed, rank),
    };
    int rc = layout_init(&m->layout, ranks, o);
    if (far) /* a message takes much longer than a backoff */
        m->layout.chunk *= FAR_CHUNKS;
    if (rc == PCOLL_OK && o->bits && !(o->margin >= 1 && o->margin <= 1e6))
        rc = fail(PCOLL_EINVAL, "margin: expected 1 to 1e6, got %g", o->margin);
    return rc == PCOLL_OK ? gossip_memory_init(m) : rc;
}

/* Words and sums begin at 0; slots are written before they are read. */
int gossip_memory_clear(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    CHECK(m->window);
    memset(m->window->memory, 0, l->slots_at);
    memset(m->window->memory + l->sums_at, 0, l->queue_at - l->sums_at);
    return m->window->ops->sync(m->window);
}

void gossip_memory_destroy(struct gossip_memory *m)
{
    free(m->fetched);
    free(m->planes);
    free(m->notes);
    free(m->theirs);
    free(m->ours);
    free(m->change);
    free(m->key);
    free(m->block);
    free(m->distances);
}

void gossip_widen(const struct layout *l, void *held, const void *elements,
                  size_t count)
{
    const struct dtype *dtype = dtype_find(l->dtype);
    if (dtype->widen)
        dtype->widen(held, elements, count);
    else if (held != elements)
        memcpy(held, elements, count * l->element);
}

void gossip_narrow(const struct layout *l, void *elements, const void *held,
                   size_t count)
{
    const struct dtype *dtype = dtype_find(l->dtype);
    if (dtype->narrow)
        dtype->narrow(elements, held, count);
    else if (held != elements)
        memcpy(elements, held, count * l->element);
}

void gossip_memory_free(struct gossip_memory **m)
{
    gossip_memory_destroy(*m);
    free(*m);
    *m = NULL;
}
