/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the transport over MPI: a communicator of its own, the doorbells of the ranks on this
 * machine, the watch of the other hosts, the receives for control messages.
 *
 * Ranks on a lost host count as dead. MPI may not know that, or not yet.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "transport/mpi/mpi_internal.h"

/* Collect `count` numbers of each rank in `all`, zeros of the dead. Collective. */
static int mpi_exchange(struct mpi_transport *m, const uint64_t *mine, int count,
                        uint64_t *all)
{
    MPI_Request request;
    if (m->survives) { /* Take the maximum: all other numbers are zero. */
        memcpy(all + m->base.rank * (size_t)count, mine, (size_t)count * sizeof *all);
        return tree_max(m, all, (int)m->base.size * count);
    }
    return TRY_IN(m, MPI_Iallgather, mine, count, MPI_UINT64_T, all, count,
                  MPI_UINT64_T, m->comm, &request)
               ?: mpi_patient_wait(m, &request, "MPI_Iallgather");
}

/* The members of a communicator on lost hosts, by their numbers there. */
struct mpi_lost {
    MPI_Comm comm;
    uint64_t *numbers;
    struct failed_ranks who;
};

/* Note a rank on a lost host if it is a member. Its group may be that of another communicator. */
static void mpi_note_lost(void *arg, const struct watch_group *g, uint32_t rank)
{
    struct mpi_lost *lost = arg;
    const struct mpi_transport *m = g->owner;
    const struct watch_card *card = &g->cards[rank];
    char address[INET_ADDRSTRLEN] = "";
    int ours = mpi_translate(m->comm, mpi_number_of(m, rank), lost->comm);
    if (ours == MPI_UNDEFINED)
        return;
    bitset_add(lost->numbers, (uint32_t)ours);
    if (lost->who.host[0])
        return;
    inet_ntop(AF_INET, &card->address[0], address, sizeof address);
    snprintf(lost->who.host, sizeof lost->who.host, "%.39s (%s)", card->host, address);
}

int mpi_find_lost(const struct mpi_transport *m, uint64_t **numbers)
{
    int size;
    *numbers = NULL;
    if (!watch_lost(m->watch))
        return PCOLL_OK;
    MPI_Comm_size(m->comm, &size);
    size_t words = bitset_words((uint32_t)size);
    struct mpi_lost lost = {.comm = m->comm,
                            .numbers = calloc(words, sizeof *lost.numbers),
                            .who.mpi_error = ulfm_rank_failure()};
    if (!lost.numbers)
        return fail(PCOLL_ENOMEM, "no memory for %d ranks", size);
    watch_each_lost(m->watch, mpi_note_lost, &lost);
    if (bitset_empty(lost.numbers, words)) {
        free(lost.numbers);
        return PCOLL_OK;
    }
    *numbers = lost.numbers;
    mpi_name_ranks(lost.numbers, (uint32_t)size, &lost.who);
    for (int i = 0; i < lost.who.count; i++)
        lost.who.rank[i] = (int32_t)mpi_rank_of(m, lost.who.rank[i]);
    return fail_ranks(&lost.who);
}

int mpi_check_hosts(const struct transport *t)
{
    uint64_t *numbers;
    int rc = mpi_find_lost(mpi_transport_of(t), &numbers);
    free(numbers);
    return rc;
}

static bool host_watch_is_near(const struct mpi_transport *m, uint32_t rank)
{
    return m->neighborhoods[rank] == m->neighborhoods[m->base.rank];
}

