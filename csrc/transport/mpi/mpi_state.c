/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept on communicators and on the process, as MPI attributes; which MPI this is. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/lock.h"
#include "transport/mpi/mpi_transport.h"

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

bool mpi_is_proc_null(int rank)
{
    return rank == MPI_PROC_NULL;
}

/* An attribute, freed with the communicator. */
struct state {
    void *value;
    void (*gone)(void *);
};

/* Several threads may make handles at once. A thread that looks for a state in order to make it
 * holds this lock. */
static struct lock states = LOCK_INIT(LOCK_STATES);

void mpi_lock_states(void)
{
    lock_take(&states);
}

void mpi_unlock_states(void)
{
    lock_release(&states);
}

static int comm_keys[] = {MPI_KEYVAL_INVALID, MPI_KEYVAL_INVALID};
static int process_key = MPI_KEYVAL_INVALID;

static int mpi_delete_state(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm;
    (void)key;
    (void)extra;
    struct state *state = value;
    state->gone(state->value);
    free(state);
    return MPI_SUCCESS;
}

static void *mpi_get_state(MPI_Comm comm, int key)
{
    struct state *state;
    int found = 0;
    if (key != MPI_KEYVAL_INVALID)
        MPI_Comm_get_attr(comm, key, &state, &found);
    return found ? state->value : NULL;
}

static int mpi_set_state(MPI_Comm comm, int *key, void *value, void (*gone)(void *))
{
    if (*key == MPI_KEYVAL_INVALID) {
        int rc = mpi_check(
            MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, mpi_delete_state, key, NULL),
            "MPI_Comm_create_keyval");
        if (rc != PCOLL_OK)
            return rc;
    }
    struct state *state = malloc(sizeof *state);
    if (!state)
        return fail(PCOLL_ENOMEM, "no memory for an attribute");
    *state = (struct state){.value = value, .gone = gone};
    return mpi_check(MPI_Comm_set_attr(comm, *key, state), "MPI_Comm_set_attr");
}

void *mpi_comm_state(const void *comm, int which)
{
    return mpi_get_state(*(const MPI_Comm *)comm, comm_keys[which]);
}

int mpi_set_comm_state(const void *comm, int which, void *state, void (*gone)(void *))
{
    return mpi_set_state(*(const MPI_Comm *)comm, &comm_keys[which], state, gone);
}

void mpi_comm_part(const void *comm)
{
    MPI_Comm c = *(const MPI_Comm *)comm;
    for (size_t i = 0; i < sizeof comm_keys / sizeof *comm_keys; i++)
        if (mpi_get_state(c, comm_keys[i]))
            MPI_Comm_delete_attr(c, comm_keys[i]);
}

void *mpi_process_state(void)
{
    return mpi_get_state(MPI_COMM_SELF, process_key);
}

int mpi_set_process_state(void *state, void (*gone)(void *))
{
    return mpi_set_state(MPI_COMM_SELF, &process_key, state, gone);
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
