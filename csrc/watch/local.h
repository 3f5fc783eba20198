/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the local peers, the other processes of the own host, which host is lost. Each process
 * has a datagram socket in the kernel, which accepts a message even while its process is stopped.
 *
 * The socket has a name in the abstract namespace, which every user of the host can read and send
 * to. So a message counts only if the kernel says that it comes from this user, and if it carries
 * a tag made with the secret of its receiver. A replayed message repeats what was true for good:
 * it changes nothing.
 */
#ifndef PCOLL_WATCH_LOCAL_H
#define PCOLL_WATCH_LOCAL_H

#include "watch/card.h"

struct local_message {
    uint32_t magic, version;
    uint64_t host;
    struct siphash_tag tag;
};

struct local {
    int fd; /* -1: none */
};

enum local_event {
    LOCAL_NOTHING, /* no message is left */
    LOCAL_NEWS,
    LOCAL_REFUSED /* a message that no local peer has sent */
};

bool local_open(struct local *l, const struct watch_card *own);
void local_close(struct local *l);
/* Return false if the receiver's queue is full; the message is not sent. */
bool local_tell(const struct local *l, const struct watch_card *to, uint64_t host);
/* Take the next message. */
enum local_event local_receive(const struct local *l, const struct watch_card *own,
                               uint64_t *host);

#endif
