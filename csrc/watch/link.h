/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection between processes of two hosts, by which their kernels know of each other. The
 * process with the lower id connects, the other one listens (listener.h).
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
 * handshake over the direction and the number of the message. So news cannot be forged, repeated,
 * reordered, or sent back.
 *
 * Bounds. Each step of a handshake has a time limit. Each side reads exactly the bytes that it
 * expects next. A connection brings each host's number at most once (watch.c).
 */
#ifndef PCOLL_WATCH_LINK_H
#define PCOLL_WATCH_LINK_H

#include <stddef.h>

#include "watch/card.h"

enum link_state {
    LINK_AWAITED,    /* The peer connects to us. */
    LINK_PAUSED,     /* We connect again when `due` comes. */
    LINK_CONNECTING, /* Until `due`, as the next two. */
    LINK_CHALLENGED, /* Our hello is sent, the challenge is missing. */
    LINK_ANSWERED,   /* Our proof is sent, the answer is missing. */
    LINK_PROVEN,
    LINK_OVER /* The process there has ended, its host is lost, or it broke the protocol. */
};

enum link_event {
    LINK_QUIET,
    LINK_NEWS,
    LINK_LOST,  /* The kernel has no answer from the host. */
    LINK_BROKEN /* The peer broke the protocol; the connection is closed. */
};

struct link_hello {
    uint32_t magic, version;
    uint64_t to, from; /* ids of the cards */
    uint64_t nonce[2];
};

struct link_challenge {
    uint64_t nonce[2];
};

struct link_news {
    uint64_t host;
    struct siphash_tag tag;
};

/* What both sides have sent before the proof. */
struct link_handshake {
    struct link_hello hello;
    struct link_challenge challenge;
};

struct link {
    enum link_state state;
    struct watch_card peer;
    uint64_t host;
    struct siphash_key key; /* Derived from both secrets. */
    int fd;                 /* -1: none */
    int attempt, rounds;    /* Next address to try, times that all have failed. */
    int64_t due;            /* base/clock.h, us */
    struct link_handshake handshake;
    struct siphash_key
        session; /* Of the proven connection, with the messages counted. */
    uint64_t sent, received;
    uint32_t told; /* Number of losses that the peer has been told (watch.c). */
    bool mute;     /* The kernel did not take a message whole: none can follow it. */
    unsigned got;  /* Bytes of the message that is being received. */
    union {
        struct link_challenge challenge;
        struct siphash_tag answer;
        struct link_news news;
    } incoming;
    int error; /* Error that a send has met, which the kernel does not report again. */
    int slot;  /* Index in the list that is polled; -1: not in it. */
    struct link *next;
};

/* Return whether this process is the side that connects. */
bool link_connects(const struct link *l, const struct watch_card *own);
void link_init(struct link *l, const struct watch_card *own,
               const struct watch_card *peer, uint64_t host);
/* Continue after an event on the connection, or at its time. Store the news in *host. */
enum link_event link_step(struct link *l, const struct watch_card *own, double timeout,
                          uint64_t *host);
/* Take over a connection whose other end has proven that it is the peer. */
void link_accept(struct link *l, int fd, const struct link_handshake *handshake,
                 double timeout);
/* Return the events to poll the connection for. */
short link_wants(const struct link *l);
/* Return whether the state ends at `due`. */
bool link_is_timed(const struct link *l);
void link_tell(struct link *l, const struct watch_card *own, uint64_t host);
/* Close the connection for good. */
void link_end(struct link *l);

/* For the listener. */
bool link_is_valid_hello(const struct link_hello *hello, const struct watch_card *own);
bool link_draw_challenge(struct link_challenge *challenge);
struct siphash_tag link_proof(const struct link *l,
                              const struct link_handshake *handshake);
/* Read until *got is `bytes`: 1 then, 0 if more is to come, -1 at the end, with errno. */
int link_read(int fd, void *into, size_t bytes, unsigned *got);
bool link_send(int fd, const void *data, size_t bytes);

#endif
