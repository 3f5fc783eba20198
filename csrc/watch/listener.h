/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP listener of a watch, and incoming connections that have not proven yet which process
 * they come from (link.h). A proven connection becomes that of its link, if the link has none:
 * it never replaces one.
 *
 * Bounds. There are at most LISTENER_UNPROVEN such connections; one more closes the oldest. Each
 * has five seconds in all. When the process has no descriptor left, the listener pauses for a
 * second: a connection waits in the kernel then.
 */
#ifndef PCOLL_WATCH_LISTENER_H
#define PCOLL_WATCH_LISTENER_H

#include "watch/link.h"

enum {
    LISTENER_UNPROVEN = 64,
    /* Accepted in one step: a flood does not close all unproven ones at once. */
    LISTENER_ADMITTED = 16
};

enum incoming_state {
    INCOMING_HELLO,   /* The hello is missing. */
    INCOMING_PENDING, /* It is valid, but no group here has its sender yet. */
    INCOMING_PROOF    /* The challenge is sent, the proof is missing. */
};

struct incoming {
    enum incoming_state state;
    int fd;
    int64_t due;
    unsigned got; /* Bytes of the message that is being received. */
    struct link_handshake handshake;
    struct siphash_tag proof;
};

struct listener {
    int fd;            /* -1: closed */
    int64_t paused_to; /* Do not accept before this time. */
    int count;
    struct incoming incoming[LISTENER_UNPROVEN]; /* The oldest first. */
};

/* Open a port on the addresses of the card, and store it there. */
bool listener_open(struct listener *l, struct watch_card *own);
void listener_close(struct listener *l);
/* Accept the connections that wait, as many as fit into one step. These two return what had to
 * be dropped, as a text for the log; NULL: nothing. */
const char *listener_admit(struct listener *l, const struct watch_card *own);
/* Continue the handshakes with the peers of these links. */
const char *listener_step(struct listener *l, struct link *links,
                          const struct watch_card *own, double timeout);
/* Take a connection in; false: the oldest was closed for it. */
bool listener_add(struct listener *l, int fd);

#endif
