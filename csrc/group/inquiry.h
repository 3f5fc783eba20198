/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With dynamic keys: a rank declares itself in the directory (rendezvous.h), counts
 * itself and looks who is there; then it counts none and looks again, now and then.
 */
#ifndef PCOLL_GROUP_INQUIRY_H
#define PCOLL_GROUP_INQUIRY_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
