/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement of the living ranks, and their communicators, if ranks may die. Each function has the
 * same result on all living ranks. See mpi_transport.h and mpi_internal.h. */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "transport/mpi/mpi_internal.h"

/* The dead ranks. */

int mpi_check_in(const struct mpi_transport *m, int mpi_error, const char *what)
{
    int rc = mpi_check_on(m->comm, mpi_error, what);
    if (rc != PCOLL_EFAILED || mpi_check_hosts(&m->base) == PCOLL_EFAILED)
        return rc; /* A lost host has all its ranks. MPI may know some of them. */
    struct failed_ranks who = *fail_last_ranks();
    for (int i = 0; i < who.count; i++)
        who.rank[i] = (int32_t)mpi_rank_of(m, who.rank[i]);
    return fail_ranks(&who);
}

/* Fail: a member has died, and this rank does not know which. */
static int mpi_fail_somebody(void)
{
    return fail_ranks(&(struct failed_ranks){.mpi_error = ulfm_rank_failure()});
}

int mpi_check_damage(const struct transport *t)
{
    const struct mpi_transport *m = mpi_transport_of(t);
    struct failed_ranks who = {.mpi_error = ulfm_rank_failure()};
    int rc = mpi_check_hosts(t);
    if (rc != PCOLL_OK)
        return rc;
    mpi_name_failed(m->comm, &who);
    return who.count || ulfm_is_revoked(m->comm) ? fail_ranks(&who) : PCOLL_OK;
}

int mpi_count_lost(const struct transport *t, uint32_t *count, uint32_t *first)
{
    const struct mpi_transport *m = mpi_transport_of(t);
    uint64_t *lost;
    int size, rc = mpi_find_lost(m, &lost);
    *count = 0;
    *first = UINT32_MAX;
    if (!lost)
        return rc;
    MPI_Comm_size(m->comm, &size);
    for (int i = 0; i < size; i++) {
        if (!bitset_has(lost, (uint32_t)i))
            continue;
        uint32_t rank = mpi_rank_of(m, i);
        *first = rank < *first ? rank : *first;
        ++*count;
    }
    free(lost);
    return rc;
}

static bool mpi_knows_all(const struct mpi_transport *m, const uint64_t *lost)
{
    int size;
    MPI_Comm_size(m->comm, &size);
    uint64_t *failed = mpi_find_failed(m->comm);
    bool all = failed;
    for (size_t i = 0; all && i < bitset_words((uint32_t)size); i++)
        all = !(lost[i] & ~failed[i]);
    free(failed);
    return all;
}

/* The watch has cut the connections to a lost host, and MPI notices that when it makes progress.
 * MPI may have no connection to some rank there, and never notice: so it gets many chances, and
 * not for ever. Chances are counted, not time: while this process is suspended it has none. */
int mpi_await_deaths(const struct transport *t)
{
    enum { CHANCES = 3000 };
    const struct mpi_transport *m = mpi_transport_of(t);
    uint64_t *lost;
    int rc = mpi_find_lost(m, &lost);
    if (!lost)
        return rc;
    bool known = mpi_knows_all(m, lost);
    for (int i = 0; !known && i < CHANCES; i++) {
        long us = 1000;
        int there; /* MPI makes progress. */
        TESTED(MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE));
        mpi_back_off(&us, us);
        known = mpi_knows_all(m, lost);
    }
    free(lost);
    return known ? PCOLL_OK : mpi_check_hosts(&m->base);
}

void mpi_revoke(struct transport *t)
{
    ulfm_revoke(mpi_transport_of(t)->comm);
}

void mpi_revoke_comm(void *comm)
{
    ulfm_revoke(*(MPI_Comm *)comm);
}

/* Agreements. */

/* Bits of an agreement: those of the caller, and those that tell an outcome from arbitrary bits. An
 * outcome has a bit if all ranks have set it. So it has MARK, and no bit that this rank has not
 * set. */
enum {
    CALLERS = 0x3f,
    LIVED = 0x40,   /* No rank has died without the other ranks' knowledge. */
    UNHEARD = 0x80, /* This rank has no outcome of the first agreement. */
    MARK = 0x7fff0000
};

/* Wait for an agreement. Give up if MPI does not find out that the ranks on a lost host are dead:
 * it would wait for them. An agreement that ends with an error because a rank has died has an
 * outcome all the same. */
static int mpi_await_agreement(const struct mpi_transport *m, MPI_Request *request,
                               bool *lived)
{
    long us = 10;
    for (int done = 0;; mpi_back_off(&us, 1000)) {
        int rc = mpi_test(request, &done);
        if (done || rc != MPI_SUCCESS) {
            rc = mpi_check_in(m, rc, "MPIX_Comm_iagree");
            *lived = rc == PCOLL_OK;
            return rc == PCOLL_EMPI ? rc : PCOLL_OK;
        }
        rc = mpi_await_deaths(&m->base);
        if (rc != PCOLL_OK)
            return rc;
    }
}

