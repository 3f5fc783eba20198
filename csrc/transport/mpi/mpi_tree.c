/* SPDX-License-Identifier: Apache-2.0 */
/* See mpi_internal.h. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_internal.h"

enum { MOST_CHILDREN = 32 };

/* The neighbors of a position in a tree with the root at 0. */
struct tree_place {
    int parent; /* or -1 */
    int children, child[MOST_CHILDREN];
};

static struct tree_place tree_place_of(int position, int size)
{
    struct tree_place p = {.parent = position ? position & (position - 1) : -1};
    int reach = position ? position & -position : size;
    for (int step = 1; step < reach && position + step < size; step *= 2)
        p.child[p.children++] = position + step;
    return p;
}

struct tree_agreement {
    uint64_t cookie;
    uint64_t *values; /* The caller's. */
    enum agree_op op;
    int count;
    struct tree_place place;
    int missing; /* Children whose values have not come. */
    int sends;   /* Sends under way. */
    bool over;
    uint64_t *up, *down; /* The sum so far; the outcome. */
    uint64_t memory[];   /* Both, and the values of each child. */
};

static int tree_post(struct mpi_transport *m, struct tree_agreement *a, bool sends,
                     int peer, uint64_t *words)
{
    MPI_Request *request;
    int rc =
        mpi_next_request(m,
                         (struct request_info){.kind = sends ? TREE_SEND : TREE_RECV,
                                               .peer = mpi_rank_of(m, peer),
                                               .cookie = (uint64_t)(uintptr_t)a},
                         &request);
    if (rc != PCOLL_OK)
        return rc;
    int error =
        sends ? mpi_isend(m, words, a->count, MPI_UINT64_T, peer, TREE_TAG, request)
              : MPI_Irecv(words, a->count, MPI_UINT64_T, peer, TREE_TAG, m->comm,
                          request);
    rc = mpi_check_in(m, error, sends ? "MPI_Isend" : "MPI_Irecv");
    if (rc != PCOLL_OK)
        return rc;
    if (sends)
        mpi_begin_send(m, mpi_rank_of(m, peer));
    else
        m->count++;
    a->sends += sends;
    return PCOLL_OK;
}

static void tree_merge(uint64_t *into, const uint64_t *from, int count,
                       enum agree_op op)
{
    for (int i = 0; i < count; i++) {
        if (op == AGREE_SUM)
            into[i] += from[i];
        else if (from[i] > into[i])
            into[i] = from[i];
    }
}

static uint64_t *tree_inbox(const struct tree_agreement *a, int child)
{
    return a->down + (size_t)(child + 1) * (size_t)a->count;
}

/* Finish with the outcome: send it to the children. */
static int tree_hand_down(struct mpi_transport *m, struct tree_agreement *a)
{
    int rc = PCOLL_OK;
    a->over = true;
    memcpy(a->values, a->down, (size_t)a->count * sizeof *a->values);
    for (int i = 0; i < a->place.children && rc == PCOLL_OK; i++)
        rc = tree_post(m, a, true, a->place.child[i], a->down);
    return rc;
}

/* All children's values have come: add them up, and send the sum to the parent. */
static int tree_hand_up(struct mpi_transport *m, struct tree_agreement *a)
{
    for (int i = 0; i < a->place.children; i++)
        tree_merge(a->up, tree_inbox(a, i), a->count, a->op);
    if (a->place.parent < 0) {
        memcpy(a->down, a->up, (size_t)a->count * sizeof *a->down);
        return tree_hand_down(m, a);
    }
    int rc = tree_post(m, a, true, a->place.parent, a->up);
    return rc == PCOLL_OK ? tree_post(m, a, false, a->place.parent, a->down) : rc;
}

static struct tree_agreement *tree_create(struct mpi_transport *m,
                                          const uint64_t *values, int count,
                                          enum agree_op op)
{
    struct tree_place place =
        tree_place_of(mpi_number_of(m, m->base.rank), (int)m->base.living);
    size_t words = (size_t)count * (size_t)(2 + place.children);
    struct tree_agreement *a = calloc(1, sizeof *a + words * sizeof *a->memory);
    if (!a)
        return NULL;
    a->op = op;
    a->count = count;
    a->place = place;
    a->missing = place.children;
    a->up = a->memory;
    a->down = a->memory + count;
    memcpy(a->up, values, (size_t)count * sizeof *values);
    return a;
}

int tree_agree(struct mpi_transport *m, uint64_t *values, int count, enum agree_op op,
               uint64_t cookie)
{
    struct tree_agreement *a = tree_create(m, values, count, op);
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for an agreement");
    a->values = values;
    a->cookie = cookie;
    CHECK(m->base.living > 1); /* else no request would complete it */
    int rc = PCOLL_OK;
    for (int i = 0; i < a->place.children && rc == PCOLL_OK; i++)
        rc = tree_post(m, a, false, a->place.child[i], tree_inbox(a, i));
    return rc == PCOLL_OK && !a->missing ? tree_hand_up(m, a) : rc;
}

static void tree_end_if_idle(struct tree_agreement *a)
{
    if (a->over && !a->sends)
        free(a);
}

int tree_received(struct mpi_transport *m, struct tree_agreement *a, bool *over,
                  uint64_t *cookie)
{
    CHECK(!a->over);
    int rc;
    if (a->missing)
        rc = --a->missing ? PCOLL_OK : tree_hand_up(m, a);
    else
        rc = tree_hand_down(m, a);
    *over = rc == PCOLL_OK && a->over;
    *cookie = a->cookie;
    tree_end_if_idle(a);
    return rc;
}

