/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and tags of a communicator: no two objects share one, free ones are used again,
 * and no object gets a tag beyond MPI's largest. */
#include <string.h>

#include "algorithms/algorithms.h"
#include "runtime/communicator.h"
#include "check.h"

enum { SLOTS = 5 };

static struct communicator *communicator_with(struct transport *t, uint32_t tags)
{
    struct communicator *c;
    *t = (struct transport){.size = 1, .tags = tags};
    EXPECT_OK(communicator_create(t, NULL, &c));
    return c;
}

static void destroy(struct communicator *c)
{
    c->transport = NULL; /* it is on the stack */
    communicator_destroy(&c);
}

static uint32_t take(struct communicator *c, struct object *p, uint32_t slots)
{
    uint32_t slot;
    p->slots = slots;
    EXPECT_OK(communicator_free_slots(c, 0, slots, &slot));
    EXPECT_OK(communicator_register(c, p, slot));
    return slot;
}

static void expect_full(struct communicator *c, uint32_t from, uint32_t slots)
{
    uint32_t slot;
    EXPECT(communicator_free_slots(c, from, slots, &slot) == PCOLL_EINVAL &&
               strstr(pcoll_last_error(), "no tags left"),
           "%u slots from %u on were given: %s", slots, from, pcoll_last_error());
}

static void test_bounds(void)
{
    struct transport t;
    struct communicator *c = communicator_with(&t, SLOTS * DATA_EDGES + DATA_EDGES - 1);
    struct object p[SLOTS] = {0};
    expect_full(c, 0, SLOTS + 1);
    expect_full(c, 0, UINT32_MAX);
    for (uint32_t i = 0; i < SLOTS; i++) {
        EXPECT(take(c, &p[i], 1) == i, "slot %u", i);
        EXPECT((p[i].slot + 1) * DATA_EDGES <= t.tags, "slot %u has no tags", i);
    }
    expect_full(c, 0, 1);
    expect_full(c, SLOTS, 1);
    expect_full(c, UINT32_MAX, 1);
    communicator_unregister(c, 2);
    EXPECT(take(c, &p[2], 1) == 2, "a free slot is not used again");
    destroy(c);
}

static void test_several(void)
{
    struct transport t;
    struct communicator *c = communicator_with(&t, SLOTS * DATA_EDGES);
    struct object one = {0}, two = {0}, three = {0};
    EXPECT(take(c, &one, 1) == 0 && take(c, &two, 2) == 1, "one after the other");
    expect_full(c, 0, 3);
    EXPECT(take(c, &three, 2) == 3, "the last two");
    communicator_unregister(c, 1);
    expect_full(c, 0, 3);
    communicator_unregister(c, 0);
    EXPECT(take(c, &one, 3) == 0, "three that are free by now");
    destroy(c);
}

static void test_no_tags(void)
{
    struct transport t;
    struct communicator *c = communicator_with(&t, DATA_EDGES - 1);
    expect_full(c, 0, 1);
    destroy(c);
}

int main(void)
{
    test_bounds();
    test_several();
    test_no_tags();
    printf("slots: all tests passed\n");
    return 0;
}
