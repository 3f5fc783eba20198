/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is together in the next round. With static keys those of the line are known: the
 * live ones among them are waited for, and the lowest rank leads. With dynamic keys the
 * directory knows them (group_matching.h); once all live ranks have declared themselves for
 * the round, nobody else can come.
 */
#ifndef PCOLL_GROUP_MATCHING_H
#define PCOLL_GROUP_MATCHING_H

#include <stdbool.h>
#include <stdint.h>

/*
 * With dynamic keys: a rank declares itself in the directory (group_window.h), counts
 * itself and looks who is there; then it counts none and looks again, now and then.
 */
struct group;
struct group_message;

/* Declare, count, query; count, query; … */
enum group_inquiry_stage { INQUIRY_DECLARE, INQUIRY_COUNT, INQUIRY_QUERY };

struct group_inquiry {
    enum group_inquiry_stage stage;
    int64_t time;      /* what it declares: its priority */
    int64_t at, pause; /* the next query, and the time between them; ns */
    bool waits;        /* for an answer from another node */
    bool counted_self;
    uint32_t counted; /* ranks that had declared themselves before the query */
    uint32_t found;
    struct match_entry *entries; /* so many */
};

/* Matching begins, with this priority. */
void group_matching_begin_inquiry(struct group *g, int64_t time);
/* What is due of it. */
int group_matching_inquire(struct group *g);
/* It takes no part in this round after all: it is not counted any more. */
int group_matching_withdraw(struct group *g);
/* When to go on without being told, or INT64_MAX. */
int64_t group_matching_inquiry_alarm(const struct group *g);
/* Answers of a directory on another node: it has declared, or counted; has found. */
void group_matching_on_counted(struct group *g, const struct group_message *m);
void group_matching_on_found(struct group *g, const struct group_message *m);

struct group;
enum group_phase;

struct group_matching {
    uint32_t *line; /* room for the ranks of one */
    struct match_entry *candidates;
    bool members_changed; /* since they were offered */
    int64_t began;
    int64_t stay_until; /* it leaves, and waits for a list; 0: no */
    int64_t nudge_at;   /* when to nudge those who are waited for; 0: not yet */
    bool application;   /* … since the application waits */
    uint32_t opened;    /* the last own group with a word */
};

int group_matching_begin(struct group *g);
/* *next: the phase that follows, or this one. */
int group_matching_continue(struct group *g, enum group_phase *next);
int64_t group_matching_alarm(const struct group *g);
/* Send what matchmaking has to say; the word of an own group is opened before. */
int group_matching_flush(struct group *g);
/* The ranks of the own line that are live, this one among them, into matching.line. */
uint32_t group_matching_live_on_line(struct group *g);

#endif
