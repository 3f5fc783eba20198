/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCOLL_WATCH_PARTY_H
#define PCOLL_WATCH_PARTY_H

#include "watch/card.h"

/* Ranks that watch their hosts together; the caller's, from join to leave. */
struct watch_party {
    uint32_t rank, size;
    const uint64_t *hosts;          /* by rank, a name in numbers */
    const struct watch_card *cards; /* by rank; of the dead all is zero */
    const void *owner;
    struct watch_party *next;
};

#endif
