/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrivals, recorded and replayed: what makes a run that depends on timing reproducible
 * bit for bit (docs/replay.md).
 *
 * A rank's events on a handle are its deposits, its joins and leaves, and with
 * deliver="all" the results it has read. What timing decides is how many of them came
 * before each round was activated there, how many rounds were complete at each read,
 * and how many had been delivered when a call ended: that is what each rank records of
 * itself, in a file of its own. A replay lets a round begin when as many events have
 * happened, and a deposit, join or leave happen when as many rounds have begun. So
 * every rank takes these steps in the recorded order; since that order was possible
 * once, none waits for ever. (Reading is never held up: a round may be waiting for it,
 * by back-pressure, before it counts.)
 *
 * A record is complete if its last line is "end", which is written when the handle is
 * freed. Without it the run was killed, or its disk was full; a last line that is torn is
 * not read. After a complete record the program runs on freely. If the record of a rank
 * is incomplete, all ranks replay the rounds that every rank has recorded and begin no
 * others: `limit`, which the ranks agree on when the handle is made. A call that needs
 * more than these rounds fails on every rank. Each record is a prefix of what its rank
 * did, in order, so the deposits that those rounds need are made before any call fails.
 *
 * A record that cannot be written does not harm the run: the process says so once, and the
 * record stays incomplete. A program in Python then ends with status 1 instead of 0, by
 * pcoll_record_status().
 *
 * Rounds are noted by the driver, calls by the application; both may ask.
 */
#ifndef PCOLL_ALLREDUCE_EVENT_LOG_H
#define PCOLL_ALLREDUCE_EVENT_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/member.h"

struct event_log;

/* What is recorded: with each round how many events came before it, with each read how many rounds
 * were complete, with each call how many had been delivered at its end. */
enum event_log_kind { LOGGED_ROUND, LOGGED_READ, LOGGED_CALL, LOGGED_KINDS };

/* Is one of the two set? */
bool event_log_wanted(void);
/* By PARTIALCOLL_RECORD and PARTIALCOLL_REPLAY, which name folders; *out is NULL if
 * neither is set. `number` counts the handles of this process. PCOLL_EINVAL names the
 * file, and the line, that is wrong. */
int event_log_open(uint32_t rank, uint32_t ranks, uint64_t number,
                   struct event_log **out);
/* The handle is being freed: end the record, if it is complete so far. */
void event_log_close(struct event_log **a);

void event_log_note(struct event_log *a, enum event_log_kind kind, uint64_t number);

/* Rounds that this rank can replay; UINT64_MAX if its record is complete, or if there is no
 * replay. */
uint64_t event_log_rounds(const struct event_log *a);
/* Replay no more than these rounds: the least of all ranks. Before the first round. */
void event_log_set_limit(struct event_log *a, uint64_t rounds);
/* Has the replay of an incomplete record come to its end, after so many rounds? */
bool event_log_has_ended(const struct event_log *a, uint64_t complete);
/* PCOLL_ESTATE, with a sentence that says so. */
int event_log_end_error(const struct event_log *a);

/* All of these are true without a replay, and after the end of a complete record. */
/* May this round begin, after so many events? */
bool event_log_admit_round(const struct event_log *a, uint64_t round, uint64_t events);
/* May this event happen, after so many rounds have begun? */
bool event_log_admit_event(const struct event_log *a, uint64_t event, uint64_t begun);
/* Does the record say how this call ended, or need it not? */
bool event_log_knows_call(const struct event_log *a, uint64_t call);
/* How many rounds are complete at this read, from 0; UINT64_MAX: as many as there are.
 */
uint64_t event_log_complete(const struct event_log *a, uint64_t read);
/* How many rounds have been delivered at the end of this call, from 0; UINT64_MAX:
 * as many as there are. */
uint64_t event_log_delivered(const struct event_log *a, uint64_t call);

/* A replay of recorded arrivals: may this rank, in this state, do what it
 * is about to? Each event has its place in the order of the record. All is allowed
 * without a replay. */

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
