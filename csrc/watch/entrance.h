/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where other hosts' watches come in: a port, and those who have connected and whom nobody has
 * asked for yet. Who does not know the cookie is shown out.
 */
#ifndef PCOLL_WATCH_ENTRANCE_H
#define PCOLL_WATCH_ENTRANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "watch/link.h"

struct guest {
    int fd;
    unsigned got; /* bytes of what it says first */
    struct link_greeting said;
    int64_t due; /* until then it has to say it; INT64_MAX: it has */
};

struct entrance {
    int fd; /* -1: closed */
    struct guest *guests;
    int count, capacity;
};

/* The port; 0: it could not be opened. */
uint32_t entrance_open(struct entrance *e);
void entrance_close(struct entrance *e);
/* Whoever has connected. */
void entrance_admit(struct entrance *e);
/* Listen to guest i; false: it has gone, and the last one is i now. */
bool entrance_hear(struct entrance *e, int i, uint64_t cookie);
/* The connection of who has said this is its cookie; -1. */
int entrance_take(struct entrance *e, uint64_t from);

#endif
