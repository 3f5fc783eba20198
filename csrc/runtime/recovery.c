/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that recovers, its decisions, and the end of what recovers; see recovery.h. */
#include "runtime/recovery.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/agreement.h"
#include "runtime/user_object.h"
#include "transport/mpi/mpi_transport.h"

/* The bits of a vote. Each is set in the outcome if all ranks set it. */
enum {
    RECOVERY_PARTING = 1, /* The rank is in MPI_Finalize. */
    RECOVERY_ABLE = 2,    /* The rank can recover. */
    RECOVERY_WHOLE = 4    /* The rank knows of no lost host. */
};

/* More retired transports are never freed. */
enum { RECOVERY_TRANSPORTS = 64 };

/* Memory that MPI may still write to. */
struct retired {
    void (*end)(void *);
    void *what;
    uint32_t after; /* Transports that must have been retired first. */
    struct retired *next;
};

struct recovery {
    struct outage outage; /* The communicator points to it. */
    pthread_t thread;
    uint64_t given;  /* An MPI_Comm for the program, … */
    bool gave;       /* … if this is set. */
    bool called_off; /* The communicator is discarded: there is nothing to recover. */
    struct user_object *objects; /* Those of the communicator, by slot. */

    /* The present outage. */
    struct transport *current; /* The one of the last attempt, or epoch. */
    bool able;                 /* This rank can recover; if one cannot, no rank does. */
    struct reason why;         /* Why it cannot. */
    bool over;                 /* There is no further attempt. */
    bool parted;               /* All ranks are in MPI_Finalize. */
    bool whole;                /* No rank that is left knows of a lost host. */
    struct communicator *spent; /* Those of earlier attempts. */

    /*
     * Deferred reclamation. Requests of an earlier transport may still be incomplete, and MPI
     * may write to their buffers. The transport is freed, and then the memory, one epoch later
     * than their last use: Open MPI ends the process when the rest of a request fails after it
     * was freed, and a request may be complete for the program before it is for MPI.
     *
     * The recovery and the application push memory to the list; the recovery takes it as a whole.
     * Only the recovery, or a thread that keeps others from it, retires transports and frees both.
     */
    struct retired *_Atomic retired;
    struct transport *old[RECOVERY_TRANSPORTS];
    int olds;
    _Atomic uint32_t transports; /* Retired so far. */
};

static void recovery_push(struct recovery *r, struct retired *retired)
{
    retired->next = atomic_load(&r->retired);
    while (!atomic_compare_exchange_weak(&r->retired, &retired->next, retired))
        ;
}

void recovery_retire(struct communicator *c, void (*end)(void *), void *what,
                     bool in_use)
{
    CHECK(c->recovery && end && what);
    struct retired *retired = malloc(sizeof *retired);
    if (!retired)
        return; /* `what` is lost. */
    *retired = (struct retired){
        .end = end, .what = what, .after = c->recovery->transports + in_use};
    recovery_push(c->recovery, retired);
}

static void recovery_retire_transport(struct recovery *r, struct transport *t)
{
    r->transports++;
    if (r->olds < RECOVERY_TRANSPORTS)
        r->old[r->olds++] = t;
}

/* Free the retired transports whose requests are complete, and if none is left, their memory. */
static void recovery_reclaim(struct recovery *r)
{
    int kept = 0;
    for (int i = 0; i < r->olds; i++)
        if (!mpi_abandon(r->old[i]))
            r->old[kept++] = r->old[i];
    r->olds = kept;
    struct retired *retired = kept ? NULL : atomic_exchange(&r->retired, NULL), *next;
    for (; retired; retired = next) {
        next = retired->next;
        if (retired->after > r->transports) {
            recovery_push(r, retired);
            continue;
        }
        retired->end(retired->what);
        free(retired);
    }
}

/* Decisions. */

