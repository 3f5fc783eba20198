/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a grouped allreduce say to each other: control messages, which are
 * always received. Matchmaking's pass through. Words about a group carry its name;
 * those that come before this rank knows of the group are kept, the last ones of each
 * rank. What a near rank does in another's window itself, a far one asks that rank to
 * do.
 */
#include "group.h"

#include <string.h>

/* Saying. */

int group_say(struct pcoll_group *g, uint32_t to, enum talk kind, uint16_t part,
              uint64_t round, const uint64_t value[4])
{
    struct transport *t = g->context->transport;
    struct control message = {
        .handle = g->base.slot, .kind = (uint16_t)kind, .edge = part, .round = round};
    memcpy(message.value, value, sizeof message.value);
    g->sent++;
    return t->ops->control(t, to, &message);
}

static uint64_t as_word(struct group_name name)
{
    return (uint64_t)name.leader << 32 | name.seq;
}

static struct group_name as_name(uint64_t word)
{
    return (struct group_name){(uint32_t)(word >> 32), (uint32_t)word};
}

int group_say_about(struct pcoll_group *g, uint32_t to, enum talk kind,
                    struct group_name name, uint64_t value)
{
    return group_say(g, to, kind, 0, g->round, (uint64_t[4]){as_word(name), value});
}

int group_say_verdict(struct pcoll_group *g, uint32_t to, struct group_name name,
                      enum verdict verdict)
{
    return group_say_about(g, to, TALK_VERDICT, name,
                           verdict == VERDICT_COMMIT ? NOTICE_COMMIT : NOTICE_VOID);
}

int group_say_vote(struct pcoll_group *g, struct group_name name,
                   enum verdict_vote vote, uint32_t members)
{
    return group_say(g, name.leader, TALK_VOTE, 0, g->round,
                     (uint64_t[4]){as_word(name), (uint64_t)vote, members});
}

int group_say_to_all(struct pcoll_group *g, enum talk kind, uint64_t round,
                     const uint64_t value[4])
{
    int rc = PCOLL_OK;
    for (uint32_t r = 0; r < g->roll.ranks && rc == PCOLL_OK; r++)
        if (r != g->window->rank)
            rc = group_say(g, r, kind, 0, round, value);
    return rc;
}

int group_announce(struct pcoll_group *g, uint32_t rank, enum standing standing,
                   uint32_t returns)
{
    return group_say_to_all(g, TALK_ROLL, g->round,
                            (uint64_t[4]){rank, (uint64_t)standing, returns});
}

int group_announce_join(struct pcoll_group *g)
{
    uint32_t rank = g->window->rank;
    return group_say_to_all(g, TALK_JOIN, g->round,
                            (uint64_t[4]){g->roll.entries[rank].returns});
}

/* The word of a group is open before anybody hears of the group. */
static int open_verdict(struct pcoll_group *g)
{
    const struct match_list *list = match_list(&g->match);
    if (match_state(&g->match) != MATCH_FORMED || list->leader != g->window->rank ||
        list->seq == g->opened)
        return PCOLL_OK;
    g->opened = list->seq;
    return verdict_open(g->window, g->place.verdicts_at, list->seq);
}

int group_flush_match(struct pcoll_group *g)
{
    struct match_message m;
    int rc = open_verdict(g);
    while (rc == PCOLL_OK && match_next(&g->match, &m))
        rc = group_say(g, m.peer, (enum talk)m.kind, m.part, m.round, m.value);
    return rc;
}

/* Hearing. */

static void keep_notice(struct pcoll_group *g, uint32_t source, uint64_t word,
                        uint32_t bits, uint32_t rate)
{
    struct notice *n = &g->notices[source];
    if (!group_same(n->name, as_name(word)))
        *n = (struct notice){.name = as_name(word)};
    n->bits |= bits;
    n->rate += rate;
    group_apply_notice(g, source);
}

static void hear_match(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    struct match_message m = {
        .peer = source, .kind = c->kind, .part = c->edge, .round = c->round};
    memcpy(m.value, c->value, sizeof m.value);
    match_take(&g->match, g->time, &m);
}

/* A far member votes here, in the memory of its leader. */
static int hear_vote(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    struct group_name name = as_name(c->value[0]);
    enum verdict verdict;
    int rc =
        verdict_vote(g->window, g->window->rank, g->place.verdicts_at, name.seq,
                     (uint32_t)c->value[2], (enum verdict_vote)c->value[1], &verdict);
    if (rc != PCOLL_OK || verdict == VERDICT_OPEN)
        return rc;
    if (g->phase == PHASE_ROUND && group_same(g->now.name, name))
        return group_learn_verdict(g, verdict);
    if (verdict == VERDICT_GONE)
        return rc; /* has been told, and there is no saying now what it was */
    return group_say_verdict(g, source, name, verdict);
}

/* A leader passes on that a round is void: who says so may have refused the list and
 * not know who else is on it. */
static int hear_verdict(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    struct group_name name = as_name(c->value[0]);
    int rc = PCOLL_OK;
    if (c->value[1] & NOTICE_VOID && name.leader == g->window->rank)
        rc = group_hear_void(g, name);
    keep_notice(g, source, c->value[0], (uint32_t)c->value[1], 0);
    return rc;
}

/* The round that somebody who is back may join, if all were like this rank. */
uint64_t group_round_to_join(const struct pcoll_group *g)
{
    return g->phase == PHASE_ASKING ? g->ask_highest
                                    : g->round + (g->phase == PHASE_ROUND);
}