/* Let the ranks of several hosts watch each other's hosts. Collective. */
static int host_watch_begin(struct mpi_transport *m)
{
    enum { WORDS = sizeof(struct watch_card) / sizeof(uint64_t), MOST_MET = 512 };
    uint32_t i = 0, size = m->base.size, living = m->base.living;
    CHECK(m->neighborhoods && !m->group.size);
    while (i < size && (!transport_lives(&m->base, i) || host_watch_is_near(m, i)))
        i++;
    if (!m->watch || i == size)
        return PCOLL_OK;
    m->group = (struct watch_group){
        .rank = m->base.rank, .size = size, .hosts = m->neighborhoods, .owner = m};
    /* Announce the hosts before the exchange: see watch.h. */
    int rc = watch_announce(m->watch, &m->group);
    if (rc != PCOLL_OK)
        return rc;
    struct watch_card own = watch_own_card(m->watch);
    m->cards = calloc(size, sizeof *m->cards);
    rc = m->cards ? mpi_exchange(m, (const uint64_t *)(const void *)&own, WORDS,
                                 (uint64_t *)(void *)m->cards)
                  : fail(PCOLL_ENOMEM, "no memory for %u ranks", size);
    if (rc != PCOLL_OK)
        return rc;
    watch_join(m->watch, &m->group, m->cards);
    /* At the first message to a rank, Open MPI asks the rank's host how to reach it and waits for
     * the answer inside of that call: for ever, if the host has vanished. So each rank exchanges a
     * message with all ranks of other hosts now. In a very large job that would take too long. */
    uint32_t number = (uint32_t)mpi_number_of(m, m->base.rank);
    for (uint32_t k = 1; k < living && living <= MOST_MET && rc == PCOLL_OK; k++) {
        int to = (int)((number + k) % living),
            from = (int)((number + living - k) % living);
        bool sends = !host_watch_is_near(m, mpi_rank_of(m, to));
        bool receives = !host_watch_is_near(m, mpi_rank_of(m, from));
        rc = tree_meet(m, sends ? to : -1, receives ? from : -1);
    }
    return rc;
}

static int mpi_post_control_receives(struct mpi_transport *m)
{
    int rc = mpi_reserve(m, CONTROL_RECEIVES);
    for (int i = 0; i < CONTROL_RECEIVES && rc == PCOLL_OK; i++) {
        m->info[i] =
            (struct request_info){.kind = CONTROL_RECV, .held = MPI_REQUEST_NULL};
        rc = TRY(MPI_Recv_init, &m->inbox[i], sizeof m->inbox[i], MPI_BYTE,
                 MPI_ANY_SOURCE, CONTROL_TAG, m->comm, &m->requests[i])
                 ?: TRY_IN(m, MPI_Start, &m->requests[i]);
        if (rc == PCOLL_OK)
            m->count = i + 1;
    }
    return rc;
}

/* The data that each rank sends to the others when it makes a transport. */
struct card {
    uint64_t neighborhood, pid, fd, cookie;
    uint64_t number; /* Counts the transports that this process has tried to make. */
    uint64_t idle;   /* Number of the idle transport that the rank offers, or 0. */
};

/* Collect the cards of all ranks, which the caller frees. Collective. */
static int mpi_exchange_cards(struct mpi_transport *m, const struct doorbell *own,
                              const struct transport *idle, struct card **all)
{
    static _Atomic uint64_t made;
    struct card mine = {.neighborhood = doorbell_neighborhood(),
                        .pid = (uint64_t)getpid(),
                        .fd = (uint64_t)own->fd,
                        .cookie = own->page->cookie,
                        .number = atomic_fetch_add(&made, 1) + 1,
                        .idle = idle ? idle->number : 0};
    *all = calloc(m->base.size, sizeof **all);
    if (!*all)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    return mpi_exchange(m, (const uint64_t *)&mine, sizeof mine / sizeof(uint64_t),
                        (uint64_t *)*all);
}

/* Return whether all ranks offer the same idle transport. Destroy one that some rank has no more:
 * each rank offers its oldest one. */
static bool mpi_all_offer(const struct card *cards, uint32_t size,
                          struct transport **idle)
{
    uint64_t highest = 0;
    bool same = true;
    for (uint32_t i = 0; i < size; i++) {
        highest = cards[i].idle > highest ? cards[i].idle : highest;
        same = same && cards[i].idle == cards[0].idle;
    }
    if (!same && *idle && (*idle)->number < highest) {
        mpi_ops.destroy(*idle);
        *idle = NULL;
    }
    return same && highest;
}

