/* SPDX-License-Identifier: Apache-2.0 */
/* Draw hostile messages; see hostile.h. */
#include "hostile.h"

#include <string.h>

#include "base/random.h"
#include "check.h"

uint32_t hostile_roll(struct hostile *h, uint32_t bound)
{
    return splitmix_below(h->seed, h->drawn++, bound);
}

static uint64_t any(struct hostile *h)
{
    return splitmix_at(h->seed, h->drawn++);
}

static uint32_t half(struct hostile *h)
{
    switch (hostile_roll(h, 8)) {
    case 0:
        return 0;
    case 1:
        return UINT32_MAX - hostile_roll(h, 2);
    case 2:
        return h->ranks - 1 + hostile_roll(h, 3);
    case 3:
        return (uint32_t)1 << hostile_roll(h, 32);
    case 4:
        return (uint32_t)any(h);
    default:
        return hostile_roll(h, h->ranks + 2);
    }
}

uint64_t hostile_word(struct hostile *h)
{
    switch (hostile_roll(h, 4)) {
    case 0:
        return any(h);
    case 1:
        return (uint64_t)half(h) << 32 | half(h);
    case 2:
        return ((uint64_t)1 << hostile_roll(h, 64)) - hostile_roll(h, 2);
    default:
        return half(h);
    }
}

/* All tapped transports have the same ops. */
static struct hostile *tapping;
static const struct transport_ops *own;

static int tap(struct transport *t, uint32_t peer, const struct control *message)
{
    tapping->kept[tapping->kept_count++ % HOSTILE_KEPT] = *message;
    return own->control(t, peer, message);
}

/* The data of a send must stay allocated until the send completes. */
struct copy {
    struct copy *next;
    uint64_t words[];
};

static const void *spoil(const void *data, size_t *bytes)
{
    struct hostile *h = tapping;
    uint32_t words = (uint32_t)(*bytes / sizeof(uint64_t));
    struct copy *c = calloc(1, sizeof *c + *bytes + sizeof(uint64_t));
    EXPECT(c, "no memory");
    c->next = h->copies;
    h->copies = c;
    memcpy(c->words, data, *bytes);
    h->messages++;
    for (uint32_t i = 1 + hostile_roll(h, 3); i && words; i--)
        c->words[hostile_roll(h, 2) ? words - 1 - hostile_roll(h, words < 8 ? words : 8)
                                    : hostile_roll(h, words)] =
            hostile_roll(h, 2) ? hostile_word(h) : hostile_roll(h, 4);
    if (!hostile_roll(h, 4))
        *bytes = hostile_roll(h, (uint32_t)*bytes + 1);
    return c->words;
}

static int tap_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                    size_t bytes, uint64_t cookie)
{
    if (tapping->tampers && bytes && !hostile_roll(tapping, tapping->tampers))
        data = spoil(data, &bytes);
    return own->send(t, peer, tag, data, bytes, cookie);
}

void hostile_end(struct hostile *h)
{
    while (h->copies) {
        struct copy *c = h->copies;
        h->copies = c->next;
        free(c);
    }
}

void hostile_tap(struct hostile *h, struct transport *t)
{
    static struct transport_ops tapped;
    if (t->ops != &tapped) {
        own = t->ops;
        tapped = *own;
        tapped.control = tap;
        tapped.send = tap_send;
        t->ops = &tapped;
    }
    tapping = h;
}

static void change(struct hostile *h, struct control *c, uint32_t kinds)
{
    uint64_t *value = &c->value[hostile_roll(h, 4)];
    switch (hostile_roll(h, 10)) {
    case 0:
        c->kind = (uint16_t)(hostile_roll(h, 4) ? hostile_roll(h, kinds) : any(h));
        break;
    case 1:
        c->round += hostile_roll(h, 5) - (uint64_t)2;
        break;
    case 2:
        c->round = hostile_word(h);
        break;
    case 3:
        c->edge = (uint16_t)(hostile_roll(h, 2) ? hostile_roll(h, 4) : any(h));
        break;
    case 4:
        *value ^= (uint64_t)1 << hostile_roll(h, 64);
        break;
    case 5:
        *value = (*value & ~(uint64_t)UINT32_MAX) | half(h);
        break;
    case 6:
        *value = (uint32_t)*value | (uint64_t)half(h) << 32;
        break;
    case 7:
        *value += hostile_roll(h, 3) - (uint64_t)1;
        break;
    default:
        *value = hostile_word(h);
    }
}

struct control hostile_message(struct hostile *h, uint32_t kinds)
{
    struct control c = {.kind = (uint16_t)any(h), .edge = (uint16_t)any(h)};
    uint32_t kept = h->kept_count < HOSTILE_KEPT ? h->kept_count : HOSTILE_KEPT;
    if (kept && hostile_roll(h, 16)) {
        c = h->kept[hostile_roll(h, kept)];
        for (uint32_t i = hostile_roll(h, 4); i; i--)
            change(h, &c, kinds);
        return c;
    }
    if (hostile_roll(h, 2))
        c.kind = (uint16_t)hostile_roll(h, kinds);
    c.round = hostile_roll(h, 2) ? hostile_roll(h, 4) : any(h);
    for (int i = 0; i < 4; i++)
        c.value[i] = hostile_word(h);
    return c;
}

void hostile_note(struct hostile *h, int rc)
{
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL,
           "a hostile message ended with %d: %s", rc, pcoll_last_error());
    h->messages++;
    h->refused += rc != PCOLL_OK;
}
