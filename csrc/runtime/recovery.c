/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that recovers, and its life; see recovery.h. */
#include "runtime/recovery.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/thread.h"
#include "runtime/agreement.h"
#include "runtime/recovery_state.h"
#include "runtime/user_object.h"
#include "transport/mpi/mpi_recovery.h"

struct grave {
    void (*end)(void *);
    void *what;
    uint32_t after; /* so many have been retired */
    struct grave *next;
};

void graves_init(struct graves *g)
{
    CHECK(g);
    *g = (struct graves){0};
    lock_init(&g->mutex, LOCK_RETIRED);
}

void graves_destroy(struct graves *g)
{
    CHECK(g);
    lock_destroy(&g->mutex);
}

void graves_add(struct graves *g, void (*end)(void *), void *what, bool in_use)
{
    CHECK(end && what);
    struct grave *grave = malloc(sizeof *grave);
    if (!grave)
        return; /* lost */
    lock_take(&g->mutex);
    *grave = (struct grave){.end = end, .what = what, .after = g->retired + in_use};
    grave->next = g->first;
    g->first = grave;
    lock_release(&g->mutex);
}

void graves_retire(struct graves *g, struct transport *t)
{
    CHECK(t);
    lock_take(&g->mutex);
    g->retired++;
    lock_release(&g->mutex);
    if (g->olds < GRAVES_TRANSPORTS)
        g->old[g->olds++] = t;
}

/* One whose time has come. */
static struct grave *graves_take(struct graves *g)
{
    lock_take(&g->mutex);
    struct grave **at = &g->first;
    while (*at && (*at)->after > g->retired)
        at = &(*at)->next;
    struct grave *grave = *at;
    if (grave)
        *at = grave->next;
    lock_release(&g->mutex);
    return grave;
}

/* Transports whose requests are over by now go, and when all have, so does what they may have
 * written to. */
void graves_bury(struct graves *g)
{
    CHECK(g->olds >= 0);
    struct grave *grave;
    int kept = 0;
    for (int i = 0; i < g->olds; i++)
        if (!mpi_abandon(g->old[i]))
            g->old[kept++] = g->old[i];
    g->olds = kept;
    while (!kept && (grave = graves_take(g))) {
        grave->end(grave->what);
        free(grave);
    }
}

void graves_leave(struct graves *g, struct graves *heir)
{
    CHECK(g != heir);
    struct grave *grave;
    for (int i = 0; i < g->olds; i++)
        graves_retire(heir, g->old[i]);
    g->olds = 0;
    while ((grave = graves_take(g))) {
        graves_add(heir, grave->end, grave->what, false);
        free(grave);
    }
}

/* Who goes on when ranks have died, and whether anybody does; see recovery.h. */

int recovery_last_word(struct recovery *r)
{
    CHECK(r->current);
    int bits = (atomic_load(&r->parting) ? PARTING : 0) | (r->able ? ABLE : 0) |
               (mpi_has_lost_hosts(r->current) ? 0 : WHOLE);
    int rc = mpi_agree_bits(r->current, &bits);
    r->parted = rc == PCOLL_OK && (bits & PARTING);
    r->whole = bits & WHOLE;
    if (rc == PCOLL_OK && !(bits & ABLE))
        rc = fail(PCOLL_ENOMEM, "ranks have died, and not all others could go on%s%s",
                  *r->why.text ? ": " : "", r->why.text);
    bool unanswered = rc == PCOLL_EFAILED && !mpi_has_lost_hosts(r->current);
    r->over = r->parted || (rc != PCOLL_OK && !unanswered);
    return rc;
}

bool recovery_may_go_on(const struct recovery *r, const struct transport *before,
                        const struct transport *left)
{
    CHECK(left->living <= before->living);
    uint64_t twice = 2 * (uint64_t)left->living;
    return r->whole || twice > before->living ||
           (twice == before->living &&
            transport_lowest(before) == transport_lowest(left));
}