/* Find which ranks can share memory: those of a neighborhood that reach all ranks of it. Every other
 * rank has a host of its own. */
static int mpi_find_hosts(struct mpi_transport *m, bool reaches_all)
{
    uint32_t size = m->base.size;
    uint64_t mine = reaches_all | (uint64_t)m->base.off_node << 1;
    uint64_t *reach = calloc(size, sizeof *reach);
    int rc = reach ? mpi_exchange(m, &mine, 1, reach)
                   : fail(PCOLL_ENOMEM, "no memory for %u ranks", size);
    for (uint32_t i = 0; i < size && rc == PCOLL_OK; i++) {
        m->hosts[i] = reach[i] & 1 ? m->neighborhoods[i] : i;
        if (reach[i] >> 1) /* All ranks must agree: the domain `auto` depends on it. */
            m->base.off_node = true;
    }
    free(reach);
    return rc;
}

/* Open the doorbells of the ranks on this machine. Collective. */
static int mpi_open_doorbells(struct mpi_transport *m, const struct card *all)
{
    bool reaches_all = true;
    for (uint32_t i = 0; i < m->base.size; i++) {
        m->neighborhoods[i] = all[i].neighborhood;
        m->pids[i] = all[i].pid;
        if (i == m->base.rank || !transport_lives(&m->base, i))
            continue;
        bool near = all[i].neighborhood == all[m->base.rank].neighborhood;
        if (near)
            m->doorbells[i] = doorbell_open(all[i].pid, all[i].fd, all[i].cookie);
        if (!m->doorbells[i])
            m->base.off_node = true;
        reaches_all = reaches_all && (!near || m->doorbells[i]);
    }
    return mpi_find_hosts(m, reaches_all);
}

void mpi_describe(MPI_Comm comm, struct transport *t)
{
    int level, *upper, known = 0;
    MPI_Query_thread(&level);
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &upper, &known);
    t->tags = (uint32_t)(known ? *upper : 32767) - FIRST_DATA_TAG + 1;
    t->threads = level == MPI_THREAD_MULTIPLE;
}

int mpi_settle(struct mpi_transport *m, const struct doorbell *own, struct card *cards)
{
    int rc = cards ? PCOLL_OK : mpi_exchange_cards(m, own, NULL, &cards);
    m->doorbells = calloc(m->base.size, sizeof *m->doorbells);
    m->hosts = calloc(m->base.size, sizeof *m->hosts);
    m->pids = calloc(m->base.size, sizeof *m->pids);
    m->neighborhoods = calloc(m->base.size, sizeof *m->neighborhoods);
    m->base.hosts = m->hosts;
    m->base.pids = m->pids;
    m->base.doorbells = m->doorbells;
    if (rc == PCOLL_OK && (!m->doorbells || !m->hosts || !m->pids || !m->neighborhoods))
        rc = fail(PCOLL_ENOMEM, "no memory for the doorbells");
    if (rc == PCOLL_OK) {
        MPI_Type_contiguous(BLOCK, MPI_BYTE, &m->block);
        rc = TRY(MPI_Type_commit, &m->block)
                 ?: mpi_open_doorbells(m, cards)
                 ?: host_watch_begin(m)
                 ?: mpi_post_control_receives(m);
    }
    free(cards);
    return rc;
}

/* Duplicate m->comm, which is the program's until then, unless all ranks offer the same idle
 * transport (*reuses). *cards: those of all ranks, or NULL. Collective. */
