/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that change and are freed while the ranks are not in step. */
#include "say.h"

static void check_sum(MPI_Comm comm)
{
    int one = 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == size);
}

/* The last rank waits for its request after the others have freed the communicator. */
static void test_freed_with_a_request(void)
{
    MPI_Comm comm;
    MPI_Request request = MPI_REQUEST_NULL;
    int got = 0, go = 1, last = size - 1;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (rank == last)
        MPI_Irecv(&got, 1, MPI_INT, 0, 5, comm, &request);
    if (rank == 0)
        MPI_Send(&go, 1, MPI_INT, last, 5, comm);
    check_sum(comm);
    MPI_Comm_free(&comm);
    CHECK(comm == MPI_COMM_NULL);
    if (rank == 0)
        MPI_Send(&go, 1, MPI_INT, last, 6, MPI_COMM_WORLD);
    if (rank == last) {
        MPI_Recv(&go, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(got == 1);
    }
    SAY("request\n");
}

/* Only one rank sets a key, after all have reduced. */
static void test_told_late(void)
{
    MPI_Comm comm;
    MPI_Info info;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    check_sum(comm);
    MPI_Info_create(&info);
    if (rank == 0)
        MPI_Info_set(info, "partialcoll_quorum", "solo");
    MPI_Comm_set_info(comm, info);
    MPI_Info_free(&info);
    check_sum(comm);
    check_sum(comm);
    MPI_Comm_free(&comm);
    SAY("key\n");
}

static void reduce_once(MPI_Comm comm, int times)
{
    double x = 1, sum = 0;
    while (times--) {
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
        CHECK(sum == size);
    }
}

/* Rank 0 always calls from one place, the others from others. */
static void test_places(void)
{
    MPI_Comm comm;
    double x = 1, sum = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (rank == 0)
        reduce_once(comm, 3);
    else {
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
        CHECK(sum == size);
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
        CHECK(sum == size);
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
        CHECK(sum == size);
    }
    check_sum(comm);
    check_sum(comm);
    MPI_Comm_free(&comm);
    SAY("places\n");
}

#if MPI_VERSION >= 4 || defined(OPEN_MPI)

static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;)
        lines += c == '\n';
    fclose(maps);
    return lines;
}

static void use_persistent_ones(int times)
{
    double x[100] = {1}, sum[100];
    for (int i = 0; i < times; i++) {
        MPI_Comm comm;
        MPI_Request request;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Allreduce_init(x, sum, 100, MPI_DOUBLE, MPI_SUM, comm, MPI_INFO_NULL,
                           &request);
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(sum[0] == size && sum[1] == 0);
        MPI_Request_free(&request);
        MPI_Comm_free(&comm);
    }
}

/* Their resources are freed with their communicators. */
static void test_persistent_ones(void)
{
    use_persistent_ones(5);
    int before = count_mappings();
    use_persistent_ones(60);
    CHECK(count_mappings() <= before + 20);
    SAY("persistent\n");
}

#else

static void test_persistent_ones(void)
{
    SAY("persistent\n");
}

#endif

int main(int argc, char **argv)
{
    int level;
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && rank == 0) /* a file that one node lacks */
        setenv("PARTIALCOLL_TUNE", argv[1], 1);
    test_freed_with_a_request();
    test_told_late();
    test_places();
    test_persistent_ones();
    MPI_Finalize();
    return 0;
}
