/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is together in the next round. With static keys those of the line are known: the
 * live ones among them are waited for, and the lowest rank leads. With dynamic keys the
 * directory knows them (inquiry.h); once all live ranks have declared themselves for
 * the round, nobody else can come.
 */
#ifndef PCOLL_GROUP_MATCHING_H
#define PCOLL_GROUP_MATCHING_H

#include <stdbool.h>
#include <stdint.h>

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