/* Agree on whether to recover, and whether all ranks can. Without an answer ask again later. */
static int recovery_vote(const struct communicator *c, struct recovery *r)
{
    int bits = (atomic_load(&c->parts) ? RECOVERY_PARTING : 0) |
               (r->able ? RECOVERY_ABLE : 0) |
               (mpi_check_hosts(r->current) == PCOLL_OK ? RECOVERY_WHOLE : 0);
    int rc = mpi_agree_bits(r->current, &bits);
    r->parted = rc == PCOLL_OK && (bits & RECOVERY_PARTING);
    r->whole = bits & RECOVERY_WHOLE;
    if (rc == PCOLL_OK && !(bits & RECOVERY_ABLE))
        rc = fail(PCOLL_ENOMEM, "ranks have died, and not all others could go on%s%s",
                  *r->why.text ? ": " : "", r->why.text);
    bool unanswered = rc == PCOLL_EFAILED && mpi_check_hosts(r->current) == PCOLL_OK;
    r->over = r->parted || (rc != PCOLL_OK && !unanswered);
    return rc;
}

/* Return whether this many ranks are the larger part. A lost host may go on by itself. Therefore
 * only the larger part of the ranks continues, or of two halves the one with the lowest rank. */
static bool recovery_is_most(uint64_t left, uint64_t of, bool has_lowest)
{
    return 2 * left > of || (2 * left == of && has_lowest);
}

/* Return PCOLL_OK if the ranks that are not on a lost host are enough to continue, and MPI
 * leaves the others out: a message to them may block inside of MPI for ever. */
static int recovery_check_hosts(const struct recovery *r)
{
    uint32_t lost, first, living = r->current->living;
    int rc = mpi_count_lost(r->current, &lost, &first);
    if (rc == PCOLL_EFAILED &&
        recovery_is_most(living - lost, living, first != transport_lowest(r->current)))
        return mpi_await_deaths(r->current);
    return rc;
}

/* The thread. */

static int recovery_attempt(struct communicator *c, struct recovery *r)
{
    struct transport *before = r->current, *left;
    struct communicator *to;
    uint64_t given;
    int rc = recovery_check_hosts(r);
    r->over = rc != PCOLL_OK;
    if (r->over)
        return rc;
    mpi_revoke(before);
    MOMENT("revoked");
    int vote = recovery_vote(c, r);
    MOMENT("last word");
    if (r->over)
        return vote;
    rc = mpi_shrink(before, progress_doorbell(c->progress), &left);
    if (!left)
        return rc;
    MOMENT("shrunk");
    CHECK(left->living <= before->living);
    r->over = !r->whole &&
              !recovery_is_most(left->living, before->living,
                                transport_lowest(before) == transport_lowest(left));
    recovery_retire_transport(r, before);
    r->current = left;
    if (r->over)
        return outage_error(c->outage);
    rc = rc ?: vote;
    if (rc != PCOLL_OK) /* A rank that waits there for this one is told, and follows. */
        mpi_revoke(left);
    /* A rank that begins again gives a communicator as well. Otherwise its next agreement could
     * meet an agreement of the ranks that do not, and both would end with arbitrary results. */
    int give = mpi_give_comm(left, &given);
    rc = rc ?: give ?: communicator_create(left, c->progress, &to);
    if (rc != PCOLL_OK)
        return rc;
    progress_add(c->progress, &to->source);
    rc = recovery_build(to, r->objects);
    progress_remove(c->progress, &to->source);
    to->next = r->spent; /* Its transport may still write to what belongs to it. */
    r->spent = to;
    /* The driver may have met a death after the last barrier. Nothing would report it again. */
    rc = rc ?: communicator_check(to);
    if (rc != PCOLL_OK) {
        communicator_forget(to);
        return rc;
    }
    MOMENT("all inherited");
    communicator_take_over(c, to);
    r->given = given;
    r->gave = true;
    return PCOLL_OK;
}

/* Attempt until it works, or until all ranks know that it does not. An error that is not due to a
 * death would occur again, and the others must not wait for a rank that cannot recover. A death
 * shows in other errors, too: the memory of a dead leader is gone. */
