/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/sim/agree.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/sim/memory.h"

static struct gathering *find(struct gathering **list, uint32_t size,
                              const struct gathering *own)
{
    for (struct gathering *g = *list; g; g = g->next)
        if (g->number == own->number)
            return g;
    struct gathering *g = must(malloc(sizeof *g));
    *g = *own;
    g->values = must(calloc((size_t)g->count, sizeof *g->values));
    g->results = must(calloc(size, sizeof *g->results));
    g->cookies = must(calloc(size, sizeof *g->cookies));
    g->next = *list;
    *list = g;
    return g;
}

static void add(struct gathering *g, const uint64_t *values)
{
    for (int i = 0; i < g->count; i++)
        if (g->op == AGREE_SUM)
            g->values[i] += values[i];
        else if (values[i] > g->values[i])
            g->values[i] = values[i];
}

int gathering_enter(struct gathering **list, uint32_t size, uint32_t rank,
                    const struct gathering *own, uint64_t *values, uint64_t cookie,
                    struct gathering **complete)
{
    struct gathering *g = find(list, size, own);
    *complete = NULL;
    if (g->count != own->count || g->op != own->op)
        return fail(PCOLL_EPROTOCOL, "an agreement about %d and about %d values",
                    g->count, own->count);
    add(g, values);
    g->results[rank] = values;
    g->cookies[rank] = cookie;
    if (++g->arrived < size)
        return PCOLL_OK;
    for (uint32_t i = 0; i < size; i++)
        memcpy(g->results[i], g->values, (size_t)g->count * sizeof *g->values);
    *complete = g;
    return PCOLL_OK;
}

void gathering_end(struct gathering **list, struct gathering *g)
{
    while (*list != g)
        list = &(*list)->next;
    *list = g->next;
    free(g->values);
    free(g->results);
    free(g->cookies);
    free(g);
}