int recovery_check_hosts(struct recovery *r)
{
    CHECK(r->current);
    if (!mpi_has_lost_hosts(r->current))
        return PCOLL_OK;
    struct failed_ranks lost = *fail_last_ranks();
    uint32_t living = r->current->living;
    uint64_t twice = 2 * ((uint64_t)living - (uint32_t)lost.count);
    bool has_first = (uint32_t)lost.rank[0] != transport_lowest(r->current);
    if (twice > living || (twice == living && has_first))
        return mpi_await_deaths(r->current);
    return fail_ranks(&lost);
}

/* Nobody drives while the lock is held, and nobody polls a communicator that has
 * stopped. */
static void recovery_await_driver(struct communicator *c)
{
    progress_lock(c->progress);
    progress_unlock(c->progress);
}

/* Nobody polls it any more. Its transport may still write to what belongs to it. */
static void recovery_set_aside(struct recovery *r, struct communicator *to)
{
    progress_remove(to->progress, &to->source);
    to->next_spent = r->spent;
    r->spent = to;
}

/* All have agreed on the last step there; who then met a death has told of it there, and it must
 * not be overlooked: nothing comes there a second time. */
static int recovery_check_last_step(struct communicator *to, int rc)
{
    if (rc == PCOLL_OK)
        rc = communicator_check(to);
    if (rc != PCOLL_OK)
        communicator_forget(to);
    return rc;
}

static int recovery_attempt(struct communicator *c, struct recovery *r)
{
    struct transport *t;
    struct communicator *to;
    uint64_t given;
    int rc = recovery_check_hosts(r);
    r->over = rc != PCOLL_OK;
    if (r->over)
        return rc;
    mpi_revoke(r->current);
    MOMENT("revoked");
    int heard = recovery_last_word(r);
    MOMENT("last word");
    if (r->over)
        return heard;
    rc = mpi_shrink(r->current, progress_doorbell(c->progress), &t);
    if (!t)
        return rc;
    MOMENT("shrunk");
    r->over = !recovery_may_go_on(r, r->current, t);
    graves_retire(&r->graves, r->current);
    r->current = t;
    if (r->over)
        return outage_error(c->outage);
    rc = rc == PCOLL_OK ? heard : rc;
    if (rc != PCOLL_OK) /* who waits there for this rank is told, and comes, too */
        mpi_revoke(t);
    /* Also by who begins again: others do not, and agreements of one and the other that meet
     * there end with arbitrary outcomes. */
    int given_rc = mpi_give_comm(t, &given);
    rc = rc == PCOLL_OK ? given_rc : rc;
    if (rc == PCOLL_OK)
        rc = communicator_create(t, c->progress, &to);
    if (rc != PCOLL_OK)
        return rc;
    progress_add(c->progress, &to->source);
    rc = recovery_build(to, r);
    recovery_set_aside(r, to);
    rc = recovery_check_last_step(to, rc);
    if (rc != PCOLL_OK)
        return rc;
    MOMENT("all inherited");
    communicator_take_over(c, to);
    r->given = given;
    r->gave = true;
    return PCOLL_OK;
}

/* A failure that is not a death would come again: the others must not wait for one who
 * cannot. A death shows in other errors, too: the memory of a leader who is gone. */
static int recovery_try(struct communicator *c, struct recovery *r, bool able)
{
    int rc;
    uint32_t most = 2 * c->transport->size + 8;
    r->able = able;
    r->over = false;
    for (uint32_t i = 0; (rc = recovery_attempt(c, r)) != PCOLL_OK && !r->over; i++) {
        bool again = rc == PCOLL_EFAILED || mpi_is_damaged(r->current);
        if (r->able && (!again || i >= most))
            fail_reason(&r->why);
        r->able = r->able && again && i < most;
    }
    return rc;
}