static int recovery_attempt_all(struct communicator *c, struct recovery *r)
{
    int rc;
    uint32_t most = 2 * c->transport->size + 8;
    r->able = true;
    r->over = false;
    for (uint32_t i = 0; (rc = recovery_attempt(c, r)) != PCOLL_OK && !r->over; i++) {
        bool again = rc == PCOLL_EFAILED || mpi_check_damage(r->current) != PCOLL_OK;
        if (r->able && (!again || i >= most)) {
            fail_reason(&r->why);
            r->able = false;
        }
    }
    return rc;
}

static void recovery_run(struct communicator *c, struct recovery *r)
{
    MOMENT("outage begun");
    /* The driver has met the failure: wait until it has left the communicator. */
    progress_remove(c->progress, &c->source);
    r->current = c->transport;
    if (recovery_check_hosts(r) == PCOLL_OK) { /* Before waiting for any thread. */
        mpi_revoke(r->current);
        if (r->gave)
            mpi_revoke_comm(&r->given);
    }
    gate_await_empty(&c->outage->gate);
    progress_remove(c->progress, &c->source); /* A growth that failed has added it. */
    if (r->called_off) {
        outage_give_up(c->outage);
        outage_end(c->outage);
        return;
    }
    r->objects = user_object_list(c);
    for (struct user_object *o = r->objects; o; o = o->next_recovered)
        if (o->kind->recoverable->stop)
            o->kind->recoverable->stop(o);
    recovery_reclaim(r);
    outage_take_turn(c->outage);
    int rc = recovery_attempt_all(c, r);
    if (rc != PCOLL_OK || r->parted) {
        outage_give_up(c->outage);
        communicator_fail_undriven(c, rc ?: outage_error(c->outage));
    } else
        for (struct user_object *o = r->objects; o; o = o->next_recovered)
            o->kind->recoverable->go(o, c);
    MOMENT("gone on");
    progress_add(c->progress, &c->source);
    outage_end(c->outage);
    progress_lock(c->progress);
    progress_wake_waiters(c->progress);
    progress_unlock(c->progress); /* This drives once. */
}

static void *recovery_main(void *arg)
{
    struct communicator *c = arg;
    while (outage_await(c->outage))
        recovery_run(c, c->recovery);
    return NULL;
}

/* Beginning and end. */

int recovery_attach(struct communicator *c)
{
    CHECK(!c->recovery && !c->outage);
    struct recovery *r = calloc(1, sizeof *r);
    if (!r)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->recovery = r;
    c->outage = &r->outage;
    outage_init(c->outage);
    if (thread_start(&r->thread, recovery_main, c) == 0)
        return PCOLL_OK;
    recovery_detach(c);
    return fail(PCOLL_ENOMEM, "the thread that recovers could not be started");
}

void recovery_detach(struct communicator *c)
{
    struct recovery *r = c->recovery;
    if (!r)
        return;
    for (struct communicator *spent; (spent = r->spent);) {
        r->spent = spent->next;
        spent->transport = NULL;
        communicator_destroy(&spent);
    }
    gate_destroy(&c->outage->gate);
    free(r);
    c->recovery = NULL;
    c->outage = NULL;
}

static void recovery_join(struct communicator *c)
{
    outage_cease(c->outage);
    pthread_join(c->recovery->thread, NULL);
}

void recovery_stop(struct communicator *c)
{
    if (!c->recovery)
        return;
    recovery_join(c);
    recovery_detach(c);
}

bool recovery_part(struct communicator *c)
{
    if (!c->recovery)
        return true;
    recovery_join(c);
    int bits = RECOVERY_PARTING | RECOVERY_ABLE;
    bool usable = atomic_load(&c->failure) == PCOLL_OK;
    if (usable)
        mpi_agree_bits(c->transport, &bits);
    recovery_reclaim(c->recovery);
    return usable;
}

const void *recovery_comm(const struct communicator *c)
{
    return c->recovery && c->recovery->gave ? &c->recovery->given : NULL;
}

/* Growth; see recovery.h. */

