/* SPDX-License-Identifier: Apache-2.0 */
/* See recovery.h. */
#include "runtime/recovery.h"

#include "base/check.h"
#include "base/error.h"
#include "runtime/process.h"
#include "transport/mpi/mpi_recovery.h"

/* Who waits for the end of an outage here would keep others waiting who have not met it. */
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

/* This thread is inside its outage from the beginning, so nothing recovers. */
static int growth_make_communicator(struct growth *g, struct transport *t,
                                    struct progress *p)
{
    int rc = communicator_create(t, p, &g->to);
    if (rc == PCOLL_OK)
        rc = recovery_attach(g->to);
    if (rc != PCOLL_OK)
        return rc;
    bool entered = outage_try_enter(g->to->outage);
    CHECK(entered); /* nobody polls it yet, so no failure has been met */
    (void)entered;
    progress_add(p, &g->to->source);
    return process_adopt(g->to);
}

enum { MADE = 1, NOBODY_DIED = 2 };

static int growth_settle_on(struct transport *t, struct outage *met, int rc)
{
    struct reason reason;
    struct failed_ranks who = *fail_last_ranks();
    fail_reason(&reason);
    /* Who differs from others has found that with all of them, and some may still be told. */
    if (rc != PCOLL_OK && rc != PCOLL_EMISMATCH && rc != PCOLL_EINVAL)
        mpi_revoke(t);
    bool died = rc == PCOLL_EFAILED || outage_now(met);
    int bits = (rc == PCOLL_OK ? MADE : 0) | (died ? 0 : NOBODY_DIED);
    int agreed = mpi_agree_bits(t, &bits);
    bool all_live = agreed == PCOLL_OK && (bits & NOBODY_DIED);
    if (rc == PCOLL_EFAILED)
        return fail_ranks(&who);
    if (rc != PCOLL_OK && (all_live || rc == PCOLL_EMISMATCH || rc == PCOLL_EINVAL))
        return fail(rc, "%s", reason.text);
    if (agreed != PCOLL_OK || (bits & MADE))
        return agreed;
    if (outage_now(met))
        return outage_error(met);
    return bits & NOBODY_DIED ? fail(PCOLL_ENOMEM, "another rank could not take part")
                              : fail_ranks(&(struct failed_ranks){0});
}

int growth_settle(struct growth *g, int rc)
{
    CHECK(g->to);
    return growth_settle_on(g->to->transport, g->to->outage, rc);
}

int growth_refuse(const void *comm)
{
    CHECK(comm);
    return mpi_all_have(comm, process_watch(),
                        fail(PCOLL_EINVAL, "this rank has refused to take part"));
}

int growth_begin(struct growth *g, const void *comm, const uint32_t *numbers,
                 uint32_t ranks)
{
    struct progress *p;
    struct transport *t = NULL;
    int local = process_progress(&p);
    CHECK(local == PCOLL_OK || !g->from);
    if (local == PCOLL_OK && g->from)
        local = growth_pause(g);
    MOMENT("paused");
    if (local != PCOLL_OK && !g->from)
        return local;
    struct reason reason;
    struct failed_ranks who = *fail_last_ranks();
    fail_reason(&reason);
    int rc =
        mpi_regroup(comm, numbers, ranks, progress_doorbell(p), process_watch(), &t);
    if (!t) {
        growth_resume(g);
        return rc;
    }
    MOMENT("regrouped");
    if (local == PCOLL_EFAILED)
        rc = fail_ranks(&who);
    else if (local != PCOLL_OK)
        rc = fail(local, "%s", reason.text);
    if (rc == PCOLL_OK)
        rc = growth_make_communicator(g, t, p);
    rc = growth_settle_on(t, g->to ? g->to->outage : NULL, rc);
    if (rc != PCOLL_OK)
        growth_cancel(g);
    return rc;
}

/* One that the program has a communicator for stays, as a shell, until that goes. */
static void growth_discard(struct communicator *c, struct communicator *heir)
{
    recovery_discard(c, heir);
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

/* What happened there is over, or begins anew. */
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
    CHECK(g->to);
    if (g->from)
        growth_leave(g);
    outage_leave(g->to->outage);
}