/* Agree once. Open MPI has been seen to end an agreement without an error, shortly after a death,
 * with arbitrary bits: *heard says whether this rank has the outcome. */
static int mpi_agree_once(const struct mpi_transport *m, int *bits, bool *heard)
{
    MPI_Request request;
    int flag = *bits | MARK;
    bool lived;
    int rc = ulfm_begin_agreement(m->comm, &flag, &request);
    if (rc != MPI_SUCCESS)
        return mpi_check_in(m, rc, "MPIX_Comm_iagree");
    rc = mpi_await_agreement(m, &request, &lived);
    if (rc != PCOLL_OK)
        return rc;
    *heard = (flag & MARK) == MARK && !(flag & ~(*bits | MARK));
    *bits = *heard ? flag & ~MARK & (lived ? -1 : ~LIVED) : *bits;
    return PCOLL_OK;
}

/* Agree twice: a rank without the outcome of the first agreement gets it in the second one from
 * ranks that have it. If no rank has it, or this rank has neither outcome, the result is that of a
 * death meanwhile: PCOLL_EFAILED, and `bits` as they were. */
int mpi_agree_bits(const struct transport *t, int *bits)
{
    const struct mpi_transport *m = mpi_transport_of(t);
    int first = *bits | LIVED;
    bool heard, again;
    CHECK(!(*bits & ~CALLERS));
    int rc = mpi_agree_once(m, &first, &heard);
    if (rc != PCOLL_OK)
        return rc;
    int second = heard ? first : CALLERS | LIVED | UNHEARD;
    rc = mpi_agree_once(m, &second, &again);
    if (rc != PCOLL_OK)
        return rc;
    if (again && !(second & UNHEARD))
        *bits = second;
    else if (heard)
        *bits = first;
    else
        rc = mpi_fail_somebody();
    return rc;
}

/* PCOLL_OK if all ranks say yes, else PCOLL_EFAILED, on all. */
static int mpi_all_say(const struct mpi_transport *m, bool yes, int wanted)
{
    int bits = yes;
    int rc = mpi_agree_bits(&m->base, &bits);
    if (rc == PCOLL_OK && (bits & wanted) != wanted &&
        (rc = mpi_check_damage(&m->base)) == PCOLL_OK)
        rc = mpi_fail_somebody();
    return rc;
}

int mpi_all_live(const void *comm)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return mpi_all_say(&m, mpi_check_damage(&m.base) == PCOLL_OK, 1 | LIVED);
}

int mpi_all_have(const void *comm, struct watch *watch, int rc)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm, .watch = watch};
    struct reason reason;
    fail_reason(&reason);
    int agreed = mpi_all_say(&m, rc == PCOLL_OK, 1);
    if (rc == PCOLL_OK)
        return agreed;
    return rc == PCOLL_EFAILED ? rc : fail(rc, "%s", reason.text);
}

/* Communicators. */

/* MPIX_Comm_shrink waits with a busy core, and an agreement sleeps: agree first. */
int mpi_copy_whole(struct mpi_transport *m)
{
    int before, now;
    int rc = mpi_all_have(&m->comm, m->watch, PCOLL_OK)
                 ?: mpi_check_in(m, ulfm_shrink(m->comm, &m->made), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK)
        return rc;
    MPI_Comm_size(m->comm, &before);
    MPI_Comm_size(m->made, &now);
    if (now == before)
        return PCOLL_OK;
    MPI_Comm_free(&m->made);
    rc = mpi_check_damage(&m->base);
    return rc ?: mpi_fail_somebody();
}

int pcoll_all_have(const void *comm, int rc)
{
    return fail_if_null(comm) ?: mpi_all_have(comm, NULL, rc);
}

int pcoll_shrink(const void *comm, void *living)
{
    int rc = fail_if_null(comm, living);
    if (rc != PCOLL_OK)
        return rc;
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return mpi_check_in(&m, ulfm_shrink(m.comm, living), "MPIX_Comm_shrink");
}

/* Complete a transport whose rank i in MPI has number m->ranks[i] here. All others have died. */
static int mpi_number_ranks(struct mpi_transport *m, const struct doorbell *own)
{
    int living;
    MPI_Comm_size(m->comm, &living);
    m->base.living = (uint32_t)living;
    bitset_fill(m->failed, m->base.size);
    for (int i = 0; i < living; i++) {
        uint32_t rank = m->ranks[i];
        CHECK(rank < m->base.size && bitset_has(m->failed, rank));
        m->numbers[rank] = i;
        m->failed[rank / 64] &= ~((uint64_t)1 << rank % 64);
    }
    return mpi_settle(m, own, NULL);
}

