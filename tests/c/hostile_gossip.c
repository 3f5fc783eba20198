/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile words, slot headers, block notes and data in the windows of gossip buffers,
 * written between the calls of ranks that continue as usual.
 */
#include <string.h>

#include "gossip/gossip.h"
#include "check.h"
#include "hostile.h"
#include "memory_window.h"

enum { MAX_COUNT = 2600, CAP = 2 };

static struct {
    struct hostile *hostile;
    uint32_t ranks;
    struct window *windows[MEMORY_RANKS];
    struct gossip_memory memory[MEMORY_RANKS];
    double model[MAX_COUNT], momentum[MAX_COUNT], out[MAX_COUNT];
} w;

static uint32_t roll(uint32_t bound)
{
    return hostile_roll(w.hostile, bound);
}

static void create(void)
{
    static const int32_t dtypes[] = {PCOLL_FLOAT32, PCOLL_FLOAT64, PCOLL_FLOAT16,
                                     PCOLL_BFLOAT16};
    pcoll_gossip_options o;
    pcoll_gossip_options_init(&o);
    o.count = roll(8) ? 1 + roll(40) : 1 + roll(MAX_COUNT);
    o.dtype = dtypes[roll(4)];
    o.bits = roll(2) ? 0 : (int32_t)(2 + roll(15));
    o.rotate = (int32_t)roll(2);
    o.queue_slots = 1 + roll(4);
    w.ranks = w.hostile->ranks = 2 + roll(3);
    for (uint32_t r = 0; r < w.ranks; r++)
        EXPECT_OK(gossip_memory_prepare(&w.memory[r], &o, r, w.ranks, false));
    memory_windows_create(w.ranks, w.memory[0].layout.bytes, w.windows);
    for (uint32_t r = 0; r < w.ranks; r++) {
        w.memory[r].window = w.windows[r];
        EXPECT_OK(gossip_memory_clear(&w.memory[r]));
    }
    for (size_t i = 0; i < MAX_COUNT; i++)
        w.model[i] = w.momentum[i] = 0;
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++)
        gossip_memory_destroy(&w.memory[r]);
    memory_windows_destroy(w.ranks, w.windows);
}

static int act(uint32_t r)
{
    struct gossip_memory *m = &w.memory[r];
    uint32_t peer = (r + 1 + roll(w.ranks - 1)) % w.ranks, source = 0;
    struct gossip_model own = {.x = w.model, .momentum = roll(2) ? w.momentum : NULL};
    uint64_t n;
    int32_t done = false;
    int rc;
    switch (roll(9)) {
    case 0:
    case 1:
        return register_publish(m, w.model, &n);
    case 2:
        return register_read(m, peer, roll(2) ? w.model : NULL, w.out, &n);
    case 3:
        return exchange_average(m, peer, CAP, 0.5, &own, &done);
    case 4:
        return exchange_collect(m, &own, &n);
    case 5:
        return queue_push(m, peer, w.model, roll(2) ? w.model : NULL, w.out, &done);
    case 6:
        rc = queue_take(m, w.model, w.out, &source, &done);
        EXPECT(!done || source < w.ranks, "a message of rank %u", source);
        return rc;
    case 7:
        rc = queue_peek(m, peer, w.model, w.out, &source, &done);
        EXPECT(!done || source < w.ranks, "a message of rank %u", source);
        return rc;
    default:
        if (roll(20))
            return PCOLL_OK;
        if (roll(2))
            return accumulator_adopt(m, peer);
        rc = accumulator_settle(m);
        return rc == PCOLL_OK ? queue_settle(m) : rc;
    }
}

/* Return an offset of a word, of a slot's header or notes, or any other offset. */
static size_t some_place(const struct gossip_layout *l)
{
    uint32_t slots = REGISTER_SLOTS + l->queue_slots, slot = roll(slots);
    size_t slot_at = slot < REGISTER_SLOTS
                         ? gossip_register_slot_at(l, slot)
                         : gossip_queue_slot_at(l, slot - REGISTER_SLOTS);
    switch (roll(4)) {
    case 0:
        return roll(2) ? gossip_word_at((enum gossip_word)roll(GOSSIP_WORDS))
                       : gossip_queue_word_at(roll(l->queue_slots));
    case 1:
        return slot_at + 8 * roll(sizeof(struct slot_header) / 8);
    case 2:
        return slot_at + l->notes_at + 8 * roll(4);
    default:
        return 8 * (size_t)roll((uint32_t)(l->bytes / 8));
    }
}

static void write_hostile(void)
{
    uint32_t r = roll(w.ranks);
    size_t at = some_place(&w.memory[r].layout);
    uint64_t *word = (uint64_t *)(void *)(w.windows[r]->memory + at);
    switch (roll(3)) {
    case 0:
        *word = hostile_word(w.hostile);
        break;
    case 1:
        *word ^= (uint64_t)1 << roll(64);
        break;
    default:
        *word += roll(9) - (uint64_t)4;
    }
}

void hostile_gossip(struct hostile *h, uint64_t most)
{
    memset(&w, 0, sizeof w);
    w.hostile = h;
    create();
    for (uint32_t pause = 1 + roll(10); h->messages < most;) {
        int rc = act(roll(w.ranks));
        bool sound = rc == PCOLL_OK || rc == PCOLL_EEMPTY || rc == PCOLL_EAGAIN;
        h->done += sound;
        if (roll(pause))
            continue;
        write_hostile();
        hostile_note(h, sound ? PCOLL_OK : rc);
        if (!roll(50)) /* damage stays in the window: start over with a new world */
            break;
    }
    destroy();
}
