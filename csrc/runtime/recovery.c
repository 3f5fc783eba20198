/* SPDX-License-Identifier: Apache-2.0 */
/* See recovery.h. */
#include "runtime/recovery.h"

#include <stdlib.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "base/moment.h"
#include "base/thread.h"
#include "runtime/agreement.h"
#include "runtime/graves.h"
#include "runtime/user_object.h"
#include "transport/mpi/recovery.h"

enum { PARTING = 1, ABLE = 2, WHOLE = 4 }; /* the last word */

struct recovery {
    pthread_t thread;
    uint64_t given; /* an MPI_Comm */
    bool gave;
    _Atomic bool parting;      /* this rank is at the end; … */
    bool parted;               /* … all are, as a recovery has found */
    bool called_off;           /* there is nothing to recover */
    bool able;                 /* else it cannot recover, and nobody does */
    struct reason why;         /* it cannot; empty: it can */
    bool whole;                /* no host is lost, as far as those who are left know */
    bool over;                 /* that has been agreed */
    struct transport *current; /* of the last epoch, or attempt */
    struct graves graves;
    struct communicator *spent; /* of earlier attempts, through next_spent */
    struct user_object **objects;
    uint32_t count;
};

/* Nobody drives while the lock is held, and nobody polls a communicator that has
 * stopped. */
static void await_driver(struct communicator *c)
{
    progress_lock(c->progress);
    progress_unlock(c->progress);
}

struct listing {
    struct communicator *communicator;
    struct user_object **objects; /* NULL: only count */
    uint32_t count;
};

static void list_object(struct entry *entry, void *arg)
{
    struct listing *l = arg;
    struct user_object *o = (struct user_object *)entry;
    if (o->communicator != l->communicator || !atomic_load(&o->object))
        return;
    if (l->objects)
        l->objects[l->count] = o;
    l->count++;
}

static int list_objects(struct communicator *c, struct recovery *r)
{
    struct listing l = {.communicator = c};
    entries_each(list_object, &l);
    free(r->objects);
    r->count = 0;
    r->objects = calloc(l.count + 1, sizeof *r->objects);
    if (!r->objects)
        return fail(PCOLL_ENOMEM, "no memory to recover %u objects", l.count);
    l = (struct listing){.communicator = c, .objects = r->objects};
    entries_each(list_object, &l);
    r->count = l.count;
    return PCOLL_OK;
}

static uint32_t slot_of(const struct user_object *o)
{
    return o->entry.slot;
}

/* Its words are to be freed. */
static int take_census(struct communicator *to, const struct recovery *r,
                       struct census *s)
{
    uint64_t slots = 1;
    for (uint32_t i = 0; i < r->count; i++)
        slots = slot_of(r->objects[i]) < slots ? slots : slot_of(r->objects[i]) + 1;
    int rc = agree_max(to, &slots, 1);
    if (rc != PCOLL_OK)
        return rc;
    uint64_t *words = calloc(CENSUS_WORDS * slots, sizeof *words);
    if (!words)
        return communicator_fail(
            to, fail(PCOLL_ENOMEM, "no memory for %u objects", (uint32_t)slots));
    census_begin(s, words, slots);
    for (uint32_t i = 0; i < r->count; i++) {
        struct user_object *o = r->objects[i];
        census_note(s, slot_of(o), o->kind->recoverable->complete(o),
                    to->transport->rank);
    }
    return agree_max(to, words, (int)(CENSUS_WORDS * slots));
}

/* Nobody is left to close it with. */
static void orphan(struct user_object *o)
{
    o->kind->recoverable->orphan(o);
    if (atomic_load(&o->closing))
        atomic_store(&atomic_load(&o->object)->closed, true);
}

static int rebuild(struct communicator *to, struct recovery *r, const struct census *s)
{
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < r->count && rc == PCOLL_OK; i++) {
        struct user_object *o = r->objects[i];
        uint32_t slot = slot_of(o);
        struct recovery_plan plan = census_plan(s, slot);
        if (s->lacking[slot])
            orphan(o);
        else
            rc = o->kind->recoverable->rebuild(o, to, &plan);
    }
    return rc;
}

/* Each has its slot again, also one that has no successor. */
static int inherit(struct communicator *to, struct recovery *r, const struct census *s)
{
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < r->count; i++) {
        struct user_object *o = r->objects[i];
        struct object *object = atomic_load(&o->object);
        int moved = s->lacking[slot_of(o)] ? PCOLL_OK
                                           : o->kind->recoverable->inherit(o, &object);
        progress_lock(to->progress);
        int entered = communicator_register(to, object, slot_of(o));
        progress_unlock(to->progress);
        rc = rc != PCOLL_OK ? rc : moved != PCOLL_OK ? moved : entered;
    }
    return rc == PCOLL_OK ? rc : communicator_fail(to, rc);
}

static int barrier(struct communicator *to)
{
    uint64_t nothing = 0;
    return agree_max(to, &nothing, 1);
}

static int build(struct communicator *to, struct recovery *r)
{
    struct census s = {0};
    int rc = take_census(to, r, &s);
    MOMENT("census taken");
    if (rc == PCOLL_OK)
        rc = rebuild(to, r, &s);
    MOMENT("rebuilt");
    if (rc == PCOLL_OK)
        rc = barrier(to);
    MOMENT("all rebuilt");
    if (rc == PCOLL_OK)
        rc = inherit(to, r, &s);
    MOMENT("inherited");
    if (rc == PCOLL_OK)
        rc = barrier(to);
    free(s.lacking);
    return rc;
}

