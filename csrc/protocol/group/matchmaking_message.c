/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of matchmaking: what their four values contain, and the queue of messages to
 * be sent.
 *
 *   ASK       key, time, bandwidth | chain << 32, attempt
 *   ACCEPT    -, remaining, confirm, attempt
 *   REJECT    reason | hint << 32, time of the hint, current round, attempt
 *   DISBAND   - | hint << 32, time of the hint, -, attempt
 *   CONFIRM, LEAVE   -, -, -, attempt
 *   LIST      members, members, members, count | attempt << 16 | seq << 32
 *
 * A part of a list has two members: rank | bandwidth << 32 of each, and chain | chain
 * << 32. If all members differ only in their ranks and the ranks fit in 16 bits, a part
 * has eight (`part` has the flag): bandwidth | chain << 32, and 16 bits for each rank.
 * The parts are made when they are fetched, because a large group has thousands of
 * them.
 *
 * Bad messages. match_decode and match_decode_part are the only code that reads the
 * values. They refuse a message that no correct sender makes (a rank, reason, length,
 * time or round outside its bounds) with PCOLL_EPROTOCOL; match_on_message returns that
 * and changes nothing. A message that is possible, but does not fit the state (an old
 * attempt, an unexpected part), is dropped. A list that does not fit is refused.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "protocol/group/matchmaking_parts.h"

static uint32_t match_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float match_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t match_pair(uint32_t low, uint32_t high)
{
    return low | (uint64_t)high << 32;
}

int match_outbox_init(struct match_outbox *o, uint32_t size)
{
    CHECK(size >= 1);
    o->capacity = 4 * size + 16; /* One event causes at most 2 * size + 4. */
    o->ring = calloc(o->capacity, sizeof *o->ring);
    o->members = calloc(size, sizeof *o->members);
    o->attempts = calloc(size, sizeof *o->attempts);
    return o->ring && o->members && o->attempts ? PCOLL_OK : PCOLL_ENOMEM;
}

void match_outbox_destroy(struct match_outbox *o)
{
    CHECK(o->ring || o->head == o->tail);
    free(o->ring);
    free(o->members);
    free(o->attempts);
}

void match_outbox_clear(struct match_outbox *o)
{
    CHECK(o->tail - o->head <= o->capacity);
    o->head = o->tail = o->list_after = o->lost = 0;
    o->list.count = o->to = o->part = 0;
}

void match_send(struct match *m, enum match_kind kind, uint32_t peer, uint64_t round,
                const struct match_note *note)
{
    struct match_outbox *o = &m->out;
    CHECK(peer < m->size && peer != m->rank);
    CHECK(kind >= MATCH_ASK && kind < MATCH_LIST);
    struct match_message message = {.peer = peer, .kind = kind, .round = round};
    uint64_t *value = message.value;
    value[3] = note->attempt;
    switch (kind) {
    case MATCH_ASK:
        value[0] = note->key;
        value[1] = (uint64_t)note->time;
        value[2] =
            match_pair(match_float_bits(note->member.bandwidth), note->member.chain);
        break;
    case MATCH_ACCEPT:
        value[1] = (uint64_t)note->remaining;
        value[2] = note->confirm;
        break;
    case MATCH_REJECT:
    case MATCH_DISBAND:
        value[0] = match_pair(note->reason, note->hint);
        value[1] = (uint64_t)note->time;
        value[2] = note->at;
        break;
    default:
        break;
    }
    if (o->tail - o->head == o->capacity)
        o->lost++;
    else
        o->ring[o->tail++ % o->capacity] = message;
    CHECK(o->head <= o->tail && o->tail - o->head <= o->capacity);
}

static int match_invalid(const struct match_message *message, const char *why)
{
    return fail(PCOLL_EPROTOCOL,
                "rank %u sent a matchmaking message of kind %u that cannot be: %s",
                message->peer, message->kind, why);
}

/* Check what all kinds have in common. */
static int match_check_message(const struct match *m,
                               const struct match_message *message)
{
    if (message->peer >= m->size || message->peer == m->rank)
        return match_invalid(message, "its sender");
    if (message->kind < MATCH_ASK || message->kind >= MATCH_KINDS)
        return match_invalid(message, "its kind");
    return message->round > ROUND_LAST ? match_invalid(message, "its round") : PCOLL_OK;
}

