/* SPDX-License-Identifier: Apache-2.0 */
/* Persistent allreduces among other requests, completed in every possible way. */
#include "say.h"

#if MPI_VERSION >= 4 || defined(OPEN_MPI)

enum { N = 3, ROUNDS = 5 };

static double in[N][100], out[N][100];
static MPI_Request requests[N];

static void fill(int round)
{
    for (int k = 0; k < N; k++)
        for (int i = 0; i < 100; i++) {
            in[k][i] = rank + k * 10 + round;
            out[k][i] = -1;
        }
}

static void check(int k, int round)
{
    double expected = size * (size - 1) / 2.0 + size * (k * 10.0 + round);
    for (int i = 0; i < 100; i++)
        CHECK(out[k][i] == expected);
}

static void wait_each(void)
{
    for (int k = 0; k < N; k++)
        MPI_Wait(&requests[(k + rank) % N], MPI_STATUS_IGNORE);
}

static void wait_all(void)
{
    MPI_Waitall(N, requests, MPI_STATUSES_IGNORE);
}

static void wait_any(void)
{
    int at;
    for (int k = 0; k < N; k++) {
        MPI_Waitany(N, requests, &at, MPI_STATUS_IGNORE);
        CHECK(at >= 0 && at < N);
    }
    MPI_Waitany(N, requests, &at, MPI_STATUS_IGNORE);
    CHECK(at == MPI_UNDEFINED); /* none is active any more */
}

static void wait_some(void)
{
    int done = 0, n, at[N];
    while (done < N) {
        MPI_Waitsome(N, requests, &n, at, MPI_STATUSES_IGNORE);
        done += n;
    }
}

static void test_each(void)
{
    for (int k = 0; k < N; k++)
        for (int flag = 0; !flag;)
            MPI_Test(&requests[k], &flag, MPI_STATUS_IGNORE);
}

static void test_all(void)
{
    for (int flag = 0; !flag;)
        MPI_Testall(N, requests, &flag, MPI_STATUSES_IGNORE);
}

static void test_any(void)
{
    for (int done = 0; done < N;) {
        int at, flag;
        MPI_Testany(N, requests, &at, &flag, MPI_STATUS_IGNORE);
        done += flag && at != MPI_UNDEFINED;
    }
}

static void test_some(void)
{
    for (int done = 0; done < N;) {
        int n, at[N];
        MPI_Testsome(N, requests, &n, at, MPI_STATUSES_IGNORE);
        done += n;
    }
}

static void look_first(void)
{
    for (int k = 0; k < N; k++)
        for (int flag = 0; !flag;)
            MPI_Request_get_status(requests[k], &flag, MPI_STATUS_IGNORE);
    wait_all();
}

static void rounds(const char *name, void (*wait)(void), int all)
{
    for (int round = 0; round < ROUNDS; round++) {
        fill(round);
        if (all)
            MPI_Startall(N, requests);
        else
            for (int k = 0; k < N; k++)
                MPI_Start(&requests[k]);
        wait();
        for (int k = 0; k < N; k++)
            check(k, round);
    }
    SAY("%s\n", name);
}

/* A round advances while its rank is elsewhere in MPI: rank 0 receives messages that
 * the others send only after their rounds are complete. */
static void while_receiving(void)
{
    int token = 0;
    fill(0);
    MPI_Startall(N, requests);
    if (rank == 0)
        for (int i = 1; i < size; i++)
            MPI_Recv(&token, 1, MPI_INT, i, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    wait_all();
    if (rank)
        MPI_Send(&token, 1, MPI_INT, 0, 5, MPI_COMM_WORLD);
    SAY("while_receiving\n");
}

/* In one array with the program's messages. */
static void mixed(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int got = -1;
        MPI_Request all[N + 2];
        fill(round);
        MPI_Startall(N, requests);
        memcpy(all, requests, sizeof requests);
        MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD,
                  &all[N]);
        MPI_Isend(&rank, 1, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &all[N + 1]);
        MPI_Waitall(N + 2, all, MPI_STATUSES_IGNORE);
        CHECK(all[N] == MPI_REQUEST_NULL && all[0] == requests[0]);
        CHECK(got == (rank + size - 1) % size);
        check(0, round);
    }
    SAY("mixed\n");
}

static void make(MPI_Comm comm)
{
    for (int k = 0; k < N; k++)
        MPI_Allreduce_init(in[k], out[k], 100, MPI_DOUBLE, MPI_SUM, comm, MPI_INFO_NULL,
                           &requests[k]);
}

static void drop(void)
{
    for (int k = 0; k < N; k++) {
        MPI_Request_free(&requests[k]);
        CHECK(requests[k] == MPI_REQUEST_NULL);
    }
}

int main(int argc, char **argv)
{
    int level;
    MPI_Comm dup;
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    make(MPI_COMM_WORLD);
    wait_all(); /* inactive requests complete at once */
    rounds("wait", wait_each, 0);
    rounds("waitall", wait_all, 1);
    rounds("waitany", wait_any, 1);
    rounds("waitsome", wait_some, 0);
    rounds("test", test_each, 0);
    rounds("testall", test_all, 1);
    rounds("testany", test_any, 0);
    rounds("testsome", test_some, 1);
    rounds("get_status", look_first, 1);
    while_receiving();
    mixed();
    drop();
    for (int i = 0; i < 40; i++) { /* more than the available places */
        make(MPI_COMM_WORLD);
        fill(i);
        MPI_Startall(N, requests);
        wait_all();
        check(1, i);
        drop();
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    make(dup);
    rounds("dup", wait_all, 1);
    if (argc > 1) { /* legal, but Open MPI 5.0 crashes: not compared */
        MPI_Comm_free(&dup);
        rounds("after_free", wait_all, 1);
    }
    drop();
    MPI_Finalize();
    return 0;
}

#else

int main(void)
{
    return 0;
}

#endif
