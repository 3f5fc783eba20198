/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a recovery that objects take part in: inventory, rebuilding, inheritance. */
#include <stdlib.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "runtime/user_object.h"

/* The maximum of claims is the largest number of rounds, and among equals the lowest rank. */
enum { RANK_BITS = 20, MAX_RANK = (1 << RANK_BITS) - 1 };

struct inventory inventory_of(uint64_t complete, uint32_t rank)
{
    CHECK(rank <= MAX_RANK);
    return (struct inventory){.claim = complete << RANK_BITS | (MAX_RANK - rank),
                              .least = ~complete};
}

int inventory_plan(const struct inventory *s, uint32_t slot, uint32_t ranks,
                   uint64_t own, struct recovery_plan *plan)
{
    uint64_t complete = s->claim >> RANK_BITS, least = ~s->least;
    uint32_t source = MAX_RANK - (uint32_t)(s->claim & MAX_RANK);
    bool claimed = s->claim != 0;
    *plan = (struct recovery_plan){.slot = slot,
                                   .complete = complete,
                                   .source = source,
                                   .some_lack = claimed && least < complete};
    bool sound = claimed ? source < ranks && least <= complete : s->lacking != 0;
    return sound && own <= complete
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL,
                      "the ranks that are left agreed on %llu rounds of the object in "
                      "slot %u, by rank %u, which cannot be",
                      (unsigned long long)complete, slot, source);
}

/* Exchange the inventory of all slots, which the caller frees. All ranks reserve as many slots,
 * because the votes on closing have one word for each slot. */
static int recovery_take_inventory(struct communicator *to, struct user_object *objects,
                                   struct inventory **out)
{
    uint64_t slots = 1;
    struct inventory *all;
    for (struct user_object *o = objects; o; o = o->next_recovered) {
        uint64_t end = o->slot + atomic_load(&o->object)->slots;
        slots = end > slots ? end : slots;
    }
    int rc = agree_max(to, &slots, 1);
    uint32_t most = to->transport->tags / DATA_EDGES;
    if (rc == PCOLL_OK && slots > most)
        rc = fail(PCOLL_EPROTOCOL, "the ranks that are left agreed on %llu slots of %u",
                  (unsigned long long)slots, most);
    if (rc != PCOLL_OK)
        return rc;
    progress_lock(to->progress);
    rc = communicator_reserve(to, (uint32_t)slots);
    progress_unlock(to->progress);
    if (rc == PCOLL_OK && !(*out = all = calloc(slots, sizeof *all)))
        rc = fail(PCOLL_ENOMEM, "no memory for %u objects", (uint32_t)slots);
    if (rc != PCOLL_OK)
        return rc;
    for (uint64_t i = 0; i < slots; i++)
        all[i].lacking = 1;
    for (struct user_object *o = objects; o; o = o->next_recovered)
        if (!o->incomplete)
            all[o->slot] =
                inventory_of(o->kind->recoverable->complete(o), to->transport->rank);
    return agree_max(to, (uint64_t *)(void *)all, (int)(INVENTORY_WORDS * slots));
}

static int recovery_rebuild(struct communicator *to, struct user_object *objects,
                            const struct inventory *s)
{
    for (struct user_object *o = objects; o; o = o->next_recovered) {
        struct recovery_plan plan;
        if (s[o->slot].lacking) {
            /* This rank cannot close it with the others. Mark it for good: the rank that lacks
             * it may die next, and then no rank would lack it. */
            if (o->kind->recoverable->set_incomplete)
                o->kind->recoverable->set_incomplete(o);
            else
                o->incomplete = true;
            CHECK(o->incomplete);
            if (atomic_load(&o->closing))
                atomic_store(&atomic_load(&o->object)->closed, true);
            continue;
        }
        int rc = inventory_plan(&s[o->slot], o->slot, to->transport->size,
                                o->kind->recoverable->complete(o), &plan)
                     ?: o->kind->recoverable->rebuild(o, to, &plan);
        if (rc != PCOLL_OK)
            return rc;
    }
    return PCOLL_OK;
}

/* Every object gets its slot again, also one without successor. */
static int recovery_inherit(struct communicator *to, struct user_object *objects,
                            const struct inventory *s)
{
    int rc = PCOLL_OK;
    for (struct user_object *o = objects; o; o = o->next_recovered) {
        struct object *object = atomic_load(&o->object);
        int moved =
            s[o->slot].lacking ? PCOLL_OK : o->kind->recoverable->inherit(o, &object);
        progress_lock(to->progress);
        int entered = communicator_register(to, object, o->slot);
        progress_unlock(to->progress);
        rc = rc ?: moved ?: entered;
    }
    return rc;
}

int recovery_build(struct communicator *to, struct user_object *objects)
{
    uint64_t nothing = 0;
    struct inventory *s = NULL;
    int rc = recovery_take_inventory(to, objects, &s);
    MOMENT("inventory taken");
    rc = rc ?: recovery_rebuild(to, objects, s);
    MOMENT("rebuilt");
    rc = rc ?: agree_max(to, &nothing, 1);
    MOMENT("all rebuilt");
    rc = rc ?: recovery_inherit(to, objects, s);
    MOMENT("inherited");
    rc = rc ?: agree_max(to, &nothing, 1);
    free(s);
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(to, rc);
}
