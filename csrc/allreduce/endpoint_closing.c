/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an endpoint, step by step; see endpoint.h. */
#include "allreduce/control.h"
#include "allreduce/endpoint_parts.h"
#include "runtime/closing.h"
#include "base/check.h"

static int agree_to_close(struct endpoint *v, uint64_t *values, int count,
                          enum agree_op op)
{
    v->closing_agreement = (struct agreement){
        .values = values, .count = count, .op = op, .object = &v->base};
    return communicator_agree(v->communicator, &v->closing_agreement);
}

/* The current round, for which others may have been activated: its deposits are frozen, or not
 * added up yet. */
static bool has_begun(const struct endpoint *v)
{
    return v->frozen;
}

static int closed(struct endpoint *v)
{
    atomic_store(&v->closing, CLOSED);
    return communicator_closed(v->communicator, &v->base);
}

/* All rounds are over here, and nothing can come any more. */
static int drained(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) == DRAINING);
    CHECK(!has_begun(v));
    if (!v->confirms)
        return closed(v);
    MOMENT("drained");
    atomic_store(&v->closing, CONFIRMING);
    return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}

/* The last message on every edge goes out when all rounds are over. Who does not drive
 * has no edges. */
int endpoint_drain(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) >= DRAINING);
    const struct placement *p = &v->placement;
    if (atomic_load(&v->closing) > DRAINING)
        return PCOLL_OK;
    if (!v->drives)
        return drained(v);
    if (!v->last_sent) {
        v->last_sent = true;
        for (int k = 0; k < v->activation.edges; k++) {
            uint32_t peer = (p->index + ((uint32_t)1 << k)) % p->domains;
            int rc = control_send(v, p->leader[peer], CONTROL_LAST, k);
            if (rc != PCOLL_OK)
                return rc;
        }
    }
    uint32_t all = ((uint32_t)1 << v->activation.edges) - 1;
    CHECK(!(v->last_received & ~all));
    if (v->last_received != all || endpoint_trigger_reports_missing(v))
        return PCOLL_OK;
    return drained(v);
}

/* The rounds that all have agreed on. No round is complete anywhere without this rank, so
 * that nobody has begun two more than it. */
static int check_rounds(const struct endpoint *v)
{
    uint64_t begun = v->engine.current + has_begun(v);
    if (!v->drives || v->closing_rounds - begun <= 1)
        return PCOLL_OK;
    return fail(PCOLL_EPROTOCOL,
                "the ranks close after %llu rounds, and this one is in %llu",
                (unsigned long long)v->closing_rounds, (unsigned long long)begun);
}

/* Next step of closing, if the agreement of the last one is over. */
int endpoint_continue_closing(struct endpoint *v)
{
    int closing = atomic_load(&v->closing);
    bool agreeing =
        (closing >= ENTERING && closing <= REPORTS) || closing == CONFIRMING;
    if (!agreeing || !atomic_load(&v->closing_agreement.done))
        return PCOLL_OK;
    if (closing == CONFIRMING)
        MOMENT("confirmed");
    if (closing == CONFIRMING)
        return closed(v);
    MOMENT(closing == ENTERING ? "closing entered" : "closing counted");
    atomic_store(&v->closing, closing + 1);
    if (closing == ENTERING) {
        v->closing_rounds = v->drives ? v->engine.current + has_begun(v) : 0;
        return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
    }
    int rc = closing == COUNTING ? check_rounds(v) : PCOLL_OK;
    if (closing == REPORTS || rc != PCOLL_OK)
        return rc;
    if (v->trigger.reports_sent)
        return agree_to_close(v, v->trigger.reports_sent, (int)v->placement.domains,
                              AGREE_SUM);
    atomic_store(&v->closing, DRAINING);
    return PCOLL_OK;
}

int endpoint_enter_closing(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) == QUEUED);
    MOMENT("closing begun");
    atomic_store(&v->closing, ENTERING);
    v->closing_rounds = 0; /* nothing to agree on yet: a barrier */
    return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}
