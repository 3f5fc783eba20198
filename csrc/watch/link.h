/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection between processes of two hosts, by which their kernels know of each other. Of the
 * two the one with the lower cookie connects and names both cookies, the other answers with its
 * own. Afterwards only names of lost hosts are sent, in numbers.
 */
#ifndef PCOLL_WATCH_LINK_H
#define PCOLL_WATCH_LINK_H

#include "watch/card.h"

enum link_state {
    LINK_AWAITED,    /* the other one connects */
    LINK_PAUSED,     /* tries again at its time */
    LINK_CONNECTING, /* gives up at its time … */
    LINK_GREETING,   /* … waits for the answer, likewise */
    LINK_HELD,       /* watched */
    LINK_OVER        /* the process there has ended; or its host is lost */
};

enum link_event { LINK_QUIET, LINK_NEWS, LINK_LOST };

struct link {
    enum link_state state;
    struct watch_card peer;
    uint64_t host;
    int fd; /* -1: none */
    int at; /* which address is tried */
    int tries;
    int64_t due; /* base/clock.h, us; of who tries */
    uint64_t heard;
    unsigned got; /* bytes of it */
    int error;    /* that the connection has ended with, where sending has met it */
    struct link *next;
};

/* What the one that connects says first. */
struct link_greeting {
    uint64_t to, from;
};

/* Go on after something has happened to its connection, or its time has come. *news is then
 * what was sent. */
enum link_event link_step(struct link *l, const struct watch_card *own, double timeout,
                          uint64_t *news);
/* Who was awaited is here. */
void link_accept(struct link *l, int fd, const struct watch_card *own, double timeout);
/* What to poll its connection for. */
short link_wants(const struct link *l);
void link_tell(struct link *l, uint64_t host);
void link_close(struct link *l);

#endif