/* Allocate a transport with the rank, the size and the abilities of `like`. */
static struct mpi_transport *mpi_allocate_transport(const struct transport *like,
                                                    struct watch *watch)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->comm = MPI_COMM_NULL;
    m->block = MPI_DATATYPE_NULL;
    m->watch = watch;
    m->base = (struct transport){.ops = &mpi_ops,
                                 .rank = like->rank,
                                 .size = like->size,
                                 .tags = like->tags,
                                 .threads = like->threads};
    m->survives = pcoll_tells_of_failures();
    m->numbers = calloc(m->base.size, sizeof *m->numbers);
    m->ranks = calloc(m->base.size, sizeof *m->ranks);
    m->failed = calloc(bitset_words(m->base.size), sizeof *m->failed);
    m->base.failed = m->failed;
    if (m->numbers && m->ranks && m->failed)
        return m;
    mpi_free_transport(m);
    return NULL;
}

int mpi_shrink(struct transport *old, const struct doorbell *own,
               struct transport **out)
{
    *out = NULL;
    struct mpi_transport *from = mpi_transport_of(old),
                         *m = mpi_allocate_transport(old, from->watch);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    int rc = mpi_check_in(from, ulfm_shrink(from->comm, &m->comm), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK) {
        mpi_free_transport(m);
        return rc;
    }
    *out = &m->base;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    int living;
    MPI_Comm_size(m->comm, &living);
    for (int i = 0; i < living; i++)
        m->ranks[i] = mpi_rank_of(from, mpi_translate(m->comm, i, from->comm));
    return mpi_number_ranks(m, own);
}

/* PCOLL_EFAILED if members of `before`, with these numbers, are not in `now`. */
static int mpi_fail_missing(MPI_Comm before, MPI_Comm now, const uint32_t *numbers)
{
    struct failed_ranks who = {.mpi_error = MPI_SUCCESS};
    int size;
    MPI_Comm_size(before, &size);
    for (int i = 0; i < size; i++)
        if (mpi_translate(before, i, now) == MPI_UNDEFINED &&
            who.count < (int)(sizeof who.rank / sizeof *who.rank))
            who.rank[who.count++] = (int32_t)numbers[i];
    return who.count ? fail_ranks(&who) : PCOLL_OK;
}

/* A revocation that meets a process which is still in MPIX_Comm_shrink ends that, by Open MPI's
 * doing. So a rank that has left it waits until all ranks have, before it may find something wrong.
 * Recoveries do not do this: when several ranks die shortly after each other, agreements that run
 * into each other are worse. */
static void mpi_await_all(MPI_Comm comm)
{
    const struct mpi_transport m = {.comm = comm};
    int bits = 0;
    bool heard;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    (void)mpi_agree_once(&m, &bits, &heard);
}

/* MPIX_Comm_shrink duplicates a communicator that is whole, and all ranks see the same members. */
int mpi_regroup(const void *members, const uint32_t *numbers, uint32_t ranks,
                const struct doorbell *own, struct watch *watch, struct transport **out)
{
    MPI_Comm comm = *(const MPI_Comm *)members;
    int rank, size;
    *out = NULL;
    MPI_Comm_rank(comm, &rank);
    struct transport like = {.rank = numbers[rank], .size = ranks};
    mpi_describe(comm, &like);
    struct mpi_transport *m = mpi_allocate_transport(&like, watch);
    int rc = m ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a communicator");
    if ((rc = mpi_all_have(members, watch, rc)) == PCOLL_OK)
        rc = mpi_check_on(comm, ulfm_shrink(comm, &m->comm), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK) {
        if (m)
            mpi_free_transport(m);
        return rc;
    }
    *out = &m->base;
    mpi_await_all(m->comm);
    if ((rc = mpi_fail_missing(comm, m->comm, numbers)) != PCOLL_OK)
        return rc;
    MPI_Comm_size(comm, &size);
    memcpy(m->ranks, numbers, (size_t)size * sizeof *numbers);
    return mpi_number_ranks(m, own);
}

int mpi_give_comm(struct transport *t, void *comm)
{
    struct mpi_transport *m = mpi_transport_of(t);
    int rc = mpi_check_in(m, ulfm_shrink(m->comm, &m->made), "MPIX_Comm_shrink");
    if (rc == PCOLL_OK)
        *(MPI_Comm *)comm = m->made;
    return rc;
}

/* Operations under way end with an error once the communicator is revoked. Sends under way are
 * never freed, nor is the memory that they send. */
