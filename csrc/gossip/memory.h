/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a gossip buffer work with: the window, where things lie in it, and
 * this rank's own memory for one chunk. One thread at a time.
 */
#ifndef PCOLL_GOSSIP_MEMORY_H
#define PCOLL_GOSSIP_MEMORY_H

#include <stdbool.h>

#include "base/random.h"
#include "gossip/layout.h"
#include "transport/window.h"

struct gossip_memory {
    struct window *window;
    struct layout layout;
    double taken;  /* of what lies at a peer uncollected, its model takes this part */
    double margin; /* steps are for distances so much larger than those seen */
    bool rotate;
    uint64_t seed;     /* of this rank's messages */
    uint64_t messages; /* encoded so far */

    /* A chunk: as it was fetched, raw and coded; as float32 or float64; what goes
     * back. */
    char *fetched, *planes;
    struct block_note *notes;
    void *theirs, *ours, *change;
    float *key, *block; /* one block of the codec */

    /* By block: how far the models of others have been from this rank's, lately; below
     * 0: not known. */
    float *distances;

    pcoll_gossip_stats stats;
};

/* How often to read again what was overwritten meanwhile. */
#ifndef PCOLL_TEST_TRIES
enum { MAX_TRIES = 16 };
#else
enum { MAX_TRIES = PCOLL_TEST_TRIES };
#endif

/* All but the window, for this one of so many ranks. far: others are on other nodes.
 * PCOLL_EINVAL names an impossible option; PCOLL_ENOMEM. */
int gossip_memory_prepare(struct gossip_memory *m, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far);
/* The window is there: as it is at the start. */
int gossip_memory_clear(struct gossip_memory *m);
/* The layout is there; make the rest. PCOLL_ENOMEM. */
int gossip_memory_init(struct gossip_memory *m);
void gossip_memory_destroy(struct gossip_memory *m);
/* The same for one that malloc made; *m becomes NULL. The window stays. */
void gossip_memory_free(struct gossip_memory **m);

/* The seed of this rank's next message. */
static inline uint64_t gossip_next_seed(struct gossip_memory *m)
{
    return splitmix_at(m->seed, m->messages++);
}

/* The elements of a chunk, between the application's form and the held one (float32 for
 * 16 bits, else the same). */
void gossip_widen(const struct layout *l, void *held, const void *elements,
                  size_t count);
void gossip_narrow(const struct layout *l, void *elements, const void *held,
                   size_t count);

static inline const char *element_at(const struct layout *l, const void *x, size_t i)
{
    return (const char *)x + i * l->element;
}

/* The same in memory that is written to. */
static inline char *place_at(const struct layout *l, void *x, size_t i)
{
    return (char *)x + i * l->element;
}

#endif
