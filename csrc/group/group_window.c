/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions and the directory in the windows of the ranks; see group_window.h. */
#include "group/group_window.h"

#include "base/check.h"
#include "base/random.h"
#include "group/group_agent.h"

static size_t group_window_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

struct group_layout group_window_layout(uint32_t ranks, size_t element, size_t count)
{
    struct group_layout layout = {.element = element, .count = count};
    size_t data = group_window_round_up(element * count);
    size_t directory = (COUNTS + (size_t)ENTRY_WORDS * ranks) * sizeof(int64_t);
    layout.directory_at = group_window_round_up(DECISIONS * sizeof(int64_t));
    layout.input_at = layout.directory_at + group_window_round_up(directory);
    layout.part_at = layout.input_at + data;
    layout.bytes = layout.part_at + data;
    return layout;
}

/* The decision. */

static const uint64_t abort_bit = (uint64_t)1 << 31;

static enum decision group_window_read_word(uint64_t word, uint32_t seq,
                                            uint32_t members)
{
    if ((uint32_t)(word >> 32) != seq)
        return DECISION_EXPIRED;
    if (word & abort_bit)
        return DECISION_ABORT;
    uint64_t done = word & (abort_bit - 1);
    return done >= members ? DECISION_COMMIT : DECISION_PENDING;
}

int64_t group_window_after_vote(int64_t before, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision)
{
    uint64_t word = vote == VOTE_OPEN ? (uint64_t)seq << 32 : (uint64_t)before;
    bool pending = group_window_read_word(word, seq, members) == DECISION_PENDING;
    if (pending && vote == VOTE_DONE)
        word++;
    else if (pending && vote == VOTE_ABORT)
        word |= abort_bit;
    CHECK(vote == VOTE_OPEN || word == (uint64_t)before ||
          group_window_read_word((uint64_t)before, seq, members) == DECISION_PENDING);
    CHECK(word >> 32 == (vote == VOTE_OPEN ? seq : (uint64_t)before >> 32));
    *decision = group_window_read_word(word, seq, members);
    return (int64_t)word;
}

int group_window_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                      uint32_t members, enum decision_vote vote,
                      enum decision *decision)
{
    CHECK(leader < w->size && (vote != VOTE_OPEN || leader == w->rank));
    size_t at = words_at + seq % DECISIONS * sizeof(int64_t);
    int64_t word, seen;
    int rc = window_read_swapped(w, leader, at, &word);
    while (rc == PCOLL_OK) {
        int64_t after = group_window_after_vote(word, seq, members, vote, decision);
        if (after == word)
            break;
        rc = w->ops->compare_swap(w, leader, at, word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int group_window_open_decision(struct window *w, size_t words_at, uint32_t seq)
{
    enum decision decision;
    CHECK(seq); /* 0 is the name in a word that was never written. */
    return group_window_vote(w, w->rank, words_at, seq, UINT32_MAX, VOTE_OPEN,
                             &decision);
}

/* The directory. */

static uint64_t group_window_tag(const struct group_key *key)
{
    return splitmix_at(key->key, key->round) |
           1; /* A word that was never written is 0. */
}

uint32_t group_window_directory_host(const struct group_key *key, uint32_t ranks)
{
    CHECK(ranks >= 1);
    return splitmix_below(key->key, key->round, ranks);
}

uint32_t group_window_directory_counter(uint64_t round, uint32_t ranks)
{
    CHECK(ranks >= 1);
    return splitmix_below(~(uint64_t)0, round, ranks);
}

static size_t group_window_entry_at(size_t at, uint32_t rank)
{
    return at + (COUNTS + (size_t)ENTRY_WORDS * rank) * sizeof(int64_t);
}

int group_window_declare(struct window *w, size_t at, uint32_t host, uint32_t rank,
                         const struct group_key *key, int64_t time)
{
    CHECK(host < w->size && rank < w->size);
    uint64_t tag = group_window_tag(key);
    int64_t words[ENTRY_WORDS] = {(int64_t)tag, time,
                                  (int64_t)(tag ^ splitmix_mix((uint64_t)time))};
    int rc = w->ops->put(w, host, group_window_entry_at(at, rank), words, sizeof words);
    return rc == PCOLL_OK ? w->ops->flush(w, host) : rc;
}

/* Return by how many rounds the word is newer. */
static int32_t group_window_newer(int64_t word, uint64_t round)
{
    return (int32_t)((uint32_t)((uint64_t)word >> 32) - (uint32_t)round);
}

/* Return the word after a change by `more`. The count stays between 0 and `ranks`. */
static int64_t group_window_count_after(int64_t word, uint64_t round, int32_t more,
                                        uint32_t ranks)
{
    uint32_t before = group_window_newer(word, round) == 0 ? (uint32_t)word : 0;
    uint32_t after = before + (uint32_t)more;
    return group_window_newer(word, round) > 0 || after > ranks
               ? word
               : (int64_t)(round << 32 | after);
}

int group_window_count(struct window *w, size_t at, uint32_t counter, uint64_t round,
                       int32_t more, uint32_t *counted)
{
    CHECK(counter < w->size && more >= -1 && more <= 1);
    size_t place = at + round % COUNTS * sizeof(int64_t);
    int64_t word, seen;
    int rc = window_read_swapped(w, counter, place, &word);
    while (rc == PCOLL_OK) {
        int64_t after = group_window_count_after(word, round, more, w->size);
        *counted = group_window_newer(after, round) != 0 ? 0 : (uint32_t)after;
        if (*counted > w->size)
            return fail(PCOLL_EPROTOCOL,
                        "rank %u counts %u ranks in round %llu, of %u in all", counter,
                        *counted, (unsigned long long)round, w->size);
        if (!more || after == word)
            break;
        rc = w->ops->compare_swap(w, counter, place, word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int group_window_query(struct window *w, size_t at, uint32_t host,
                       const struct group_key *key, int64_t *words,
                       struct match_entry *found, uint32_t *count)
{
    CHECK(host < w->size);
    uint64_t tag = group_window_tag(key);
    size_t bytes = (size_t)w->size * ENTRY_WORDS * sizeof *words;
    int rc = w->ops->get(w, host, group_window_entry_at(at, 0), words, bytes);
    if (rc == PCOLL_OK)
        rc = w->ops->complete(w, host);
    *count = 0;
    for (uint32_t r = 0; r < w->size && rc == PCOLL_OK; r++) {
        const int64_t *entry = words + (size_t)r * ENTRY_WORDS;
        uint64_t check = (uint64_t)entry[0] ^ splitmix_mix((uint64_t)entry[1]);
        if ((uint64_t)entry[0] == tag && (uint64_t)entry[2] == check)
            found[(*count)++] = (struct match_entry){r, entry[1]};
    }
    return rc;
}

/* Requests: to a near rank by its window, to a far one by messages. */

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

/* Requests of ranks on other nodes. */

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

/* Send the entries, two in each message; without entries, send one empty message. */
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
