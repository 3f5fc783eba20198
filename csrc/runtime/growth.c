/* SPDX-License-Identifier: Apache-2.0 */
/* Growth; see recovery.h. */
#include "base/check.h"
#include "base/error.h"
#include "runtime/process.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_recovery.h"

/* The failure of this thread, to be reported after calls that may fail differently. */
struct growth_failure {
    int rc;
    struct reason reason;
    struct failed_ranks who;
};

static struct growth_failure growth_note(int rc)
{
    struct growth_failure f = {.rc = rc, .who = *fail_last_ranks()};
    fail_reason(&f.reason);
    return f;
}

static int growth_fail(const struct growth_failure *f)
{
    return f->rc == PCOLL_EFAILED ? fail_ranks(&f->who)
                                  : fail(f->rc, "%s", f->reason.text);
}

/* Do not wait for the end of an outage: ranks that have not met it would wait for this one. */
static int growth_pause(struct growth *g)
{
    int rc = communicator_check(g->from);
    if (rc != PCOLL_OK)
        return rc;
    if (!outage_try_enter(g->from->outage))
        return outage_error(g->from->outage);
    progress_remove(g->from->progress, &g->from->source);
    g->paused = true;
    return PCOLL_OK;
}

static void growth_resume(struct growth *g)
{
    if (!g->paused)
        return;
    g->paused = false;
    progress_add(g->from->progress, &g->from->source);
    outage_leave(g->from->outage);
    progress_notify(g->from->progress);
}

/* This thread enters the outage before the driver knows the communicator, so nothing recovers. */
static int growth_make_communicator(struct growth *g, struct transport *t,
                                    struct progress *p)
{
    int rc = communicator_create(t, p, &g->to) ?: recovery_attach(g->to);
    if (rc != PCOLL_OK)
        return rc;
    outage_enter(g->to->outage);
    progress_add(p, &g->to->source);
    process_adopt(g->to);
    return PCOLL_OK;
}

enum { GROWTH_MADE = 1, GROWTH_NO_DEATH = 2 };

static int growth_settle_on(struct transport *t, struct outage *o,
                            const struct growth_failure *own)
{
    int rc = own->rc;
    /* All ranks have found a mismatch together, and some may still have to be told. */
    bool found_by_all = rc == PCOLL_EMISMATCH || rc == PCOLL_EINVAL;
    if (rc != PCOLL_OK && !found_by_all)
        mpi_revoke(t);
    bool died = rc == PCOLL_EFAILED || outage_now(o);
    int bits = (rc == PCOLL_OK ? GROWTH_MADE : 0) | (died ? 0 : GROWTH_NO_DEATH);
    int agreed = mpi_agree_bits(t, &bits);
    bool all_live = agreed == PCOLL_OK && (bits & GROWTH_NO_DEATH);
    if (rc == PCOLL_EFAILED || (rc != PCOLL_OK && (all_live || found_by_all)))
        return growth_fail(own);
    if (agreed != PCOLL_OK || (bits & GROWTH_MADE))
        return agreed;
    if (outage_now(o))
        return outage_error(o);
    return bits & GROWTH_NO_DEATH
               ? fail(PCOLL_ENOMEM, "another rank could not take part")
               : fail_ranks(&(struct failed_ranks){0});
}

int growth_settle(struct growth *g, int rc)
{
    struct growth_failure own = growth_note(rc);
    return growth_settle_on(g->to->transport, g->to->outage, &own);
}

int growth_refuse(const void *comm)
{
    return mpi_all_have(comm, process_watch(),
                        fail(PCOLL_EINVAL, "this rank has refused to take part"));
}

int growth_begin(struct growth *g, const void *comm, const uint32_t *numbers,
                 uint32_t ranks)
{
    struct progress *p;
    struct transport *t = NULL;
    int rc = process_progress(&p);
    CHECK(rc == PCOLL_OK || !g->from);
    if (rc == PCOLL_OK && g->from)
        rc = growth_pause(g);
    MOMENT("paused");
    if (rc != PCOLL_OK && !g->from)
        return rc;
    struct growth_failure own = growth_note(rc);
    rc = mpi_regroup(comm, numbers, ranks, progress_doorbell(p), process_watch(), &t);
    if (!t) {
        growth_resume(g);
        return rc;
    }
    MOMENT("regrouped");
    if (own.rc == PCOLL_OK)
        own = growth_note(rc ?: growth_make_communicator(g, t, p));
    rc = growth_settle_on(t, g->to ? g->to->outage : NULL, &own);
    if (rc != PCOLL_OK)
        growth_cancel(g);
    return rc;
}

/* The shell of a communicator that the program has an MPI_Comm of stays until that is freed. */
static void growth_discard(struct communicator *c, struct communicator *keeper)
{
    recovery_discard(c, keeper);
    process_disown(c);
    if (c->abandoned)
        communicator_destroy(&c);
}

void growth_cancel(struct growth *g)
{
    CHECK(g->from || !g->paused);
    if (g->to && g->to->outage)
        growth_discard(g->to, g->from);
    g->to = NULL;
    growth_resume(g);
}

/* End what was under way on the old communicator. */
static void growth_leave(struct growth *g)
{
    struct communicator *from = g->from;
    CHECK(g->paused);
    g->paused = false;
    if (!from->handles) {
        growth_discard(from, g->to);
        return;
    }
    outage_begin(from->outage, &(struct failed_ranks){0});
    outage_leave(from->outage);
}

void growth_commit(struct growth *g)
{
    if (g->from)
        growth_leave(g);
    outage_leave(g->to->outage);
}
