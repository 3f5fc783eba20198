/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile messages to every kind of object (test_hostile_messages.c): messages that ranks
 * really sent, with words, kinds, rounds and lengths replaced, and arbitrary ones. An
 * object that receives one must return PCOLL_OK or PCOLL_EPROTOCOL. It must not crash, run
 * forever, or trigger a sanitizer or a CHECK.
 */
#pragma once

#include "transport/transport.h"

enum { HOSTILE_KEPT = 64 };

/* Random state and counters for one kind of object. */
struct hostile {
    uint64_t seed, drawn;
    uint32_t ranks;
    uint64_t messages, refused; /* sent to objects; answered with an error */
    uint64_t done;              /* rounds and the like that completed nevertheless */
    uint32_t tampers;           /* change one in `tampers` data messages; 0: none */
    void *copies;               /* changed data */
    struct control kept[HOSTILE_KEPT]; /* the last messages that ranks really sent */
    uint32_t kept_count;
};

uint32_t hostile_roll(struct hostile *h, uint32_t bound);
/* Return 0, 1, a rank, the number of ranks, a power of two, … or any number. */
uint64_t hostile_word(struct hostile *h);
/* Record the messages that this transport sends, and tamper with its data. */
void hostile_tap(struct hostile *h, struct transport *t);
/* Free the changed data when the world has ended. */
void hostile_end(struct hostile *h);
/* Return a recorded message, usually with some fields changed, or an arbitrary one. Its
 * kind is usually below `kinds`. */
struct control hostile_message(struct hostile *h, uint32_t kinds);
/* Count a message, and check the return code of the object that received it. */
void hostile_note(struct hostile *h, int rc);

/* Run worlds from creation to end, until about `most` messages have been sent. */
void hostile_groups(struct hostile *h, uint64_t most);
void hostile_handles(struct hostile *h, uint64_t most);
void hostile_schedules(struct hostile *h, uint64_t most);
void hostile_gossip(struct hostile *h, uint64_t most);
void hostile_agreements(struct hostile *h, uint64_t most);
