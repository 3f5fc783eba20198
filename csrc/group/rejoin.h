/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaving and coming back. One that is back asks the others which round they are at,
 * and joins the latest of them. Those who are away answer as well: if all have left,
 * they are the only ones who know how far the rounds had got.
 */
#ifndef PCOLL_GROUP_REJOIN_H
#define PCOLL_GROUP_REJOIN_H

#include <stdbool.h>
#include <stdint.h>

struct group;
struct group_message;
enum group_phase;

struct group_rejoin {
    bool suspected;     /* this rank, by others: it has to come back */
    uint64_t highest;   /* round that was answered, … */
    uint32_t answers;   /* … by so many … */
    int64_t wait_until; /* … and until when to wait for more */
};

int group_agent_leave(struct group *g);
int group_agent_begin_rejoin(struct group *g);
/* *next: the phase that follows, or this one. */
int group_agent_continue_rejoin(struct group *g, enum group_phase *next);
/* An answer. */
void group_agent_on_round(struct group *g, const struct group_message *m);
/* The round that one that comes back may join, for all that this rank knows. */
uint64_t group_agent_round_to_join(const struct group *g);

#endif
