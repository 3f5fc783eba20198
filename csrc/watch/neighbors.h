/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the processes of the own host which other host is lost: a socket in the kernel for each,
 * which takes it even from and for one that is stopped. */
#ifndef PCOLL_WATCH_NEIGHBORS_H
#define PCOLL_WATCH_NEIGHBORS_H

#include "watch/card.h"

struct neighbors {
    int fd; /* -1: none */
};

bool neighbors_open(struct neighbors *n, uint64_t cookie);
void neighbors_close(struct neighbors *n);
void neighbors_tell(const struct neighbors *n, const struct watch_card *to,
                    uint64_t host);
/* What one of them has said, if there is something. */
bool neighbors_hear(const struct neighbors *n, const struct watch_card *own,
                    uint64_t *host);

#endif