static int mpi_duplicate_comm(struct mpi_transport *m, const struct doorbell *own,
                              struct transport **idle, struct card **cards,
                              bool *reuses)
{
    MPI_Request request;
    MPI_Errhandler handler;
    MPI_Comm theirs = m->comm;
    int rc;
    *reuses = false;
    if (m->survives)
        rc = mpi_copy_whole(m);
    else {
        /* MPI may have no communicator left (MPICH: 2,046): that must not end the program. */
        MPI_Comm_get_errhandler(theirs, &handler);
        MPI_Comm_set_errhandler(theirs, MPI_ERRORS_RETURN);
        rc = mpi_exchange_cards(m, own, *idle, cards);
        *reuses = rc == PCOLL_OK && mpi_all_offer(*cards, m->base.size, idle);
        if (rc == PCOLL_OK && !*reuses)
            rc = TRY_IN(m, MPI_Comm_idup, theirs, &m->made, &request)
                     ?: mpi_patient_wait(m, &request, "MPI_Comm_idup");
        MPI_Comm_set_errhandler(theirs, handler);
        MPI_Errhandler_free(&handler);
    }
    if (rc != PCOLL_OK || *reuses)
        return rc;
    m->comm = m->made;
    m->base.number = *cards ? (*cards)[0].number : 0;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    return PCOLL_OK;
}

int transport_mpi_create(const void *comm, const struct doorbell *own,
                         struct watch *watch, struct transport **idle,
                         struct transport **out)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    struct card *cards = NULL;
    bool reuses;
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    m->block = MPI_DATATYPE_NULL;
    m->watch = watch;
    m->survives = pcoll_tells_of_failures();
    m->comm = *(const MPI_Comm *)comm;
    m->base.ops = &mpi_ops;
    mpi_comm_shape(comm, &m->base.rank, &m->base.size);
    m->base.living = m->base.size;
    mpi_describe(m->comm, &m->base);
    int rc = mpi_duplicate_comm(m, own, idle, &cards, &reuses);
    if (rc != PCOLL_OK || reuses) {
        free(cards);
        free(m);
        *out = *idle;
        return rc;
    }
    rc = mpi_settle(m, own, cards);
    if (rc == PCOLL_EFAILED)
        ulfm_revoke(m->comm); /* Ranks that wait for this one must learn of it. */
    if (rc != PCOLL_OK) {
        mpi_ops.destroy(&m->base);
        return rc;
    }
    *out = &m->base;
    return PCOLL_OK;
}

void mpi_free_transport(struct mpi_transport *m)
{
    if (m->group.size)
        watch_leave(m->watch, &m->group);
    for (uint32_t i = 0; m->doorbells && i < m->base.size; i++)
        if (m->doorbells[i])
            doorbell_close(m->doorbells[i]);
    if (m->block != MPI_DATATYPE_NULL)
        MPI_Type_free(&m->block);
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    free(m->doorbells);
    free(m->hosts);
    free(m->pids);
    free(m->neighborhoods);
    free(m->cards);
    free(m->numbers);
    free(m->ranks);
    free(m->failed);
    free(m->requests);
    free(m->info);
    free(m->done);
    free(m->statuses);
    free(m->events);
    free(m);
}

/* MPI attributes of communicators and of the process; the name and version of the MPI. */

bool mpi_is_running(void)
{
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Finalized(&finalized);
    return initialized && !finalized;
}

int mpi_check_comm(const void *comm)
{
    int initialized = 0, inter = 0;
    MPI_Initialized(&initialized);
    if (!mpi_is_running())
        return fail(PCOLL_ESTATE, "MPI is %s",
                    initialized ? "finalized" : "not initialized");
    if (!comm)
        return fail_null("comm", 0);
    MPI_Comm c = *(const MPI_Comm *)comm;
    if (c == MPI_COMM_NULL)
        return fail(PCOLL_EINVAL, "comm: expected a communicator, got MPI.COMM_NULL");
    MPI_Comm_test_inter(c, &inter);
    if (inter)
        return fail(PCOLL_EINVAL,
                    "comm: expected an intra-communicator, got an inter-communicator");
    return PCOLL_OK;
}

