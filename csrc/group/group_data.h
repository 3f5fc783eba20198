/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's work in a group's round: a butterfly (algorithms/butterfly.c) on the
 * engine, whose fetches are gets from the members' windows. From near members they
 * are over at once; from far ones they are looked after (group_data_poll).
 *
 * One round at a time; driven by one thread at a time. Who is in the group, and whether
 * the round counts, is not its business.
 */
#ifndef PCOLL_GROUP_DATA_H
#define PCOLL_GROUP_DATA_H

#include "group/group_window.h"
#include "kernels/reduce.h"
#include "schedule/engine.h"

/* A group as one of its members sees it: by places in its list. */
struct group_members {
    uint32_t members, position;
    uint32_t *rank;
    double *share;
    uint64_t *bound; /* members + 1 elements: the parts */
};

/* A fetch that is under way. */
struct group_fetch {
    int op; /* -1: none */
    size_t bytes;
    struct window_get get;
};

/* How fast the inputs of far members came: from each one, and from all together. */
struct group_meter {
    int64_t began;   /* ns, the first fetch; 0: none */
    uint64_t bytes;  /* that have come */
    double download; /* bytes per second, at the best moment */
    int64_t *begun;  /* by member */
    double *rate;    /* by member; 0: nothing that could be measured */
};

/* What MPI may still write to, after a void round. */
struct group_abandoned {
    struct group_fetch *fetches;
    uint32_t count;
    char *landing, *fetched;
    struct group_abandoned *next;
};

/* Tell a member: who is asked to by the engine. */
typedef int group_data_notice_fn(void *arg, uint32_t member, int edge);

struct group_data {
    struct window *window;
    struct group_layout place;
    const struct dtype *dtype;
    reduce_fn *add;
    size_t held; /* bytes of an element in a sum */
    uint32_t max_members;
    size_t piece;                 /* elements */
    group_data_notice_fn *notice; /* of this rank to the others */
    int (*heartbeat)(void *arg);  /* called now and then while there is much to do */
    void *arg;

    struct group_members group;
    bool *empty;         /* by member: its part */
    bool *known;         /* by member: whether it has an input … */
    bool *contributes;   /* … and that it has */
    uint32_t active;     /* how many do */
    struct sched *sched; /* NULL: no round */
    struct engine engine;
    int start, *scratch;
    int *input_there, *part_done; /* by member: operation, or -1 */

    char *landing; /* the result, as the application's elements */
    char *fetched; /* a piece of a near member's input, two of each far one */
    char *sums[2]; /* of odd and even pieces */
    char *widened; /* a piece in the form of sums, if that is another */
    struct group_fetch *fetches;
    uint32_t under_way;
    size_t max_fetches;
    struct group_abandoned *abandoned;
    uint64_t bytes_fetched;
    struct group_meter meter;
};

/* The window, place, dtype, max_members, piece and notice are there; make the rest. */
int group_data_init(struct group_data *r);
void group_data_destroy(struct group_data *r);
/* Of its memory. */
size_t group_data_bytes(const struct group_data *r);

/* The group is filled in: get ready. */
int group_data_prepare(struct group_data *r);
/* The own input lies in the window, or (own = false) there is none. */
int group_data_start(struct group_data *r, bool own);
/* A member's input is there, and contributes or does not; its part is done. */
void group_data_input(struct group_data *r, uint32_t member, bool contributes);
void group_data_part(struct group_data *r, uint32_t member);
/* Does this rank? Who does gets the result as well. */
static inline bool group_data_contributes(const struct group_data *r)
{
    return r->contributes[r->group.position];
}
/* Go on as far as that is possible. */
int group_data_run(struct group_data *r);
static inline bool group_data_complete(const struct group_data *r)
{
    return r->sched && engine_over(&r->engine);
}
/* Fetches from far members: has one ended? */
int group_data_poll(struct group_data *r, bool *ended);
/* Does it wait for a notice of this member? */
bool group_data_waits_for_input(const struct group_data *r, uint32_t member);
bool group_data_waits_for_part(const struct group_data *r, uint32_t member);
/* Over, or void: what was begun is abandoned. PCOLL_ENOMEM. */
int group_data_end(struct group_data *r);

#endif
