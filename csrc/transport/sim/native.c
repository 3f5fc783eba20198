/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/sim/native.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/dtypes.h"
#include "transport/sim/memory.h"

static struct native_gathering *find(struct native_gathering **list, uint32_t size,
                                     const struct channel *channel, size_t bytes)
{
    for (struct native_gathering *g = *list; g; g = g->next)
        if (g->channel == channel->number && g->number == channel->calls)
            return g;
    struct native_gathering *g = must(calloc(1, sizeof *g));
    *g = (struct native_gathering){.channel = channel->number,
                                   .number = channel->calls,
                                   .bytes = bytes,
                                   .calls = must(calloc(size, sizeof *g->calls)),
                                   .inputs = must(calloc(size, sizeof *g->inputs)),
                                   .cookies = must(calloc(size, sizeof *g->cookies)),
                                   .next = *list};
    *list = g;
    return g;
}

/* Into all the ranks' buffers. */
static void add_up(struct native_gathering *g, uint32_t size)
{
    char *sum = g->inputs[0];
    for (uint32_t i = 1; i < size; i++)
        g->calls[0].reduce(sum, sum, g->inputs[i], g->calls[0].count);
    for (uint32_t i = 0; i < size; i++)
        memcpy(g->calls[i].data, sum, g->bytes);
}

int native_enter(struct native_gathering **list, uint32_t size, uint32_t rank,
                 struct channel *channel, const struct native_call *call,
                 uint64_t cookie, struct native_gathering **complete)
{
    size_t bytes = call->count * dtype_find(call->dtype)->size;
    struct native_gathering *g = find(list, size, channel, bytes);
    channel->calls++;
    *complete = NULL;
    if (g->bytes != bytes)
        return fail(PCOLL_EPROTOCOL, "native calls of %zu and of %zu bytes", g->bytes,
                    bytes);
    g->calls[rank] = *call;
    g->cookies[rank] = cookie;
    g->inputs[rank] = must(malloc(bytes + 1));
    memcpy(g->inputs[rank], call->data, bytes);
    memset(call->data, 0xff, bytes); /* nobody may read it before the end */
    if (++g->arrived < size)
        return PCOLL_OK;
    add_up(g, size);
    *complete = g;
    return PCOLL_OK;
}

void native_end(struct native_gathering **list, struct native_gathering *g,
                uint32_t size)
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
