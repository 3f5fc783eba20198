/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record and replay of arrivals, which make a run that depends on timing reproducible bit for
 * bit (docs/replay.md).
 *
 * The events of a rank on a handle are its deposits, joins and leaves and, with deliver="all",
 * the results that it has read. Timing decides how many events came before each round was
 * activated on the rank, how many rounds were complete at each read, and how many had been
 * delivered when a call ended. Each rank records these numbers in a file of its own. A replay
 * lets a round begin when as many events have happened, and a deposit, join or leave happen when
 * as many rounds have begun. So every rank takes these steps in the recorded order. That order
 * was possible once, so no rank waits forever. A read waits only until as many rounds are complete
 * as at the recorded read, never for an event: by back-pressure, a round may wait for the read.
 *
 * A record is complete if its last line is "end", which is written when the handle is freed.
 * Otherwise the run was killed or its disk was full. A torn last line is ignored. After a
 * complete record the program runs on freely. If the record of some rank is incomplete, all
 * ranks replay the rounds that every rank has recorded and begin no others: the ranks agree on
 * this limit when the handle is made. A call that needs more rounds fails on every rank. Each
 * record is a prefix of what its rank did, in order, so the deposits that those rounds need are
 * made before any call fails.
 *
 * A record that cannot be written does not stop the run. The process prints a warning once, and
 * the record stays incomplete. A Python program then ends with status 1 instead of 0
 * (pcoll_record_status).
 *
 * The driver notes rounds, the application notes reads and calls. Both may query the log.
 */
#pragma once

#include "protocol/member.h"

struct event_log;

/* Recorded numbers: the events before each round, the rounds complete at each read, the rounds
 * delivered at the end of each call. */
enum event_log_kind { LOGGED_ROUND, LOGGED_READ, LOGGED_CALL, LOGGED_KINDS };

/* Return whether PARTIALCOLL_RECORD or PARTIALCOLL_REPLAY is set. */
bool event_log_wanted(void);
/* Open the files in the folders that these two variables name. *out is NULL if neither is set.
 * `number` counts the handles of this process. PCOLL_EINVAL names the wrong file and line. */
int event_log_open(uint32_t rank, uint32_t ranks, uint64_t number,
                   struct event_log **out);
/* The handle is being freed: end the record, if it is complete so far. */
void event_log_close(struct event_log **log);

/* Enter the lock under which the application deposits, joins, leaves and reads, and the driver
 * activates rounds, so that each round is recorded with the events before it. */
void event_log_enter(struct event_log *log);
/* The application has had this many events: leave the lock. */
void event_log_leave(struct event_log *log, uint64_t events);
/* The driver has activated a round: record the events before it, and leave the lock. */
void event_log_leave_round(struct event_log *log);

void event_log_note(struct event_log *log, enum event_log_kind kind, uint64_t number);

/* The number of rounds that this rank can replay, or UINT64_MAX if its record is complete or there
 * is no replay. Before the first round it is set to the minimum over all ranks. */
uint64_t *event_log_limit(struct event_log *log);
/* Return whether the replay of an incomplete record has ended, after `complete` rounds. */
bool event_log_has_ended(const struct event_log *log, uint64_t complete);
/* Return PCOLL_ESTATE, with a message that says so. */
int event_log_end_error(const struct event_log *log);

/* Each of these allows everything without a replay and after a complete record. */

/* Return whether this round may begin, after the events of this rank until now. */
bool event_log_admits_round(struct event_log *log, uint64_t round);
/* Return whether a deposit, join or leave of this rank may happen. */
bool event_log_admits_event(const struct event_log *log, const struct member *m);
/* deliver="all": return whether as many rounds are complete as at the recorded read. */
bool event_log_admits_read(const struct event_log *log, const struct member *m);
/* Return whether a read up to round `last` has to wait for event_log_admits_read. If it has,
 * store in *horizon the number of rounds that the read may take as complete. */
bool event_log_holds_read(const struct event_log *log, const struct member *m,
                          uint64_t last, uint64_t *horizon);
/* Return whether the outstanding call may end. */
bool event_log_ends_call(const struct event_log *log, const struct member *m);
/* Return the number of complete rounds that the outstanding call may know of. */
uint64_t event_log_visible_rounds(const struct event_log *log, const struct member *m);
