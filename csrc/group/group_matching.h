/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank finds the group of its next round. With static keys the ranks of the line
 * are known: the rank waits for the live ones, and the lowest of them leads.
 *
 * With dynamic keys the directory (group_window.h) knows them. A rank declares itself,
 * counts itself, and queries the entries under its key. Then it reads the count and
 * queries again, at growing intervals. Once all live ranks have declared themselves for
 * the round, no other rank can appear.
 */
#ifndef PCOLL_GROUP_MATCHING_H
#define PCOLL_GROUP_MATCHING_H

#include <stdbool.h>
#include <stdint.h>

struct group;
struct group_message;
enum group_phase;

/* The next step of the inquiry: declare, count, query, count, query, … */
enum group_inquiry_stage { INQUIRY_DECLARE, INQUIRY_COUNT, INQUIRY_QUERY };

struct group_inquiry {
    enum group_inquiry_stage stage;
    int64_t time;      /* The priority that the rank declares. */
    int64_t at, pause; /* Time of the next query, and the interval; ns. */
    bool waits;        /* For an answer from another node. */
    bool counted_self; /* This rank is in the count of the round. */
    uint32_t counted;  /* Ranks that had declared themselves before the query. */
    uint32_t found;    /* Entries that the query has found. */
    struct match_entry *entries;
};

struct group_matching {
    uint32_t *line; /* Ranks of this rank's line; room for all ranks. */
    struct match_entry *candidates;
    bool
        members_changed; /* The membership has changed since candidates were offered. */
    int64_t began;
    int64_t stay_until; /* The rank leaves, but waits for a list until then; 0: no. */
    int64_t nudge_at;   /* When to nudge the ranks that are missing; 0: not yet. */
    bool application;   /* nudge_at was set while the application waited. */
    uint32_t opened;    /* seq of the last own group whose decision is open. */
};

int group_matching_begin(struct group *g);
/* Do what is due. *next is the phase that follows, or PHASE_MATCHING. */
int group_matching_continue(struct group *g, enum group_phase *next);
/* Return when to call group_matching_continue without a message, or INT64_MAX. */
int64_t group_matching_alarm(const struct group *g);
/* Send the messages of matchmaking. The decision of an own group is opened first. */
int group_matching_flush(struct group *g);
/* Fill matching.line with the live ranks of this rank's line, including this rank. */
uint32_t group_matching_live_on_line(struct group *g);

void group_matching_begin_inquiry(struct group *g, int64_t time);
int group_matching_inquire(struct group *g);
int64_t group_matching_inquiry_alarm(const struct group *g);
/* Answers of a directory on another node. */
void group_matching_on_counted(struct group *g, const struct group_message *m);
void group_matching_on_found(struct group *g, const struct group_message *m);

#endif
