/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/error.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "runtime/recovery_state.h"
#include "runtime/user_object.h"

/* A claim is a number whose maximum is wanted: among equals the lowest rank. */
enum { RANK_BITS = 20, MAX_RANK = (1 << RANK_BITS) - 1 };

void census_begin(struct census *s, uint64_t *words, uint64_t slots)
{
    CHECK(words);
    *s = (struct census){
        .lacking = words, .claim = words + slots, .least = words + 2 * slots};
    for (uint64_t i = 0; i < slots; i++) {
        s->lacking[i] = 1;
        s->claim[i] = s->least[i] = 0;
    }
}

void census_note(struct census *s, uint32_t slot, uint64_t complete, uint32_t rank)
{
    CHECK(rank <= MAX_RANK);
    s->lacking[slot] = 0;
    s->claim[slot] = complete << RANK_BITS | (MAX_RANK - rank);
    s->least[slot] = ~complete;
}

int census_plan(const struct census *s, uint32_t slot, uint32_t ranks, uint64_t own,
                struct recovery_plan *plan)
{
    uint64_t complete = s->claim[slot] >> RANK_BITS, least = ~s->least[slot];
    uint32_t source = MAX_RANK - (uint32_t)(s->claim[slot] & MAX_RANK);
    bool claimed = s->claim[slot] != 0;
    *plan = (struct recovery_plan){.slot = slot,
                                   .complete = complete,
                                   .source = source,
                                   .some_lack = claimed && least < complete};
    bool sound = claimed ? source < ranks && least <= complete : s->lacking[slot] != 0;
    return sound && own <= complete
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL,
                      "the ranks that are left agreed on %llu rounds of the object in "
                      "slot %u, by rank %u, which cannot be",
                      (unsigned long long)complete, slot, source);
}

/* What becomes of the objects of a communicator when it goes on: census, rebuilding,
 * inheritance, going on; see recovery.h. */

struct listing {
    struct communicator *communicator;
    struct user_object **objects; /* NULL: only count */
    uint32_t count;
};

static void recovery_list_object(struct entry *entry, void *arg)
{
    struct listing *l = arg;
    struct user_object *o = (struct user_object *)entry;
    if (o->communicator != l->communicator || !atomic_load(&o->object))
        return;
    if (l->objects)
        l->objects[l->count] = o;
    l->count++;
}

int recovery_list_objects(struct communicator *c, struct recovery *r)
{
    CHECK(c->recovery == r);
    struct listing l = {.communicator = c};
    entries_each(recovery_list_object, &l);
    free(r->objects);
    r->count = 0;
    r->objects = calloc(l.count + 1, sizeof *r->objects);
    if (!r->objects)
        return fail(PCOLL_ENOMEM, "no memory to recover %u objects", l.count);
    l = (struct listing){.communicator = c, .objects = r->objects};
    entries_each(recovery_list_object, &l);
    r->count = l.count;
    return PCOLL_OK;
}

static uint32_t recovery_slot_of(const struct user_object *o)
{
    return o->entry.slot;
}

/* As much room for all, whoever has something there: votes on who closes are as long. */
static int recovery_reserve(struct communicator *to, uint32_t slots)
{
    progress_lock(to->progress);
    int rc = communicator_reserve(to, slots);
    progress_unlock(to->progress);
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(to, rc);
}

/* Its words are to be freed. */
static int recovery_take_census(struct communicator *to, const struct recovery *r,
                                struct census *s)
{
    uint64_t slots = 1;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct user_object *o = r->objects[i];
        uint64_t end = recovery_slot_of(o) + atomic_load(&o->object)->slots;
        slots = end > slots ? end : slots;
    }
    int rc = agree_max(to, &slots, 1);
    uint32_t most = to->transport->tags / DATA_EDGES;
    if (rc == PCOLL_OK && slots > most)
        rc = communicator_fail_undriven(
            to,
            fail(PCOLL_EPROTOCOL, "the ranks that are left agreed on %llu slots of %u",
                 (unsigned long long)slots, most));
    if (rc == PCOLL_OK)
        rc = recovery_reserve(to, (uint32_t)slots);
    if (rc != PCOLL_OK)
        return rc;
    uint64_t *words = calloc(CENSUS_WORDS * slots, sizeof *words);
    if (!words)
        return communicator_fail_undriven(
            to, fail(PCOLL_ENOMEM, "no memory for %u objects", (uint32_t)slots));
    census_begin(s, words, slots);
    for (uint32_t i = 0; i < r->count; i++) {
        struct user_object *o = r->objects[i];
        if (!o->orphan)
            census_note(s, recovery_slot_of(o), o->kind->recoverable->complete(o),
                        to->transport->rank);
    }
    return agree_max(to, words, (int)(CENSUS_WORDS * slots));
}

/* Nobody is left to close it with; and it stays so: who lacked it may die next, and then nobody
 * would lack it. */
static void recovery_orphan(struct user_object *o)
{
    if (o->kind->recoverable->orphan)
        o->kind->recoverable->orphan(o);
    else
        o->orphan = true;
    CHECK(o->orphan);
    if (atomic_load(&o->closing))
        atomic_store(&atomic_load(&o->object)->closed, true);
}

static int recovery_rebuild(struct communicator *to, struct recovery *r,
                            const struct census *s)
{
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < r->count && rc == PCOLL_OK; i++) {
        struct user_object *o = r->objects[i];
        uint32_t slot = recovery_slot_of(o);
        struct recovery_plan plan;
        if (s->lacking[slot]) {
            recovery_orphan(o);
            continue;
        }
        rc = census_plan(s, slot, to->transport->size,
                         o->kind->recoverable->complete(o), &plan);
        if (rc == PCOLL_OK)
            rc = o->kind->recoverable->rebuild(o, to, &plan);
    }
    return rc;
}

/* Each has its slot again, also one that has no successor. */
static int recovery_inherit(struct communicator *to, struct recovery *r,
                            const struct census *s)
{
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < r->count; i++) {
        struct user_object *o = r->objects[i];
        struct object *object = atomic_load(&o->object);
        int moved = s->lacking[recovery_slot_of(o)]
                        ? PCOLL_OK
                        : o->kind->recoverable->inherit(o, &object);
        progress_lock(to->progress);
        int entered = communicator_register(to, object, recovery_slot_of(o));
        progress_unlock(to->progress);
        rc = rc != PCOLL_OK ? rc : moved != PCOLL_OK ? moved : entered;
    }
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(to, rc);
}

static int recovery_barrier(struct communicator *to)
{
    uint64_t nothing = 0;
    return agree_max(to, &nothing, 1);
}

int recovery_build(struct communicator *to, struct recovery *r)
{
    CHECK(r->objects);
    struct census s = {0};
    int rc = recovery_take_census(to, r, &s);
    MOMENT("census taken");
    if (rc == PCOLL_OK)
        rc = recovery_rebuild(to, r, &s);
    MOMENT("rebuilt");
    if (rc == PCOLL_OK)
        rc = recovery_barrier(to);
    MOMENT("all rebuilt");
    if (rc == PCOLL_OK)
        rc = recovery_inherit(to, r, &s);
    MOMENT("inherited");
    if (rc == PCOLL_OK)
        rc = recovery_barrier(to);
    free(s.lacking);
    return rc;
}

void recovery_go_on(struct communicator *c, struct recovery *r)
{
    CHECK(c->recovery == r);
    for (uint32_t i = 0; i < r->count; i++)
        r->objects[i]->kind->recoverable->go(r->objects[i], c);
}
