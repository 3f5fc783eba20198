/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does in another's window, near or far: to a near one itself, and it is
 * done at once; a far one is asked by a message to do it to its own window, and answers
 * by a message. The steps that use it are the same (*answered, or a decision that is
 * not pending: this one was near).
 */
#ifndef PCOLL_GROUP_REMOTE_H
#define PCOLL_GROUP_REMOTE_H

#include "group/rendezvous.h"
#include "group/wire.h"

/* Room for a query of the directory. */
struct group_remote {
    struct match_entry *served; /* for another node */
    int64_t *words;             /* as the entries lie in the window */
};

/* Vote on a group's word; far: *decision is pending. */
int group_window_request_vote(struct group *g, struct group_name name,
                              enum decision_vote vote, uint32_t members,
                              enum decision *decision);
/* The directory (rendezvous.h). */
int group_window_request_declare(struct group *g, const struct group_key *key,
                                 int64_t time, bool *answered);
int group_window_request_count(struct group *g, uint64_t round, int32_t more,
                               uint32_t *counted, bool *answered);
int group_window_request_query(struct group *g, const struct group_key *key,
                               struct match_entry *entries, uint32_t *found,
                               bool *answered);

/* Another node asks for one of those: WIRE_DECLARE, WIRE_COUNT or WIRE_QUERY. */
int group_window_serve(struct group *g, const struct group_message *m);

#endif
