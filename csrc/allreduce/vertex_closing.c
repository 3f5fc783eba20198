/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a vertex, step by step; see vertex.h. */
#include "vertex.h"
#include "vertex_parts.h"

/* Reports that are still under way to this vertex. */
static bool reports_missing(const struct vertex *v)
{
    const struct starting *s = &v->starting;
    return s->tokens_sent && s->tokens_received < s->tokens_sent[v->plane.index];
}

static int closed(struct vertex *v)
{
    atomic_store(&v->closing, CLOSED);
    return context_closed(v->context, &v->base);
}

/* The last message on every edge goes out when all rounds are over. Who does not drive
 * has no edges. */
int vertex_drain(struct vertex *v)
{
    const struct plane *p = &v->plane;
    if (!v->drives)
        return closed(v);
    if (!v->last_sent) {
        v->last_sent = true;
        for (int k = 0; k < v->activation.edges; k++) {
            uint32_t peer = (p->index + ((uint32_t)1 << k)) % p->domains;
            int rc = vertex_send_control(v, p->leader[peer], CONTROL_LAST, k);
            if (rc != PCOLL_OK)
                return rc;
        }
    }
    if (v->last_received < v->activation.edges || reports_missing(v) ||
        atomic_load(&v->closing) == CLOSED)
        return PCOLL_OK;
    return closed(v);
}

static int agree_to_close(struct vertex *v, uint64_t *values, int count,
                          enum agree_op op)
{
    v->closing_agreement = (struct agreement){
        .values = values, .count = count, .op = op, .participant = &v->base};
    return context_agree(v->context, &v->closing_agreement);
}

/* Next step of closing, if the agreement of the last one is over. */
int vertex_continue_closing(struct vertex *v)
{
    int closing = atomic_load(&v->closing);
    bool agreeing = closing >= ENTERING && closing <= TALLYING;
    if (!agreeing || !atomic_load(&v->closing_agreement.done))
        return PCOLL_OK;
    atomic_store(&v->closing, closing + 1);
    if (closing == ENTERING) {
        v->closing_rounds = v->drives ? v->engine.current + v->frozen : 0;
        return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
    }
    if (closing == TALLYING)
        return PCOLL_OK;
    if (v->starting.tokens_sent)
        return agree_to_close(v, v->starting.tokens_sent, (int)v->plane.domains,
                              AGREE_SUM);
    atomic_store(&v->closing, DRAINING);
    return PCOLL_OK;
}

int vertex_close(struct vertex *v)
{
    if (atomic_load(&v->closing) != OPEN)
        return PCOLL_OK;
    atomic_store(&v->closing, QUEUED);
    v->domain->ops->retire(v->domain);
    int rc = vertex_look_again(v, true);
    return rc == PCOLL_OK ? context_close(v->context, &v->base) : rc;
}

int vertex_begin_close(struct participant *p)
{
    struct vertex *v = (struct vertex *)p;
    int rc = vertex_run(v);
    if (rc != PCOLL_OK)
        return rc;
    atomic_store(&v->closing, ENTERING);
    v->closing_rounds = 0; /* nothing to agree on yet: a barrier */
    return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}