bool mpi_abandon(struct transport *t)
{
    struct mpi_transport *m = mpi_transport_of(t);
    for (int i = 0; i < m->count; i++) {
        int over = m->requests[i] == MPI_REQUEST_NULL;
        if (m->info[i].held != MPI_REQUEST_NULL)
            return false;
        if (!over && i < CONTROL_RECEIVES && !m->arrived[i])
            MPI_Cancel(&m->requests[i]);
        if (!over)
            mpi_test(&m->requests[i], &over);
        if (!over)
            return false;
    }
    for (int i = 0; i < m->count && i < CONTROL_RECEIVES; i++)
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_free(&m->requests[i]);
    mpi_free_transport(m);
    return true;
}

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
                     int position, uint64_t *words)
{
    uint32_t peer = mpi_rank_of(m, position);
    struct request_info info = {.kind = sends ? TREE_SEND : TREE_RECV,
                                .peer = peer,
                                .cookie = (uint64_t)(uintptr_t)a};
    int rc = mpi_post(m, info, sends, words, a->count, MPI_UINT64_T, TREE_TAG);
    if (rc != PCOLL_OK)
        return rc;
    if (sends)
        mpi_begin_send(m, peer);
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
    return tree_post(m, a, true, a->place.parent, a->up)
               ?: tree_post(m, a, false, a->place.parent, a->down);
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
            rc = mpi_check_hosts(&m->base);
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
        rc = mpi_check_damage(&m->base);
        if (!over)
            mpi_back_off(&us, 1000);
    }
    return rc ?: mpi_check_in(m, mpi_test(request, &over), "MPI_Test");
}

/* Send or receive, and wait. A receive that is not large needs no care. */
static int tree_move(struct mpi_transport *m, bool sends, bool large, int peer,
                     void *data, int count, MPI_Datatype type)
{
    MPI_Request r;
    int error = sends ? mpi_isend(m, data, count, type, peer, TREE_TAG, &r)
                      : MPI_Irecv(data, count, type, peer, TREE_TAG, m->comm, &r);
    if (sends || large)
        return tree_wait_held(m, error, &r);
    return mpi_check_in(m, error, "MPI_Irecv") ?: mpi_patient_wait(m, &r, "MPI_Test");
}

/* After a failure MPI may still write to what it was given: that memory is not freed. */
int tree_meet(struct mpi_transport *m, int to, int from)
{
    uint64_t *word = calloc(2, sizeof *word);
    MPI_Request receive;
    int rc = word ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a word");
    if (rc == PCOLL_OK && from >= 0)
        rc = TRY_IN(m, MPI_Irecv, word, 1, MPI_UINT64_T, from, TREE_TAG, m->comm,
                    &receive);
    if (rc == PCOLL_OK && to >= 0)
        rc = tree_move(m, true, false, to, word + 1, 1, MPI_UINT64_T);
    if (rc == PCOLL_OK && from >= 0)
        rc = mpi_patient_wait(m, &receive, "MPI_Irecv");
    if (rc == PCOLL_OK)
        free(word);
    return rc;
}

/* Give what the rank with this number has to all ranks. */
static int tree_broadcast(struct mpi_transport *m, int root, bool large, void *data,
                          int count, MPI_Datatype type)
{
    int size = (int)m->base.living, rc = PCOLL_OK;
    struct tree_place p =
        tree_place_of((mpi_number_of(m, m->base.rank) - root + size) % size, size);
    if (p.parent >= 0)
        rc = tree_move(m, false, large, (p.parent + root) % size, data, count, type);
    for (int i = 0; i < p.children && rc == PCOLL_OK; i++)
        rc = tree_move(m, true, large, (p.child[i] + root) % size, data, count, type);
    return rc;
}

/* Memory as in tree_meet. */
int tree_max(struct mpi_transport *m, uint64_t *values, int count)
{
    struct tree_agreement *a = tree_create(m, values, count, AGREE_MAX);
    int rc = PCOLL_OK;
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for an agreement");
    for (int i = 0; i < a->place.children && rc == PCOLL_OK; i++) {
        rc = tree_move(m, false, false, a->place.child[i], tree_inbox(a, i), count,
                       MPI_UINT64_T);
        if (rc == PCOLL_OK)
            tree_merge(a->up, tree_inbox(a, i), count, AGREE_MAX);
    }
    if (rc == PCOLL_OK && a->place.parent >= 0)
        rc = tree_move(m, true, false, a->place.parent, a->up, count, MPI_UINT64_T);
    rc = rc ?: tree_broadcast(m, 0, false, a->up, count, MPI_UINT64_T);
    if (rc != PCOLL_OK)
        return rc;
    memcpy(values, a->up, (size_t)count * sizeof *values);
    free(a);
    return PCOLL_OK;
}

int mpi_share(struct transport *t, uint32_t rank, void *data, size_t bytes)
{
    struct mpi_transport *m = mpi_transport_of(t);
    CHECK(bytes % BLOCK == 0 && bytes / BLOCK <= INT_MAX);
    return tree_broadcast(m, mpi_number_of(m, rank), true, data, (int)(bytes / BLOCK),
                          m->block);
}