static void recovery_run(struct communicator *c, struct recovery *r)
{
    MOMENT("outage begun");
    recovery_await_driver(c);
    progress_remove(c->progress, &c->source);
    r->current = c->transport;
    if (recovery_check_hosts(r) == PCOLL_OK) { /* before anybody is waited for */
        mpi_revoke(r->current);
        if (r->gave)
            mpi_revoke_comm(&r->given);
    }
    outage_await_calls(c->outage);
    progress_remove(c->progress, &c->source); /* a growth that failed has put it back */
    if (r->called_off) {
        outage_give_up(c->outage);
        outage_end(c->outage);
        return;
    }
    int rc = recovery_list_objects(c, r);
    if (rc != PCOLL_OK)
        fail_reason(&r->why);
    CHECK(outage_now(c->outage));
    for (uint32_t i = 0; i < r->count; i++)
        if (r->objects[i]->kind->recoverable->stop)
            r->objects[i]->kind->recoverable->stop(r->objects[i]);
    graves_bury(&r->graves);
    outage_take_turn(c->outage);
    rc = recovery_try(c, r, rc == PCOLL_OK);
    if (rc == PCOLL_OK && !r->parted)
        recovery_go_on(c, r);
    if (rc != PCOLL_OK || r->parted) {
        outage_give_up(c->outage);
        communicator_fail_undriven(c, rc == PCOLL_OK ? outage_error(c->outage) : rc);
    }
    MOMENT("gone on");
    progress_add(c->progress, &c->source);
    outage_end(c->outage);
    progress_notify(c->progress);
    progress_lock(c->progress);
    progress_wake_waiters(c->progress);
    progress_unlock(c->progress);
}

static void *recovery_main(void *arg)
{
    struct communicator *c = arg;
    while (outage_await(c->outage))
        recovery_run(c, c->recovery);
    return NULL;
}

int recovery_attach(struct communicator *c)
{
    CHECK(!c->recovery && !c->outage);
    c->recovery = calloc(1, sizeof *c->recovery);
    c->outage = malloc(sizeof *c->outage);
    if (!c->recovery || !c->outage) {
        free(c->recovery);
        free(c->outage);
        c->recovery = NULL;
        c->outage = NULL;
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    }
    outage_init(c->outage);
    graves_init(&c->recovery->graves);
    if (thread_start(&c->recovery->thread, recovery_main, c) == 0)
        return PCOLL_OK;
    recovery_detach(c);
    return fail(PCOLL_ENOMEM, "the thread that recovers could not be started");
}

void recovery_bury(struct communicator *c, void (*end)(void *), void *what, bool in_use)
{
    CHECK(c->recovery && what);
    graves_add(&c->recovery->graves, end, what, in_use);
}

void recovery_begin_parting(struct communicator *c)
{
    if (c->recovery)
        atomic_store(&c->recovery->parting, true);
}

/* Wait until the thread that recovers has ended. */
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

bool recovery_part(struct communicator *c, bool all)
{
    struct recovery *r = c->recovery;
    uint64_t nothing = 0;
    if (!r)
        return true;
    while (!all && atomic_load(&c->failure) == PCOLL_OK) {
        outage_enter(c->outage); /* one that is under way is over */
        outage_leave(c->outage);
        all = agree_max(c, &nothing, 1) == PCOLL_OK;
    }
    recovery_join(c);
    int bits = PARTING | ABLE;
    bool usable = atomic_load(&c->failure) == PCOLL_OK;
    if (usable)
        mpi_agree_bits(c->transport, &bits);
    graves_bury(&r->graves);
    return usable;
}

void recovery_discard(struct communicator *c, struct communicator *heir)
{
    struct recovery *r = c->recovery;
    CHECK(r && !c->handles);
    progress_remove(c->progress, &c->source);
    r->called_off = true;
    outage_leave(c->outage);
    recovery_join(c);
    mpi_revoke(c->transport);
    graves_retire(&r->graves, c->transport);
    communicator_abandon(c);
    if (heir) /* else what MPI writes to is lost */
        graves_leave(&r->graves, &heir->recovery->graves);
    recovery_detach(c);
}

void recovery_detach(struct communicator *c)
{
    struct recovery *r = c->recovery;
    if (!r)
        return;
    while (r->spent) {
        struct communicator *spent = r->spent;
        r->spent = spent->next_spent;
        spent->transport = NULL;
        communicator_destroy(&spent);
    }
    free(r->objects);
    graves_destroy(&r->graves);
    free(r);
    outage_destroy(c->outage);
    free(c->outage);
    c->recovery = NULL;
    c->outage = NULL;
}

const void *recovery_comm(const struct communicator *c)
{
    CHECK(c);
    return c->recovery && c->recovery->gave ? &c->recovery->given : NULL;
}
