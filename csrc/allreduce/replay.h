/* SPDX-License-Identifier: Apache-2.0 */
/* A replay of recorded arrivals (event_log.h): may this rank, in this state, do what it
 * is about to? Each event has its place in the order of the record. All is allowed
 * without a replay. */
#ifndef PCOLL_ALLREDUCE_REPLAY_H
#define PCOLL_ALLREDUCE_REPLAY_H

#include "protocol/member.h"
#include "allreduce/event_log.h"

/* A deposit, join or leave: is it this rank's turn? */
bool replay_admits_event(const struct event_log *log, const struct member *m);
/* deliver="all": are as many rounds complete as there were at this read? */
bool replay_admits_read(const struct event_log *log, const struct member *m);
/* The outstanding call may end. */
bool replay_call_over(const struct event_log *log, const struct member *m);
/* Is a read up to round `last` held up? To be as if no more than *horizon rounds were
 * complete, if so. */
bool replay_holds_read(const struct event_log *log, const struct member *m,
                       uint64_t last, uint64_t *horizon);
/* Rounds complete that the outstanding call is to know of, and no more. */
uint64_t replay_complete(const struct event_log *log, const struct member *m);

#endif