static int hear_roll(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    uint32_t rank = (uint32_t)c->value[0], returns = (uint32_t)c->value[2];
    enum standing standing = (enum standing)c->value[1];
    if (rank == g->window->rank) {
        g->come_back |= returns == g->roll.entries[rank].returns;
        return PCOLL_OK;
    }
    bool news = roll_set(&g->roll, rank, standing, returns);
    if (standing == STANDING_LIVE) /* not before the round that it was at */
        news |= roll_join(&g->roll, rank, returns, c->round);
    if (news)
        group_roll_changed(g, rank);
    if (standing != STANDING_LIVE || rank != source)
        return PCOLL_OK;
    return group_say(g, source, TALK_HERE, 0, group_round_to_join(g),
                     (uint64_t[4]){returns});
}

static void hear_join(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    if (roll_join(&g->roll, source, (uint32_t)c->value[0], c->round))
        group_roll_changed(g, source);
}

/* An answer to an earlier return does not know how far the rounds have got since. */
static void hear_here(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    if (c->value[0] != g->roll.entries[g->window->rank].returns)
        return;
    g->answers += g->roll.entries[source].standing != STANDING_SUSPECT;
    if (c->round > g->ask_highest)
        g->ask_highest = c->round;
}

/* The directory, for those on other nodes. */

static int serve_declare(struct pcoll_group *g, uint32_t source,
                         const struct control *c)
{
    struct directory_key key = {c->round, c->value[0]};
    int rc = directory_declare(g->window, g->place.directory_at, g->window->rank,
                               source, &key, (int64_t)c->value[1]);
    return rc == PCOLL_OK
               ? group_say(g, source, TALK_COUNTED, 0, c->round, (uint64_t[4]){0})
               : rc;
}

static int serve_count(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    uint32_t counted;
    int rc = directory_count(g->window, g->place.directory_at, g->window->rank,
                             c->round, (uint32_t)c->value[0], &counted);
    return rc == PCOLL_OK
               ? group_say(g, source, TALK_COUNTED, 1, c->round, (uint64_t[4]){counted})
               : rc;
}

/* In as many messages as it takes, two entries in each; one if there are none. */
static int serve_look(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    struct directory_key key = {c->round, c->value[0]};
    struct match_entry *found = g->served;
    uint32_t count;
    int rc = directory_look(g->window, g->place.directory_at, g->window->rank, &key,
                            g->words, found, &count);
    for (uint32_t i = 0; rc == PCOLL_OK && (i < count || i == 0); i += 2) {
        struct match_entry a = i < count ? found[i] : (struct match_entry){0};
        struct match_entry b = i + 1 < count ? found[i + 1] : (struct match_entry){0};
        rc = group_say(g, source, TALK_FOUND, (uint16_t)(count > i + 1 ? 2 : count - i),
                       c->round,
                       (uint64_t[4]){count, (uint64_t)a.peer << 32 | b.peer,
                                     (uint64_t)a.time, (uint64_t)b.time});
    }
    return rc;
}

static int hear_group(struct pcoll_group *g, uint32_t source, const struct control *c)
{
    switch ((enum talk)c->kind) {
    case TALK_MATCH:
        break;
    case TALK_INPUT:
        keep_notice(g, source, c->value[0], (uint32_t)c->value[1], 0);
        return PCOLL_OK;
    case TALK_PART:
        keep_notice(g, source, c->value[0], NOTICE_PART, (uint32_t)c->value[1]);
        return PCOLL_OK;
    case TALK_PASS:
        keep_notice(g, source, c->value[0], NOTICE_PASS, 0);
        return PCOLL_OK;
    case TALK_HURRY:
        return c->value[0]
                   ? group_hurry(g, c->round)
                   : group_say(g, source, TALK_HEARD, 0, g->round, (uint64_t[4]){0});
    case TALK_HEARD:
        return PCOLL_OK;
    case TALK_ALIVE:
        keep_notice(g, source, c->value[0], 0, 0);
        return PCOLL_OK;
    case TALK_VERDICT:
        return hear_verdict(g, source, c);
    case TALK_VOTE:
        return hear_vote(g, source, c);
    case TALK_ROLL:
        return hear_roll(g, source, c);
    case TALK_HERE:
        hear_here(g, source, c);
        return PCOLL_OK;
    case TALK_JOIN:
        hear_join(g, source, c);
        return PCOLL_OK;
    case TALK_DECLARE:
        return serve_declare(g, source, c);
    case TALK_COUNT:
        return serve_count(g, source, c);
    case TALK_LOOK:
        return serve_look(g, source, c);
    case TALK_COUNTED:
        group_counted(g, c->round, c->edge, (uint32_t)c->value[0]);
        return PCOLL_OK;
    case TALK_FOUND:
        group_found(g, c);
        return PCOLL_OK;
    }
    return fail(PCOLL_EPROTOCOL, "rank %u said something unknown (%u) to a group",
                source, c->kind);
}

int group_hear(struct participant *p, uint32_t source, const struct control *message)
{
    struct pcoll_group *g = group_of(p);
    int rc = PCOLL_OK;
    g->taken++;
    group_look_at_clock(g);
    g->heard[source] = g->time;
    if (message->kind < TALK_INPUT)
        hear_match(g, source, message);
    else
        rc = hear_group(g, source, message);
    return rc == PCOLL_OK ? group_drive(g) : rc;
}
