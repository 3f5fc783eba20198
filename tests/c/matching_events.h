/* SPDX-License-Identifier: Apache-2.0 */
/* What is to happen in simulated matchmaking, by time; of two at one time the one that
 * was made first goes first. */
#ifndef PCOLL_TESTS_MATCHING_EVENTS_H
#define PCOLL_TESTS_MATCHING_EVENTS_H

#include "protocol/group/matchmaking.h"

enum event_kind {
    EVENT_MESSAGE,
    EVENT_BEGIN,
    EVENT_LOOK_UP,
    EVENT_EXPECT,
    EVENT_LOST,
    EVENT_BACK,
    EVENT_ABANDON,
    EVENT_ROUND,
    EVENT_END
};

struct event {
    int64_t at;
    uint64_t number;
    enum event_kind kind;
    uint32_t peer;
    uint64_t round;
    uint32_t about;
    struct match_message message;
};

void events_clear(void);
bool events_empty(void);
int64_t events_first(void); /* not empty */
struct event events_pop(void);
void events_add(struct event e);
/* At a later time, but still before what was made after it. */
void events_postpone(struct event e, int64_t until);

#endif
