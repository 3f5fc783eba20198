/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/sim/gathering.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/dtypes.h"
#include "transport/sim/memory.h"

static struct gathering *find(struct gathering **list, uint32_t size,
                              const struct channel *channel,
                              const struct native_call *call, size_t bytes)
{
    for (struct gathering *g = *list; g; g = g->next)
        if (g->channel == channel->number && g->number == channel->calls)
            return g;
    struct gathering *g = must(calloc(1, sizeof *g));
    *g = (struct gathering){.channel = channel->number,
                            .number = channel->calls,
                            .bytes = bytes,
                            .reduce = call->reduce,
                            .calls = must(calloc(size, sizeof *g->calls)),
                            .inputs = must(calloc(size, sizeof *g->inputs)),
                            .cookies = must(calloc(size, sizeof *g->cookies)),
                            .next = *list};
    *list = g;
    return g;
}

/* Into all the ranks' buffers. */
static void add_up(struct gathering *g, uint32_t size)
{
    uint32_t first = 0;
    while (!g->inputs[first])
        first++;
    char *sum = g->inputs[first];
    for (uint32_t i = first + 1; i < size; i++)
        if (g->inputs[i])
            g->reduce(sum, sum, g->inputs[i], g->calls[first].count);
    for (uint32_t i = 0; i < size; i++)
        if (g->inputs[i])
            memcpy(g->calls[i].data, sum, g->bytes);
}

int gathering_enter(struct gathering **list, uint32_t size, uint32_t parts,
                    uint32_t rank, struct channel *channel,
                    const struct native_call *call, uint64_t cookie,
                    struct gathering **complete)
{
    size_t bytes = call->count * dtype_find(call->dtype)->size;
    struct gathering *g = find(list, size, channel, call, bytes);
    channel->calls++;
    *complete = NULL;
    if (g->bytes != bytes || g->reduce != call->reduce)
        return fail(PCOLL_EPROTOCOL, "together, calls of %zu and of %zu bytes",
                    g->bytes, bytes);
    g->calls[rank] = *call;
    g->cookies[rank] = cookie;
    g->inputs[rank] = must(malloc(bytes + 1));
    memcpy(g->inputs[rank], call->data, bytes);
    memset(call->data, 0xff, bytes); /* nobody may read it before the end */
    if (++g->arrived < parts)
        return PCOLL_OK;
    add_up(g, size);
    *complete = g;
    return PCOLL_OK;
}

void gathering_end(struct gathering **list, struct gathering *g, uint32_t size)
{
    while (*list != g)
        list = &(*list)->next;
    *list = g->next;
    for (uint32_t i = 0; i < size; i++)
        free(g->inputs[i]);
    free(g->inputs);
    free(g->calls);
    free(g->cookies);
    free(g);
}