/* Its transport may still write to what belongs to it. */
static void set_aside(struct recovery *r, struct communicator *to)
{
    progress_remove(to->progress, &to->source);
    to->next_spent = r->spent;
    r->spent = to;
}

/* Is there something to go on for, and can all? Who has no answer goes on with the others, to ask
 * them again. */
static int last_word(struct recovery *r)
{
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

static uint32_t first_of(const struct transport *t)
{
    uint32_t rank = 0;
    while (t->failed && bitset_has(t->failed, rank))
        rank++;
    return rank;
}

/* A host of which nothing is heard may be going on by itself. So those go on who are most; of
 * two halves the one with the lowest rank. */
static bool may_go_on(const struct recovery *r, const struct transport *before,
                      const struct transport *left)
{
    uint64_t twice = 2 * (uint64_t)left->living;
    return r->whole || twice > before->living ||
           (twice == before->living && first_of(before) == first_of(left));
}

/* Those on lost hosts left out, is that enough to go on? And does MPI leave them out? What it
 * would send to them may wait for ever inside of MPI. */
static int check_hosts(struct recovery *r)
{
    if (!mpi_has_lost_hosts(r->current))
        return PCOLL_OK;
    struct failed_ranks lost = *fail_last_ranks();
    uint32_t living = r->current->living;
    uint64_t twice = 2 * ((uint64_t)living - (uint32_t)lost.count);
    bool has_first = (uint32_t)lost.rank[0] != first_of(r->current);
    if (twice > living || (twice == living && has_first))
        return mpi_await_deaths(r->current);
    return fail_ranks(&lost);
}

static int attempt(struct communicator *c, struct recovery *r)
{
    struct transport *t;
    struct communicator *to;
    uint64_t given;
    int rc = check_hosts(r);
    r->over = rc != PCOLL_OK;
    if (r->over)
        return rc;
    mpi_revoke(r->current);
    MOMENT("revoked");
    int heard = last_word(r);
    MOMENT("last word");
    if (r->over)
        return heard;
    rc = mpi_shrink(r->current, progress_doorbell(c->progress), &t);
    if (!t)
        return rc;
    MOMENT("shrunk");
    r->over = !may_go_on(r, r->current, t);
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
    rc = build(to, r);
    set_aside(r, to);
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
static int try(struct communicator *c, struct recovery *r, bool able)
{
    int rc;
    uint32_t most = 2 * c->transport->size + 8;
    r->able = able;
    r->over = false;
    for (uint32_t i = 0; (rc = attempt(c, r)) != PCOLL_OK && !r->over; i++) {
        bool again = rc == PCOLL_EFAILED || mpi_is_damaged(r->current);
        if (r->able && (!again || i >= most))
            fail_reason(&r->why);
        r->able = r->able && again && i < most;
    }
    return rc;
}

static void go_on(struct communicator *c, struct recovery *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        r->objects[i]->kind->recoverable->go(r->objects[i], c);
}

static void recover(struct communicator *c, struct recovery *r)
{
    MOMENT("outage begun");
    await_driver(c);
    progress_remove(c->progress, &c->source);
    r->current = c->transport;
    if (check_hosts(r) == PCOLL_OK) { /* before anybody is waited for */
        mpi_revoke(r->current);
        if (r->gave)
            mpi_revoke_comm(&r->given);
    }
    outage_await_calls(c->outage);
    if (r->called_off) {
        outage_give_up(c->outage);
        outage_end(c->outage);
        return;
    }
    int rc = list_objects(c, r);
    if (rc != PCOLL_OK)
        fail_reason(&r->why);
    for (uint32_t i = 0; i < r->count; i++)
        r->objects[i]->kind->recoverable->stop(r->objects[i]);
    graves_bury(&r->graves);
    outage_take_turn(c->outage);
    rc = try(c, r, rc == PCOLL_OK);
    if (rc == PCOLL_OK && !r->parted)
        go_on(c, r);
    if (rc != PCOLL_OK || r->parted) {
        outage_give_up(c->outage);
        communicator_fail(c, rc == PCOLL_OK ? outage_error(c->outage) : rc);
    }
    MOMENT("gone on");
    progress_add(c->progress, &c->source);
    outage_end(c->outage);
    progress_notify(c->progress);
    progress_wake_waiters(c->progress);
}

static void *recovery_main(void *arg)
{
    struct communicator *c = arg;
    while (outage_await(c->outage))
        recover(c, c->recovery);
    return NULL;
}

int recovery_attach(struct communicator *c)
{
    CHECK(!c->recovery && !c->outage);
    c->recovery = calloc(1, sizeof *c->recovery);
    c->outage = malloc(sizeof *c->outage);
    if (!c->recovery || !c->outage)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    outage_init(c->outage);
    graves_init(&c->recovery->graves);
    if (thread_start(&c->recovery->thread, recovery_main, c) == 0)
        return PCOLL_OK;
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
    outage_cease(c->outage);
    pthread_join(r->thread, NULL);
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
    outage_cease(c->outage);
    pthread_join(r->thread, NULL);
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
