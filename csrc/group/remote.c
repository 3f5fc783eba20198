/* SPDX-License-Identifier: Apache-2.0 */
/* Near by the window, far by messages; see remote.h. */
#include "group/group.h"
#include "group/vote.h"

#include "base/check.h"

int group_window_request_vote(struct group *g, struct group_name name,
                              enum decision_vote vote, uint32_t members,
                              enum decision *decision)
{
    CHECK(name.leader < g->membership.ranks && vote != VOTE_OPEN);
    *decision = DECISION_PENDING;
    if (window_is_far(g->window, name.leader))
        return group_wire_send(
            g, name.leader, WIRE_VOTE, 0, g->round,
            (uint64_t[4]){group_wire_name_word(name), (uint64_t)vote, members});
    return group_window_vote(g->window, name.leader, g->place.decisions_at, name.seq,
                             members, vote, decision);
}

int group_window_request_declare(struct group *g, const struct group_key *key,
                                 int64_t time, bool *answered)
{
    CHECK(key->round == g->round);
    uint32_t host = group_window_directory_host(key, g->membership.ranks);
    *answered = !window_is_far(g->window, host);
    if (!*answered)
        return group_wire_send(g, host, WIRE_DECLARE, 0, key->round,
                               (uint64_t[4]){key->key, (uint64_t)time});
    return group_window_declare(g->window, g->place.directory_at, host, g->window->rank,
                                key, time);
}

int group_window_request_count(struct group *g, uint64_t round, int32_t more,
                               uint32_t *counted, bool *answered)
{
    CHECK(round == g->round && more >= -1 && more <= 1);
    uint32_t counter = group_window_directory_counter(round, g->membership.ranks);
    *answered = !window_is_far(g->window, counter);
    if (!*answered)
        return group_wire_send(g, counter, WIRE_COUNT, 0, round,
                               (uint64_t[4]){(uint64_t)more});
    return group_window_count(g->window, g->place.directory_at, counter, round, more,
                              counted);
}

int group_window_request_query(struct group *g, const struct group_key *key,
                               struct match_entry *entries, uint32_t *found,
                               bool *answered)
{
    CHECK(key->round == g->round);
    uint32_t host = group_window_directory_host(key, g->membership.ranks);
    *answered = !window_is_far(g->window, host);
    if (!*answered)
        return group_wire_send(g, host, WIRE_QUERY, 0, key->round,
                               (uint64_t[4]){key->key});
    return group_window_query(g->window, g->place.directory_at, host, key,
                              g->remote.words, entries, found);
}

/* Here, for those on other nodes. */

static int group_window_serve_declare(struct group *g, const struct group_message *m)
{
    struct group_key key = {m->round, m->key};
    int rc = group_window_declare(g->window, g->place.directory_at, g->window->rank,
                                  m->source, &key, m->time);
    return rc == PCOLL_OK ? group_wire_send(g, m->source, WIRE_COUNTED, 0, m->round,
                                            (uint64_t[4]){0})
                          : rc;
}

static int group_window_serve_count(struct group *g, const struct group_message *m)
{
    uint32_t counted;
    int rc = group_window_count(g->window, g->place.directory_at, g->window->rank,
                                m->round, m->more, &counted);
    return rc == PCOLL_OK ? group_wire_send(g, m->source, WIRE_COUNTED, 1, m->round,
                                            (uint64_t[4]){counted})
                          : rc;
}

/* In as many messages as it takes, two entries in each; one if there are none. */
static int group_window_serve_query(struct group *g, const struct group_message *m)
{
    struct group_key key = {m->round, m->key};
    struct match_entry *found = g->remote.served;
    uint32_t count;
    int rc = group_window_query(g->window, g->place.directory_at, g->window->rank, &key,
                                g->remote.words, found, &count);
    for (uint32_t i = 0; rc == PCOLL_OK && (i < count || i == 0); i += 2) {
        struct match_entry a = i < count ? found[i] : (struct match_entry){0};
        struct match_entry b = i + 1 < count ? found[i + 1] : (struct match_entry){0};
        rc = group_wire_send(g, m->source, WIRE_FOUND,
                             (uint16_t)(count > i + 1 ? 2 : count - i), m->round,
                             (uint64_t[4]){count, (uint64_t)a.peer << 32 | b.peer,
                                           (uint64_t)a.time, (uint64_t)b.time});
    }
    return rc;
}

int group_window_serve(struct group *g, const struct group_message *m)
{
    CHECK(m->kind == WIRE_DECLARE || m->kind == WIRE_COUNT || m->kind == WIRE_QUERY);
    if (m->kind == WIRE_DECLARE)
        return group_window_serve_declare(g, m);
    return m->kind == WIRE_COUNT ? group_window_serve_count(g, m)
                                 : group_window_serve_query(g, m);
}