static bool match_is_bandwidth(float x)
{
    return x >= 0 && x <= FLT_MAX;
}

static int match_decode_ask(const struct match_message *message,
                            struct match_note *note)
{
    const uint64_t *value = message->value;
    note->key = value[0];
    note->time = (int64_t)value[1];
    note->member =
        (struct match_member){.rank = message->peer,
                              .bandwidth = match_float_of((uint32_t)value[2]),
                              .chain = (uint32_t)(value[2] >> 32)};
    return match_is_bandwidth(note->member.bandwidth)
               ? PCOLL_OK
               : match_invalid(message, "its bandwidth");
}

static int match_decode_accept(const struct match *m,
                               const struct match_message *message,
                               struct match_note *note)
{
    const uint64_t *value = message->value;
    if (value[1] > (uint64_t)m->longest_window || value[2] > 1)
        return match_invalid(message, "the time until the list, or a flag");
    note->remaining = (int64_t)value[1];
    note->confirm = value[2] != 0;
    return PCOLL_OK;
}

/* Decode the hint of REJECT and DISBAND. Only a REJECT has a reason. */
static int match_decode_hint(const struct match *m, const struct match_message *message,
                             struct match_note *note)
{
    const uint64_t *value = message->value;
    uint32_t reason = (uint32_t)value[0];
    bool rejects = message->kind == MATCH_REJECT;
    note->hint = (uint32_t)(value[0] >> 32);
    note->time = (int64_t)value[1];
    note->at = value[2];
    if (rejects ? reason < REJECT_KEY || reason > REJECT_LOWER : reason != 0)
        return match_invalid(message, "its reason");
    if (note->hint >= m->size &&
        (note->hint != MATCH_NOBODY || reason == REJECT_FOLLOWS))
        return match_invalid(message, "the rank to ask instead");
    if (note->at > ROUND_LAST)
        return match_invalid(message, "the round that its sender is at");
    note->reason = (enum match_reason)reason;
    return PCOLL_OK;
}

int match_decode(const struct match *m, const struct match_message *message,
                 struct match_note *note)
{
    int rc = match_check_message(m, message);
    *note = (struct match_note){.attempt = (uint32_t)message->value[3],
                                .hint = MATCH_NOBODY};
    if (rc != PCOLL_OK)
        return rc;
    if (message->value[3] > UINT32_MAX || message->part)
        return match_invalid(message, "its attempt");
    switch ((enum match_kind)message->kind) {
    case MATCH_ASK:
        return match_decode_ask(message, note);
    case MATCH_ACCEPT:
        return match_decode_accept(m, message, note);
    case MATCH_REJECT:
    case MATCH_DISBAND:
        return match_decode_hint(m, message, note);
    case MATCH_CONFIRM:
    case MATCH_LEAVE:
        return PCOLL_OK;
    case MATCH_LIST:
    case MATCH_KINDS:
        break;
    }
    return match_invalid(message, "its kind");
}

static struct match_member match_member_at(const struct match_message *message,
                                           uint32_t i)
{
    const uint64_t *value = message->value;
    if (message->part & PART_ALIKE)
        return (struct match_member){.rank =
                                         (uint16_t)(value[1 + i / 4] >> (16 * (i % 4))),
                                     .bandwidth = match_float_of((uint32_t)value[0]),
                                     .chain = (uint32_t)(value[0] >> 32)};
    return (struct match_member){.rank = (uint32_t)value[i],
                                 .bandwidth =
                                     match_float_of((uint32_t)(value[i] >> 32)),
                                 .chain = (uint32_t)(value[2] >> (32 * i))};
}

