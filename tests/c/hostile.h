/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that no sound rank sends, for every kind of object (test_hostile_messages.c):
 * those that ranks really send, with words, kinds, rounds and lengths replaced, and
 * arbitrary ones. The object that gets one returns PCOLL_OK or PCOLL_EPROTOCOL. It does
 * not crash, no sanitizer and no CHECK fires, and it does not run without end.
 */
#pragma once

#include "transport/transport.h"

enum { HOSTILE_KEPT = 64 };

/* What is drawn and counted for one kind of object. */
struct hostile {
    uint64_t seed, drawn;
    uint32_t ranks;
    uint64_t messages, refused; /* sent to objects; those that returned an error */
    uint64_t done;    /* rounds and the like that were completed all the same */
    uint32_t tampers; /* with one in so many data messages; 0: with none */
    void *copies;     /* of data that was changed */
    struct control kept[HOSTILE_KEPT]; /* the last ones that ranks really sent */
    uint32_t kept_count;
};

uint32_t hostile_roll(struct hostile *h, uint32_t bound);
/* 0, 1, a rank, the number of ranks, a power of two, … or anything. */
uint64_t hostile_word(struct hostile *h);
/* Keep what the rank of this transport sends, and tamper with its data. */
void hostile_tap(struct hostile *h, struct transport *t);
/* The world has ended: free what was changed. */
void hostile_end(struct hostile *h);
/* One that was kept, mostly changed in some places, or an arbitrary one. Its kind is
 * mostly one of those below `kinds`. */
struct control hostile_message(struct hostile *h, uint32_t kinds);
/* Count a message, and check what has become of it. */
void hostile_note(struct hostile *h, int rc);

/* A world of ranks from its beginning to its end; about so many messages at most. */
void hostile_groups(struct hostile *h, uint64_t most);
void hostile_handles(struct hostile *h, uint64_t most);
void hostile_schedules(struct hostile *h, uint64_t most);
void hostile_gossip(struct hostile *h, uint64_t most);
void hostile_agreements(struct hostile *h, uint64_t most);