/* Keep the failure of this thread, to be reported after calls that may fail differently. */
static struct failure growth_note(int rc)
{
    struct failure f = fail_keep(rc);
    fail_reason(&f.reason);
    return f;
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

enum { GROWTH_MADE = 1, GROWTH_NO_DEATH = 2 };

int growth_settle(struct growth *g, int rc)
{
    struct failure own = growth_note(rc);
    struct outage *o = g->to ? g->to->outage : NULL;
    /* All ranks have found a mismatch together, and some may still have to be told. */
    bool found_by_all = rc == PCOLL_EMISMATCH || rc == PCOLL_EINVAL;
    if (rc != PCOLL_OK && !found_by_all)
        mpi_revoke(g->transport);
    bool died = rc == PCOLL_EFAILED || outage_now(o);
    int bits = (rc == PCOLL_OK ? GROWTH_MADE : 0) | (died ? 0 : GROWTH_NO_DEATH);
    int agreed = mpi_agree_bits(g->transport, &bits);
    bool all_live = agreed == PCOLL_OK && (bits & GROWTH_NO_DEATH);
    if (rc == PCOLL_EFAILED || (rc != PCOLL_OK && (all_live || found_by_all)))
        return fail_again(&own);
    if (agreed != PCOLL_OK || (bits & GROWTH_MADE))
        return agreed;
    if (outage_now(o))
        return outage_error(o);
    return bits & GROWTH_NO_DEATH
               ? fail(PCOLL_ENOMEM, "another rank could not take part")
               : fail_ranks(&(struct failed_ranks){0});
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
    struct communicator *from = g->from;
    g->transport = NULL;
    int rc = process_progress(&p);
    CHECK(rc == PCOLL_OK || !from);
    if (rc != PCOLL_OK)
        return rc;
    rc = from ? communicator_check(from) : PCOLL_OK;
    /* Do not wait for the recovery: ranks that have not met the failure would wait for this one. */
    if (rc == PCOLL_OK && from && !outage_try_enter(from->outage))
        rc = outage_error(from->outage);
    else if (rc == PCOLL_OK && from) {
        progress_remove(from->progress, &from->source);
        g->paused = true;
    }
    MOMENT("paused");
    struct failure own = growth_note(rc);
    rc = mpi_regroup(comm, numbers, ranks, progress_doorbell(p), process_watch(),
                     &g->transport);
    if (!g->transport) {
        growth_resume(g);
        return rc;
    }
    MOMENT("regrouped");
    if (own.code == PCOLL_OK) {
        rc = rc ?: communicator_create(g->transport, p, &g->to) ?: recovery_attach(g->to);
        if (rc == PCOLL_OK) {
            outage_enter(g->to->outage); /* No driver knows it yet: nothing recovers. */
            progress_add(p, &g->to->source);
            process_adopt(g->to);
        }
        own = growth_note(rc);
    }
    rc = growth_settle(g, fail_again(&own));
    if (rc != PCOLL_OK)
        growth_cancel(g);
    return rc;
}

/* End a communicator without objects on this rank alone, as a thread that is inside (communicator.h).
 * `keeper` frees later what MPI may still write to; NULL: it is lost. The shell of a communicator
 * that the program has an MPI_Comm of stays until that is freed. */
static void growth_discard(struct communicator *c, struct communicator *keeper)
{
    struct recovery *r = c->recovery;
    CHECK(r && !c->handles);
    progress_remove(c->progress, &c->source);
    r->called_off = true;
    outage_leave(c->outage);
    recovery_join(c);
    mpi_revoke(c->transport);
    recovery_retire_transport(r, c->transport);
    communicator_abandon(c);
    for (int i = 0; keeper && i < r->olds; i++)
        recovery_retire_transport(keeper->recovery, r->old[i]);
    struct retired *retired = keeper ? atomic_load(&r->retired) : NULL, *next;
    for (; retired; retired = next) {
        next = retired->next;
        retired->after = keeper->recovery->transports;
        recovery_push(keeper->recovery, retired);
    }
    recovery_detach(c);
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

void growth_commit(struct growth *g)
{
    struct communicator *from = g->from;
    CHECK(!from || g->paused);
    g->paused = false;
    if (from && !from->handles)
        growth_discard(from, g->to);
    else if (from) { /* End what was under way there. */
        outage_begin(from->outage, &(struct failed_ranks){0});
        outage_leave(from->outage);
    }
    outage_leave(g->to->outage);
}
