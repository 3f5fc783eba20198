/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets of the watch: connections between processes of two hosts, by which their kernels
 * know of each other (link), and the listener for incoming connections. No call here blocks.
 *
 * Between two processes on different hosts, the one with the lower id connects, the other listens.
 *
 * Handshake. Each side proves that it knows the secrets of both cards, without sending them:
 *
 *   connecting side             listening side
 *   hello: ids, nonce      ->
 *                          <-   challenge: nonce
 *   proof: tag             ->   verifies, from now on the connection is proven
 *                          <-   answer: tag
 *   verifies: proven
 *
 * The tags are made over hello and challenge with a key that is derived from both secrets. Both
 * nonces are random, so tags of an earlier handshake are not valid again. Tags of the two
 * directions have different labels, so no side can be made to answer itself.
 *
 * Afterwards each side sends news: numbers of lost hosts, each with a tag made with a key of this
 * handshake over direction and number, so it cannot be forged, repeated, reordered or sent back.
 *
 * Bounds. Each step of a handshake has a time limit. Each side reads exactly the bytes that it
 * expects next. A connection brings each host's number at most once (watch.c). At most
 * LISTENER_UNPROVEN incoming connections have not proven yet which process they come from; one
 * more closes the oldest. Each has five seconds in all. When the process has no descriptor left,
 * the listener pauses for a second: a connection waits in the kernel then. A proven connection
 * becomes that of its link, if the link has none: it never replaces one.
 */
#pragma once

#include "watch/watch.h"

enum link_state {
    LINK_AWAITED, /* The peer connects to this process. */
    LINK_PAUSED,  /* Until `due`, as the next three. Then connect again. */
    LINK_CONNECTING,
    LINK_CHALLENGED, /* The hello is sent, the challenge is missing. */
    LINK_ANSWERED,   /* The proof is sent, the answer is missing. */
    LINK_PROVEN,
    LINK_OVER /* The process there has ended, its host is lost, or it broke the protocol. */
};

enum link_event {
    LINK_QUIET,
    LINK_NEWS,
    LINK_LOST,  /* The kernel has no answer from the host. */
    LINK_BROKEN /* The peer broke the protocol; the connection is closed. */
};

struct link_news {
    uint64_t host;
    struct siphash_tag tag;
};

/* The messages before the proof. */
struct link_handshake {
    struct link_hello {
        uint32_t magic, version;
        uint64_t to, from; /* ids of the cards */
        uint64_t nonce[2];
    } hello;
    struct link_challenge {
        uint64_t nonce[2];
    } challenge;
};

struct link {
    const struct watch_card *own;
    double timeout; /* Seconds without an answer from the host. */
    enum link_state state;
    struct watch_card peer;
    uint64_t host;
    struct siphash_tag key; /* Derived from both secrets. */
    int fd;                 /* -1: none. */
    int attempt, rounds;    /* Next address to try, times that all have failed. */
    int64_t due;            /* base/clock.h, us. */
    struct link_handshake handshake;
    struct siphash_tag session; /* Key of the proven connection. */
    uint64_t sent, received;
    uint32_t told; /* Number of losses that the peer has been told (watch.c). */
    bool mute;     /* The kernel did not take a message whole: none can follow it. */
    unsigned got;  /* Bytes of the message that is being received. */
    union {
        struct siphash_tag answer;
        struct link_news news;
    } incoming;
    int error; /* Error that a send has met, which the kernel does not report again. */
    struct link *next;
};

void link_init(struct link *l, const struct watch_card *own,
               const struct watch_card *peer, uint64_t host, double timeout);
/* Continue as far as messages have arrived, or time has passed. Store the news in *host. */
enum link_event link_step(struct link *l, uint64_t *host);
/* Take over a connection whose other end has proven that it is the peer. */
void link_accept(struct link *l, int fd, const struct link_handshake *handshake);
void link_tell(struct link *l, uint64_t host);
/* Close the connection for good. */
void link_end(struct link *l);

/*
 * Return the tag of these bytes: SipHash-2-4 with 128 bits (Aumasson, Bernstein: "SipHash: a fast
 * short-input PRF", 2012, and the authors' 128-bit variant). It is a keyed message authentication
 * code, and does not encrypt. Each message begins with a label that names the purpose, so that a
 * tag made for one purpose is never valid for another one.
 */
struct siphash_tag siphash_tag_of(struct siphash_tag key, const void *data,
                                  size_t bytes);
struct siphash_tag link_proof(const struct link *l,
                              const struct link_handshake *handshake);
bool link_send(int fd, const void *data, size_t bytes);

/* The listener. */

enum {
    LISTENER_UNPROVEN = 64,
    /* Accepted in one step: a flood does not close all unproven ones at once. */
    LISTENER_ADMITTED = 16
};

enum incoming_state {
    INCOMING_HELLO,   /* The hello is missing. */
    INCOMING_PENDING, /* The hello is valid, but no group here has its sender yet. */
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
    const struct watch_card *own;
    int fd;            /* -1: closed. */
    int64_t paused_to; /* Do not accept before this time. */
    int count;
    struct incoming incoming[LISTENER_UNPROVEN]; /* The oldest first. */
};

/* Open a port on the addresses of the card, and store it there. */
bool listener_open(struct listener *l, struct watch_card *own);
void listener_close(struct listener *l);
/* Accept the connections that wait, as many as fit into one step. These two return what had to
 * be dropped, as a text for the log; NULL: nothing. */
const char *listener_admit(struct listener *l);
/* Continue the handshakes with the peers of these links. */
const char *listener_step(struct listener *l, struct link *links);
/* Take a connection in; false: the oldest was closed for it. */
bool listener_add(struct listener *l, int fd);