int match_decode_part(const struct match *m, const struct match_message *message,
                      struct match_part *part)
{
    int rc = match_check_message(m, message);
    if (rc != PCOLL_OK)
        return rc;
    uint64_t word = message->value[3];
    *part = (struct match_part){.attempt = (uint16_t)(word >> 16),
                                .seq = (uint32_t)(word >> 32),
                                .count = (uint16_t)word,
                                .first = match_part_first(message),
                                .holds = match_part_holds(message)};
    if (part->count < 2 || part->count > m->size || part->first >= part->count)
        return match_invalid(message, "its length");
    if (!part->seq)
        return match_invalid(message, "the name of its group");
    if (part->holds > part->count - part->first)
        part->holds = part->count - part->first;
    for (uint32_t i = 0; i < part->holds; i++) {
        struct match_member *member = &part->member[i];
        *member = match_member_at(message, i);
        if (member->rank >= m->size || (i && member->rank <= member[-1].rank))
            return match_invalid(message, "the ranks of its members");
        if (!match_is_bandwidth(member->bandwidth))
            return match_invalid(message, "the bandwidth of a member");
    }
    return PCOLL_OK;
}

static bool match_all_alike(const struct match_list *list)
{
    const struct match_member *first = &list->members[0];
    for (uint32_t i = 0; i < list->count; i++) {
        const struct match_member *m = &list->members[i];
        if (m->rank > UINT16_MAX || m->chain != first->chain ||
            match_float_bits(m->bandwidth) != match_float_bits(first->bandwidth))
            return false;
    }
    return true;
}

void match_send_list(struct match *m)
{
    struct match_outbox *o = &m->out;
    CHECK(m->state == MATCH_FORMED && m->list.leader == m->rank);
    CHECK(m->list.count <= m->size);
    memcpy(o->members, m->list.members, m->list.count * sizeof *o->members);
    for (uint32_t i = 0; i < m->list.count; i++)
        o->attempts[i] = (uint16_t)m->peers[o->members[i].rank].ask.attempt;
    o->list = m->list;
    o->list.members = o->members;
    o->alike = match_all_alike(&o->list);
    o->list_after = o->tail;
    o->to = o->part = 0;
}

uint32_t match_part_holds(const struct match_message *message)
{
    CHECK(message->kind == MATCH_LIST);
    return message->part & PART_ALIKE ? PART_MEMBERS : 2;
}

uint32_t match_part_first(const struct match_message *message)
{
    return (message->part & (PART_ALIKE - 1u)) * match_part_holds(message);
}

void match_put_member(struct match_message *message, uint32_t i,
                      const struct match_member *member)
{
    uint64_t *value = message->value, bandwidth = match_float_bits(member->bandwidth);
    CHECK(i < match_part_holds(message));
    if (message->part & PART_ALIKE) {
        value[0] = bandwidth | (uint64_t)member->chain << 32;
        value[1 + i / 4] |= (uint64_t)member->rank << (16 * (i % 4));
    } else {
        value[i] = member->rank | bandwidth << 32;
        value[2] |= (uint64_t)member->chain << (32 * i);
    }
}

/* Make the next part of the list; false: all parts are made. */
static bool match_next_part(struct match *m, struct match_message *out)
{
    struct match_outbox *o = &m->out;
    const struct match_list *list = &o->list;
    if (o->to < list->count && o->members[o->to].rank == m->rank)
        o->to++;
    if (o->to >= list->count)
        return false;
    uint32_t attempt = o->attempts[o->to];
    *out = (struct match_message){
        .peer = o->members[o->to].rank,
        .kind = MATCH_LIST,
        .part = (uint16_t)(o->part | (o->alike ? PART_ALIKE : 0)),
        .round = list->round,
        .value = {[3] = match_pair(list->count | attempt << 16, list->seq)}};
    uint32_t holds = match_part_holds(out), first = match_part_first(out);
    CHECK(first < list->count);
    for (uint32_t i = 0; i < holds && first + i < list->count; i++)
        match_put_member(out, i, &o->members[first + i]);
    bool last = first + holds >= list->count;
    o->part = last ? 0 : o->part + 1;
    o->to += last;
    return true;
}

bool match_next(struct match *m, struct match_message *out)
{
    struct match_outbox *o = &m->out;
    CHECK(o->head <= o->tail && o->tail - o->head <= o->capacity);
    if (o->head >= o->list_after && match_next_part(m, out))
        return true;
    if (o->head == o->tail)
        return false;
    *out = o->ring[o->head++ % o->capacity];
    return true;
}
