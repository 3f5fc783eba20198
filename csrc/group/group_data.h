/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of a group's round on one rank: a butterfly (algorithms/butterfly.c) on the
 * schedule engine, whose fetches are gets from the windows of the members. A get from a
 * near member is complete when it returns. The driver polls gets from far members
 * (group_data_poll).
 *
 * There is one round at a time, and one thread at a time drives it.
 */
#pragma once

#include "group/group_wire.h"
#include "kernels/reduce.h"
#include "schedule/sched.h"

/* Allocate an array of `count` zeros; NULL: no memory. */
#define GROUP_ALLOCATE(array, count) ((array) = calloc((count), sizeof *(array)))

/* A group as one of its members sees it. Arrays are indexed by position in the list. */
struct group_members {
    uint32_t members, position;
    uint32_t *rank;
    double *share;
    uint64_t *bound; /* Member i reduces elements bound[i] to bound[i + 1] - 1. */
};

/* A get that is not complete. */
struct group_fetch {
    int op; /* The operation that it belongs to; -1: none. */
    size_t bytes;
    struct window_get get;
};

/* The speed at which the inputs of far members arrive. */
struct group_meter {
    int64_t began;   /* Time of the first fetch in ns; 0: none. */
    uint64_t bytes;  /* Received in all. */
    double download; /* Highest rate of all members together, bytes per second. */
};

/* What this rank knows of a member in a round. */
struct group_member {
    bool known, contributes;    /* It has said whether it contributes, and it does. */
    int input_there, part_done; /* The operation of its notice, or -1. */
    int64_t begun;              /* Time of its first fetch. */
    double rate;                /* Bytes per second; 0: not measured. */
};

/* Memory that MPI may still write to after a void round. */
struct group_abandoned {
    struct group_fetch *fetches;
    uint32_t count;
    char *landing, *fetched;
    struct group_abandoned *next;
};

struct group_data {
    struct group *owner;
    struct window *window;
    struct group_layout place;
    const struct dtype *dtype;
    reduce_fn *add;
    size_t held; /* Bytes of an element of a sum. */
    uint32_t max_members;
    size_t piece; /* Elements of a piece. */

    struct group_members group;
    bool *empty; /* By member: it has no part to reduce. */
    struct group_member *state;
    uint32_t active;     /* Members that contribute. */
    struct sched *sched; /* NULL: no round. */
    struct engine engine;
    int start, *scratch;

    char *landing; /* The result, in the application's dtype. */
    char *fetched; /* One piece of a near member's input, then two of each far one. */
    char *sums[2]; /* Sums of even and odd pieces. */
    char *widened; /* A piece in the dtype of sums, if that differs. */
    struct group_fetch *fetches;
    uint32_t under_way; /* Fetches that are not complete. */
    size_t max_fetches;
    struct group_abandoned *abandoned;
    uint64_t bytes_fetched;
    struct group_meter meter;
};

/* Allocate memory. The caller has set owner, window, place, dtype and max_members. PCOLL_ENOMEM. */
int group_data_init(struct group_data *r);
void group_data_destroy(struct group_data *r);
size_t group_data_bytes(const struct group_data *r);

/* Make the schedule for the group that the caller has filled in. */
int group_data_prepare(struct group_data *r);
/* Start. `own`: this rank contributes, and its input is in its window. */
int group_data_start(struct group_data *r, bool own);
/* A member's notice has arrived: it contributes or not; its part is reduced. */
void group_data_input(struct group_data *r, uint32_t member, bool contributes);
void group_data_part(struct group_data *r, uint32_t member);
/* Issue all operations that are ready. */
int group_data_run(struct group_data *r);
/* Poll the fetches from far members; *ended: at least one has completed. */
int group_data_poll(struct group_data *r, bool *ended);
/* Does the round wait for a notice of this member? */
bool group_data_waits_for_input(const struct group_data *r, uint32_t member);
bool group_data_waits_for_part(const struct group_data *r, uint32_t member);
/* End a round that is complete or void. Fetches that are not complete are abandoned:
 * their memory is freed when they complete. PCOLL_ENOMEM. */
int group_data_end(struct group_data *r);

/* Does this rank contribute? Only a rank that contributes gets the result. */
static inline bool group_data_contributes(const struct group_data *r)
{
    return r->state[r->group.position].contributes;
}

static inline bool group_data_complete(const struct group_data *r)
{
    return r->sched && engine_over(&r->engine);
}
