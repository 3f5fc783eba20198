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
 * Rounds are noted by the driver, calls by the application; both may ask.
 */
#ifndef PCOLL_ALLREDUCE_EVENT_LOG_H
#define PCOLL_ALLREDUCE_EVENT_LOG_H

#include <stdbool.h>
#include <stdint.h>

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
void event_log_close(struct event_log **a);

void event_log_note(struct event_log *a, enum event_log_kind kind, uint64_t number);

/* All of these are true without a replay, and after its end. */
/* May this round begin, after so many events? */
bool event_log_admit_round(const struct event_log *a, uint64_t round, uint64_t events);
/* May this event happen, after so many rounds have begun? */
bool event_log_admit_event(const struct event_log *a, uint64_t event, uint64_t begun);
/* How many rounds are complete at this read, from 0; UINT64_MAX: as many as there are.
 */
uint64_t event_log_complete(const struct event_log *a, uint64_t read);
/* How many rounds have been delivered at the end of this call, from 0; UINT64_MAX:
 * as many as there are. */
uint64_t event_log_delivered(const struct event_log *a, uint64_t call);

#endif