void mpi_world(uint32_t *rank, uint32_t *size)
{
    MPI_Comm world = MPI_COMM_WORLD;
    mpi_comm_shape(&world, rank, size);
}

void mpi_comm_shape(const void *comm, uint32_t *rank, uint32_t *size)
{
    int r = 0, s = 0;
    MPI_Comm_rank(*(const MPI_Comm *)comm, &r);
    MPI_Comm_size(*(const MPI_Comm *)comm, &s);
    *rank = (uint32_t)r;
    *size = (uint32_t)s;
}

bool mpi_has_ranks_of(const struct transport *t, const void *comm)
{
    int result;
    MPI_Comm_compare(mpi_transport_of(t)->comm, *(const MPI_Comm *)comm, &result);
    return result == MPI_CONGRUENT;
}

bool mpi_is_proc_null(int rank)
{
    return rank == MPI_PROC_NULL;
}

/* Several threads may make handles at once. A thread that looks for a state in order to make it
 * holds this lock. */
struct lock mpi_states = LOCK_INIT(LOCK_STATES);

/* MPI's attributes: each key is made once, under the lock. */
static struct mpi_attribute {
    _Atomic int key;
    void (*gone)(void *state);
} mpi_attributes[MPI_STATES] = {[0 ... MPI_STATES - 1] = {.key = MPI_KEYVAL_INVALID}};

static int mpi_delete_state(MPI_Comm comm, int key, void *state, void *attribute)
{
    (void)comm, (void)key;
    ((const struct mpi_attribute *)attribute)->gone(state);
    return MPI_SUCCESS;
}

static MPI_Comm mpi_holder_of(const void *comm)
{
    return comm ? *(const MPI_Comm *)comm : MPI_COMM_SELF;
}

void *mpi_state(const void *comm, int which)
{
    void *state = NULL;
    int found, key = atomic_load(&mpi_attributes[which].key);
    if (key != MPI_KEYVAL_INVALID)
        MPI_Comm_get_attr(mpi_holder_of(comm), key, &state, &found);
    return state;
}

int mpi_set_state(const void *comm, int which, void *state, void (*gone)(void *))
{
    struct mpi_attribute *attribute = &mpi_attributes[which];
    int rc = PCOLL_OK, key = atomic_load(&attribute->key);
    attribute->gone = gone;
    if (key == MPI_KEYVAL_INVALID)
        rc = TRY(MPI_Comm_create_keyval, MPI_COMM_NULL_COPY_FN, mpi_delete_state, &key,
                 attribute);
    if (rc != PCOLL_OK)
        return rc;
    atomic_store(&attribute->key, key);
    return TRY(MPI_Comm_set_attr, mpi_holder_of(comm), key, state);
}

void mpi_comm_part(const void *comm)
{
    for (int i = MPI_STATE_OF_PROCESS; i-- > 0;)
        if (mpi_state(comm, i))
            MPI_Comm_delete_attr(*(const MPI_Comm *)comm, mpi_attributes[i].key);
}

#if defined(MPI_ABI_VERSION)
static const char built_with[] = "mpiabi";
#elif defined(OPEN_MPI)
static const char built_with[] = "openmpi";
#else
static const char built_with[] = "mpich";
#endif

int pcoll_version(void)
{
    return PCOLL_VERSION;
}

const char *pcoll_built_with(void)
{
    return built_with;
}

uint64_t pcoll_sizeof_comm(void)
{
    return sizeof(MPI_Comm);
}

int pcoll_library_version(char *text, int capacity)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    int rc = fail_if_null(text);
    if (rc != PCOLL_OK)
        return rc;
    rc = MPI_Get_library_version(version, &length);
    snprintf(text, (size_t)capacity, "%s", version);
    return rc == MPI_SUCCESS ? PCOLL_OK : fail(PCOLL_EMPI, "MPI_Get_library_version");
}