void tree_sent(struct tree_agreement *a)
{
    CHECK(a->sends > 0);
    a->sends--;
    tree_end_if_idle(a);
}

/* Waiting. */

int mpi_patient_wait(const struct mpi_transport *m, MPI_Request *request,
                     const char *what)
{
    for (long us = 10;; mpi_back_off(&us, 1000)) {
        int done;
        int rc = mpi_check_in(m, mpi_test(request, &done), what);
        if (rc == PCOLL_OK && !done)
            rc = mpi_check_hosts(m);
        if (rc != PCOLL_OK || done)
            return rc;
    }
}

/* Wait for a send or a large receive, which is freed only if it has ended well: mpi_internal.h. */
static int tree_wait_held(struct mpi_transport *m, int error, MPI_Request *request)
{
    int over = 0, rc = mpi_check_in(m, error, "MPI_Issend, MPI_Irecv");
    for (long us = 10; rc == PCOLL_OK && !over;) {
        mpi_get_status(*request, &over);
        rc = mpi_check_damage(m);
        if (!over)
            mpi_back_off(&us, 1000);
    }
    return rc == PCOLL_OK ? mpi_check_in(m, mpi_test(request, &over), "MPI_Test") : rc;
}

static int tree_send_words(struct mpi_transport *m, int peer, uint64_t *words,
                           int count)
{
    MPI_Request r;
    return tree_wait_held(
        m, mpi_isend(m, words, count, MPI_UINT64_T, peer, TREE_TAG, &r), &r);
}

static int tree_receive_words(struct mpi_transport *m, int peer, uint64_t *words,
                              int count)
{
    MPI_Request r;
    int error = MPI_Irecv(words, count, MPI_UINT64_T, peer, TREE_TAG, m->comm, &r);
    int rc = mpi_check_in(m, error, "MPI_Irecv");
    return rc == PCOLL_OK ? mpi_patient_wait(m, &r, "MPI_Test") : rc;
}

/* After a failure MPI may still write to what it was given: that memory is not freed. */
int tree_meet(struct mpi_transport *m, int to, int from)
{
    uint64_t *word = calloc(2, sizeof *word);
    MPI_Request send, receive;
    int rc;
    if (!word)
        return fail(PCOLL_ENOMEM, "no memory for a word");
    if (from >= 0 &&
        (rc = mpi_check_in(
             m, MPI_Irecv(word, 1, MPI_UINT64_T, from, TREE_TAG, m->comm, &receive),
             "MPI_Irecv")) != PCOLL_OK)
        return rc;
    int error = to < 0 ? MPI_SUCCESS
                       : mpi_isend(m, word + 1, 1, MPI_UINT64_T, to, TREE_TAG, &send);
    if ((rc = mpi_check_in(m, error, "MPI_Isend")) != PCOLL_OK)
        return rc;
    if (from >= 0 && (rc = mpi_patient_wait(m, &receive, "MPI_Irecv")) != PCOLL_OK)
        return rc;
    if (to >= 0 && (rc = tree_wait_held(m, MPI_SUCCESS, &send)) != PCOLL_OK)
        return rc;
    free(word);
    return PCOLL_OK;
}

/* Memory as in tree_meet. */
int tree_max(struct mpi_transport *m, uint64_t *values, int count)
{
    struct tree_agreement *a = tree_create(m, values, count, AGREE_MAX);
    int rc = PCOLL_OK;
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for an agreement");
    const struct tree_place *place = &a->place;
    for (int i = 0; i < place->children; i++) {
        rc = tree_receive_words(m, place->child[i], tree_inbox(a, i), count);
        if (rc != PCOLL_OK)
            return rc;
        tree_merge(a->up, tree_inbox(a, i), count, AGREE_MAX);
    }
    if (place->parent < 0)
        memcpy(a->down, a->up, (size_t)count * sizeof *a->down);
    else if ((rc = tree_send_words(m, place->parent, a->up, count)) == PCOLL_OK)
        rc = tree_receive_words(m, place->parent, a->down, count);
    for (int i = 0; i < place->children && rc == PCOLL_OK; i++)
        rc = tree_send_words(m, place->child[i], a->down, count);
    if (rc != PCOLL_OK)
        return rc;
    memcpy(values, a->down, (size_t)count * sizeof *values);
    free(a);
    return PCOLL_OK;
}

int tree_broadcast(struct mpi_transport *m, int root, void *data, size_t bytes)
{
    MPI_Request r;
    int size = (int)m->base.living, blocks = (int)(bytes / BLOCK), rc = PCOLL_OK;
    struct tree_place p =
        tree_place_of((mpi_number_of(m, m->base.rank) - root + size) % size, size);
    CHECK(bytes % BLOCK == 0);
    if (p.parent >= 0)
        rc = tree_wait_held(m,
                            MPI_Irecv(data, blocks, m->block, (p.parent + root) % size,
                                      TREE_TAG, m->comm, &r),
                            &r);
    for (int i = 0; i < p.children && rc == PCOLL_OK; i++)
        rc = tree_wait_held(m,
                            mpi_isend(m, data, blocks, m->block,
                                      (p.child[i] + root) % size, TREE_TAG, &r),
                            &r);
    return rc;
}
